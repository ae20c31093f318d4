"""One trip of a case through a subject: tensors laid out in guarded memory, the call, autograd, and the result back."""

import contextlib
import itertools
import signal
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from kernels.subjects.raised import raised
from kernels.subjects.subject import Subject
from oracle import GRADIENTS, Case, Result
from oracle.case import AXES

TIME_LIMIT = 60.0
"""Seconds a subject may take for one call and its gradients."""
GUARD = 64
"""Elements of guard band before and after every input."""
INPUTS = ("x", "gate_x", "gate_a", "a_param", "h0")
"""The differentiable inputs, in the order of the gradients dx, dgate_x, dgate_a, da_param, dh0."""
LAYOUTS: tuple[str, ...] = ("dense", "offset", "time first", "channels first", "sliced", "strided", "expanded")
LAYOUTS += ("expanded in T", "expanded in D", "one element", "in x")
"""How an array may lie in memory. Expanded ones repeat along their first axis, T, D or every axis with stride 0, and
must be equal along it; what lies "in x" shares the memory of x and must equal it ("dense" where no shape of x)."""
MODES = ("no_grad", "inference_mode")
"""Modes of autograd in which nothing is differentiated."""


class Misbehaviour(AssertionError):
    """A subject broke a rule that needs no oracle: wrong shape or dtype, a written input, an exception, no answer."""


class NoAnswer(BaseException):
    """A call ran into the time limit. No Exception, so that nobody tries the same again in search of a smaller case."""


@dataclass(frozen=True)
class Call:
    """How a subject is called: nothing of it changes what is right.

    Parameters
    ----------
    device : str
        Device of the tensors.
    layouts : tuple of (name, layout)
        Layout in memory of arrays of the case; "dense" where not named.
    requires_grad : tuple of str
        Differentiable inputs whose gradient is asked for.
    cuts : tuple of int
        Steps at which the sequence is cut into calls, h_last of one handed on as h0 of the next.
    guarded : bool
        Fill new memory with NaN, and check that inputs and the bands around them stay as they are and that outputs
        alias nothing.
    interleaved : bool
        Make another call with the same shapes between forward and backward, run the backward twice, and take the second
        gradients: what a call saved must be its own, and stay.
    reused : bool
        Make an earlier call while the same tensors hold other values, and write those of the case over them: nothing of
        them may show, and what the earlier call and its backward gave must stay.
    overwritten : str, optional
        An input, "segment_pos", "y" or "h_last" that is written to between forward and backward: the backward may
        raise, and there are no gradients then, or it must not matter.
    mode : str, optional
        One of `MODES`, in which the call is made; there are no gradients.
    limit : float, optional
        Seconds for the call and its gradients, instead of `TIME_LIMIT`.
    """

    device: str = "cpu"
    layouts: tuple[tuple[str, str], ...] = ()
    requires_grad: tuple[str, ...] = INPUTS
    cuts: tuple[int, ...] = ()
    guarded: bool = False
    interleaved: bool = False
    reused: bool = False
    overwritten: str | None = None
    mode: str | None = None
    limit: float | None = None


def run(subject: Subject, case: Case, call: Call = Call()) -> Result:
    """What `subject` makes of `case`: outputs, and gradients where the case has a cotangent.

    A gradient that autograd reports as absent counts as zero. Memory that the subject leaves unwritten shows as NaN.

    Raises
    ------
    Misbehaviour
        With what is wrong, and the subject's own exception where there is one, with the lines it came from.
    NoAnswer
        After `call.limit` or `TIME_LIMIT` seconds.
    """
    differentiates = _differentiates(subject, case)
    memory = {name: _Memory(name, getattr(case, name), case, call) for name in _present(case)}
    for name, layout in call.layouts:
        if layout == "in x" and name in memory and AXES[name] == AXES["x"]:
            x = memory["x"].tensor
            memory[name].tensor = x.detach() if differentiates else x  # a leaf of its own, or the very same object
    leaves = {name: memory[name].tensor for name in INPUTS if name in memory}
    wanted = [name for name in leaves if name in call.requires_grad] if differentiates else []
    for name in wanted:
        leaves[name].requires_grad_()
    positions = memory["segment_pos"].tensor if "segment_pos" in memory else None
    limit = TIME_LIMIT if call.limit is None else call.limit
    with (
        warnings.catch_warnings(),
        time_limit(limit, NoAnswer(f"{subject.name} gave no answer within {limit:.0f} s")),
        _nan_in_new_memory() if call.guarded else contextlib.nullcontext(),
    ):
        warnings.simplefilter("default")  # a subject's warnings are shown, not turned into failures
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
        earlier = _earlier(subject, case, leaves, positions, call, wanted, memory) if call.reused else {}
        with getattr(torch, call.mode)() if call.mode else contextlib.nullcontext():
            y, h_last = _forward(subject, case, leaves, positions, call.cuts)
        _check_outputs(y, h_last, leaves["x"])
        if call.mode:
            wanted = []
        if call.interleaved:
            others = {name: (-leaf.detach()).requires_grad_() for name, leaf in leaves.items()}
            alive = _forward(subject, case, others, positions, call.cuts)  # noqa: F841
            first = _gradients(case, y, h_last, leaves, wanted, memory, keep_graph=True)
        outputs = {"y": y, "h_last": h_last}
        if call.overwritten:
            arrays = {name: None if tensor is None else tensor.detach().clone() for name, tensor in outputs.items()}
            try:
                _overwrite({**leaves, **outputs, "segment_pos": positions}.get(call.overwritten))
                gradients = _gradients(case, y, h_last, leaves, wanted, memory)
            except (RuntimeError, Misbehaviour) as error:
                if not isinstance(error.__cause__ or error, RuntimeError):
                    raise
                gradients = {}
            outputs = arrays
        else:
            gradients = _gradients(case, y, h_last, leaves, wanted, memory)
    if call.interleaved:
        for name, value in first.items():
            if value is not None and not np.array_equal(_numpy(value), _numpy(gradients[name]), equal_nan=True):
                raise Misbehaviour(f"{name} of a backward that is run twice is not the same bit for bit")
    for name, (tensor, before) in earlier.items():
        if not np.array_equal(_numpy(tensor), before, equal_nan=True):
            raise Misbehaviour(f"{name} of an earlier call changed: what a call gives must be the caller's own")
    if call.guarded:
        _check_aliases(y, h_last, memory)
        for guarded in memory.values():
            guarded.check()
    return Result(**{name: _numpy(v) for name, v in {**outputs, **gradients}.items() if v is not None})


