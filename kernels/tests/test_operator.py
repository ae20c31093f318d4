"""The public call: what it refuses and in which words, what it saves, and how it behaves as an operator of PyTorch.

Whether its values are right is the contract's business.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels import chunked, serial
from kernels.cell import INTERPRETED
from kernels.launch import STEPS
from kernels.operator import _backward, _forward

DEVICE = "cpu" if INTERPRETED else "cuda"
ROOT = Path(__file__).parents[2]
DIFFERENTIABLE = ("x", "gate_x", "gate_a", "a_param", "h0")
SECOND_DERIVATIVE = "^rglru has no second derivative: its backward is not differentiable$"


def arguments(*, rows=2, steps=5, width=3, dtype=torch.float32, requires_grad=False) -> dict:
    """Every argument by name; resets at steps 0 and 3 of every document of three."""
    generator = torch.Generator().manual_seed(rows + 10 * steps + 100 * width)

    def normal(*shape, of=torch.float32):
        return torch.randn(shape, generator=generator).to(DEVICE, of).requires_grad_(requires_grad)

    tokens = {name: normal(rows, steps, width, of=dtype) for name in ("x", "gate_x", "gate_a")}
    positions = (torch.arange(steps) % 3).expand(rows, steps).contiguous().to(DEVICE)
    return tokens | {"a_param": normal(width), "segment_pos": positions, "h0": normal(rows, width)}


def call(given: dict, function=kernels.rglru, **options):
    """The first four by position, the others by keyword."""
    tokens = (given[name] for name in ("x", "gate_x", "gate_a", "a_param"))
    return function(*tokens, segment_pos=given.get("segment_pos"), h0=given.get("h0"), **options)


def gradients(given: dict, outputs) -> list[torch.Tensor]:
    leaves = [given[name] for name in DIFFERENTIABLE if given.get(name) is not None]
    return list(torch.autograd.grad([output.float().sum() for output in outputs], leaves))


def assert_same_bits(got, wanted):
    for left, right in zip(got, wanted, strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        assert torch.equal(left, right)


# --- what is refused


@pytest.fixture
def _nothing_may_be_launched(monkeypatch):
    def launched(*_, **__):
        pytest.fail("a kernel was launched")

    monkeypatch.setattr(serial, "forward", launched)
    monkeypatch.setattr(chunked, "forward", launched)


BAD_VALUES = [
    ("x", 3.0, TypeError, "x must be a torch.Tensor; got float"),
    ("x", None, TypeError, "x must be a torch.Tensor; got NoneType"),
    ("gate_x", [1.0], TypeError, "gate_x must be a torch.Tensor; got list"),
    ("gate_a", torch.ones(2, 5, 3).numpy(), TypeError, "gate_a must be a torch.Tensor; got ndarray"),
    ("a_param", None, TypeError, "a_param must be a torch.Tensor; got NoneType"),
    ("segment_pos", [0, 1], TypeError, "segment_pos must be a torch.Tensor or None; got list"),
    ("h0", 0, TypeError, "h0 must be a torch.Tensor or None; got int"),
]
BAD_DTYPES = [
    ("x", torch.float64, "x must be float32, bfloat16 or float16; got torch.float64"),
    ("x", torch.int64, "x must be float32, bfloat16 or float16; got torch.int64"),
    ("x", torch.complex64, "x must be float32, bfloat16 or float16; got torch.complex64"),
    ("gate_x", torch.bfloat16, "gate_x must be torch.float32; got torch.bfloat16"),
    ("gate_a", torch.float16, "gate_a must be torch.float32; got torch.float16"),
    ("gate_a", torch.float64, "gate_a must be torch.float32; got torch.float64"),
    ("a_param", torch.bfloat16, "a_param must be torch.float32; got torch.bfloat16"),
    ("a_param", torch.float64, "a_param must be torch.float32; got torch.float64"),
    ("segment_pos", torch.float32, "segment_pos must be torch.int32 or torch.int64; got torch.float32"),
    ("segment_pos", torch.bool, "segment_pos must be torch.int32 or torch.int64; got torch.bool"),
    ("h0", torch.bfloat16, "h0 must be torch.float32; got torch.bfloat16"),
    ("h0", torch.float64, "h0 must be torch.float32; got torch.float64"),
]
BAD_SHAPES = [
    ("x", (5, 3), "x must have shape [B, T, D]; got [5, 3]"),
    ("x", (2, 5, 3, 1), "x must have shape [B, T, D]; got [2, 5, 3, 1]"),
    ("gate_x", (2, 5, 1), "gate_x must have shape [2, 5, 3]; got [2, 5, 1]"),
    ("gate_x", (3,), "gate_x must have shape [2, 5, 3]; got [3]"),
    ("gate_a", (2, 4, 3), "gate_a must have shape [2, 5, 3]; got [2, 4, 3]"),
    ("a_param", (), "a_param must have shape [3]; got []"),
    ("a_param", (1, 3), "a_param must have shape [3]; got [1, 3]"),
    ("segment_pos", (5,), "segment_pos must have shape [2, 5]; got [5]"),
    ("segment_pos", (1, 5), "segment_pos must have shape [2, 5]; got [1, 5]"),
    ("h0", (3,), "h0 must have shape [2, 3]; got [3]"),
    ("h0", (2, 1, 3), "h0 must have shape [2, 3]; got [2, 1, 3]"),
]


def assert_refused(given: dict, error: type[Exception], text: str, **options):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        call(given, **options)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize(("name", "value", "error", "text"), BAD_VALUES, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_no_tensor_is_refused(name, value, error, text):
    """A NumPy array or a number would otherwise fail deep inside a launch."""
    assert_refused(arguments() | {name: value}, error, text)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize(("name", "dtype", "text"), BAD_DTYPES, ids=[f"{name}-{d}" for name, d, _ in BAD_DTYPES])
def test_a_wrong_dtype_is_refused_by_name_rule_and_value(name, dtype, text):
    """float64 would be rounded in silence; gates of another dtype than x are somebody's autocast gone wrong."""
    given = arguments()
    assert_refused(given | {name: given[name].to(dtype)}, TypeError, text)


