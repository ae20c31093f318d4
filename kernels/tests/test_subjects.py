"""Subjects: how one is found by name, what it may declare, and what running it notices without any oracle."""

import importlib.metadata
import itertools
import os
import re
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.subjects import BUILT_IN, PRODUCTION, Subject, SubjectError, Unavailable, eager, load
from kernels.subjects import run as running
from kernels.subjects.load import ENTRY_POINTS, SIGNATURE
from kernels.subjects.raised import MOST, ROOT
from kernels.subjects.run import GUARD, INPUTS, LAYOUTS, MODES, Call, Misbehaviour, NoAnswer, as_laid_out, run
from oracle import GRADIENTS, Case, Result, judge
from oracle.tests.cases import ordinary

GUARDED = Call(guarded=True)
GOOD = "def good(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):\n    return x, h0\n"


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


# --- found by name


@pytest.fixture
def write(tmp_path):
    """Write a Python file; its path."""

    def written(text: str, name: str = "subject_of_test.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


@pytest.fixture
def entry_points(monkeypatch):
    """Announce a plugin's entry points, as (name, value) pairs."""

    def announced(*pairs):
        entries = [importlib.metadata.EntryPoint(name, value, ENTRY_POINTS) for name, value in pairs]

        def found(*, group):
            return importlib.metadata.EntryPoints(entries).select(group=group)

        monkeypatch.setattr(importlib.metadata, "entry_points", found)

    return announced


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_subject_has_its_name_or_says_what_it_needs(name):
    """--subject NAME and the name in a report must be the same word."""
    try:
        subject = load(name)
    except Unavailable as error:
        refused = str(error)
    else:
        assert subject.name == name
        assert callable(subject.function)
        return
    assert name not in (*PRODUCTION, "eager")
    needed = r"the package '[\w.]+', which is not installed|a checkout of hawk-pytorch, which is not there: .*"
    assert re.fullmatch(rf"{name} needs ({needed})", refused)


def test_a_built_in_subject_without_its_package_is_unavailable(monkeypatch):
    """An optional package that is missing is no fault of the subject: it is told apart, and by name."""
    for module in list(sys.modules):
        if module.startswith("recurrentgemma.") or module == "kernels.subjects.recurrentgemma":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "recurrentgemma", None)
    with pytest.raises(Unavailable, match=r"^recurrentgemma needs the package 'recurrentgemma[\w.]*', which is not"):
        load("recurrentgemma")


def test_a_function_in_a_file_is_found(write):
    """The way most people try: no package, no registration."""
    name = f"{write(GOOD)}:good"
    subject = load(name)
    assert subject.name == name
    assert subject.function(1, 2, 3, 4, h0=5) == (1, 5)
    assert subject == Subject(subject.function, name)


def test_a_file_is_found_from_the_working_directory(write, monkeypatch):
    """A replay line names the file as it was typed."""
    monkeypatch.chdir(os.path.dirname(write(GOOD)))
    # a replay runs in the checkout, so the name holds the whole path
    assert load("subject_of_test.py:good").name == f"{Path.cwd() / 'subject_of_test.py'}:good"


def test_a_subject_in_a_file_keeps_its_promises_and_gets_the_name_it_was_called_by(write):
    """Replays load it by that name."""
    text = GOOD + "from kernels.subjects import Subject\nSUBJECT = Subject(good, 'other', resets=False, min_length=3)\n"
    name = f"{write(text)}:SUBJECT"
    subject = load(name)
    assert (subject.name, subject.resets, subject.min_length) == (name, False, 3)


def test_two_files_of_one_name_are_two_subjects(tmp_path):
    """Before and after, in two folders, judged in one run."""
    loaded = []
    for folder, value in (("before", 1), ("after", 2)):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "kernel.py"
        path.write_text(GOOD.replace("return x, h0", f"return {value}"))
        loaded.append(load(f"{path}:good"))
    assert [subject.function(1, 2, 3, 4) for subject in loaded] == [1, 2]