def _earlier(subject, case, leaves, positions, call, wanted, memory):
    """What a call and its backward give while the tensors hold other values: tensors, and what is in them now."""
    with torch.no_grad():
        for leaf in leaves.values():
            leaf.neg_()
        if positions is not None:
            positions.copy_(positions == 0)
    y, h_last = _forward(subject, case, leaves, positions, call.cuts)
    found = {"y": y, "h_last": h_last, **_gradients(case, y, h_last, leaves, wanted, memory)}
    with torch.no_grad():
        for name in (*leaves, *(() if positions is None else ("segment_pos",))):
            memory[name].buffer.copy_(memory[name].before)
    return {name: (tensor, _numpy(tensor)) for name, tensor in found.items() if tensor is not None}


def _overwrite(tensor: torch.Tensor | None):
    """Other positions, or NaN."""
    if tensor is not None:
        with torch.no_grad():
            tensor.copy_(tensor == 0 if not tensor.is_floating_point() else torch.full_like(tensor, torch.nan))


def _differentiates(subject: Subject, case: Case) -> bool:
    return subject.backward and case.has_cotangents


def _present(case: Case):
    names = (*INPUTS, "segment_pos", "dy", "dh_last")
    return [name for name in names if getattr(case, name) is not None]


def _forward(subject: Subject, case: Case, leaves, positions, cuts):
    steps = case.shape[1]
    bounds = [0, *cuts, steps]
    pieces, state = [], leaves.get("h0")
    try:
        for start, stop in itertools.pairwise(bounds):
            whole = start == 0 and stop == steps
            part = [leaves[name] if whole else leaves[name][:, start:stop] for name in ("x", "gate_x", "gate_a")]
            segment_pos = positions if positions is None or whole else positions[:, start:stop]
            outputs = subject.function(*part, leaves["a_param"], segment_pos=segment_pos, h0=state)
            y, state = pair(outputs, h_last=subject.h_last)
            pieces.append(y)
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)), state if subject.h_last else None
    except (Misbehaviour, NoAnswer, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit and pytest.skip are no answers either
        raise Misbehaviour(f"the subject raised {raised(error)}") from error


def pair(outputs, *, h_last: bool):
    """(y, h_last) as a subject returned them; None may stand for h_last where that is not promised."""
    pairs = isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[0], torch.Tensor)
    if not (pairs and (isinstance(outputs[1], torch.Tensor) or (outputs[1] is None and not h_last))):
        raise Misbehaviour(f"the subject must return two tensors, (y, h_last); got {type(outputs).__name__}")
    return outputs


def _check_outputs(y, h_last, x):
    expected = {"y": (y, x.shape, x.dtype), "h_last": (h_last, (x.shape[0], x.shape[2]), torch.float32)}
    for name, (output, shape, dtype) in expected.items():
        if output is None:
            continue
        if output.layout is not torch.strided:
            raise Misbehaviour(f"{name} must be a dense (strided) tensor; got layout {output.layout}")
        if output.shape != shape or output.dtype != dtype or output.device != x.device:
            raise Misbehaviour(
                f"{name} must be {dtype} {list(shape)} on {x.device}; "
                f"got {output.dtype} {list(output.shape)} on {output.device}"
            )


