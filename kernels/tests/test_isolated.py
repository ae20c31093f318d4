"""A function in a process of its own gives what it gives at home, and what ends that process ends nothing else."""

import re

import numpy as np
import pytest
import torch

from kernels.subjects import Subject, eager, isolated
from kernels.subjects.isolated import Crashed, Isolated
from kernels.subjects.run import LAYOUTS, Call, Misbehaviour, NoAnswer, as_laid_out, run
from oracle.tests.cases import ordinary

PLAIN, GUARDED = Call(), Call(guarded=True)
MISBEHAVING = """
import ctypes, os, time
import torch
from kernels.subjects.eager import rglru

def crash():
    ctypes.string_at(0)

def beyond(tensor, index):
    torch.as_strided(tensor.detach(), (1,), (1,), tensor.storage_offset() + index).fill_(5)

class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, what):
        ctx.what = what
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        what = ctx.what
        crash() if what == 21 else time.sleep(60) if what == 22 else beyond(gradient, -1) if what == 23 else 1 / 0
        return gradient, None

def subject(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    what = int(h0.flatten()[0]) if h0 is not None and h0.numel() else 0
    if what == 11:
        crash()
    if what == 13:
        raise KeyError("lost")
    if what == 14:
        beyond(x, x.numel())
    if what == 15:
        segment_pos += 1
    if what == 16:
        raise SystemExit("enough")
    if what == 17:
        os._exit(3)
    y, h_last = rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
    if what == 31:
        return x, h_last
    if what == 32:
        return y, h0
    if what == 33:
        return y, None
    if what == 34:
        return y.detach(), h_last
    if what == 35:
        return y.double(), h_last
    if what == 36:
        return torch.empty_like(y), h_last
    return (Late.apply(y, what), h_last) if what > 20 else (y, h_last)
"""


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory):
    """The eager subject in a process of its own, misbehaving in the way that the first element of h0 says."""
    path = tmp_path_factory.mktemp("isolated") / "misbehaving.py"
    path.write_text(MISBEHAVING)
    return Isolated(f"{path}:subject")


def asking(what: int, seed=0):
    case = ordinary(seed)
    h0 = np.array(case.h0)
    h0[0, 0] = what
    return case.replace(h0=h0)


def assert_as_at_home(function, case, call: Call = PLAIN):
    got, wanted = run(Subject(function, "f"), case, call), run(eager.SUBJECT, case, call)
    assert [name for name, _ in got.items()] == [name for name, _ in wanted.items()]
    for name, array in got.items():
        np.testing.assert_array_equal(array, getattr(wanted, name), err_msg=name)


# --- the same results


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_results_and_gradients_are_those_at_home(misbehaving, dtype):
    """Bit for bit: the journey changes nothing."""
    assert_as_at_home(misbehaving, ordinary(1, dtype=dtype))


@pytest.mark.parametrize(
    "call",
    [
        Call(guarded=True),
        Call(interleaved=True),
        Call(reused=True),
        Call(mode="inference_mode"),
        Call(cuts=(0, 1, 5)),
        Call(requires_grad=("gate_a", "h0")),
        Call(requires_grad=()),
    ],
    ids=lambda call: ", ".join(
        name for name in ("guarded", "interleaved", "reused", "mode", "cuts") if getattr(call, name)
    ),
)
def test_every_kind_of_call_is_the_same(misbehaving, call):
    """Several graphs alive at once, a backward run twice, a state handed on, some gradients only."""
    assert_as_at_home(misbehaving, ordinary(2), call)


def test_what_is_overwritten_is_noticed_on_this_side(misbehaving):
    """The other process would get the new values, and no version that tells them from the old."""
    subject, case = Subject(misbehaving, "f"), ordinary(2)
    for name in ("x", "segment_pos", "y"):
        assert run(subject, case, Call(overwritten=name)).dx is None


