"""How programs that each hold a chunk of time hand states on to one another inside one launch.

Every chunk sends one message a channel: what it does to a state, as a map (kernels/tile.py). The last chunk of each
`GROUP` sends the state that it ends with instead, as a map that is cut: it makes that state of any other. So a chunk
waits only for the messages since the end of the last group, and applies them in the order of time.

A message is one 64-bit word, written and read at once, so that no fence is needed; 0 is "not there yet", which is why
the words of a launch are cleared before it, in its stream. A program takes the next chunk of its chain when it runs and
waits only for chunks that were taken before: progress does not depend on the order in which a GPU starts blocks. What
is combined, and in which order, does not depend on who came first, so the bits do not either.
"""

import triton
import triton.language as tl

from kernels.tile import apply

NOTHING = tl.constexpr(0x3F80000080000000)
"""The message that changes no state, of a chunk that is not waited for: decay 1, write -0."""
MINUS_ZERO = tl.constexpr(1 << 31)


@triton.jit
def _bits(value):
    return value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF


@triton.jit
def _float(word):
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def send(pointer, decay, write, cut, mask):
    """A map as one word that is never 0: no decay is negative, so a negative one says "cut", and 0 is sent as -0."""
    bits = _bits(tl.where(cut != 0, -1.0, decay))
    bits = tl.where(bits == 0, MINUS_ZERO.value, bits)  # as bits, since Triton takes the constant -0.0 for 0.0
    tl.store(pointer, (bits << 32) | _bits(write), mask=mask)


@triton.jit
def receive(word, h):
    """What the map in a word makes of a state."""
    decay = _float(word >> 32)
    return apply(decay, _float(word), (decay < 0.0).to(tl.int32), h, False)


@triton.jit
def _all_there(words, GROUP: tl.constexpr):
    there = words[0] != 0
    for k in tl.static_range(1, GROUP):
        there = there & (words[k] != 0)
    return tl.min(there.to(tl.int32)) > 0


@triton.jit
def wait(pointer, chunk, mask, h, GROUP: tl.constexpr, CHANNELS: tl.constexpr):
    """The state that `chunk` starts with: what the messages since the end of the last group make of h.

    `pointer` is the message of the first chunk of the chain, messages of the next lie CHANNELS further.
    """
    sender = chunk // GROUP * GROUP - 1
    pointer += sender * CHANNELS
    words = ()
    for k in tl.static_range(GROUP):
        awaited = mask & (sender + k >= 0) & (sender + k < chunk)
        words = words + (tl.load(pointer + k * CHANNELS, mask=awaited, other=NOTHING.value, volatile=True),)
    while not _all_there(words, GROUP):
        asked = ()
        for k in tl.static_range(GROUP):
            asked = asked + (tl.load(pointer + k * CHANNELS, mask=words[k] == 0, other=words[k], volatile=True),)
        words = asked
    for k in tl.static_range(GROUP):
        h = receive(words[k], h)
    return h