def test_gates_must_have_the_dtype_of_x_whatever_it_is():
    """The rule is the dtype of x, not float32."""
    given = arguments(dtype=torch.bfloat16)
    text = "gate_x must be torch.bfloat16; got torch.float32"
    assert_refused(given | {"gate_x": given["gate_x"].float()}, TypeError, text)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize(("name", "shape", "text"), BAD_SHAPES, ids=[f"{name}-{s}" for name, s, _ in BAD_SHAPES])
def test_a_wrong_shape_is_refused_by_name_rule_and_value(name, shape, text):
    """Nothing broadcasts: a kernel would read past the end of what is too small."""
    given = arguments()
    wrong = torch.zeros(shape, dtype=given[name].dtype, device=DEVICE)
    assert_refused(given | {name: wrong}, ValueError, text)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize("name", ["gate_x", "gate_a", "a_param", "segment_pos", "h0"])
def test_a_tensor_on_another_device_is_refused(name):
    """A pointer into another device's memory is a crash or a silent wrong read."""
    given = arguments()
    given[name] = given[name].to("meta")
    assert_refused(given, ValueError, f"{name} must be on the device of x, {given['x'].device}; got meta")


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize("name", ["x", "gate_x", "gate_a", "a_param", "segment_pos", "h0"])
def test_a_sparse_tensor_is_refused(name):
    """It has no memory with strides that a kernel could walk."""
    given = arguments()
    text = f"{name} must be a dense (strided) tensor; got layout torch.sparse_coo"
    assert_refused(given | {name: given[name].to_sparse()}, TypeError, text)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize("algorithm", ["Serial", "chunk", "", None, ["serial"]], ids=str)
