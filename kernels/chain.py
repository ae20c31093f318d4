"""How programs that each hold a chunk of time hand states on to one another inside one launch.

A message is one 64-bit word, written and read at once, so that no fence is needed; 0 is "not there yet", which is why
the words of a launch are cleared before it, in its stream. A program waits only for programs that took their ticket
before it and are therefore running: progress does not depend on the order in which a GPU starts blocks. What is
combined, and in which order, does not depend on who came first, so the bits do not either.
"""

import triton
import triton.language as tl

THERE = tl.constexpr(1 << 32)


@triton.jit
def _bits(value):
    return value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF


@triton.jit
def _float(word):
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _message(pointer, mask):
    """The words at `pointer`, waited for."""
    word = tl.load(pointer, mask=mask, other=THERE.value, volatile=True)
    while tl.min(tl.min((word != 0).to(tl.int32), axis=1), axis=0) == 0:
        word = tl.load(pointer, mask=mask & (word == 0), other=word, volatile=True)
    return word


@triton.jit
def send_state(pointer, h, mask):
    tl.store(pointer, _bits(h) | THERE.value, mask=mask)


@triton.jit
def receive_state(pointer, mask):
    return _float(_message(pointer, mask))


@triton.jit
def send_map(pointer, decay, write, cut, mask):
    """A map as one word that is never 0: a decay is at least 0, so its sign can say "cut", and 0 is sent as -0."""
    decay = tl.where(cut != 0, -1.0, tl.where(decay == 0.0, -0.0, decay))
    tl.store(pointer, (_bits(decay) << 32) | _bits(write), mask=mask)


@triton.jit
def receive_map(pointer, mask):
    """(decay, write, cut) of a map that was sent, the identity outside the mask."""
    word = _message(pointer, mask)
    decay = tl.where(mask, _float(word >> 32), 1.0)
    write = tl.where(mask, _float(word), 0.0)
    return decay, write, (decay < 0.0).to(tl.int32)
