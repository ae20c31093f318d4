"""The benchmark's host side with a clock of our own: what is asked, judged, ranked, written. Nothing is timed here."""

import functools
import json
import math
import sys
import time
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernels.bench import __main__ as program
from kernels.bench import report
from kernels.bench.clock import COPIED, Timing, TooSlow, bandwidth
from kernels.bench.judging import Judge, Part
from kernels.bench.measure import DeviceLost, measure
from kernels.bench.setting import CACHE_FILLS, KINDS, MOST_SETS, SHAPES, Setting, density, draw, shape
from kernels.subjects import Subject, compiled, eager
from oracle import DEFAULT

SETTING = Setting((2, 5, 4), "float32", Fraction(1, 3))
COPY = Timing((1.0, 1.0, 1.0))


class FakeClock:
    """Says what it is told to; counts the calls it was given."""

    device = "cpu"
    cache_bytes = 1000

    def __init__(self, ms=1.0):
        self.ms, self.given, self.broken = ms, [], False

    def describe(self):
        return {"name": "a fake"}

    def finish(self):
        if self.broken:
            raise RuntimeError("illegal memory access")

    def release(self):
        self.finish()

    def copy(self, repeats):
        return COPY

    def peak(self, call):
        result = call()
        return result, 1000 + sum(t.numel() * t.element_size() for t in result if t is not None)

    def time(self, calls, repeats, budget):
        for call in calls:
            call()
        ms = self.ms.pop(0) if isinstance(self.ms, list) else self.ms
        self.given.append(len(calls))
        if ms > 1000 * budget:
            raise TooSlow(f"3 calls take more than {budget:g} s, one {ms / 1000:.3g} s")
        return Timing((0.9 * ms, ms, 1.2 * ms))


def right(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    return eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)


def row_of(function, clock=None, setting=SETTING, judged=1000, warm_up=60.0, **promises):
    """The row of a function, or a subject, under the fake clock."""
    subject = function if isinstance(function, Subject) else Subject(function, "mine", **promises)
    sets = [draw(setting, "cpu", seed) for seed in range(2)]
    judge = Judge(setting, sets[0], judged)
    return measure(
        subject, setting, sets, clock or FakeClock(), judge, repeats=5, budget=10.0, warm_up=warm_up, copy=4000.0
    )


def options(*subjects, **changes):
    return program.Options(subjects=subjects, settings=(SETTING,), **changes)


# --- bytes and inputs


def test_minimal_bytes_are_four_arrays_forward_and_seven_backward():
    """The % of copy that is promised counts them so: 8 and 14 bytes an element in bfloat16."""
    setting = Setting((32, 2048, 2560), "bfloat16", Fraction(0))
    elements = 32 * 2048 * 2560
    assert [setting.bytes(kind) for kind in KINDS] == [8 * elements, 8 * elements, 14 * elements]
    assert replace(setting, dtype="float32").bytes("backward") == 28 * elements


@pytest.mark.parametrize("cache", [1, 10_000, 1_000_000])
def test_sets_exceed_the_cache_or_are_as_many_as_allowed(cache):
    """A call that found its inputs in the cache would be measured faster than memory is."""
    sets = SETTING.sets(cache)
    assert 2 <= sets <= MOST_SETS
    assert sets == MOST_SETS or sets * 3 * SETTING.array_bytes >= CACHE_FILLS * cache


def test_inputs_are_leaves_of_the_dtype_with_resets_of_the_density():
    """What is timed is what was asked for: through autograd, int64 positions, documents that begin where they say."""
    setting = Setting((4, 500, 3), "bfloat16", Fraction(1, 10))
    inputs = draw(setting, "cpu", 3)
    assert all(leaf.is_leaf and leaf.requires_grad for leaf in inputs.leaves)
    assert inputs.x.dtype == inputs.dy.dtype == torch.bfloat16
    assert inputs.a_param.dtype == torch.float32
    assert inputs.segment_pos.dtype == torch.int64
    assert 0.05 < (inputs.segment_pos == 0).float().mean() < 0.15
    steps = inputs.segment_pos.diff(dim=1)
    assert bool(((steps == 1) | (inputs.segment_pos[:, 1:] == 0)).all())
    assert torch.equal(inputs.x, draw(setting, "cpu", 3).x)
    assert not torch.equal(inputs.x, draw(setting, "cpu", 4).x)
    assert draw(replace(setting, resets=Fraction(0)), "cpu", 3).segment_pos is None


