"""Sums over rows whose order depends on the number of rows alone.

torch.sum and tl.sum choose an order by the width, so that a channel's bits would depend on its neighbours' number.
"""

import torch
import triton
import triton.language as tl

from kernels.tile import load

CHANNELS = 64
TERMS = 8
"""Rows that are read at once."""
PARTS = 64
"""Parts of many rows, summed beside one another and then one after another."""


@triton.jit(do_not_specialize=["rows", "part", "D"])
def _sum_rows_kernel(rows_ptr, sums_ptr, rows, part, D, TERMS: tl.constexpr, CHANNELS: tl.constexpr):
    """Add `part` rows of [rows, D] one after another, TERMS loads at once, for each program of the second axis."""
    d = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < D
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, rows)
    rows_ptr += first.to(tl.int64) * D
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(first, last, TERMS):
        values = load(rows_ptr, d, D, last - start, inside, TERMS)
        rows_ptr += TERMS * D
        for term in tl.static_range(TERMS):
            total += values[term]
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * D + d, total, mask=inside)


def sum_rows(rows: torch.Tensor) -> torch.Tensor:
    """[R, D] float32, contiguous, D > 0, summed to [D]."""
    while len(rows) > 1:
        number, width = rows.shape
        part = triton.cdiv(number, PARTS) if number > PARTS else number
        sums = rows.new_empty((triton.cdiv(number, part), width))
        _sum_rows_kernel[(triton.cdiv(width, CHANNELS), len(sums))](
            rows, sums, number, part, width, TERMS=TERMS, CHANNELS=CHANNELS
        )
        rows = sums
    return rows[0]


def additions(number: int) -> int:
    """Additions that a term sees at most when so many rows are summed."""
    return number if number <= PARTS else triton.cdiv(number, PARTS) + PARTS