def _check_aliases(y, h_last, memory):
    owners = {guarded.buffer.untyped_storage().data_ptr(): name for name, guarded in memory.items()}
    for name, output in (("y", y), ("h_last", h_last)):
        if output is not None and output.numel():
            other = owners.setdefault(output.untyped_storage().data_ptr(), name)
            if other != name:
                raise Misbehaviour(f"{name} shares memory with {other}: outputs must alias nothing")


def _gradients(case: Case, y, h_last, leaves, wanted, memory, keep_graph=False):
    if not wanted:
        return {}
    pairs = [
        (output, memory[name].tensor)
        for output, name in ((y, "dy"), (h_last, "dh_last"))
        if name in memory and output is not None and output.requires_grad
    ]
    inputs = [leaves[name] for name in wanted]
    found: tuple = (None,) * len(inputs)
    if pairs:
        outputs, cotangents = zip(*pairs, strict=True)
        try:
            found = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, retain_graph=keep_graph)
        except (Misbehaviour, NoAnswer, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise Misbehaviour(f"the subject's backward raised {raised(error)}") from error
    gradients = {}
    for name, leaf, gradient in zip(wanted, inputs, found, strict=True):
        gradients[GRADIENTS[INPUTS.index(name)]] = torch.zeros_like(leaf) if gradient is None else gradient
    return gradients


class _Memory:
    """A tensor of the case inside a larger buffer whose every other element must stay as it is."""

    def __init__(self, name: str, array: np.ndarray, case: Case, call: Call):
        self.name = name
        layout = dict(call.layouts).get(name, "dense")
        integer = array.dtype.kind == "i"
        in_case_dtype = name in ("x", "gate_x", "gate_a", "dy")
        dtype = {np.dtype("int32"): torch.int32, np.dtype("int64"): torch.int64}.get(
            array.dtype, getattr(torch, case.dtype) if in_case_dtype else torch.float32
        )
        values = torch.from_numpy(array.copy()).to(dtype)
        part = _kept_part(name, layout)
        values = values[part]
        size, strides, offset = _place(layout, tuple(values.shape))
        # a reset, or NaN, in every element that is not the tensor's: reading one shows
        buffer = torch.full((size,), 0 if integer else float("nan"), dtype=dtype)
        torch.as_strided(buffer, values.shape, strides, offset).copy_(values)
        strides = [0 if one == slice(1) else stride for one, stride in zip(part, strides, strict=True)]
        self.buffer = buffer.to(call.device)
        self.before = self.buffer.clone()
        self.tensor = torch.as_strided(self.buffer, array.shape, strides, offset)

    def check(self):
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[self.buffer.element_size()]
        changed = (self.buffer.detach().view(bits) != self.before.view(bits)).nonzero()
        if len(changed):
            raise Misbehaviour(f"{self.name} was written to: element {int(changed[0])} of its guarded buffer changed")


def as_laid_out(case: Case, layouts) -> Case:
    """The case with the elements repeated that an expanded layout repeats, and those of x in what shares its memory."""
    changed = {}
    for name, layout in layouts:
        array = getattr(case, name)
        if array.size:
            changed[name] = np.broadcast_to(array[_kept_part(name, layout)], array.shape)
    shared = [name for name, layout in layouts if layout == "in x" and AXES[name] == AXES["x"]]
    return case.replace(**changed).replace(**dict.fromkeys(shared, changed.get("x", case.x)))


def _kept_part(name: str, layout: str) -> tuple[slice, ...]:
    """Index of what memory holds of an array: one element along each axis that `layout` repeats."""
    axes = AXES[name]
    repeated = {"expanded": axes[0], "expanded in T": "T", "expanded in D": "D", "one element": axes}.get(layout, "")
    return tuple(slice(1) if letter in repeated else slice(None) for letter in axes)


def _place(layout: str, shape: tuple[int, ...]) -> tuple[int, list[int], int]:
    """Elements of the buffer, strides and offset of a tensor of `shape` in `layout`."""
    order = list(range(len(shape)))
    if layout == "time first" and len(shape) >= 2:
        order = [1, 0, *order[2:]]
    if layout == "channels first" and len(shape) >= 2:
        order = [order[-1], *order[:-1]]
    padding = 3 if layout == "sliced" else 0
    step = 2 if layout == "strided" else 1
    strides, reach = [0] * len(shape), step
    for axis in reversed(order):
        strides[axis] = reach
        reach *= shape[axis] + padding
    offset = GUARD + (1 if layout == "offset" else 0)
    return reach + 2 * GUARD + 1, strides, offset


def _numpy(tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


@contextlib.contextmanager
def _nan_in_new_memory():
    """torch.empty filled with NaN, so that what a subject leaves unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextlib.contextmanager
def time_limit(seconds: float, error: BaseException):
    """Raise `error` after so many seconds, in the main thread."""

    def expire(*_):
        raise error

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