def test_a_function_in_a_module_is_found():
    """An installed package's own function."""
    assert load("kernels:rglru").function is sys.modules["kernels"].rglru


def test_an_entry_point_is_found(entry_points):
    """A plugin makes its subject known by a name of its own."""
    entry_points(("other", "nowhere:f"), ("mine", "kernels.subjects.eager:SUBJECT"))
    assert load("mine") == replace(eager.SUBJECT, name="mine")


def test_an_unknown_name_is_refused_with_every_way_to_name_one(entry_points):
    """A typo is the likeliest first call."""
    entry_points(("mine", "kernels.subjects.eager:SUBJECT"))
    text = (
        "no subject is called 'min': give one of serial, chunked, eager, recurrentgemma, fattori, three-pass, "
        "compiled, associative-scan, FILE.py:FUNCTION, "
        "MODULE:FUNCTION, or the name of an entry point of the group 'rglru.subjects'"
    )
    with pytest.raises(SubjectError, match=exactly(text)):
        load("min")


def refusal(name: str) -> str:
    with pytest.raises(SubjectError) as caught:
        load(name)
    assert not isinstance(caught.value, Unavailable)
    return str(caught.value)


def test_a_missing_file_is_refused_with_where_it_was_looked_for():
    """Relative paths are the usual mistake."""
    assert refusal("no/such/file.py:f") == (
        "no/such/file.py:f: importing it failed with FileNotFoundError: there is no such file below "
        f"{os.getcwd()!r}; give its path from there"
    )


def test_a_missing_module_is_refused():
    """With Python's own words for what is missing."""
    assert refusal("no_such_module:f") == (
        "no_such_module:f: importing it failed with ModuleNotFoundError: No module named 'no_such_module'"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError: "),
    ],
    ids=["import", "exception", "syntax"],
)
def test_a_file_that_cannot_be_imported_is_refused_with_its_own_error(write, text, why):
    """Whatever goes wrong in it is the author's to mend, in one sentence."""
    path = write(text)
    assert refusal(f"{path}:f").startswith(f"{path}:f: importing it failed with {why}")


def test_an_entry_point_that_cannot_be_imported_is_refused_with_its_own_error(entry_points):
    """A broken plugin must not look like a crash of the suite."""
    entry_points(("mine", "no_such_module:f"))
    assert refusal("mine") == "mine: importing it failed with ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize("attribute", ["bad", "", "good.more"])
def test_a_missing_attribute_is_refused(write, attribute):
    """The file is right and the function's name is wrong."""
    path = write(GOOD)
    wanted = f"{path}:{attribute}: {path!r} has no {attribute!r}; name a function it defines"
    assert refusal(f"{path}:{attribute}") == wanted


def test_what_cannot_be_called_is_refused(write):
    """A module's constant, say."""
    path = write("good = 3\n")
    wanted = f"{path}:good is a int, not a function; its signature must be {SIGNATURE}"
    assert refusal(f"{path}:good") == wanted


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        ("x, gate_x, gate_a", "too many positional arguments"),
        ("x, gate_x, gate_a, a_param", "got an unexpected keyword argument 'segment_pos'"),
        ("x, gate_x, gate_a, a_param, *, segment_pos=None", "got an unexpected keyword argument 'h0'"),
        ("x, gate_x, gate_a, a_param, *, segment_pos, h0, scale", "missing a required argument: 'scale'"),
        ("x, gate_x, gate_a, a_param, more, *, segment_pos, h0", "missing a required argument: 'more'"),
        ("*, x, gate_x, gate_a, a_param, segment_pos, h0", "too many positional arguments"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["function", "Subject"])