def test_optional_arguments_and_empty_sizes_are_the_same(misbehaving):
    """None stays None, and nothing has a shape."""
    case = ordinary(3)
    assert_as_at_home(misbehaving, case.replace(segment_pos=None, h0=None))
    assert_as_at_home(misbehaving, case.replace(dy=None))
    assert_as_at_home(misbehaving, case.replace(dy=None, dh_last=None))
    for empty in (case.take(steps=slice(0)), case.take(rows=slice(0)), case.take(channels=slice(0))):
        assert_as_at_home(misbehaving, empty, Call(guarded=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_offsets_and_surroundings_are_the_same(misbehaving, layout):
    """PyTorch rounds differently in other strides, so equal bits show equal strides."""
    names = ("x", "gate_x", "gate_a", "a_param", "h0", "segment_pos", "dy", "dh_last")
    layouts = tuple((name, layout) for name in names)
    assert_as_at_home(misbehaving, as_laid_out(ordinary(3), layouts), Call(guarded=True, layouts=layouts))


def test_a_tensor_travels_with_its_storage():
    """Both sides see each other's writes, views of one storage stay views of it, and outputs may be inputs."""
    ours, theirs = isolated._Storages(), isolated._Storages()
    buffer = torch.arange(20.0)
    first, second = buffer[3:15].view(3, 4).t(), buffer[10:]
    left, nothing, right = theirs.unpack(ours.pack([first, None, second]))
    assert nothing is None
    assert (left.stride(), left.storage_offset(), right.storage_offset()) == (first.stride(), 3, 10)
    right[0] = -1
    made = torch.zeros(2)
    back, new = ours.unpack(theirs.pack([left[0], made]))
    assert buffer[10] == -1
    assert back.data_ptr() == first[0].data_ptr()
    buffer[0] = 7
    assert theirs.unpack(ours.pack([new]))[0].data_ptr() == made.data_ptr()
    assert left.as_strided((1,), (1,), 0).item() == 7


def test_the_graph_is_forgotten_with_its_outputs(misbehaving):
    """A search of a thousand examples must not keep a thousand graphs."""
    run(Subject(misbehaving, "f"), ordinary(0))
    child = misbehaving.child
    x, state = torch.ones(1, 2, 3, requires_grad=True), torch.ones(1, 3)
    child.forgotten.clear()
    outputs = misbehaving(x, x, x, state[0], h0=state)
    assert not child.forgotten
    del outputs
    assert len(child.forgotten) == 1
    assert misbehaving.child is child


# --- misbehaviour


def refusal(function, what: int, call: Call = GUARDED) -> str:
    with pytest.raises(Misbehaviour) as caught:
        run(Subject(function, "f"), asking(what), call)
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (13, "the subject raised KeyError: 'lost'"),
        (16, "the subject raised SystemExit: enough"),
        (14, "x was written to: element 136 of its guarded buffer changed"),
        (15, "segment_pos was written to: element 64 of its guarded buffer changed"),
        (23, "dy was written to: element 63 of its guarded buffer changed"),
        (24, "the subject's backward raised ZeroDivisionError: division by zero"),
        (31, "y shares memory with x: outputs must alias nothing"),
        (32, "h_last shares memory with h0: outputs must alias nothing"),
        (33, "the subject must return two tensors, (y, h_last); got tuple"),
        (35, "y must be torch.float32 [2, 12, 3] on cpu; got torch.float64 [2, 12, 3] on cpu"),
    ],
)
def test_misbehaviour_is_seen_as_at_home(misbehaving, what, text):
    """And the process lives on: none of these is worth another start."""
    run(Subject(misbehaving, "f"), asking(0))
    before = misbehaving.child
    said, _, lines = refusal(misbehaving, what).partition("\n")
    assert said == text
    assert ('misbehaving.py", line ' in lines) == ("raised" in text), "its own lines, and none where it raised nothing"
    assert "isolated.py" not in lines
    assert misbehaving.child is before


def test_what_is_not_written_or_has_no_graph_shows(misbehaving):
    """New memory is NaN there, too, and a detached output has no gradient."""
    subject = Subject(misbehaving, "f")
    assert np.isnan(run(subject, asking(36).replace(dy=None, dh_last=None), Call(guarded=True)).y).all()
    assert not np.any(run(subject, asking(34).replace(dh_last=None)).dx)


@pytest.mark.parametrize(("what", "where"), [(11, ""), (21, "'s backward")])
def test_a_crash_is_misbehaviour_and_the_next_call_has_a_fresh_process(misbehaving, what, where):
    """At home, it would have taken the whole run along."""
    assert refusal(misbehaving, what) == f"the subject{where} raised Crashed: its process was ended by SIGSEGV"
    run(Subject(misbehaving, "f"), asking(0))


def test_the_graphs_of_a_process_that_has_ended_are_gone(misbehaving):
    """A backward cannot be answered by the next process."""
    leaves = [torch.ones(1, 2, 3, requires_grad=True) for _ in range(3)]
    y, _ = misbehaving(*leaves, torch.ones(3))
    assert refusal(misbehaving, 17) == "the subject raised Crashed: its process exited with code 3"
    with pytest.raises(Crashed, match=r"^its process, which held what the backward needs, has ended since the call$"):
        y.sum().backward()


def test_a_hang_ends_at_the_limit(misbehaving, monkeypatch):
    """As run.py says it, so that nobody searches for a smaller case; the process is gone."""
    run(Subject(misbehaving, "f"), asking(0))
    child = misbehaving.child
    monkeypatch.setattr(child, "limit", 0.3)
    with pytest.raises(NoAnswer, match=rf"^{re.escape(misbehaving.target)} gave no answer within 0 s$"):
        run(Subject(misbehaving, "f"), asking(22))
    assert child.process.poll() is not None


def test_what_cannot_be_imported_says_so_and_nobody_is_left():
    """By the sentence of `load`; and a child whose parent is gone, however it went, ends by itself."""
    function = Isolated("no_such_module:f")
    assert refusal(function, 0).startswith(
        "the subject raised SubjectError: no_such_module:f: importing it failed with"
    )
    function.child.connection.close()
    assert function.child.process.wait(10) == 0
