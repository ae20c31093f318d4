"""The public call: checks, choice of algorithm, autograd. Launches nothing before everything has been checked."""

import torch
from torch.autograd import forward_ad

from kernels import chunked, serial
from kernels.cell import INTERPRETED
from kernels.launch import STEPS, chains_a_multiprocessor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALGORITHMS = ("auto", "serial", "chunked", "three-pass")
SERIAL_FORWARD, SERIAL_BACKWARD = 3, 4
"""Chains a multiprocessor (kernels/launch.py) from which "auto" is serial, measured on an H200, bfloat16, % of a copy:

(B, T, D)        chains    forward, serial / chunked    backward, serial / chunked
1,8192,2560       0.3              17 / 59                       7 / 55
8,8192,2560       2.4              70 / 73                      51 / 65
8,8192,4096       3.9              85 / 74                      66 / 67
16,4096,2560      4.8              72 / 72                      67 / 65
24,2048,2560      7.3              81 / 70                      81 / 64
32,2048,2560      9.7              83 / 69                      83 / 64
"""
MOST_STEPS, MOST_CHANNELS = 2**29, 2**24
"""Beyond them offsets within a row of the batch, which the kernels count in 32 bits, may not fit."""
ALIGNMENT = 16
"""Bytes: Triton compiles a kernel anew for pointers that are less aligned."""


def rglru(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None, algorithm="auto", chunk_size=None):
    """Real-gated linear recurrent unit: h_t = a_t h_{t-1} + sqrt(1 - a_t^2) sigmoid(gate_x_t) x_t.

    With a_t = exp(-8 sigmoid(gate_a_t) softplus(a_param)) (Griffin, arXiv 2402.19427, eqs. 3-6, as recurrentgemma 1.0.1
    makes them precise). At a reset h_t = sigmoid(gate_x_t) x_t, and the past is selected away, not multiplied by zero.

    Parameters
    ----------
    x, gate_x, gate_a : Tensor [B, T, D]
        Recurrent input and the logits of both gates; float32, bfloat16 or float16, all the same; any strides.
    a_param : Tensor [D], float32
        Decay parameter, before softplus.
    segment_pos : Tensor [B, T], int32 or int64, optional
        Position in the document: a reset is where it is 0; no other value matters. None: no reset.
    h0 : Tensor [B, D], float32, optional
        State before the first token. None: zeros.
    algorithm : str
        "serial": one program a row and tile of channels walks through time. "chunked": a program a chunk of time, in
        one launch, where programs wait for those before them. "three-pass": the same in three launches, where none
        waits. "auto": serial or chunked, by how many chains (rows times tiles of 64 channels) a GPU's multiprocessors
        have to run beside one another, for the forward and for the backward; bits depend on it.
    chunk_size : int, optional
        Steps of a chunk: 16, 32 or 64 (the default). Bits depend on it.

    Returns
    -------
    y : Tensor [B, T, D], x.dtype
        All states, rounded once.
    h_last : Tensor [B, D], float32
        The last state, not rounded through x.dtype; for T = 0 a copy of h0.

    Differentiable once in x, gate_x, gate_a, a_param and h0; the slope of the square root is bounded at 1000.
    Arithmetic is float32. Inputs are never written to, outputs share no memory with them.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, the rule and what came, before anything is launched.
    RuntimeError
        Without a GPU and without Triton's interpreter; on a second or a forward-mode derivative.
    """
    _check(x, gate_x, gate_a, a_param, segment_pos, h0)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
    if algorithm in ("auto", "serial"):
        if chunk_size is not None:
            why = "has no chunks" if algorithm == "serial" else "chooses it (chunked and three-pass let you)"
            raise ValueError(f"chunk_size must be None: algorithm {algorithm!r} {why}; got {chunk_size!r}")
    elif chunk_size is not None and (type(chunk_size) is not int or chunk_size not in chunked.CHUNKS):
        raise ValueError(f"chunk_size must be one of {', '.join(map(str, chunked.CHUNKS))}; got {chunk_size!r}")
    for name, value in {"x": x, "gate_x": gate_x, "gate_a": gate_a, "a_param": a_param, "h0": h0}.items():
        if (
            value is not None
            and not torch.compiler.is_compiling()
            and forward_ad.unpack_dual(value).tangent is not None
        ):
            raise RuntimeError(f"rglru has no forward-mode derivative: {name} has a tangent")
    differentiable = torch.is_grad_enabled() and any(
        v is not None and v.requires_grad for v in (x, gate_x, gate_a, a_param, h0)
    )
    chunk_size = chunk_size or chunked.DEFAULT
    y, h_last, _ = _forward(x, gate_x, gate_a, a_param, segment_pos, h0, differentiable, algorithm, chunk_size)
    return y, h_last


