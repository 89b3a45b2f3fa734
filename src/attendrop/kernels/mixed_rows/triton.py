"""Hidden states of examples that are mixed in pairs, on a GPU: a row whose share is 0 is copied."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def mixed_rows_kernel(  # type: ignore[no-untyped-def]
    x_ptr, others_ptr, given_ptr, taken_ptr, out_ptr, TOKENS, N, WIDE: tl.constexpr, WIDTH: tl.constexpr
):
    """Grid: (tokens of all rows, blocks of numbers)."""
    at = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_bounds = places < N
    given, taken = tl.load(given_ptr + at).to(WIDE), tl.load(taken_ptr + at).to(WIDE)
    x = tl.load(x_ptr + at * N + places, mask=in_bounds, other=0.0).to(WIDE)
    mixed = x - given * x
    if taken != 0:
        other = tl.load(others_ptr + at // TOKENS) * TOKENS + at % TOKENS
        mixed += taken * tl.load(x_ptr + other * N + places, mask=in_bounds, other=0.0).to(WIDE)
    tl.store(out_ptr + at * N + places, mixed.to(out_ptr.dtype.element_ty), mask=in_bounds)


def mixed_rows(x: Tensor, others: Tensor, given: Tensor, taken: Tensor) -> Tensor:
    """Like the reference, for a contiguous x.

    Args:
        x: [rows, tokens, d].
        others: int64 [rows].
        given: [rows, tokens, 1].
        taken: [rows, tokens, 1].
    """
    mixed, (rows, tokens, n) = torch.empty_like(x), x.shape
    if mixed.numel():
        wide = tl.float64 if x.dtype == torch.float64 else tl.float32
        width = min(1024, triton.next_power_of_2(n))
        mixed_rows_kernel[rows * tokens, triton.cdiv(n, width)](
            x, others, given.contiguous(), taken.contiguous(), mixed, tokens, n, WIDE=wide, WIDTH=width
        )
    return mixed
