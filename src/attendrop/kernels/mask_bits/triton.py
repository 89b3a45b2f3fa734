"""Keep masks as bits, on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .reference import BLOCK as _BLOCK
from .reference import WORDS, Bits, PackedKeep

BLOCK = tl.constexpr(_BLOCK)


@triton.jit
def words_of(is_set, factor, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the words of M rows of N keys, bool [M, N]: int16 [M, N / 16]. Threads hold what they add up.

    `factor`, 1.0 or 0.0, is a second condition: to multiply and add is one instruction, and a second choice is another.

    The bits are added as floats, which hold 16 bits exactly: a GPU has twice as many units for them as for integers.
    """
    offsets = tl.arange(0, N)
    bits = tl.where(is_set, (1 << (offsets % BLOCK // 8 * 2 + offsets % 2)).to(tl.float32)[None, :], 0.0) * factor
    bits = tl.reshape(bits, [M, N // BLOCK, 8, 4, 2])
    return tl.reshape(tl.sum(tl.sum(bits, 4), 2), [M, N // 16]).to(tl.int32).to(tl.int16)


@triton.jit
def pack_kernel(keep_ptr, words_ptr, Q, K, W, kb, kh, kq, kk, M: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Grid: (blocks of M rows, H, B)."""
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    of_rows = (b * tl.num_programs(1) + h) * Q + rows
    for tile in range(TILES):
        keys = tile * N + tl.arange(0, N)
        at = keep_ptr + b * kb + h * kh + rows[:, None] * kq + keys[None, :] * kk
        keep = tl.load(at, mask=(rows[:, None] < Q) & (keys[None, :] < K), other=0) != 0
        words = tile * (N // 16) + tl.arange(0, N // 16)
        at = words_ptr + of_rows[:, None] * W + words[None, :]
        tl.store(at, words_of(keep, 1.0, M, N), mask=(rows[:, None] < Q) & (words[None, :] < W))


@triton.jit
def _all_keys(at, K):  # type: ignore[no-untyped-def]
    """Return the words of a row at these places, with the bits of all keys that exist."""
    first = at // 4 * BLOCK + at % 4 * 2  # the key of the lowest bit; every second bit is 8 keys further
    even = tl.minimum(tl.maximum(K - first + 7, 0) // 8, 8)
    odd = tl.minimum(tl.maximum(K - first + 6, 0) // 8, 8)
    return ((((1 << (2 * even)) - 1) & 0x5555) | (((1 << (2 * odd)) - 1) & 0xAAAA)).to(tl.int16)


@triton.jit
def combine_kernel(  # type: ignore[no-untyped-def]
    words_ptr, valid_ptr, out_ptr, empty_ptr, Q, K, W, wb, wh, wq, vb, vh, vq,
    M: tl.constexpr, N: tl.constexpr, IN_PLACE: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of M rows, H, B). A row is read as a whole, N words. Without `valid_ptr` all keys are valid.

    IN_PLACE says that the result is where the words are: only those that change are written then.
    """
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    at = tl.arange(0, N)
    in_bounds = (rows[:, None] < Q) & (at[None, :] < W)
    if valid_ptr is None:
        valid = _all_keys(at, K)[None, :]
    else:
        valid = tl.load(valid_ptr + b * vb + h * vh + rows[:, None] * vq + at[None, :], mask=in_bounds, other=0)
    given = tl.load(words_ptr + b * wb + h * wh + rows[:, None] * wq + at[None, :], mask=in_bounds, other=0)
    words = given & valid
    is_empty = tl.max((words != 0).to(tl.int32), 1) == 0
    words = tl.where(is_empty[:, None], valid, words)
    of_rows = (b * tl.num_programs(1) + h) * Q + rows
    tl.store(out_ptr + of_rows[:, None] * W + at[None, :], words, mask=in_bounds & ((words != given) | (not IN_PLACE)))
    tl.store(empty_ptr + of_rows, is_empty.to(tl.int8), mask=rows < Q)


def broadcast_strides(x: Tensor) -> list[int]:
    """Return the strides of a tensor whose dimensions of one element are the same for all."""
    return [0 if n == 1 else stride for n, stride in zip(x.shape, x.stride(), strict=True)]


def pack(keep: Tensor) -> Tensor:
    """Like the reference's, of a mask [B, H, Q, K]."""
    batch, heads, queries, keys = keep.shape
    words = torch.empty(batch, heads, queries, -(-keys // _BLOCK) * WORDS, dtype=torch.int16, device=keep.device)
    if keep.numel():
        n = min(256, max(_BLOCK, triton.next_power_of_2(keys)))
        pack_kernel[triton.cdiv(queries, 16), heads, batch](
            keep.view(torch.uint8), words, queries, keys, words.shape[-1], *keep.stride(),
            M=16, N=n, TILES=triton.cdiv(keys, n),
        )  # fmt: skip
    return words


def combined(keep: PackedKeep, valid: Bits | None, in_place: bool = False) -> Bits:
    """Like the reference's; with `in_place` the result is written over `keep` where it has its shape."""
    words = keep.words
    shape = words.shape if valid is None else torch.broadcast_shapes(words.shape, valid.words.shape)
    is_own = in_place and words.shape == shape and words.is_contiguous()
    words_out = words if is_own else torch.empty(shape, dtype=torch.int16, device=words.device)
    empty = torch.empty((*shape[:3], 1), dtype=torch.bool, device=words.device)
    if words_out.numel():
        n = triton.next_power_of_2(shape[-1])
        m = max(1, 8192 // n)
        combine_kernel[triton.cdiv(shape[2], m), shape[1], shape[0]](
            words, None if valid is None else valid.words, words_out, empty.view(torch.uint8),
            shape[2], keep.keys, shape[3], *words.expand(shape).stride()[:3],
            *((0, 0, 0) if valid is None else valid.words.expand(shape).stride()[:3]), M=m, N=n, IN_PLACE=is_own,
        )  # fmt: skip
    return Bits(words_out, empty, keep.keys)