def test_an_unknown_algorithm_is_refused_with_the_known_ones(algorithm):
    """A typo must not fall back to another algorithm."""
    text = f"algorithm must be one of auto, serial, chunked, three-pass; got {algorithm!r}"
    assert_refused(arguments(), ValueError, text, algorithm=algorithm)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize(
    ("algorithm", "why"),
    [("auto", "'auto' chooses it (chunked and three-pass let you)"), ("serial", "'serial' has no chunks")],
)
def test_a_chunk_size_is_refused_where_it_has_no_effect(algorithm, why):
    """An argument that is ignored is one that lies."""
    text = f"chunk_size must be None: algorithm {why}; got 8"
    assert_refused(arguments(), ValueError, text, algorithm=algorithm, chunk_size=8)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize("shape", [(1, 2**29 + 1, 1), (1, 1, 2**24 + 1)])
def test_a_row_whose_offsets_do_not_fit_is_refused(shape):
    """A number that wraps around reads and writes elsewhere."""
    text = f"x must have T <= 536870912 and D <= 16777216; got {list(shape)}"
    assert_refused(arguments() | {"x": torch.zeros(1, device=DEVICE).expand(shape)}, ValueError, text)


@pytest.mark.usefixtures("_nothing_may_be_launched")
@pytest.mark.parametrize("algorithm", ["chunked", "three-pass"])
@pytest.mark.parametrize("chunk_size", [0, 8, -16, 24, 128, 32.0, True, "64"])
def test_a_chunk_size_that_is_not_there_is_refused(algorithm, chunk_size):
    """32.0 and True hash as numbers that are or might be there."""
    text = f"chunk_size must be one of 16, 32, 64; got {chunk_size!r}"
    assert_refused(arguments(), ValueError, text, algorithm=algorithm, chunk_size=chunk_size)


@pytest.mark.usefixtures("_nothing_may_be_launched")
def test_a_device_without_kernels_is_refused():
    """All on one device is not enough: it must be one that runs Triton."""
    given = {name: value.to("meta") for name, value in arguments().items()}
    how = ", or the CPU, as TRITON_INTERPRET=1 is set" if INTERPRETED else "; to run on the CPU through .* set TRITON_I"
    with pytest.raises(RuntimeError, match=f"^x is on meta, but the kernels need a CUDA device{how}"):
        call(given)


def test_without_gpu_and_interpreter_the_error_says_how():
    """The library never switches the interpreter on by itself: a user on a laptop must be told that it exists."""
    code = (
        "import torch, kernels\n"
        "x = torch.zeros(1, 2, 3)\n"
        "try:\n    kernels.rglru(x, x, x, torch.zeros(3))\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "x is on cpu, but the kernels need a CUDA device; to run on the CPU through Triton's interpreter "
        "(slow, for tests), set TRITON_INTERPRET=1 before Triton is imported\n"
    )


# --- derivatives and what is saved for them


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("output", [0, 1], ids=["y", "h_last"])
def test_a_second_derivative_is_refused(name, output):
    """Its absence must not look like a second derivative of zero."""
    given = arguments(requires_grad=True)
    first = torch.autograd.grad(call(given)[output].square().sum(), given[name], create_graph=True)[0]
    with pytest.raises(RuntimeError, match=SECOND_DERIVATIVE):
        torch.autograd.grad(first.sum(), given["x"])


def test_a_derivative_by_the_cotangent_is_refused():
    """A gradient is linear in the cotangent, but through the kernel that, too, is a second derivative."""
    given = arguments(requires_grad=True)
    y, _ = call(given)
    cotangent = torch.ones_like(y, requires_grad=True)
    dx = torch.autograd.grad(y, given["x"], cotangent, create_graph=True)[0]
    with pytest.raises(RuntimeError, match=SECOND_DERIVATIVE):
        torch.autograd.grad(dx.sum(), cotangent)


class _Saved(TorchDispatchMode):
    """Records how many numbers each forward returned for its backward."""

    def __init__(self):
        super().__init__()
        self.numbers: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        if func is torch.ops.rglru.forward.default:
            self.numbers.append(outputs[2].numel())
        return outputs