def test_a_wrong_signature_is_refused_with_the_right_one(write, signature, why, wrapped):
    """Before anything is judged: otherwise every clause fails with the same TypeError."""
    text = f"def f({signature}):\n    pass\n"
    if wrapped:
        text += "from kernels.subjects import Subject\nf = Subject(f, 'f')\n"
    path = write(text)
    # how Python words what does not bind differs between its versions
    assert re.fullmatch(
        rf"{re.escape(path)}:f cannot be called as {re.escape(SIGNATURE)} \({why}.*\); give it that signature",
        refusal(f"{path}:f"),
    )


@pytest.mark.parametrize("signature", ["*a, **k", "a, b, c, d, segment_pos, h0", "x, y, z, p, *, h0, segment_pos, s=1"])
def test_whatever_can_be_called_that_way_is_taken(write, signature):
    """Names of the first four and further options are the author's own."""
    load(f"{write(f'def f({signature}): pass')}:f")


def test_a_callable_without_a_signature_is_taken(write):
    """A function of a compiled module has none: the first call will tell."""
    load(f"{write('f = type')}:f")


# --- what it declares


@pytest.mark.parametrize(
    ("promise", "text"),
    [
        ({"dtypes": ("float64",)}, "dtypes must be among float32, bfloat16, float16; got 'float64'"),
        ({"bitwise": {"T", "rows"}}, "bitwise must be among B, T, D, strides; got 'rows'"),
        ({"program": (0, 64)}, "program must be positive numbers of steps and channels; got (0, 64)"),
    ],
)
def test_a_misspelt_promise_is_refused(promise, text):
    """It would switch off a clause in silence."""
    with pytest.raises(ValueError, match=exactly(text)):
        Subject(eager.rglru, "f", **promise)


def test_its_title_says_what_it_was_made_of():
    """Hashes cut short enough to be read, and long enough to be looked up."""
    subject = Subject(eager.rglru, "f")
    assert subject.title == "f"
    made_of = {"package": "1.0", "commit": f"unpinned {'0123456789' * 4}", "other": "0123456789" * 5}
    assert replace(subject, versions=lambda: made_of).title == (
        f"f (package 1.0, commit unpinned 012345678901, other {'0123456789' * 5})"
    )


# --- run: results


def around(change) -> Subject:
    """A subject made of the eager one and a `change` of (y, h_last), given the inputs by name too."""

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        y, h_last = eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
        return change(y, h_last, {"x": x, "gate_x": gate_x, "gate_a": gate_a, "a_param": a_param, "h0": h0})

    return Subject(function, "changed")


UNCHANGED = around(lambda y, h_last, inputs: (y, h_last))


