"""Strategies for cases: seeded bulk values plus drawn overrides, at shapes and in regimes where kernels break."""

from dataclasses import asdict, dataclass, replace

import numpy as np
from hypothesis import strategies as st

from oracle import Case
from oracle.formats import FORMATS, round_to

DECAYS = ("mixed", "typical", "fast", "slow", "slowest", "wide")
"""Regimes of a_param. slow: 1 - a from 1e-3 to 1e-7; slowest: where the slope bound acts; typical: recurrentgemma's."""
GATES = ("normal", "spread", "wide", "saturated", "closed")
RESETS = ("absent", "none", "first", "sparse", "dense", "border", "all")
"""Patterns of segment_pos: not given, never 0, at the first token, by density, at borders of tiles, everywhere."""
STATES = ("absent", "zeros", "normal", "large")
COTANGENTS = ("both", "y", "h_last", "absent")
SPECIAL = {
    "x": (0.0, -0.0, 1.0, -1.0, 1e-3, 1e3, 2.0**-13, 2.0**-133),
    "gate_x": (0.0, 20.0, -20.0, 50.0, -50.0, 100.0, -100.0),
    "gate_a": (0.0, 20.0, -20.0, 50.0, -50.0, 100.0, -100.0),
    "a_param": (0.0, -8.0, -12.0, -16.0, -20.0, 5.0, 10.5, 12.0, 30.0, 90.0, 100.0, -100.0),
    "dy": (0.0, 1.0, -1.0, 1e3),
    "segment_pos": (0, 1, 7),
}
"""Values an override may put into one element."""


