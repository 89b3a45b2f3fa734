"""The kept mask on a GPU: one program for each block of query rows of one head, no map in memory.

The threshold of a row is found by selection (triton_search.py). A row of up to 512 keys stays in registers (1024 in
fp32); a longer one is computed again, in tiles, each time that it is read.

The mask is written as a byte or as a bit for each position. p and q may be numbers in device memory. From the
thresholds of its rows a mask is computed again in one pass over the tiles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import is_on_nvidia
from ..draws.reference import largest_word_below
from ..draws.triton import GOLDEN, mix, nearly_mixed
from ..mask_bits.reference import BLOCK as _BLOCK
from ..mask_bits.reference import WORDS, Blocks
from ..mask_bits.triton import broadcast_strides, words_of
from .reference import DropRule
from .triton_scores import ALL, OF_KEYS, OF_ROWS, source_of, tile_of
from .triton_search import LANES, SPACE, in_registers, of_long_rows, piece_of

BLOCK = tl.constexpr(_BLOCK)


# A bit of `_words`: one predicate for both conditions, where `words_of` takes an instruction more. $0 and $1: the bits
# so far, $2: the word of the draw, $3: the limit, $4: the score, $5: the threshold, $6: the bit.
SET_BIT = tl.constexpr("""{
    .reg .pred dropped;
    setp.ge.f32 dropped, $4, $5;
    setp.le.and.u32 dropped, $2, $3, dropped;
    mov.f32 $0, $1;
    @dropped add.f32 $0, $1, $6;
}""")


@triton.jit
def _draw(row_words, keys, limit):  # type: ignore[no-untyped-def]
    """Return the words of draws, which are below q where they are at most `limit`."""
    # The last step of `mix` changes the lower half of a word by its upper half. The lower half only matters where the
    # upper one is that of the limit; so the limit's will do for all.
    return nearly_mixed(row_words + keys * GOLDEN) ^ (limit >> 16)


@triton.jit
def _words(x, cut, row_words, limit, tile, M: tl.constexpr, ASM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the words of the dropped part of a product's tile [M, BLOCK]: int16 [M, LANES], as in `words_of`."""
    # as tiles, for which no thread needs what another thread has
    cut = piece_of(tl.broadcast_to(cut[:, None], [M, BLOCK]), 0, M)
    row_words = piece_of(tl.broadcast_to(row_words[:, None], [M, BLOCK]), 0, M)
    keys = (tl.arange(0, LANES) * 2 + tile * BLOCK).to(tl.uint32)
    bits = tl.zeros([M, LANES], tl.float32)
    for number in tl.static_range(16):
        key = number % 2 * 32 + number // 2 % 2 * 16 + number // 4 % 2 * 8 + number // 8
        bit = 1 << (key // 8 * 2 + key % 2)
        # From a sum of keys the compiler would make one addition for each position, and not one for all rows of a key.
        word = _draw(row_words, (keys | key)[None, :], limit)
        score = piece_of(x, number, M)
        if ASM:
            given = [bits, word, limit, score, cut, bit * 1.0]
            bits = tl.inline_asm_elementwise(SET_BIT, "=f,f,r,r,f,f,f", given, dtype=tl.float32, is_pure=True, pack=1)
        else:
            bits += tl.where((score >= cut) & (word <= limit), 1.0, 0.0) * bit
    return bits.to(tl.int32).to(tl.int16)


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    x, cut, row_words, limit, out_ptr, rows, tile, Q, K, W,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    keys = tile * N + tl.arange(0, N)
    if BITS:
        if N == BLOCK:
            dropped = _words(x, cut, row_words, limit, tile, M, ASM)
        else:
            is_drawn = _draw(row_words[:, None], keys.to(tl.uint32)[None, :], limit) <= limit
            dropped = words_of(is_drawn, tl.where(x >= cut[:, None], 1.0, 0.0), M, N)
        at = tile * (N // 16) + tl.arange(0, N // 16)
        in_bounds = (rows[:, None] < Q) & (at[None, :] < W)
        tl.store(out_ptr + rows[:, None] * W + at[None, :], ~dropped, mask=in_bounds)
    else:
        is_drawn = _draw(row_words[:, None], keys.to(tl.uint32)[None, :], limit) <= limit
        keep = ~(is_drawn & (x >= cut[:, None]))
        in_bounds = (rows[:, None] < Q) & (keys[None, :] < K)
        tl.store(out_ptr + rows[:, None] * W + keys[None, :], keep.to(tl.int8), mask=in_bounds)


@triton.jit(do_not_specialize=["key", "limit"], do_not_specialize_on_alignment=["key_ptr", "p_ptr", "q_ptr"])
def attribution_mask_kernel(  # type: ignore[no-untyped-def]
    g_ptr, v_ptr, valid_ptr, out_ptr, cut_ptr, ranges_ptr, positions_ptr, key_ptr, p_ptr, q_ptr, memory_ptr,
    key: tl.int64, share: tl.float64, limit: tl.int64,
    Q, K, D, W, GROUP, gb, gq, gh, gd, vb, vh, vk, vd, mb, mh, mq, mk, rb, rq,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr, VALID: tl.constexpr, BITS: tl.constexpr, SEARCH: tl.constexpr,
    WRITE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Search thresholds and write masks. Grid: (blocks of M rows · PARTS, H, B).

    `share` is 1 − p, or p for the lowest scores. Rows of the result have W elements. Without SEARCH several programs
    (PARTS) may divide the keys of a row.

    Without SEARCH the thresholds are read from `cut_ptr`; with it they are written there, if it is given. Without WRITE
    nothing else is written. At `ranges_ptr`, if it is given, are the blocks of keys that have a valid position; other
    tiles are not written. TILES is the number of all tiles, or 0 where ranges give them: one compiled kernel then
    handles rows of all lengths.
    """
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    block = tl.program_id(0) // PARTS
    rows = block * M + tl.arange(0, M)
    g_ptr += b * gb + h * gh
    v_ptr += b * vb + (h // GROUP) * vh
    valid_ptr += b * mb + h * mh
    first = (b * tl.num_programs(1) + h) * Q
    out_ptr += first * W
    source = source_of(g_ptr, v_ptr, valid_ptr, rows, (Q, K, D), (gq, gd, vk, vd, mq, mk), BLOCK_D, D_STEPS)
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
        ranges_ptr += b * rb + block * M // BLOCK * rq
        start = tl.load(ranges_ptr) * BLOCK // N
        end = tl.maximum(tl.cdiv(tl.load(ranges_ptr + 1) * BLOCK, N), start + 1)
    if PARTS > 1:
        part = tl.program_id(0) % PARTS
        tiles = end - start
        end = start + tiles * (part + 1) // PARTS
        start += tiles * part // PARTS
    if SEARCH:
        if TILES == 1:
            x, cut = in_registers(source, rows, share, limit >= 0, HIGH, M, N, BLOCK_D, D_STEPS, VALID)
        else:
            program = (b * tl.num_programs(1) + h) * tl.num_programs(0) + tl.program_id(0)
            memory_ptr += program * (M * LANES * (SPACE + 1))
            cut = of_long_rows(
                source, rows, share, limit >= 0, start, end, memory_ptr,
                HIGH, M, N, BLOCK_D, D_STEPS, VALID, ASM, WIDE,
            )  # fmt: skip
        if cut_ptr is not None:
            tl.store(cut_ptr + first + rows, cut, mask=rows < Q)
    else:
        cut = tl.load(cut_ptr + first + rows, mask=rows < Q, other=float("nan"))

    if WRITE:
        words = mix(key.to(tl.uint32) + tl.load(positions_ptr + b).to(tl.uint32) * GOLDEN)
        words = mix(mix(words + h.to(tl.uint32) * GOLDEN) + rows.to(tl.uint32) * GOLDEN)
        if SEARCH and TILES == 1:
            _write(x, cut, words, limit.to(tl.uint32), out_ptr, rows, 0, Q, K, W, M, N, BITS, ASM)
        else:
            for tile in range(start, end):
                x, _, _, _ = tile_of(source, rows, tile * N, 1, M, N, BLOCK_D, D_STEPS, VALID, HIGH)
                _write(x, cut, words, limit.to(tl.uint32), out_ptr, rows, tile, Q, K, W, M, N, BITS, ASM)


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
    """Return the mask as bits, int16 [B, H, Q, W], and the thresholds of its rows, [B, H, Q, 1].

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
    """Return the thresholds alone, from which `words_again` computes the bits."""
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
    """Return the same bits from the thresholds."""
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
    out: Tensor,
    cut: Tensor | None = None,
    blocks: Blocks | None = None,
    all_valid: bool = False,
    search: bool = True,
    write: bool = True,
    **options: Any,
) -> None:
    """Write `out`. `left` is the gradient, [B, H, Q, d], or the map itself where there is no `value`."""
    if not out.numel():
        return
    batch, heads, queries = out.shape[:3]
    keys, width = (left.shape[3], 0) if value is None else (value.shape[2], left.shape[3])
    p, q, key, positions, direction = rule
    high = direction == "high"
    is_bits = out.dtype == torch.int16
    is_half = value is not None and left.dtype == value.dtype != torch.float32
    valid = valid.expand(batch, heads, queries, keys)
    settings = _blocks(keys, width, is_half, is_bits, search, all_valid) | options
    if search and write and cut is not None and settings["TILES"] > 1:  # each has its own sizes
        given = left, value, valid, rule, out, cut, blocks, all_valid
        _launch(*given, write=False, **options)
        _launch(*given, search=False, **options)
        return
    ranges = None if blocks is None or settings["TILES"] == 1 else blocks.keys
    if ranges is not None:
        settings["TILES"] = 0
    if all_valid and keys % settings["N"] == 0:  # every tile is full
        kind = ALL
    else:
        kind = OF_KEYS if valid.stride(1) == 0 == valid.stride(2) else OF_ROWS
    programs = triton.cdiv(queries, settings["M"])
    memory = None
    if search and settings["TILES"] != 1:
        rows = batch * heads * programs * settings["M"]
        memory = torch.empty(rows * LANES.value * (SPACE.value + 1), device=left.device)
    attribution_mask_kernel[programs * settings["PARTS"], heads, batch](
        left, left if value is None else value, valid.view(torch.uint8), out if is_bits else out.view(torch.uint8),
        cut, ranges, positions.to(left.device), key if isinstance(key, Tensor) else None,
        p.double() if isinstance(p, Tensor) else None, q.double() if isinstance(q, Tensor) else None,
        memory, 0 if isinstance(key, Tensor) else key,
        0.0 if isinstance(p, Tensor) else float(1 - p if high else p),
        0 if isinstance(q, Tensor) else largest_word_below(float(q)),
        queries, keys, width, out.shape[3], 1 if value is None else heads // value.shape[1],
        left.stride(0), left.stride(2), left.stride(1), left.stride(3),
        *((0, 0, 0, 0) if value is None else value.stride()), *valid.stride(),
        *((0, 0) if ranges is None else broadcast_strides(ranges)[:2]),
        HIGH=high, VALID=kind, BITS=is_bits, SEARCH=search, WRITE=write, ASM=is_on_nvidia(left), **settings,
    )  # fmt: skip


def _blocks(keys: int, width: int, is_half: bool, is_bits: bool, search: bool, all_valid: bool) -> dict[str, int]:
    """Return the sizes of a program. Short rows are in registers: 64 scores for a thread, or 128.

    Of longer rows there are several tiles, of fewer keys where nothing is searched; a tile of values is read from the
    cache each time that its scores are computed, which is done for as many rows at a time as there is space for.
    """
    is_long = keys > (512 if is_half else 1024)
    n = (128 if search else _BLOCK) if is_long else max(_BLOCK if is_bits else 16, triton.next_power_of_2(keys))
    step = min(max(16, triton.next_power_of_2(width)), 64 if is_half else 16, max(16, 32768 // n))
    tiles = triton.cdiv(keys, n)
    blocks = {
        "M": max(16, min(64 if n > 64 or is_long else 32, (16384 if is_half else 8192) // n)),
        "N": n,
        "TILES": tiles,
        "WIDE": search and keys > 2048,
        "PARTS": 1,
        "BLOCK_D": step,
        "D_STEPS": triton.cdiv(width, step),
        "num_warps": 4 if n > 64 or is_long else 2,
        "num_stages": 3 if is_long else 2,
    }
    if is_long and not width:  # scores that are read, not computed, are held by other threads, and take more registers
        blocks |= {"M": 32, "num_warps": 8}
    if is_half and torch.version.hip is None:  # so few that several programs share a multiprocessor of an H200
        if is_long and all_valid and search:
            blocks["maxnreg"] = 128  # four
        elif is_long and all_valid:
            # three; a tile of values serves more rows, and there are enough programs to fill the last turn
            blocks |= {"M": 128, "PARTS": max(2, tiles // 16), "maxnreg": 168}
        elif n == 256 or (is_long and search):
            blocks["maxnreg"] = 168  # three
    return blocks