def assert_same(got: Result, wanted: Result):
    assert [name for name, _ in got.items()] == [name for name, _ in wanted.items()]
    for name, array in got.items():
        np.testing.assert_array_equal(array, getattr(wanted, name), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_result_holds_what_the_function_and_autograd_gave(dtype):
    """In float64, which holds it exactly, and under the names of the contract."""
    case = ordinary(1, dtype=dtype)
    given = {name: torch.tensor(getattr(case, name)) for name in INPUTS}
    for name in ("x", "gate_x", "gate_a"):
        given[name] = given[name].to(getattr(torch, dtype))
    leaves = [value.requires_grad_() for value in given.values()]
    y, h_last = eager.rglru(*leaves[:4], segment_pos=torch.tensor(case.segment_pos), h0=given["h0"])
    cotangents = [torch.tensor(case.dy).to(y.dtype), torch.tensor(case.dh_last)]
    gradients = torch.autograd.grad([y, h_last], leaves, cotangents)
    wanted = [v.detach().double().numpy() for v in (y, h_last, *gradients)]
    assert_same(run(UNCHANGED, case), Result(*wanted))


def test_gradients_are_asked_for_where_they_are_wanted_only():
    """As a frozen network asks: no gradient, no entry."""
    seen = []
    subject = around(
        lambda y, h_last, inputs: seen.extend(n for n, v in inputs.items() if v.requires_grad) or (y, h_last)
    )
    result = run(subject, ordinary(0), Call(requires_grad=("gate_a", "h0")))
    assert seen == ["gate_a", "h0"]
    assert [name for name, _ in result.items()] == ["y", "h_last", "dgate_a", "dh0"]


@pytest.mark.parametrize("promised", [True, False])
def test_without_cotangents_or_promised_gradients_there_are_none(promised):
    """A forward-only kernel is called as in inference: nothing requires a gradient."""
    case = ordinary(0).replace(dy=None, dh_last=None) if promised else ordinary(0)
    seen = []
    subject = around(lambda y, h_last, inputs: seen.extend(v.requires_grad for v in inputs.values()) or (y, h_last))
    result = run(replace(subject, backward=promised), case)
    assert not any(seen)
    assert [name for name, _ in result.items()] == ["y", "h_last"]


def test_an_absent_gradient_counts_as_zero():
    """Autograd says None both for "zero" and for "forgotten": the oracle tells which."""
    subject = around(lambda y, h_last, inputs: (y.detach() + inputs["x"], h_last.detach()))
    result = run(subject, ordinary(0))
    assert np.any(result.dx)
    for name in GRADIENTS[1:]:
        assert np.array_equal(getattr(result, name), np.zeros_like(getattr(result, name)))


def test_outputs_without_a_graph_have_gradients_of_zero():
    """A subject that detaches is wrong, and shows as wrong, not as a crash."""
    result = run(around(lambda y, h_last, inputs: (y.detach(), h_last.detach())), ordinary(0))
    assert all(not np.any(getattr(result, name)) for name in GRADIENTS)
    assert not judge(ordinary(0), result).holds


def test_optional_arrays_are_left_out():
    """None in the case is None for the subject."""
    seen = {}

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        seen.update(segment_pos=segment_pos, h0=h0)
        return eager.rglru(x, gate_x, gate_a, a_param)

    case = ordinary(0, reset_at=None).replace(segment_pos=None, h0=None)
    result = run(Subject(function, "f"), case)
    assert seen == {"segment_pos": None, "h0": None}
    assert result.dh0 is None


@pytest.mark.parametrize("cuts", [(5,), (1, 2, 11), (0, 4, 4, 12)], ids=str)
def test_cuts_hand_the_state_on(cuts):
    """Every call gets its own steps, and as h0 the state the call before ended in, in one graph."""
    case, seen = ordinary(2), []

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        y, h_last = eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
        seen.append((x.shape[1], segment_pos.shape[1], h0, h_last))
        return y, h_last

    result = run(Subject(function, "f"), case, Call(cuts=cuts))
    lengths = list(np.diff([0, *cuts, case.shape[1]]))
    assert [steps for steps, *_ in seen] == [steps for _, steps, *_ in seen] == lengths
    assert all(after[2] is before[3] for before, after in itertools.pairwise(seen))
    assert judge(case, result).holds


def test_cuts_that_lose_the_state_show():
    """The same, by a function that forgets h0."""

    def forgetful(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        return eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos)

    case = ordinary(2).replace(h0=None)
    assert judge(case, run(Subject(forgetful, "f"), case)).holds
    assert not judge(case, run(Subject(forgetful, "f"), case, Call(cuts=(5,)))).holds


def test_a_last_state_that_is_not_promised_is_not_looked_at():
    """A kernel that returns y alone has None to give, or what it does not vouch for."""
    case = ordinary(0).replace(dh_last=None)
    for change in (lambda y, h_last, inputs: (y, None), lambda y, h_last, inputs: (y, y[0, 0, 0])):
        result = run(replace(around(change), h_last=False), case, GUARDED)
        assert result.h_last is None
        assert judge(case, result).holds
        with pytest.raises(Misbehaviour):
            run(around(change), case)


# --- run: what is wrong without an oracle


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda y, h: (y[:, 1:], h), "y must be torch.float32 [2, 12, 3] on cpu; got torch.float32 [2, 11, 3] on cpu"),
        (
            lambda y, h: (y.double(), h),
            "y must be torch.float32 [2, 12, 3] on cpu; got torch.float64 [2, 12, 3] on cpu",
        ),
        (lambda y, h: (y, h[0]), "h_last must be torch.float32 [2, 3] on cpu; got torch.float32 [3] on cpu"),
        (lambda y, h: (y, h.half()), "h_last must be torch.float32 [2, 3] on cpu; got torch.float16 [2, 3] on cpu"),
        (
            lambda y, h: (y.to("meta"), h),
            "y must be torch.float32 [2, 12, 3] on cpu; got torch.float32 [2, 12, 3] on meta",
        ),
        (lambda y, h: y, "the subject must return two tensors, (y, h_last); got Tensor"),
        (lambda y, h: [y, h], "the subject must return two tensors, (y, h_last); got list"),
        (lambda y, h: (y, h, h), "the subject must return two tensors, (y, h_last); got tuple"),
        (lambda y, h: (y, None), "the subject must return two tensors, (y, h_last); got tuple"),
    ],
)
def test_wrong_outputs_are_named(change, text):
    """A shape that broadcasts would pass for right where all rows are equal."""
    with pytest.raises(Misbehaviour, match=exactly(text)):
        run(around(lambda y, h_last, inputs: change(y, h_last)), ordinary(0))