def _check(x, gate_x, gate_a, a_param, segment_pos, h0):
    """Everything that can be known of the arguments without reading their values."""
    for name, value in {"x": x, "gate_x": gate_x, "gate_a": gate_a, "a_param": a_param}.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}")
    if x.dtype not in DTYPES:
        raise TypeError(f"x must be float32, bfloat16 or float16; got {x.dtype}")
    if x.ndim != 3:
        raise ValueError(f"x must have shape [B, T, D]; got {list(x.shape)}")
    batch, steps, width = x.shape
    if steps > MOST_STEPS or width > MOST_CHANNELS:
        raise ValueError(f"x must have T <= {MOST_STEPS} and D <= {MOST_CHANNELS}; got {list(x.shape)}")
    rules = {
        "x": (x, (batch, steps, width), (x.dtype,)),
        "gate_x": (gate_x, (batch, steps, width), (x.dtype,)),
        "gate_a": (gate_a, (batch, steps, width), (x.dtype,)),
        "a_param": (a_param, (width,), (torch.float32,)),
        "segment_pos": (segment_pos, (batch, steps), (torch.int32, torch.int64)),
        "h0": (h0, (batch, width), (torch.float32,)),
    }
    for name, (value, shape, dtypes) in rules.items():
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor or None; got {type(value).__name__}")
        if value.dtype not in dtypes:
            raise TypeError(f"{name} must be {' or '.join(map(str, dtypes))}; got {value.dtype}")
        if value.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}; got {list(value.shape)}")
        if value.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense (strided) tensor; got layout {value.layout}")
        if value.device != x.device:
            raise ValueError(f"{name} must be on the device of x, {x.device}; got {value.device}")
    if x.device.type not in (("cpu", "cuda") if INTERPRETED else ("cuda",)):
        raise RuntimeError(
            f"x is on {x.device}, but the kernels need a CUDA device"
            + (
                ", or the CPU, as TRITON_INTERPRET=1 is set"
                if INTERPRETED
                else "; to run on the CPU through Triton's interpreter (slow, for tests), set TRITON_INTERPRET=1 "
                "before Triton is imported"
            )
        )


@torch.library.custom_op("rglru::forward", mutates_args=())
def _forward(
    x: torch.Tensor,
    gate_x: torch.Tensor,
    gate_a: torch.Tensor,
    a_param: torch.Tensor,
    segment_pos: torch.Tensor | None,
    h0: torch.Tensor | None,
    save: bool,
    algorithm: str,
    chunk_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, gate_x, gate_a, a_param, segment_pos, h0 = _dense(x, gate_x, gate_a, a_param, segment_pos, h0)
    if x.numel() == 0:
        y, h_last, states = _forward_shapes(x, gate_x, gate_a, a_param, segment_pos, h0, save, algorithm, chunk_size)
        return y, h_last.zero_() if h0 is None else h_last.copy_(h0), states
    with _on(x):
        module, options = _algorithm(x, algorithm, chunk_size, SERIAL_FORWARD)
        return module.forward(x, gate_x, gate_a, a_param, segment_pos, h0, save=save, **options)


@_forward.register_fake
def _forward_shapes(x, gate_x, gate_a, a_param, segment_pos, h0, save, algorithm, chunk_size):
    batch, steps, width = x.shape
    states = (batch, -(-steps // STEPS) if save else 0, width)
    return (
        x.new_empty(x.shape),
        x.new_empty((batch, width), dtype=torch.float32),
        x.new_empty(states, dtype=torch.float32),
    )


@torch.library.custom_op("rglru::backward", mutates_args=())
def _backward(
    x: torch.Tensor,
    gate_x: torch.Tensor,
    gate_a: torch.Tensor,
    a_param: torch.Tensor,
    segment_pos: torch.Tensor | None,
    states: torch.Tensor,
    dy: torch.Tensor,
    dh_last: torch.Tensor,
    algorithm: str,
    chunk_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = _dense(x, gate_x, gate_a, a_param, segment_pos, states, dy, dh_last)
    if x.numel() == 0:
        dx, dgate_x, dgate_a, da_param, dh0 = _backward_shapes(*inputs, algorithm, chunk_size)
        return dx, dgate_x, dgate_a, da_param.zero_(), dh0.copy_(dh_last)
    with _on(x):
        module, options = _algorithm(x, algorithm, chunk_size, SERIAL_BACKWARD)
        return module.backward(*inputs, **options)


@_backward.register_fake
def _backward_shapes(x, gate_x, gate_a, a_param, segment_pos, states, dy, dh_last, algorithm, chunk_size):
    batch, _, width = x.shape
    da_param, dh0 = (x.new_empty(shape, dtype=torch.float32) for shape in ((width,), (batch, width)))
    return (*(x.new_empty(x.shape) for _ in range(3)), da_param, dh0)


def _setup(ctx, inputs, output):
    x, gate_x, gate_a, a_param, segment_pos, h0, _, *ctx.algorithm = inputs
    ctx.save_for_backward(x, gate_x, gate_a, a_param, segment_pos, output[2])
    ctx.has_h0 = h0 is not None
    ctx.set_materialize_grads(False)  # the states have none, and zeros for them would be written for nothing


def _differentiate(ctx, dy, dh_last, _):
    saved = ctx.saved_tensors  # once: checkpointing unpacks no tensor twice
    x, *_, states = saved
    dy = x.new_zeros(x.shape) if dy is None else dy
    dh_last = states.new_zeros((x.shape[0], x.shape[2])) if dh_last is None else dh_last
    dx, dgate_x, dgate_a, da_param, dh0 = _backward(*saved, dy, dh_last, *ctx.algorithm)
    return dx, dgate_x, dgate_a, da_param, None, dh0 if ctx.has_h0 else None, None, None, None


def _refuse(ctx, *_):
    raise RuntimeError("rglru has no second derivative: its backward is not differentiable")


_forward.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(_refuse)


def _algorithm(x, algorithm, chunk_size, enough):
    """The module that has it, and its options."""
    if algorithm == "auto":
        batch, _, width = x.shape
        algorithm = "serial" if chains_a_multiprocessor(batch, width, x.device) >= enough else "chunked"
    if algorithm == "serial":
        return serial, {}
    return chunked, {"chunk_size": chunk_size, "waiting": algorithm == "chunked"}


def _dense(*tensors):
    """Contiguous tensors whose memory starts at a multiple of `ALIGNMENT`, copied where they are not."""
    dense = (None if tensor is None else tensor.contiguous() for tensor in tensors)
    return tuple(t if t is None or t.data_ptr() % ALIGNMENT == 0 else t.clone() for t in dense)


def _on(x):
    """Launch on the device of `x`, also where another one is current."""
    return torch.cuda.device(x.device if x.is_cuda else -1)
