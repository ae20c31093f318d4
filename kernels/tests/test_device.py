"""What only a GPU shows: how many variants are compiled, and the same bits under load."""

import random

import pytest
import torch

import kernels
from kernels import chunked, reduce, serial
from kernels.cell import INTERPRETED
from kernels.subjects import load
from oracle import Case, Result, judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        INTERPRETED, reason="needs a GPU: the interpreter compiles nothing and runs one thing at a time"
    ),
]
SHAPES = [
    (1, 2048, 2560),
    (1, 8192, 2560),
    (1, 32768, 2560),
    (8, 2048, 2560),
    (8, 8192, 2560),
    (32, 2048, 2560),
    (64, 1024, 4096),
    (1, 131072, 1024),
]
"""Sizes of training and prefill."""
DRAWN = 64
"""Channels of them that are judged, all rows and all steps."""
ALGORITHMS = ("serial", "chunked")
KERNELS = {
    "serial": (serial._forward_kernel, serial._backward_kernel, reduce._sum_rows_kernel),
    "chunked": (
        chunked._begin_kernel,
        chunked._forward_kernel,
        chunked._backward_kernel,
        chunked._groups_kernel,
        reduce._sum_rows_kernel,
    ),
}
MOST_VARIANTS = 16
"""A dtype's and an algorithm's, with one width of whole tiles; each further such width adds five at most."""
LEFT_BEHIND = 0x3F80000040000000
"""A message that changes a state: what a launch that was cut short may leave in memory."""


def inputs(rows, steps, width, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def draw(*shape, of=dtype):
        return torch.randn(shape, generator=generator, device="cuda").to(of)

    x, gate_x, gate_a = (draw(rows, steps, width) for _ in range(3))
    return x, gate_x, gate_a, draw(width, of=torch.float32) - 3, draw(rows, width, of=torch.float32)


def gradients(x, gate_x, gate_a, a_param, h0, segment_pos, **options):
    leaves = [tensor.detach().requires_grad_() for tensor in (x, gate_x, gate_a, a_param, h0)]
    y, h_last = kernels.rglru(*leaves[:4], segment_pos=segment_pos, h0=leaves[4], **options)
    return y, h_last, *torch.autograd.grad((y, h_last), leaves, (torch.ones_like(y), torch.ones_like(h_last)))


def variants(algorithm: str) -> int:
    return sum(len(cache[0]) for kernel in KERNELS[algorithm] for cache in kernel.device_caches.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_few_variants_are_compiled_and_none_for_a_batch_or_a_length(algorithm):
    """Fifty shapes; resets of both dtypes or none, with h0 and without, training and inference, odd storage offsets."""
    for kernel in KERNELS[algorithm]:
        kernel.device_caches.clear()
    rng = random.Random(0)
    seen = []
    for shape in range(50):
        rows, steps, width = (
            rng.randint(1, 70),
            rng.choice([1, 2, 7, 8, 31, 32, 33, 100]),
            rng.choice([1, 3, 16, 100, 128]),
        )
        x, gate_x, gate_a, a_param, h0 = inputs(rows, steps, width, seed=shape)
        positions = rng.choice([None, torch.int32, torch.int64])
        segment_pos = None if positions is None else torch.ones(rows, steps, dtype=positions, device="cuda")
        gradients(x, gate_x, gate_a, a_param, h0, segment_pos, algorithm=algorithm)
        kernels.rglru(x, gate_x, gate_a, a_param, segment_pos=segment_pos, algorithm=algorithm)
        shifted = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view_as(x).copy_(x)
        kernels.rglru(shifted, gate_x, gate_a, a_param, segment_pos=segment_pos, algorithm=algorithm)
        seen.append(variants(algorithm))
    assert seen[-1] <= MOST_VARIANTS, seen
    assert seen[-1] == seen[20], seen


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drawn_channels_of_production_shapes_lie_within_their_bounds(shape, algorithm):
    """The contract's cases are small: what shows from many steps, rows and channels on shows here, gradients too."""
    rows, steps, width = shape
    dtype = (torch.bfloat16, torch.float32, torch.float16)[SHAPES.index(shape) % 3]
    leaves = [tensor.requires_grad_() for tensor in inputs(rows, steps, width, dtype)]
    dy, dh_last = inputs(rows, steps, width, dtype, seed=1)[::4]
    segment_pos = torch.randint(0, 512, (rows, steps), device="cuda")
    y, h_last = kernels.rglru(*leaves[:4], segment_pos=segment_pos, h0=leaves[4], algorithm=algorithm)
    outputs = (y, h_last, *torch.autograd.grad((y, h_last), leaves, (dy, dh_last)))
    drawn = torch.randperm(width)[:DRAWN].to("cuda")
    x, gate_x, gate_a, a_param, h0, dy, dh_last = (t.detach()[..., drawn] for t in (*leaves, dy, dh_last))
    case = Case(x, gate_x, gate_a, a_param, segment_pos, h0, dy, dh_last, dtype=str(dtype).removeprefix("torch."))
    verdict = judge(case, Result(*(output.detach()[..., drawn] for output in outputs)), profile=load(algorithm).profile)
    assert verdict.holds, str(verdict)


@pytest.mark.parametrize("chunk_size", chunked.CHUNKS)
def test_three_launches_give_the_bits_of_one_at_production_size(chunk_size):
    """Where programs really run beside one another, wait, and guess chunks that others have taken."""
    *tensors, h0 = inputs(2, 8192, 2560)
    segment_pos = torch.randint(0, 512, (2, 8192), device="cuda")
    one, three = (
        gradients(*tensors, h0, segment_pos, algorithm=algorithm, chunk_size=chunk_size)
        for algorithm in ("chunked", "three-pass")
    )
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_captured_call_repeats_bit_for_bit(algorithm):
    """A graph replays launches with what memory holds by then: tickets and messages are cleared inside it."""
    *tensors, h0 = inputs(2, 4100, 256)
    segment_pos = torch.randint(0, 512, (2, 4100), device="cuda")
    expected = gradients(*tensors, h0, segment_pos, algorithm=algorithm)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(*tensors, h0, segment_pos, algorithm=algorithm)
    for _ in range(20):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_thousand_launches_on_four_streams_repeat_bit_for_bit(algorithm):
    """Other work keeps the GPU busy beside them, and what their memory held before differs every time."""
    cases = []
    for seed, (rows, steps, width) in enumerate([(3, 517, 2560), (16, 100, 256), (2, 2049, 100), (64, 33, 64)]):
        *tensors, h0 = inputs(rows, steps, width, seed=seed)
        segment_pos = torch.randint(0, 50, (rows, steps), device="cuda")
        cases.append((*tensors, h0, segment_pos))
    expected = [gradients(*case, algorithm=algorithm) for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    beside = torch.cuda.Stream()
    torch.cuda.synchronize()
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in cases]
    matrix = torch.randn(2048, 2048, device="cuda")
    for _ in range(250):
        with torch.cuda.stream(beside):
            matrix = torch.tanh(matrix @ matrix)
        for case, right, stream, count in zip(cases, expected, streams, wrong, strict=True):
            with torch.cuda.stream(stream):
                for size in (2**k for k in range(9, 21)):
                    torch.full((size,), LEFT_BEHIND, device="cuda")
                for output, bits in zip(gradients(*case, algorithm=algorithm), right, strict=True):
                    count += (output != bits).any()
    torch.cuda.synchronize()
    assert [int(count) for count in wrong] == [0] * len(cases)