def test_h_last_in_the_dtype_of_x_is_named():
    """The commonest wrong dtype: the state handed on would lose bits."""
    subject = around(lambda y, h_last, inputs: (y, h_last.to(y.dtype)))
    text = "h_last must be torch.float32 [2, 3] on cpu; got torch.bfloat16 [2, 3] on cpu"
    with pytest.raises(Misbehaviour, match=exactly(text)):
        run(subject, ordinary(0, dtype="bfloat16"))


def test_an_exception_is_misbehaviour():
    """It is the subject's, is said to be, and is kept as the cause."""

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        raise KeyError("lost")

    with pytest.raises(Misbehaviour, match=r"^the subject raised KeyError: 'lost'\n") as caught:
        run(Subject(function, "f"), ordinary(0))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_shows_the_subjects_own_lines():
    """File and line of each, down to where it was raised: not those of PyTorch, nor of what calls the subject."""

    def deep(x):
        return torch.nn.functional.linear(x, torch.ones(1, 99), torch.ones(7))

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        return deep(x)

    with pytest.raises(Misbehaviour) as caught:
        run(Subject(function, "f"), ordinary(0))
    first, *lines = str(caught.value).splitlines()[-5:]
    here = re.escape(str(Path(__file__).relative_to(ROOT)))
    assert first.startswith("the subject raised RuntimeError: ")
    for line, name in ((lines[0], "function"), (lines[2], "deep")):
        assert re.fullmatch(rf'  File "{here}", line \d+, in {name}', line)
    assert (lines[1], lines[3]) == (
        "    return deep(x)",
        "    return torch.nn.functional.linear(x, torch.ones(1, 99), torch.ones(7))",
    )


def test_of_a_deep_recursion_the_last_lines_are_shown():
    """A thousand are no help."""

    def function(*inputs, **keywords):
        return function(*inputs, **keywords)

    with pytest.raises(Misbehaviour) as caught:
        run(Subject(function, "f"), ordinary(0))
    assert str(caught.value).count("  File ") == MOST


def test_a_file_that_cannot_be_imported_shows_its_line(tmp_path):
    """The sentence says what, and the line where."""
    path = tmp_path / "mine.py"
    path.write_text("import torch\n\nC = torch.no_such_thing\n")
    said, where, line = refusal(f"{path}:f").splitlines()
    assert said.startswith(f"{path}:f: importing it failed with AttributeError: ")
    assert (where, line) == (f'  File "{path}", line 3, in <module>', "    C = torch.no_such_thing")


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("lost")


