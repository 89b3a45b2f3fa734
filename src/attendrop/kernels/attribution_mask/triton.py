"""The kept mask on a GPU: one program for each block of query rows of one head, no map in memory.

The threshold of a row is found by selection. A pivot is moved and the scores below it are counted, until the count is
the wanted rank, or one more: then the threshold is the largest score below the pivot. Mean and deviation of the row
only choose where to look; the counts decide. The bracket of a pivot is kept in integers that have the order of floats,
so that a row with ties ends too: its bracket closes on one value.

Scores that are not valid are NaN here, which is neither below a pivot nor at or above a threshold. A row of up to
1024 keys stays in registers; a longer one is computed again, in tiles, each time that it is read.

The mask is written as a byte or as a bit for each position. p and q may be numbers in device memory. From the
thresholds of its rows a mask is computed again in one pass over the tiles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_bits.reference import BLOCK as _BLOCK
from ..attention_bits.reference import WORDS, Blocks
from ..attention_bits.triton import broadcast_strides, words_of
from ..draws.reference import largest_word_below
from ..draws.triton import GOLDEN, mix, nearly_mixed
from .reference import ROUNDING as _ROUNDING
from .reference import DropRule

LOWEST = tl.constexpr(-2139095041)  # the place of -inf
HIGHEST = tl.constexpr(2139095041)  # the place behind +inf
ROUNDING = tl.constexpr(_ROUNDING)
BLOCK = tl.constexpr(_BLOCK)
# Which positions are valid: all, the same keys in each row of an example, or others in each row.
ALL, OF_KEYS, OF_ROWS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _place(x):  # type: ignore[no-untyped-def]
    """The place of a float among all floats. NaN is outside."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _at(place):  # type: ignore[no-untyped-def]
    """The float at a place."""
    return (place ^ ((place >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    g_ptr, v_ptr, valid_ptr, rows, first, sizes, strides,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr, VALID: tl.constexpr,
    HIGH: tl.constexpr,
):  # fmt: skip
    """Scores of M rows and N keys, NaN where not valid; and n, total and squares of the valid ones in each row.

    The lowest scores are the highest of the negated ones.
    """
    Q, K, D = sizes
    gq, gd, vk, vd, mq, mk = strides
    keys = first + tl.arange(0, N)
    inside = keys < K
    if VALID == ALL:
        inside = keys >= 0
    if VALID == OF_KEYS:
        inside = tl.load(valid_ptr + keys * mk, mask=inside, other=0) != 0
    there = (rows[:, None] < Q) & inside[None, :]
    x = tl.zeros([M, N], tl.float32)
    if VALID == OF_ROWS:
        # NaN wherever a product is added to it
        valid = tl.load(valid_ptr + rows[:, None] * mq + keys[None, :] * mk, mask=there, other=0)
        x = tl.where(valid != 0, 0.0, float("nan"))
    if D_STEPS == 0:
        x += tl.load(g_ptr + rows[:, None] * gq + keys[None, :] * gd, mask=there, other=0.0).to(tl.float32)
    else:
        for step in range(D_STEPS):
            d = step * BLOCK_D + tl.arange(0, BLOCK_D)
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


@triton.jit
def _below(x, pivot, N: tl.constexpr):  # type: ignore[no-untyped-def]
    is_below = x < pivot[:, None]
    if N < 256:
        # Of fewer than 128 comparisons in a thread the compiler makes a vector of bits, if they are summed as floats.
        return tl.sum(tl.where(is_below, 1, 0), 1).to(tl.float32)
    else:
        return tl.sum(tl.where(is_below, 1.0, 0.0), 1)


@triton.jit
def _largest_below(x, pivot):  # type: ignore[no-untyped-def]
    return tl.max(tl.where(x < pivot[:, None], x, float("-inf")), 1)


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    x, cut, row_words, limit, out_ptr, rows, tile, Q, K, W, M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr
):
    keys = tile * N + tl.arange(0, N)
    word = nearly_mixed(row_words[:, None] + keys.to(tl.uint32)[None, :] * GOLDEN)
    # The last step of `mix` changes the lower half of a word by its upper half. The lower half only matters where the
    # upper one is that of the limit; so the limit's will do for all.
    is_drawn = (word ^ (limit >> 16)) <= limit
    keep = ~(is_drawn & (x >= cut[:, None]))
    if BITS:
        at = tile * (N // 16) + tl.arange(0, N // 16)
        there = (rows[:, None] < Q) & (at[None, :] < W)
        tl.store(out_ptr + rows[:, None] * W + at[None, :], words_of(keep, M, N), mask=there)
    else:
        there = (rows[:, None] < Q) & (keys[None, :] < K)
        tl.store(out_ptr + rows[:, None] * W + keys[None, :], keep.to(tl.int8), mask=there)


@triton.jit
def _threshold(  # type: ignore[no-untyped-def]
    g_ptr, v_ptr, valid_ptr, rows, share, is_on, start, end, sizes, strides,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr, BLOCK_D: tl.constexpr,
    D_STEPS: tl.constexpr, VALID: tl.constexpr,
):  # fmt: skip
    """The scores of the last tile that was computed, and the threshold of each row, NaN where there is none.

    All valid scores are in the tiles from `start` to `end` − 1.
    """
    Q = sizes[0]
    x, count, total, squares = _tile(
        g_ptr, v_ptr, valid_ptr, rows, start * N, sizes, strides, M, N, BLOCK_D, D_STEPS, VALID, HIGH
    )
    for tile in range(start + 1, end):
        x, more, more_total, more_squares = _tile(
            g_ptr, v_ptr, valid_ptr, rows, tile * N, sizes, strides, M, N, BLOCK_D, D_STEPS, VALID, HIGH
        )
        count += more
        total += more_total
        squares += more_squares

    n = count.to(tl.int32)
    rank = tl.floor(n.to(tl.float64) * share + ROUNDING).to(tl.int32)
    if not HIGH:
        rank = n - rank
    exists = (rank >= 0) & (rank < n) & is_on
    wanted = rank.to(tl.float32)
    mean = total / count
    deviation = tl.sqrt(tl.maximum(squares / count - mean * mean, 0.0))
    # where the pivot would be in a normal distribution (Tukey's lambda), and how far apart neighbours are there
    at = (wanted + 0.5) / count
    z = 4.91 * (tl.exp2(0.14 * tl.log2(at)) - tl.exp2(0.14 * tl.log2(1.0 - at)))
    gap = deviation * (2.5066 * tl.exp2(0.7213 * z * z) / count)
    pivot = mean + z * deviation

    # All thresholds are between two places. A row whose place is found has nothing between them, and stays there.
    low = tl.full([M], LOWEST, tl.int32)
    high = tl.where((rows < Q) & exists & (rank > 0), HIGHEST, LOWEST + 1)
    low_pivot = tl.full([M], float("nan"), tl.float32)
    high_pivot = low_pivot
    below_low = tl.zeros([M], tl.float32)
    below_high = below_low
    below = below_low
    turn = 0
    widest = tl.max((high - low).to(tl.uint32), 0)
    while widest > 1:
        place = _place(pivot)
        if (turn > 8) & (turn % 2 == 0):
            place = (low & high) + ((low ^ high) >> 1)
        place = tl.minimum(tl.maximum(place, low + 1), high - 1)
        pivot = _at(place)
        if TILES == 1:
            below = _below(x, pivot, N)
        else:
            below = tl.zeros([M], tl.float32)
            for tile in range(start, end):
                x, _, _, _ = _tile(
                    g_ptr, v_ptr, valid_ptr, rows, tile * N, sizes, strides, M, N, BLOCK_D, D_STEPS, VALID, HIGH
                )
                below += _below(x, pivot, N)
        is_less = below < wanted
        is_more = below > wanted + 1.0
        low = tl.where(is_more, low, place)
        high = tl.where(is_less, high, tl.where(is_more, place, place + 1))
        low_pivot = tl.where(is_less, pivot, low_pivot)
        high_pivot = tl.where(is_more, pivot, high_pivot)
        below_low = tl.where(is_less, below, below_low)
        below_high = tl.where(is_more, below, below_high)
        between = low_pivot + (high_pivot - low_pivot) * ((wanted + 0.5 - below_low) / (below_high - below_low))
        pivot = tl.where(between == between, between, pivot + gap * (wanted + 0.5 - below))
        gap *= 2.0
        turn += 1
        if turn > 2:  # no sooner are all rows settled, and to ask takes time
            widest = tl.max((high - low).to(tl.uint32), 0)
    pivot = _at(low)
    if TILES == 1:
        largest = _largest_below(x, pivot)
    else:
        largest = tl.full([M], float("-inf"), tl.float32)
        for tile in range(start, end):
            x, _, _, _ = _tile(
                g_ptr, v_ptr, valid_ptr, rows, tile * N, sizes, strides, M, N, BLOCK_D, D_STEPS, VALID, HIGH
            )
            largest = tl.maximum(largest, _largest_below(x, pivot))
    cut = tl.where(below == wanted + 1.0, largest, pivot)
    return x, tl.where(exists, cut, float("nan"))


@triton.jit(do_not_specialize=["key", "limit"])
def attribution_mask_kernel(  # type: ignore[no-untyped-def]
    g_ptr, v_ptr, valid_ptr, out_ptr, cut_ptr, ranges_ptr, positions_ptr, key_ptr, p_ptr, q_ptr,
    key: tl.int64, share: tl.float64, limit: tl.int64,
    Q, K, D, W, GROUP, gb, gq, gh, gd, vb, vh, vk, vd, mb, mh, mq, mk, rb, rq,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr, BLOCK_D: tl.constexpr,
    D_STEPS: tl.constexpr, VALID: tl.constexpr, BITS: tl.constexpr, SEARCH: tl.constexpr,
    WRITE: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of M rows, H, B). `share` is 1 − p, or p for the lowest scores. A row of the result has W elements.

    Without SEARCH the thresholds are read from `cut_ptr`; with it they are written there, if it is given. Without WRITE
    nothing else is written. At `ranges_ptr`, if it is given, are the blocks of keys that have a valid position; other
    tiles are not written.
    """
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    g_ptr += b * gb + h * gh
    v_ptr += b * vb + (h // GROUP) * vh
    valid_ptr += b * mb + h * mh
    first = (b * tl.num_programs(1) + h) * Q
    out_ptr += first * W
    sizes = (Q, K, D)
    strides = (gq, gd, vk, vd, mq, mk)
    if key_ptr is not None:
        key = tl.load(key_ptr)
    if p_ptr is not None:
        share = tl.load(p_ptr)
        if HIGH:
            share = 1.0 - share
    if q_ptr is not None:  # `largest_word_below`
        q = tl.load(q_ptr).to(tl.float32).to(tl.float64)
        limit = tl.ceil(q * 16777216.0).to(tl.int64) * 256 - 1
    start = 0
    end = TILES
    if ranges_ptr is not None:
        ranges_ptr += b * rb + tl.program_id(0) * M // BLOCK * rq
        start = tl.load(ranges_ptr) * BLOCK // N
        end = tl.maximum(tl.cdiv(tl.load(ranges_ptr + 1) * BLOCK, N), start + 1)
    if SEARCH:
        x, cut = _threshold(
            g_ptr, v_ptr, valid_ptr, rows, share, limit >= 0, start, end, sizes, strides,
            HIGH, M, N, TILES, BLOCK_D, D_STEPS, VALID,
        )  # fmt: skip
        if cut_ptr is not None:
            tl.store(cut_ptr + first + rows, cut, mask=rows < Q)
    else:
        cut = tl.load(cut_ptr + first + rows, mask=rows < Q, other=float("nan"))

    if WRITE:
        words = mix(key.to(tl.uint32) + tl.load(positions_ptr + b).to(tl.uint32) * GOLDEN)
        words = mix(mix(words + h.to(tl.uint32) * GOLDEN) + rows.to(tl.uint32) * GOLDEN)
        if SEARCH and TILES == 1:
            _write(x, cut, words, limit.to(tl.uint32), out_ptr, rows, 0, Q, K, W, M, N, BITS)
        else:
            for tile in range(start, end):
                x, _, _, _ = _tile(
                    g_ptr, v_ptr, valid_ptr, rows, tile * N, sizes, strides, M, N, BLOCK_D, D_STEPS, VALID, HIGH
                )
                _write(x, cut, words, limit.to(tl.uint32), out_ptr, rows, tile, Q, K, W, M, N, BITS)


def keep_from_gradient(gradient: Tensor, value: Tensor, valid: Tensor, rule: DropRule) -> Tensor:
    batch, queries, heads, _ = gradient.shape
    keep = torch.empty(batch, heads, queries, value.shape[2], dtype=torch.bool, device=gradient.device)
    _launch(gradient.transpose(1, 2), value, valid, rule, keep)
    return keep


def keep_from_scores(scores: Tensor, valid: Tensor, rule: DropRule) -> Tensor:
    keep = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    _launch(scores, None, valid, rule, keep)
    return keep


def words_from_gradient(
    gradient: Tensor,
    value: Tensor,
    valid: Tensor,
    rule: DropRule,
    blocks: Blocks | None = None,
    all_valid: bool = False,
) -> tuple[Tensor, Tensor]:
    """The mask as bits, int16 [B, H, Q, W], and the thresholds of its rows, [B, H, Q, 1].

    Bits outside of `blocks`, those that have a valid position, are not defined. `all_valid` says that all have.
    """
    cut, words = _empty_cuts(gradient), _empty_words(gradient, value)
    _launch(gradient.transpose(1, 2), value, valid, rule, words, cut, blocks, all_valid)
    return words, cut


def cuts_from_gradient(
    gradient: Tensor,
    value: Tensor,
    valid: Tensor,
    rule: DropRule,
    blocks: Blocks | None = None,
    all_valid: bool = False,
) -> Tensor:
    """The thresholds alone, from which `words_again` computes the bits."""
    cut = _empty_cuts(gradient)
    nothing = torch.empty(cut.shape, dtype=torch.int16, device=cut.device)
    _launch(gradient.transpose(1, 2), value, valid, rule, nothing, cut, blocks, all_valid, write=False)
    return cut


def words_again(
    gradient: Tensor,
    value: Tensor,
    valid: Tensor,
    rule: DropRule,
    cut: Tensor,
    blocks: Blocks | None = None,
    all_valid: bool = False,
) -> Tensor:
    """The same bits from the thresholds."""
    words = _empty_words(gradient, value)
    _launch(gradient.transpose(1, 2), value, valid, rule, words, cut, blocks, all_valid, search=False)
    return words


def _empty_cuts(gradient: Tensor) -> Tensor:
    return gradient.new_empty((*gradient.transpose(1, 2).shape[:3], 1), dtype=torch.float32)


def _empty_words(gradient: Tensor, value: Tensor) -> Tensor:
    batch, queries, heads, _ = gradient.shape
    width = triton.cdiv(value.shape[2], _BLOCK) * WORDS
    return torch.empty(batch, heads, queries, width, dtype=torch.int16, device=gradient.device)


def _launch(
    left: Tensor,
    value: Tensor | None,
    valid: Tensor,
    rule: DropRule,
    found: Tensor,
    cut: Tensor | None = None,
    blocks: Blocks | None = None,
    all_valid: bool = False,
    search: bool = True,
    write: bool = True,
    **options: Any,
) -> None:
    """Writes `found`. `left` is the gradient, [B, H, Q, d], or the map itself where there is no `value`."""
    if not found.numel():
        return
    batch, heads, queries = found.shape[:3]
    keys, width = (left.shape[3], 0) if value is None else (value.shape[2], left.shape[3])
    p, q, key, positions, direction = rule
    high = direction == "high"
    is_bits = found.dtype == torch.int16
    is_half = value is not None and left.dtype == value.dtype != torch.float32
    valid = valid.expand(batch, heads, queries, keys)
    settings = _blocks(keys, width, is_half, is_bits)
    if all_valid and settings["TILES"] > 1 and keys % 128 == 0 and is_half:
        settings |= _LONG_ROWS | {"TILES": keys // _LONG_ROWS["N"]}
    settings |= options
    ranges = None if blocks is None or settings["TILES"] == 1 else blocks.keys
    if all_valid and keys % settings["N"] == 0:  # every tile is full
        kind = ALL
    else:
        kind = OF_KEYS if valid.stride(1) == 0 == valid.stride(2) else OF_ROWS
    attribution_mask_kernel[triton.cdiv(queries, settings["M"]), heads, batch](
        left, left if value is None else value, valid.view(torch.uint8), found if is_bits else found.view(torch.uint8),
        cut, ranges, positions.to(left.device), key if isinstance(key, Tensor) else None,
        p.double() if isinstance(p, Tensor) else None, q.double() if isinstance(q, Tensor) else None,
        0 if isinstance(key, Tensor) else key,
        0.0 if isinstance(p, Tensor) else float(1 - p if high else p),
        0 if isinstance(q, Tensor) else largest_word_below(float(q)),
        queries, keys, width, found.shape[3], 1 if value is None else heads // value.shape[1],
        left.stride(0), left.stride(2), left.stride(1), left.stride(3),
        *((0, 0, 0, 0) if value is None else value.stride()), *valid.stride(),
        *((0, 0) if ranges is None else broadcast_strides(ranges)[:2]),
        HIGH=high, VALID=kind, BITS=is_bits, SEARCH=search, WRITE=write, **settings,
    )  # fmt: skip


# The sizes of a program for rows of several tiles in which all positions are valid. A tile of values is read from the
# cache again each time that its scores are computed, which limits the speed: more rows at a time read it less often.
_LONG_ROWS = {"M": 128, "N": 128, "num_warps": 8, "num_stages": 2} | (
    {"maxnreg": 128} if torch.version.hip is None else {}
)


def _blocks(keys: int, width: int, is_half: bool, is_bits: bool) -> dict[str, int]:
    """The sizes of a program. Up to 1024 keys of its rows are in registers: 128 scores for a thread, 64 in fp32."""
    n = max(_BLOCK if is_bits else 16, triton.next_power_of_2(keys)) if keys <= 1024 else 256
    step = min(max(16, triton.next_power_of_2(width)), 64 if is_half else 16, max(16, 32768 // n))
    blocks = {
        "M": max(16, min(64 if n > 64 else 32, (16384 if is_half else 8192) // n)),
        "N": n,
        "TILES": triton.cdiv(keys, n),
        "BLOCK_D": step,
        "D_STEPS": triton.cdiv(width, step),
        "num_warps": 4 if n > 64 else 2,
        "num_stages": 2,
    }
    if is_half and n == 256 and blocks["TILES"] == 1 and torch.version.hip is None:
        blocks["maxnreg"] = 168  # that is enough, and three programs share a multiprocessor of an H200
    return blocks