@pytest.mark.parametrize(
    ("grad_mode", "requires_grad", "saved"),
    [(True, True, 2 * 2 * 3), (True, False, 0), (False, True, 0)],
    ids=["trained", "nothing requires a gradient", "no_grad"],
)
def test_states_are_saved_only_for_a_backward(grad_mode, requires_grad, saved):
    """Inference must not pay for training; STEPS + 1 steps have 2 saved states a row and channel."""
    given = arguments(steps=STEPS + 1, requires_grad=requires_grad)
    with torch.set_grad_enabled(grad_mode), _Saved() as seen:
        y, h_last = call(given)
    assert seen.numbers == [saved]
    assert y.requires_grad == h_last.requires_grad == (saved > 0)


def test_a_forward_mode_derivative_is_refused():
    """Without a rule for it PyTorch would drop the tangent in silence: a derivative of zero that is none."""
    given = arguments()

    def y_of(x):
        return call(given | {"x": x})[0]

    with pytest.raises(RuntimeError, match=r"^rglru has no forward-mode derivative"):
        torch.func.jvp(y_of, (given["x"],), (torch.ones_like(given["x"]),))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_asked_for_one_input_alone_is_that_of_all(name):
    """a_param alone, in a frozen network say, must be reason enough to save the states."""
    whole = arguments(requires_grad=True)
    alone = {n: v.detach() for n, v in whole.items()}
    alone[name].requires_grad_()
    (got,) = torch.autograd.grad([o.sum() for o in call(alone)], [alone[name]])
    assert torch.equal(got, gradients(whole, call(whole))[DIFFERENTIABLE.index(name)])


