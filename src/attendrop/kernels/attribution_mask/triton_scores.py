"""Scores of a few rows and keys on a GPU, and the order of floats as integers."""

from __future__ import annotations

import triton
import triton.language as tl

# Which positions are valid: all, the same keys in each row of an example, or others in each row.
ALL, OF_KEYS, OF_ROWS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LOWEST = tl.constexpr(-2139095041)  # the place of -inf
HIGHEST = tl.constexpr(2139095041)  # the place behind +inf


@triton.jit
def place_of(x):  # type: ignore[no-untyped-def]
    """Return the place of a float among all floats. NaN is outside."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def float_at(place):  # type: ignore[no-untyped-def]
    """Return the float at a place."""
    return (place ^ ((place >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def source_of(  # type: ignore[no-untyped-def]
    g_ptr, v_ptr, valid_ptr, rows, sizes, strides, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr
):
    """Return the tensors from which `tile_of` computes scores of these rows.

    A gradient that fits into one tile is read here, once.
    """
    gradient = 0
    if D_STEPS == 1:
        d = tl.arange(0, BLOCK_D)
        of_row = (rows[:, None] < sizes[0]) & (d[None, :] < sizes[2])
        gradient = tl.load(g_ptr + rows[:, None] * strides[0] + d[None, :] * strides[1], mask=of_row, other=0.0)
    return gradient, g_ptr, v_ptr, valid_ptr, sizes, strides


@triton.jit
def tile_of(  # type: ignore[no-untyped-def]
    source, rows, first, step,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr, VALID: tl.constexpr,
    HIGH: tl.constexpr,
):  # fmt: skip
    """Compute scores of M rows and N keys, NaN where not valid; and n, total and squares of the valid ones in each row.

    The keys are `first`, `first + step` and so on. The lowest scores are the highest of the negated ones.
    """
    gradient, g_ptr, v_ptr, valid_ptr, sizes, strides = source
    Q, K, D = sizes
    gq, gd, vk, vd, mq, mk = strides
    keys = first + tl.arange(0, N) * step
    inside = keys < K
    if VALID == ALL:
        inside = keys >= 0
    if VALID == OF_KEYS:
        inside = tl.load(valid_ptr + keys * mk, mask=inside, other=0) != 0
    in_bounds = (rows[:, None] < Q) & inside[None, :]
    x = tl.zeros([M, N], tl.float32)
    if VALID == OF_ROWS:
        # NaN wherever a product is added to it
        valid = tl.load(valid_ptr + rows[:, None] * mq + keys[None, :] * mk, mask=in_bounds, other=0)
        x = tl.where(valid != 0, 0.0, float("nan"))
    if D_STEPS == 0:
        x += tl.load(g_ptr + rows[:, None] * gq + keys[None, :] * gd, mask=in_bounds, other=0.0).to(tl.float32)
    else:
        for part in range(D_STEPS):
            d = part * BLOCK_D + tl.arange(0, BLOCK_D)
            if D_STEPS == 1:
                g = gradient
            else:
                of_row = (rows[:, None] < Q) & (d[None, :] < D)
                g = tl.load(g_ptr + rows[:, None] * gq + d[None, :] * gd, mask=of_row, other=0.0)
            of_key = inside[:, None] & (d[None, :] < D)
            v = tl.load(v_ptr + keys[:, None] * vk + d[None, :] * vd, mask=of_key, other=0.0)
            if g.dtype != v.dtype:
                g = g.to(tl.float32)
                v = v.to(tl.float32)
            x = tl.dot(g, tl.trans(v), x, input_precision="ieee")
    if not HIGH:
        x = -x
    if VALID == ALL:
        n = tl.full([], N, tl.float32)
        total, squares = tl.sum(x, 1), tl.sum(x * x, 1)
    elif VALID == OF_KEYS:
        n = tl.sum(inside.to(tl.float32), 0)  # scores that are not valid are 0 here
        total, squares = tl.sum(x, 1), tl.sum(x * x, 1)
        if n < N:
            x += tl.where(inside, 0.0, float("nan"))[None, :]
    else:
        n = tl.sum(tl.where(x == x, 1.0, 0.0), 1)
        clean = tl.where(x == x, x, 0.0)
        total, squares = tl.sum(clean, 1), tl.sum(clean * clean, 1)
    return x, n, total, squares