def test_spread_is_the_interquartile_range_in_percent_of_the_median():
    """By hand: quartiles 1.5 and 3.5 around 2."""
    assert Timing((1.0, 2.0, 2.0, 5.0, 3.5)).ms == 2.0
    assert Timing((1.0, 2.0, 2.0, 5.0, 3.5)).spread == pytest.approx(75.0)


def test_bandwidth_is_bytes_by_time():
    """4 GiB in 1 ms."""
    assert bandwidth(COPY, 2 * COPIED) == pytest.approx(2**32 / 1e6)


# --- judging by a part


@pytest.mark.parametrize(
    ("size", "judged", "rows", "channels"),
    [
        ((2, 5, 4), 10, 2, 1),
        ((2, 5, 4), 20, 2, 2),
        ((2, 5, 4), 1000, 2, 4),
        ((8, 5, 4), 20, 4, 1),
        ((1, 1, 1), 1, 1, 1),
    ],
)
def test_a_part_takes_all_rows_before_it_takes_channels(size, judged, rows, channels):
    """da_param needs all rows; the ends of an axis, where masks and tiles end, are always among what is judged."""
    part = Part.of(size, judged)
    assert (len(part.rows), len(part.channels)) == (rows, channels)
    assert part.rows[0] == 0
    assert len(part.channels) == 1 or (part.channels[0], part.channels[-1]) == (0, size[2] - 1)
    assert len(part.rows) == 1 or part.rows[-1] == size[0] - 1


def test_a_right_subject_is_right_by_its_part():
    """Cut rows and channels of outputs and inputs belong together, gradients too."""
    row = row_of(right, judged=20)
    assert row.ranked
    assert [output.name for output in row.verdicts["training"].outputs] == [
        "y",
        "h_last",
        "dx",
        "dgate_x",
        "dgate_a",
        "da_param",
    ]
    assert 0 < row.ratio < 1
    assert list(row.verdicts) == ["training"]


def test_da_param_is_judged_only_with_all_rows():
    """A sum over some rows is not what the subject returned."""
    row = row_of(right, judged=5)
    assert row.ranked
    assert "da_param" not in [output.name for output in row.verdicts["training"].outputs]