def test_an_exception_in_the_backward_is_misbehaviour():
    """Told apart from one in the forward."""
    subject = around(lambda y, h_last, inputs: (_FailsBackward.apply(y), h_last))
    with pytest.raises(
        Misbehaviour, match=r"^the subject's backward raised KeyError: 'lost'\n  File .*, in backward\n"
    ):
        run(subject, ordinary(0))


@pytest.mark.parametrize("call", [Call(), GUARDED], ids=["plain", "guarded"])
@pytest.mark.parametrize("where", ["its own", "of PyTorch, about an operation without a deterministic form"])
def test_a_warning_is_no_misbehaviour(where, call):
    """Warnings are errors in this repository's tests; how loud somebody else's kernel is, is not judged.

    Guarded memory switches PyTorch's deterministic mode on, which warns where a kernel may well do as it does.
    """

    def change(y, h_last, inputs):
        if where == "its own":
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        else:
            torch.zeros(2).put_(torch.tensor([1]), torch.tensor([2.0]))
        return y, h_last

    with warnings.catch_warnings(record=True):
        assert judge(ordinary(0), run(around(change), ordinary(0), call)).holds


def test_an_interrupt_is_not_the_subjects():
    """Ctrl-C ends the run, it does not convict."""

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Subject(function, "f"), ordinary(0))


class _HangsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        while True:
            pass


def _hang(y, h_last, inputs):
    while True:
        pass


@pytest.mark.parametrize(
    "change",
    [_hang, lambda y, h_last, inputs: (_HangsBackward.apply(y), h_last)],
    ids=["forward", "backward"],
)
def test_a_subject_that_hangs_is_ended(monkeypatch, change):
    """One that never answers must not hold up the others."""
    monkeypatch.setattr(running, "TIME_LIMIT", 0.05)
    with pytest.raises(NoAnswer, match=r"^changed gave no answer within 0 s$"):
        run(around(change), ordinary(0))


def test_the_time_limit_is_taken_back(monkeypatch):
    """An alarm that outlives the call would convict the next subject, or kill the run."""
    import signal

    monkeypatch.setattr(running, "TIME_LIMIT", 1000.0)
    before = signal.getsignal(signal.SIGALRM)
    run(UNCHANGED, ordinary(0))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


# --- run: memory


def overwrite(name: str, index) -> Subject:
    """A subject that writes 5 into an element of the storage of `name`, counted from the first of the tensor."""

    def change(y, h_last, inputs):
        tensor = inputs[name].detach()
        flat = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
        flat[tensor.storage_offset() + index(tensor)] = 5
        return y, h_last

    return around(change)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize(
    "index",
    [lambda v: 0, lambda v: v.numel() - 1, lambda v: v.numel(), lambda v: -1, lambda v: v.numel() + GUARD - 1],
    ids=["first", "last", "behind", "before", "far behind"],
)
def test_a_write_into_or_around_an_input_is_caught(name, index):
    """A kernel that works in place, or whose mask is off by one, ruins somebody else's data."""
    with pytest.raises(Misbehaviour, match=rf"^{name} was written to: element \d+ of its guarded buffer changed$"):
        run(overwrite(name, index), ordinary(0).replace(dy=None, dh_last=None), GUARDED)


def test_a_write_into_segment_pos_is_caught():
    """Integers have guards of their own."""

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        outputs = eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos.clone(), h0=h0)
        segment_pos += 1
        return outputs

    with pytest.raises(Misbehaviour, match=r"^segment_pos was written to: "):
        run(Subject(function, "f"), ordinary(0), GUARDED)


class _WritesCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        doubled = 2 * gradient
        gradient.mul_(2)
        return doubled / 2


@pytest.mark.parametrize("name", ["dy", "dh_last"])
def test_a_write_into_a_cotangent_is_caught(name):
    """It is another operator's output, which may be read again."""

    def change(y, h_last, inputs):
        return (_WritesCotangent.apply(y), h_last) if name == "dy" else (y, _WritesCotangent.apply(h_last))

    with pytest.raises(Misbehaviour, match=f"^{name} was written to: "):
        run(around(change), ordinary(0), GUARDED)