EMPTY = [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optional", [True, False], ids=["with h0 and resets", "without"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_sizes_are_legal_forward_and_backward(shape, optional, dtype):
    """T = 0: h_last is a new copy of h0 and dh0 = dh_last; da_param is zeros whatever is empty."""
    rows, steps, width = shape
    given = arguments(rows=rows, steps=steps, width=width, dtype=dtype, requires_grad=True)
    if not optional:
        given |= {"segment_pos": None, "h0": None}
    y, h_last = call(given)
    assert (y.shape, y.dtype) == (shape, dtype)
    state = given["h0"] if optional else torch.zeros(rows, width, device=DEVICE)
    assert_same_bits([h_last], [state])
    assert not h_last.numel() or h_last.untyped_storage().data_ptr() != state.untyped_storage().data_ptr()
    dh_last = torch.full_like(h_last, 3.0)
    leaves = [given[name] for name in DIFFERENTIABLE if given[name] is not None]
    dx, dgate_x, dgate_a, da_param, *dh0 = torch.autograd.grad([y, h_last], leaves, [torch.ones_like(y), dh_last])
    assert_same_bits([dx, dgate_x, dgate_a], [torch.zeros_like(y)] * 3)
    assert_same_bits([da_param], [torch.zeros(width, device=DEVICE)])
    assert_same_bits(dh0, [dh_last] if optional else [])


# --- an operator of PyTorch


@pytest.mark.parametrize("algorithm", ["serial", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optional", [True, False], ids=["with h0 and resets", "without"])
def test_the_forward_operator_passes_opcheck(optional, dtype, algorithm):
    """Schema, autograd registration, fake tensors and AOT dispatch: what torch.compile and torch.export build on."""
    given = arguments(dtype=dtype, requires_grad=True)
    extra = [given["segment_pos"], given["h0"]] if optional else [None, None]
    tokens = (given[name] for name in ("x", "gate_x", "gate_a", "a_param"))
    torch.library.opcheck(_forward, (*tokens, *extra, True, algorithm, 16))


def _transposed(v: torch.Tensor) -> torch.Tensor:
    return v.transpose(-1, -2).contiguous().transpose(-1, -2)


def _expanded(v: torch.Tensor) -> torch.Tensor:
    return v[:1].expand(v.shape)


@pytest.mark.parametrize("lay_out", [torch.clone, _transposed, _expanded], ids=["dense", "transposed", "expanded"])
def test_the_backward_operator_passes_opcheck(lay_out):
    """It stands alone in the graph that AOT autograd traces; its cotangents come as the next operator leaves them.

    A fake kernel that promises other strides than the real one has makes compiled training fail.
    """
    given = arguments()
    y, h_last, states = _forward(*given.values(), True, "serial", 16)
    inputs = [value for name, value in given.items() if name != "h0"]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(_backward, (*inputs, states, lay_out(y), lay_out(h_last), "serial", 16), test_utils=checks)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static shapes", "dynamic shapes"])
def test_compiled_is_eager_bit_for_bit(dynamic):
    """In one graph, with resets, state and gradients; a compiled model is the model."""
    torch.compiler.reset()
    compiled = torch.compile(kernels.rglru, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for steps in (5, 9) if dynamic else (5,):
        given = arguments(steps=steps, requires_grad=True)
        got, wanted = call(given, compiled), call(given)
        assert_same_bits(got, wanted)
        assert_same_bits(gradients(given, got), gradients(given, wanted))


@pytest.mark.parametrize("shape", [(2, 9, 3), *EMPTY], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_fake_tensors_have_the_shapes_of_real_ones(shape, dtype):
    """Memory planning and compilation see the operator only through these."""
    rows, steps, width = shape
    given = arguments(rows=rows, steps=steps, width=width, dtype=dtype, requires_grad=True)
    outputs = call(given)
    real = [*outputs, *gradients(given, outputs)]
    with FakeTensorMode() as mode:
        imagined = {name: mode.from_tensor(value) for name, value in given.items()}
        outputs = call(imagined)
        fake = [*outputs, *gradients(imagined, outputs)]
    described = [[(v.shape, v.stride(), v.dtype, v.device) for v in values] for values in (fake, real)]
    assert described[0] == described[1]


def test_any_strides_of_inputs_and_cotangents_give_the_same_bits():
    """Transposed, sliced and expanded: what a model has at hand after a split or a transpose."""
    given = arguments(requires_grad=True)
    strided = {
        **given,
        "x": given["x"].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(),
        "gate_x": given["gate_x"].detach().repeat(1, 1, 2)[..., :3].requires_grad_(),
        "gate_a": given["gate_a"].detach().repeat_interleave(2, 1)[:, ::2].requires_grad_(),
        "segment_pos": given["segment_pos"][:1].expand(2, -1),
        "h0": given["h0"].detach().t().contiguous().t().requires_grad_(),
    }
    assert all(strided[name].is_contiguous() == (name == "a_param") for name in strided)
    got, wanted = call(strided), call(given)
    assert_same_bits(got, wanted)
    # the cotangent of a sum is expanded, with strides 0; this one is dense
    dense = torch.autograd.grad(wanted, [given[name] for name in DIFFERENTIABLE], [torch.ones_like(v) for v in wanted])
    assert_same_bits(torch.autograd.grad([v.sum() for v in got], [strided[name] for name in DIFFERENTIABLE]), dense)


def test_a_size_of_1_may_have_any_stride():
    """What is contiguous by PyTorch's rule need not have a stride of 1 along its last axis."""
    given = arguments(steps=1, requires_grad=True)
    for dtype in (torch.int64, torch.int32):
        positions = torch.tensor([0, 1], dtype=dtype, device=DEVICE).as_strided((2, 1), (1, 2))
        assert positions.is_contiguous()
        got, wanted = (call({**given, "segment_pos": v}) for v in (positions, positions.clone().view(2, 1)))
        assert_same_bits(got, wanted)
        assert_same_bits(gradients(given, got), gradients(given, wanted))


def test_checkpointed_is_plain_bit_for_bit():
    """Checkpointing runs the forward again for the backward, and hands out each saved tensor once."""
    given = arguments(requires_grad=True)
    wanted = call(given)
    got = torch.utils.checkpoint.checkpoint(lambda: call(given), use_reentrant=False)
    assert_same_bits(got, wanted)
    assert_same_bits(gradients(given, got), gradients(given, wanted))


def test_autocast_changes_nothing():
    """The kernel computes in float32 whatever it is given: there is nothing for autocast to lower."""
    given = arguments()
    wanted = call(given)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert_same_bits(call(given), wanted)