@dataclass(frozen=True)
class Scope:
    """What may be drawn for a subject on a device: its promises and how large a case is affordable."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    resets: bool = True
    h0: bool = True
    h_last: bool = True
    width_multiple: int = 1
    min_length: int = 0
    split: int | None = None
    tiles: tuple[int, ...] = (8, 16, 64)
    max_rows: int = 9
    max_steps: int = 140
    max_width: int = 65
    max_long: int = 260
    program: tuple[int, int] = (1, 1)
    max_programs: int = 2500

    def programs(self, rows: int, steps: int, width: int) -> int:
        """What a case costs: programs of so many steps and channels; of one by one, its elements."""
        long, wide = self.program
        return rows * -(-steps // long) * -(-width // wide)

    def longest(self, rows: int, programs: int | None = None, long: bool = True) -> int:
        """Steps that so many rows, of one tile each, may have within `programs`, or the most that can be afforded."""
        affordable = (self.max_programs if programs is None else programs) // rows * self.program[0]
        return max(self.min_length, min(self.max_long if long else self.max_steps, affordable))


@dataclass(frozen=True)
class Recipe:
    """A case in a few words: regimes, a seed for the bulk, and single elements that were drawn."""

    dtype: str = "float32"
    rows: int = 1
    steps: int = 1
    width: int = 1
    decay: str = "mixed"
    gates: str = "normal"
    resets: str = "absent"
    state: str = "absent"
    cotangents: str = "both"
    tile: int = 8
    scale: int = 0  # x is of the order 2**scale
    seed: int = 0
    positions: str = "int64"
    overrides: tuple[tuple[str, int, float], ...] = ()

    def build(self) -> Case:
        """The case: the same for the same recipe on every platform (Philox streams)."""
        rng = np.random.Generator(np.random.Philox(self.seed))
        shape, state = (self.rows, self.steps, self.width), (self.rows, self.width)
        normal = rng.standard_normal
        arrays = {
            "x": normal(shape) * 2.0**self.scale,
            "gate_x": _gates(self.gates, rng, shape),
            "gate_a": _gates(self.gates, rng, shape),
            "a_param": _a_param(self.decay, rng, self.width),
            "dy": normal(shape),
            "h0": normal(state) * (2.0 ** (self.scale + 10) if self.state == "large" else 2.0**self.scale),
            "dh_last": normal(state),
            "segment_pos": _positions(self.resets, rng, shape[:2], self.tile),
        }
        if self.state in ("absent", "zeros"):
            arrays["h0"] = None if self.state == "absent" else np.zeros(state)
        if self.cotangents in ("h_last", "absent"):
            arrays["dy"] = None
        if self.cotangents in ("y", "absent"):
            arrays["dh_last"] = None
        for name, position, value in self.overrides:
            array = arrays[name]
            if array is not None and array.size:
                array.reshape(-1)[position % array.size] = value
        for name, array in arrays.items():
            if array is not None and name != "segment_pos":
                fmt = FORMATS[self.dtype if name in ("x", "gate_x", "gate_a", "dy") else "float32"]
                arrays[name] = round_to(array, fmt)
        if arrays["segment_pos"] is not None:
            arrays["segment_pos"] = arrays["segment_pos"].astype(self.positions)
        return Case(**arrays, dtype=self.dtype)

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict) -> "Recipe":
        overrides = tuple((name, position, value) for name, position, value in fields["overrides"])
        return Recipe(**{**fields, "overrides": overrides})


def smallest(scope: Scope, dtype: str, steps: int | None = None) -> Recipe:
    """One row of the least width, `steps` long (at least the shortest legal), with a state where there may be one."""
    length = max(scope.min_length, 1 if steps is None else steps)
    state = "normal" if scope.h0 else "absent"
    # a decay near 1, so that the state shows in everything that follows
    cotangents = "both" if scope.h_last else "y"
    return Recipe(
        dtype=dtype, steps=length, width=scope.width_multiple, state=state, decay="typical", cotangents=cotangents
    )


@st.composite
def recipes(
    draw,
    scope: Scope,
    *,
    decays=DECAYS,
    gates=GATES,
    resets=RESETS,
    states=STATES,
    cotangents=("absent",),
    scales=(0, -8, 8),
    min_steps=None,
    min_rows=1,
    min_width=1,
    long=False,
    overrides=True,
):
    """Recipes within `scope`; each keyword narrows one choice, the simplest value first."""
    if not scope.resets:
        resets = ("absent",)
    if not scope.h0:
        states = ("absent",)
    if not scope.h_last:
        cotangents = tuple(dict.fromkeys("absent" if which == "absent" else "y" for which in cotangents))
    tile = draw(st.sampled_from(scope.tiles))
    least = max(scope.min_length, 1) if min_steps is None else max(scope.min_length, min_steps)
    programs = scope.max_programs
    if scope.program != (1, 1) and not long:
        programs = draw(_programs(min_rows, programs))
    rows = draw(_counts(min_rows, min(scope.max_rows, programs)))
    steps = draw(_steps(least, scope.longest(rows, programs, long), tile, long))
    widest = programs // max(scope.programs(rows, steps, 1), 1) * scope.program[1]
    most = min(scope.max_width, widest) // scope.width_multiple
    recipe = Recipe(
        dtype=draw(st.sampled_from(scope.dtypes)),
        rows=rows,
        steps=steps,
        width=draw(_counts(min_width, most)) * scope.width_multiple,
        decay=draw(st.sampled_from(decays)),
        gates=draw(st.sampled_from(gates)),
        resets=draw(st.sampled_from(resets)),
        state=draw(st.sampled_from(states)),
        cotangents=draw(st.sampled_from(cotangents)),
        tile=tile,
        scale=draw(st.sampled_from(scales)),
        seed=draw(st.integers(0, 2**32 - 1)),
        positions=draw(st.sampled_from(("int64", "int32"))),
    )
    if overrides:
        names = [name for name in SPECIAL if name != "segment_pos" or scope.resets]
        recipe = replace(recipe, overrides=tuple(draw(st.lists(_override(names), max_size=3))))
    return recipe


def _override(names):
    return st.sampled_from(names).flatmap(
        lambda name: st.tuples(st.just(name), st.integers(0, 2**16), st.sampled_from(SPECIAL[name]))
    )


def _programs(least: int, most: int):
    """How many programs a case may take, in ascending order; 1 / n as often n, so that a few take many."""
    return st.sampled_from([n for n in range(least, most + 1) for _ in range(most // n)])


def _counts(least: int, most: int):
    """Numbers of rows or channels in ascending order: small ones, and around powers of two as far as there is room."""
    around = {n for power in range(3, 9) for n in (2**power - 1, 2**power, 2**power + 1)}
    small = [n for n in range(least, max(most, least) + 1) if n <= least + 4]
    return st.sampled_from(sorted([*small, *small, *(n for n in {*range(1, 10), *around} if least <= n <= most)]))


def _steps(least: int, most: int, tile: int, long: bool):
    """Lengths in ascending order, so that they shrink; the small ones and those at borders of the tile most often."""
    most = max(most, least)
    borders = [n for n in range(least, most + 1) if n % tile in (0, 1, tile - 1) and n > 1]
    if long:
        return st.sampled_from([n for n in borders if n > most // 2] or [most])
    every = range(least, most + 1)
    small = [n for n in every if n <= least + 4]
    often = small * (len(every) // (2 * len(small))) + borders * (2 * len(every) // max(len(borders), 1))
    return st.sampled_from(sorted([*every, *often]))


def _gates(regime: str, rng, shape):
    if regime == "normal":
        return rng.standard_normal(shape)
    if regime == "spread":
        return 4 * rng.standard_normal(shape) + rng.integers(-6, 7)
    if regime == "wide":
        return rng.uniform(-30, 30, shape)
    if regime == "closed":
        return rng.standard_normal(shape) - rng.uniform(0, 30)
    return rng.choice([-100.0, -30.0, 30.0, 100.0], shape)


def _a_param(regime: str, rng, width: int):
    if regime == "typical":  # recurrentgemma's initialization: a at r = 1 uniform in area between 0.9 and 0.999
        radius_squared = rng.uniform(0.9**2, 0.999**2, width)
        return np.log(np.expm1(-0.5 * np.log(radius_squared) / 8))
    if regime == "mixed":
        return 3 * rng.standard_normal(width)
    if regime == "long":  # a in 0.9 .. 0.9999 at r = 1/2
        return np.log(np.expm1(-2 * np.log1p(-(10 ** rng.uniform(-4, -1, width))) / 8))
    low, high = {"fast": (-2, 14), "slow": (-16, -7), "slowest": (-22, -15), "wide": (-40, 40), "extreme": (-100, 100)}[
        regime
    ]
    return rng.uniform(low, high, width)


def _positions(regime: str, rng, shape, tile: int):
    if regime == "absent":
        return None
    rows, steps = shape
    density = {"sparse": 0.1, "dense": 0.5, "all": 1.0}.get(regime, 0.0)
    reset = rng.random(shape) < density
    if regime == "first":
        reset[:, :1] = True
    if regime == "border":
        offset = rng.integers(-1, 2, (rows, 1))
        reset = (np.arange(steps) + offset) % tile == 0
    positions = np.zeros(shape, np.int64)
    count = np.full(rows, 5)
    for t in range(steps):
        count = np.where(reset[:, t], 0, count + 1)
        positions[:, t] = count
    return positions