def test_a_write_of_the_same_value_is_none():
    """Only what changed can be seen, NaN of the guard included."""
    run(around(lambda y, h_last, inputs: inputs["x"].data.mul_(1.0) is None or (y, h_last)), ordinary(0), GUARDED)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_read_behind_an_input_shows(layout):
    """Whatever it is multiplied by, the NaN there stays one."""

    def change(y, h_last, inputs):
        x = inputs["x"].detach()
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        behind = torch.as_strided(x, (1,), (1,), x.storage_offset() + last + 1)
        return y + 0 * behind, h_last

    case = as_laid_out(ordinary(0), (("x", layout),))
    assert np.isnan(run(around(change), case, Call(layouts=(("x", layout),))).y).all()


def test_a_read_behind_segment_pos_is_a_reset():
    """There is no NaN among integers: the guard holds the one value that matters."""
    seen = []

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        seen.append(torch.as_strided(segment_pos, (2,), (segment_pos.numel() + 1,), segment_pos.storage_offset() - 1))
        return eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)

    run(Subject(function, "f"), ordinary(0))
    assert seen[0].tolist() == [0, 0]


def test_memory_that_is_not_written_shows_as_nan():
    """torch.empty often holds what the last call left there: right by luck."""

    def change(y, h_last, inputs):
        whole = torch.empty_like(y)
        whole[:, 1:] = y[:, 1:]
        return whole, h_last

    y = run(around(change), ordinary(0), GUARDED).y
    assert np.isnan(y[:, 0]).all()
    assert not np.isnan(y[:, 1:]).any()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda y, h, inputs: (inputs["x"], h), "y shares memory with x"),
        (lambda y, h, inputs: (inputs["gate_a"].detach()[:], h), "y shares memory with gate_a"),
        (lambda y, h, inputs: (y, inputs["h0"]), "h_last shares memory with h0"),
        (lambda y, h, inputs: (y, y[:, -1]), "h_last shares memory with y"),
    ],
)
def test_an_output_that_shares_memory_is_caught(change, text):
    """Whoever writes into it later changes what he never touched."""
    with pytest.raises(Misbehaviour, match=exactly(f"{text}: outputs must alias nothing")):
        run(around(change), ordinary(0), GUARDED)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)], ids=str)
def test_empty_cases_run_guarded(shape):
    """Nothing is shared where there is nothing."""
    rows, steps, width = shape
    tokens = {name: np.zeros(shape, np.float32) for name in ("x", "gate_x", "gate_a", "dy")}
    states = {name: np.ones((rows, width), np.float32) for name in ("h0", "dh_last")}
    case = Case(a_param=np.zeros(width), segment_pos=np.zeros((rows, steps), np.int64), **tokens, **states)
    for layout in LAYOUTS:
        result = run(UNCHANGED, case, Call(guarded=True, layouts=tuple((name, layout) for name in (*INPUTS, "dy"))))
        assert judge(case, result).holds


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_values_it_should(layout):
    """The tensors equal the arrays; only their strides are others."""
    layouts = tuple((name, layout) for name in (*INPUTS, "segment_pos", "dy", "dh_last"))
    case = as_laid_out(ordinary(3), layouts)
    seen = types.SimpleNamespace()

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        seen.__dict__.update(x=x, gate_x=gate_x, gate_a=gate_a, a_param=a_param, segment_pos=segment_pos, h0=h0)
        return eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)

    result = run(Subject(function, "f"), case, Call(layouts=layouts, guarded=True))
    for name, tensor in vars(seen).items():
        array = getattr(case, name)
        np.testing.assert_array_equal(tensor.detach().numpy(), array)
        assert str(tensor.dtype) == f"torch.{array.dtype}"
        assert tensor.storage_offset() == GUARD + (layout == "offset")
    strides = {
        "dense": (36, 3, 1),
        "offset": (36, 3, 1),
        "time first": (3, 6, 1),
        "channels first": (12, 1, 24),
        "sliced": (90, 6, 1),
        "strided": (72, 6, 2),
        "expanded": (0, 3, 1),
        "expanded in T": (3, 0, 1),
        "expanded in D": (12, 1, 0),
        "one element": (0, 0, 0),
        "in x": (36, 3, 1),
    }
    assert seen.x.stride() == strides[layout]
    assert (seen.gate_a.data_ptr() == seen.x.data_ptr()) == (layout == "in x")
    assert judge(case, result).holds