FAULTS = {
    "y": lambda y: torch.cat([y[:, :-1], y[:, -1:] * 1.01], 1),
    "y everywhere": lambda y: y + 1e-3,
    "nan": lambda y: y * math.nan,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_wrong_output_makes_the_row_wrong(fault):
    """One judged quantity outside its bound, and there is no rank; the worst element is named."""

    def wrong(*inputs, **keywords):
        y, h_last = right(*inputs, **keywords)
        return fault(y), h_last

    row = row_of(wrong)
    assert not row.ranked
    assert "should be" in row.wrong
    assert row.measurements["forward"].timing is not None


@pytest.mark.parametrize("leaf", range(4))
def test_a_wrong_gradient_makes_the_row_wrong(leaf):
    """Right outputs do not make a kernel right."""

    def wrong(*inputs, **keywords):
        inputs = list(inputs)
        inputs[leaf] = 1.01 * inputs[leaf] - 0.01 * inputs[leaf].detach()
        return right(*inputs, **keywords)

    row = row_of(wrong)
    assert row.wrong.startswith(("dx", "dgate_x", "dgate_a", "da_param")[leaf])


def test_a_kernel_that_is_wrong_only_without_gradients_is_wrong():
    """Inference may run another kernel: its outputs are judged, too."""

    def wrong(*inputs, **keywords):
        y, h_last = right(*inputs, **keywords)
        return (y if torch.is_grad_enabled() else 1.01 * y), h_last

    row = row_of(wrong)
    assert row.verdicts["training"].holds
    assert "under no_grad" in row.wrong


def test_the_subject_s_own_profile_and_grade_decide():
    """A kernel that promises more is held to more."""
    strict = replace(DEFAULT, name="strict", exp=0, exp_argument=0, divide=0, log1p=0, expm1=0, order="serial")
    assert row_of(right).profile == "default"
    assert row_of(right, profile=strict).ratio > row_of(right).ratio
    assert row_of(right, grade="canonical").verdicts["training"].grade == "canonical"


def test_an_output_of_another_dtype_is_wrong():
    """float32 written for a bfloat16 input would be judged better than it is."""

    def wrong(*inputs, **keywords):
        y, h_last = right(*inputs, **keywords)
        return y.float(), h_last

    row = row_of(wrong, setting=replace(SETTING, dtype="bfloat16"))
    assert "y must be torch.bfloat16" in row.wrong
    assert not row.ranked


def test_an_output_of_another_shape_is_wrong():
    """One subject's mistake must not end the run."""

    def wrong(*inputs, **keywords):
        y, h_last = right(*inputs, **keywords)
        return y, h_last[:, :, None].expand(-1, -1, 2)

    row = row_of(wrong)
    assert "h_last must have shape [2, 4]" in row.wrong
    assert not row.ranked


# --- what a subject cannot do


@pytest.mark.parametrize(
    ("promises", "reason"),
    [
        ({"resets": False}, "not comparable: it knows no resets"),
        ({"dtypes": ("bfloat16",)}, "not comparable: it does not take float32"),
        ({"width_multiple": 64}, "not comparable: its width must be a multiple of 64"),
        ({"min_length": 8}, "not comparable: it needs at least 8 steps"),
    ],
)
def test_a_subject_that_cannot_shows_the_reason(promises, reason):
    """Never a blank, and never called with what it does not take."""

    def never(*inputs, **keywords):
        raise AssertionError

    row = row_of(never, **promises)
    assert row.reason == reason
    table, notes = report.lines(SETTING, [row], COPY, 2 * COPIED)
    assert table[0][1] == "note"
    assert notes == [f"mine: {reason}"]


def test_a_slow_call_is_skipped_with_its_time_and_what_it_computed_is_judged():
    """A loop over time in Python may take minutes; its gradients are right all the same."""
    row = row_of(right, FakeClock([1.0, 1.0, 60_000.0]))
    assert row.measurements["backward"].reason == "skipped: 3 calls take more than 10 s, one 60 s"
    assert row.measurements["forward"].timing.ms == 1.0
    assert row.ranked
    assert len(row.verdicts["training"].outputs) == 6


def test_a_subject_that_is_too_slow_in_one_kind_is_not_asked_for_the_next():
    """A backward over 131,072 steps cannot be interrupted: the forward tells how long it takes."""
    asked = []

    def slow(*inputs, **keywords):
        asked.append(torch.is_grad_enabled())
        return right(*inputs, **keywords)

    row = row_of(slow, FakeClock(60_000.0))
    assert [measurement.reason for measurement in row.measurements.values()] == [
        "skipped: 3 calls take more than 10 s, one 60 s",
        "skipped, as its forward takes too long",
        "skipped, as its forward takes too long",
    ]
    assert all(asked)
    assert not row.failed
    assert [output.name for output in row.verdicts["training"].outputs] == ["y", "h_last"]


def test_first_calls_that_take_too_long_are_broken_off():
    """A compilation of minutes, or a loop in Python, must not hold up the others; nothing of it is judged."""

    def endless(*inputs, **keywords):
        while True:
            time.sleep(0.01)

    row = row_of(endless, warm_up=0.2)
    assert row.measurements["forward"].reason == "skipped: its first calls take more than 0.2 s"
    assert row.measurements["backward"].reason == "skipped, as its forward takes too long"
    assert not row.ranked
    assert not row.failed


def test_a_time_limit_is_no_exception_that_a_compiler_could_take_for_its_own():
    """torch.compile turns every Exception within it into a BackendCompilerFailed."""

    def compiling(*inputs, **keywords):
        try:
            while True:
                time.sleep(0.01)
        except Exception as error:
            raise RuntimeError("the backend failed") from error

    assert row_of(compiling, warm_up=0.2).measurements["forward"].reason.startswith("skipped")


def test_what_cannot_be_compiled_is_a_sentence_and_the_run_goes_on(monkeypatch, capsys, tmp_path):
    """One subject that the compiler refuses must not cost the others their numbers."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=_refusing))

    def simple(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        return x * gate_x, x[:, -1] * a_param

    broken = Subject(compiled.compile_each_shape(simple), "compiled")
    file = tmp_path / "out.json"
    assert program.bench(options(broken, Subject(right, "after"), json=str(file)), FakeClock()) == 1
    after, before = json.loads(file.read_text())["settings"][0]["rows"]
    assert after["subject"] == "after"
    assert after["ranked"]
    assert before["failed"]
    assert "no code for this" in before["measurements"]["inference"]["reason"]
    assert "\n" not in before["measurements"]["inference"]["reason"]
    assert "compiled, no_grad: failed with BackendCompilerFailed" in capsys.readouterr().out


def _refusing(graph, inputs):
    raise RuntimeError("no code for this\nand a page of more")


def test_an_exception_is_shown_and_does_not_stop_the_run():
    """One broken subject must not cost the others their numbers."""

    def broken(*inputs, **keywords):
        if torch.is_grad_enabled():
            raise RuntimeError("no such kernel\nand much more")
        return right(*inputs, **keywords)

    row = row_of(broken)
    assert row.measurements["forward"].reason == "failed with RuntimeError: no such kernel"
    assert row.measurements["inference"].timing is not None
    assert row.failed


def test_a_lost_device_ends_the_run_and_says_who_lost_it(capsys, tmp_path):
    """After an illegal access every later number would be an error message."""
    clock = FakeClock()

    def crashes(*inputs, **keywords):
        clock.broken = True
        raise RuntimeError("unspecified launch failure")

    file = tmp_path / "out.json"
    chosen = options(Subject(crashes, "crashes"), Subject(right, "after"), json=str(file))
    assert program.bench(chosen, clock) == 1
    rows = json.loads(file.read_text())["settings"][0]["rows"]
    assert {row["subject"] for row in rows} == {"crashes", "after"}
    assert "not run: the device was lost in forward of crashes" in capsys.readouterr().out
    assert issubclass(DeviceLost, RuntimeError)


def test_a_subject_without_backward_says_so():
    """A forward-only kernel is ranked behind complete ones."""
    row = row_of(right, backward=False)
    assert row.measurements["backward"].reason == "it has no backward"
    assert row.ranked
    assert row.order > row_of(right, FakeClock(50.0)).order


def test_a_subject_in_a_process_of_its_own_is_timed_by_its_direct_function():
    """Else the transfer between processes would be timed."""

    def never(*inputs, **keywords):
        raise AssertionError

    subject = Subject(never, "elsewhere")
    object.__setattr__(subject, "direct", right)
    assert row_of(subject).ranked


def test_a_subject_without_a_last_state_is_judged_by_the_rest():
    """Fattori's scan returns y alone."""
    subject = Subject(lambda *inputs, **keywords: (right(*inputs, **keywords)[0], None), "mine")
    assert row_of(subject).wrong == "h_last is None, which the subject does not declare"
    object.__setattr__(subject, "h_last", False)
    row = row_of(subject)
    assert row.ranked
    assert "h_last" not in [output.name for output in row.verdicts["training"].outputs]


def test_a_time_that_no_memory_allows_is_not_believed():
    """A subject whose work runs in another process or on another stream is not seen by the clock."""
    row = row_of(right, FakeClock([1e-9, 1.0, 1.0]))
    assert "its work is not on the timed stream" in row.measurements["forward"].reason
    assert row.failed


def test_every_set_of_inputs_is_called():
    """Inputs rotate: as many calls as sets, for each kind."""
    clock = FakeClock()
    row_of(right, clock)
    assert clock.given == [2, 2, 2]


def test_memory_beyond_inputs_and_outputs_is_what_is_reported():
    """The fake clock allocates 1,000 bytes more than the results take."""
    assert row_of(right).measurements["forward"].extra_bytes == 1000
    assert row_of(right).measurements["backward"].extra_bytes == 1000


# --- ranking and report


def a_run(tmp_path):
    """A fast wrong subject, a slow right one, a fast right one, one that cannot."""

    def wrong(*inputs, **keywords):
        y, h_last = right(*inputs, **keywords)
        return 2 * y, h_last

    file = tmp_path / "out.json"
    subjects = (
        Subject(wrong, "fast and wrong"),
        Subject(right, "slow"),
        Subject(right, "cannot", resets=False),
        Subject(right, "fast"),
    )
    code = program.bench(
        options(*subjects, json=str(file), command="a command"), FakeClock([1e-3] * 3 + [9.0] * 3 + [2.0] * 3)
    )
    return code, json.loads(file.read_text())


def test_only_right_subjects_are_ranked(tmp_path, capsys):
    """The fastest kernel is worth nothing when it is wrong: listed behind, without a %."""
    code, written = a_run(tmp_path)
    (setting,) = written["settings"]
    assert code == 1
    assert [row["subject"] for row in setting["rows"]] == ["fast", "slow", "fast and wrong", "cannot"]
    assert [row["ranked"] for row in setting["rows"]] == [True, True, False, False]
    assert setting["rows"][2]["measurements"]["forward"]["percent_of_copy"] is None
    assert setting["rows"][0]["measurements"]["forward"]["percent_of_copy"] > 0
    shown = capsys.readouterr().out
    assert "fast and wrong is WRONG and not ranked: y[" in shown
    assert "cannot: not comparable: it knows no resets" in shown
    assert "should be" in shown


def test_the_file_holds_everything_measured(tmp_path, capsys):
    """Numbers are published from it: device, versions, date, command, bytes, samples, verdicts."""
    _, written = a_run(tmp_path)
    assert {"device", "versions", "date", "command", "repeats", "budget_s", "warm_up_s", "settings", "format"} == set(
        written
    )
    assert {"python", "torch", "triton", "cuda", "commit"} == set(written["versions"])
    setting = written["settings"][0]
    assert (setting["shape"], setting["dtype"], setting["resets"]) == ([2, 5, 4], "float32", "1/3")
    assert setting["copy"]["gb_per_s"] == pytest.approx(2**32 / 1e6)
    forward = setting["rows"][0]["measurements"]["forward"]
    assert forward["ms"] == 2.0
    assert forward["samples_ms"] == [1.8, 2.0, 2.4]
    assert forward["bytes"] == 4 * 4 * 40
    assert forward["gb_per_s"] == pytest.approx(640 / 2.0 / 1e6)
    assert forward["percent_of_copy"] == pytest.approx(100 * 640 / 2.0 / 2**32)
    assert setting["rows"][0]["verdicts"]["training"]["outputs"]["dgate_a"]["failed"] == 0


def test_the_plain_table_says_what_rich_s_says():
    """rich may be missing where the GPU is."""
    row = row_of(right, FakeClock([0.5, 0.25, 1.0]))
    table, notes = report.lines(SETTING, [row], COPY, 640_000)
    text = report.plain("a title", table, notes)
    assert text.splitlines()[0] == "a title"
    assert "0.5 ±15.0%" in text
    assert "0.2" in text
    assert "right, 0." in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_table_says_how_a_time_was_taken_where_that_matters():
    """A graph hides what Python costs; the reader is told when that is much."""
    timing = Timing((1.0, 1.0, 1.0), "graph", as_called_ms=40.0)
    row = row_of(right)
    row.measurements["forward"] = replace(row.measurements["forward"], timing=timing)
    _, notes = report.lines(SETTING, [row], COPY, 2 * COPIED)
    assert notes == ["mine, forward: timed in a CUDA graph; called from Python 40 ms"]


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "3,4"], "a shape is three whole numbers B,T,D, as in 32,2048,2560; got '3,4'"),
        (["--shape", "3,0,4"], "the sizes of a shape must be at least 1; got '3,0,4'"),
        (["--resets", "often"], "a density of resets is a number or a fraction, as in 1/512; got 'often'"),
        (["--resets", "1/0"], "a density of resets is a number or a fraction, as in 1/512; got '1/0'"),
        (["--resets", "2"], "a density of resets must lie between 0 and 1; got '2'"),
        (["--repeats", "2"], "--repeats must be at least 3, or there is no spread; got 2"),
        (["--warm-up", "inf"], "--warm-up must be a positive number of seconds; got inf"),
        (["--judged", "0"], "--judged must be at least 1: nothing is ranked unjudged; got 0"),
        (["--plot", "out.gif"], "--plot: a picture's name ends with .png, .svg, .pdf; got 'out.gif'"),
        (["--shapes", "sweep", "--shape", "1,2,3"], "argument --shape: not allowed with argument --shapes"),
        (["--budget", "nan"], "--budget must be a positive number of seconds; got nan"),
        (
            ["--json", "no/such/folder/out.json"],
            "--json: there is no folder for 'no/such/folder/out.json'; make it first",
        ),
        (["--subject", "nobody"], "no subject is called 'nobody'"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(arguments, message, capsys):
    """Before anything is allocated or timed."""
    with pytest.raises(SystemExit) as exit:
        program.parse(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_a_subject_that_is_not_here_is_no_wrong_usage(monkeypatch, capsys):
    """Its name is right."""
    monkeypatch.delenv("HAWK_PYTORCH", raising=False)
    monkeypatch.delitem(sys.modules, "kernels.subjects.fattori", raising=False)
    with pytest.raises(SystemExit) as exit:
        program.parse(["--subject", "fattori"])
    assert exit.value.code == program.CANNOT_RUN
    assert "python -m kernels.bench: fattori needs a checkout" in capsys.readouterr().err


def test_a_run_that_timed_nothing_is_no_success(capsys):
    """A table of reasons has no figure in it."""
    subject = Subject(right, "mine", dtypes=("float16",))
    assert program.bench(options(subject), FakeClock()) == program.NOTHING_TIMED
    assert "it does not take " in capsys.readouterr().out


def test_a_subject_of_which_nothing_can_be_judged_is_not_ranked():
    """It is neither right nor wrong."""
    row = row_of(right)
    assert row.ranked
    unjudged = tuple(replace(o, unjudged=o.elements) for o in row.verdicts["training"].outputs)
    row.verdicts["training"] = replace(row.verdicts["training"], outputs=unjudged)
    assert not row.ranked
    assert row.wrong is None


def test_defaults_are_the_main_shapes_in_bfloat16_with_resets(monkeypatch):
    """What the project's figures are made with."""
    monkeypatch.delenv("HAWK_PYTORCH", raising=False)
    chosen = program.parse([])
    assert [subject.name for subject in chosen.subjects] == [
        "serial",
        "chunked",
        "three-pass",
        "eager",
        "compiled",
        "associative-scan",
    ]
    assert [str(setting) for setting in chosen.settings] == [
        "(1, 8192, 2560) bfloat16, resets 1/512",
        "(1, 32768, 2560) bfloat16, resets 1/512",
        "(8, 8192, 2560) bfloat16, resets 1/512",
        "(32, 2048, 2560) bfloat16, resets 1/512",
        "(64, 1024, 4096) bfloat16, resets 1/512",
        "(1, 131072, 1024) bfloat16, resets 1/512",
    ]


def test_the_sweep_doubles_t_for_three_widths_of_work_within_memory():
    """A plot needs T far apart; a set of x, both logits and dy takes 8 GiB at most."""
    settings = program.parse(["--shapes", "sweep", "--subject", "eager"]).settings
    shapes = [setting.shape for setting in settings]
    assert shapes == list(SHAPES["sweep"])
    lengths = {rows: [t for b, t, _ in shapes if b == rows] for rows in (1, 8, 32)}
    assert lengths[1] == [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
    assert (lengths[8][-1], lengths[32][-1]) == (32768, 8192)
    assert max(4 * setting.array_bytes for setting in settings) <= 2**33


def test_options_reach_the_measurement():
    """An option that is read and forgotten would show in no number."""
    given = ["--shape", "1,2,3", "--subject", "eager", "--repeats", "7", "--budget", "2", "--warm-up", "9"]
    chosen = program.parse([*given, "--judged", "11", "--plot", "out.svg"])
    assert (chosen.repeats, chosen.budget, chosen.warm_up, chosen.judged) == (7, 2.0, 9.0, 11)
    assert chosen.plot == "out.svg"


def test_with_a_checkout_fattori_is_measured_and_without_resets_too(monkeypatch):
    """It knows no resets: there is a second protocol in which all can be compared."""
    monkeypatch.setenv("HAWK_PYTORCH", "somewhere")
    loaded = {"fattori": Subject(right, "fattori", resets=False)}
    monkeypatch.setattr(program, "load", lambda name: loaded.get(name, Subject(right, name)))
    chosen = program.parse(["--shape", "1,2,3"])
    assert [subject.name for subject in chosen.subjects] == [*program.SUBJECTS, "fattori"]
    assert [str(setting.resets) for setting in chosen.settings] == ["1/512", "0"]
    assert [str(setting.resets) for setting in program.parse(["--shape", "1,2,3", "--resets", "0.25"]).settings] == [
        "1/4"
    ]


def test_without_a_device_it_says_so(monkeypatch, capsys):
    """A sentence, not a traceback."""
    monkeypatch.setattr(program.torch, "cuda", SimpleNamespace(is_available=lambda: False))
    assert program.main(["--shape", "1,2,3"]) == program.CANNOT_RUN
    assert "it needs a CUDA device, and PyTorch sees none" in capsys.readouterr().err


def test_shapes_and_densities_are_read():
    """As the README writes them."""
    assert shape("32,2048,2560") == (32, 2048, 2560)
    assert density("1/512") == Fraction(1, 512)
    assert density("0") == 0


def test_a_case_holds_what_the_judged_part_holds():
    """Positions as integers, values as they are in the dtype."""
    setting = Setting((3, 6, 5), "bfloat16", Fraction(1, 2))
    inputs = draw(setting, "cpu", 1)
    judge = Judge(setting, inputs, judged=36)
    assert judge.case.shape == (3, 6, 2)
    assert np.array_equal(judge.case.segment_pos, inputs.segment_pos.numpy())
    assert np.array_equal(judge.case.x[:, :, 1], inputs.x[:, :, 4].detach().float().numpy())