def test_what_shares_the_memory_of_x_is_x_itself_where_nothing_is_differentiated():
    """With gradients each argument needs one of its own, so that it is a tensor of its own in the same memory."""
    layouts, seen = (("gate_x", "in x"),), []

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        seen.append(gate_x is x)
        return eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)

    case = as_laid_out(ordinary(0), layouts)
    for asked in (case, case.replace(dy=None, dh_last=None)):
        assert judge(asked, run(Subject(function, "f"), asked, Call(layouts=layouts))).holds
    assert seen == [False, True]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_differentiated_in_a_mode_without_autograd(mode):
    """The mode is on while the function runs, and inputs want gradients as a model's parameters do."""
    seen = []

    def function(x, *others, **options):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), x.requires_grad))
        return eager.rglru(x, *others, **options)

    case = ordinary(0)
    result = run(Subject(function, "f"), case, Call(mode=mode))
    assert seen == [(False, mode == "inference_mode", True)]
    assert [name for name, _ in result.items()] == ["y", "h_last"]
    assert judge(case, result).holds


def test_reused_tensors_held_other_values_before():
    """The same objects, the values of the case at last; a result that a later call writes over is found."""
    seen: list[dict] = []

    def function(*tokens, segment_pos=None, h0=None):
        given = dict(zip(("x", "gate_x", "gate_a", "a_param"), tokens, strict=True), segment_pos=segment_pos, h0=h0)
        seen.append({name: (tensor, tensor.detach().clone()) for name, tensor in given.items()})
        return eager.rglru(*tokens, segment_pos=segment_pos, h0=h0)

    case = ordinary(0)
    assert judge(case, run(Subject(function, "f"), case, Call(reused=True))).holds
    earlier, later = seen
    for name in earlier:
        assert earlier[name][0] is later[name][0]
        assert not torch.equal(earlier[name][1], later[name][1])
    buffer = torch.empty(case.shape)

    def into_buffer(*tokens, segment_pos=None, h0=None):
        y, h_last = eager.rglru(*tokens, segment_pos=segment_pos, h0=h0)
        return buffer.copy_(y.detach()), h_last

    with pytest.raises(Misbehaviour, match=r"^y of an earlier call changed"):
        run(Subject(into_buffer, "f"), case, Call(reused=True))


@pytest.mark.parametrize("name", ["x", "segment_pos", "y"])
def test_what_is_overwritten_gives_no_gradients_where_autograd_notices(name):
    """y and h_last are what they were before; what autograd does not save may be overwritten."""
    case = ordinary(0)
    result = run(eager.SUBJECT, case, Call(overwritten=name))
    assert judge(case, result).holds
    assert (result.dx is None) == (name == "x")


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_positions_keep_their_dtype_and_every_bit(dtype):
    """A detour by float32 would turn 2^31 - 1 into 2^31."""
    values = np.array([[0, np.iinfo(dtype).max, np.iinfo(dtype).min, -1]], dtype)
    zeros = np.zeros((1, 4, 1), np.float32)
    seen = []

    def function(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        seen.append(segment_pos)
        return eager.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos)

    run(Subject(function, "f"), Case(zeros, zeros, zeros, np.zeros(1), segment_pos=values))
    assert seen[0].numpy().dtype == dtype
    assert np.array_equal(seen[0].numpy(), values)
