"""Weights and gradients that are changed by random factors, on a GPU: everything is read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..draws.api import key_on_device
from ..draws.triton import GOLDEN
from ..draws.triton import mix as mix_word


@triton.jit
def _places(ROWS, N, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the rows and columns of a program, and which of them exist. Grid: (blocks of rows, blocks of columns)."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    return rows, columns, (rows[:, None] < ROWS) & (columns[None, :] < N)


@triton.jit
def _is_kept(key_ptr, share, rows, columns, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return whether the draws of these rows and columns are below `share`; rows or columns may share a draw."""
    of_row = rows.to(tl.uint32) * GOLDEN if BY_ROW else (rows * 0).to(tl.uint32)
    of_column = columns.to(tl.uint32) * GOLDEN if BY_COLUMN else (columns * 0).to(tl.uint32)
    word = mix_word(tl.load(key_ptr).to(tl.uint32, bitcast=True) + of_row)
    word = mix_word(word[:, None] + of_column[None, :])
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08 < share  # 2^-24


@triton.jit
def _keep_at(rows, columns, N, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return pointers into `keep` for these rows and columns, and which of the latter write them."""
    at = rows[:, None] * (N if BY_COLUMN else 1) * (1 if BY_ROW else 0) + columns[None, :] * (1 if BY_COLUMN else 0)
    writes = ((rows[:, None] == 0) | BY_ROW) & ((columns[None, :] == 0) | BY_COLUMN)
    return at, writes


@triton.jit(do_not_specialize_on_alignment=["key_ptr", "share_ptr"])
def mix_kernel(  # type: ignore[no-untyped-def]
    weight_ptr, trained_ptr, keep_ptr, target_ptr, key_ptr, share_ptr, share, ROWS, N,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, columns, in_bounds = _places(ROWS, N, BLOCK, WIDTH)
    if share_ptr is not None:
        share = tl.load(share_ptr)
    is_kept = _is_kept(key_ptr, share, rows, columns, BY_ROW, BY_COLUMN)
    at, writes = _keep_at(rows, columns, N, BY_ROW, BY_COLUMN)
    tl.store(keep_ptr + at, is_kept.to(tl.int8), mask=in_bounds & writes)
    factor = tl.where(is_kept, tl.div_rn(1.0, share), 0.0)
    at = rows[:, None] * N + columns[None, :]
    weight = tl.load(weight_ptr + at, mask=in_bounds, other=0.0)
    tl.store(trained_ptr + at, weight, mask=in_bounds)
    weight = weight.to(tl.float32)
    if target_ptr is None:
        mixed = weight * factor
    else:
        target = tl.load(target_ptr + at, mask=in_bounds, other=0.0).to(tl.float32)
        mixed = target + (weight - target) * factor
    tl.store(weight_ptr + at, mixed.to(weight_ptr.dtype.element_ty), mask=in_bounds)


@triton.jit(do_not_specialize_on_alignment=["share_ptr"])
def unmix_kernel(  # type: ignore[no-untyped-def]
    weight_ptr, trained_ptr, keep_ptr, gradient_ptr, share_ptr, share, ROWS, N,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, columns, in_bounds = _places(ROWS, N, BLOCK, WIDTH)
    if share_ptr is not None:
        share = tl.load(share_ptr)
    at, _ = _keep_at(rows, columns, N, BY_ROW, BY_COLUMN)
    is_kept = tl.load(keep_ptr + at, mask=in_bounds, other=0) != 0
    factor = tl.where(is_kept, tl.div_rn(1.0, share), 0.0)
    at = rows[:, None] * N + columns[None, :]
    gradient = tl.load(gradient_ptr + at, mask=in_bounds, other=0.0)
    scaled = gradient.to(tl.float32) * factor
    tl.store(gradient_ptr + at, scaled.to(gradient_ptr.dtype.element_ty), mask=in_bounds)
    tl.store(weight_ptr + at, tl.load(trained_ptr + at, mask=in_bounds, other=0.0), mask=in_bounds)


@triton.jit(do_not_specialize_on_alignment=["key_ptr", "share_ptr"])
def dropout_kernel(x_ptr, key_ptr, share_ptr, share, ROWS, N, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns, in_bounds = _places(ROWS, N, BLOCK, WIDTH)
    if share_ptr is not None:
        share = tl.load(share_ptr)
    factor = tl.where(_is_kept(key_ptr, share, rows, columns, True, True), tl.div_rn(1.0, share), 0.0)
    at = rows[:, None] * N + columns[None, :]
    x = tl.load(x_ptr + at, mask=in_bounds, other=0.0).to(tl.float32)
    tl.store(x_ptr + at, (x * factor).to(x_ptr.dtype.element_ty), mask=in_bounds)


def mix(
    weight: Tensor, trained: Tensor, keep: Tensor, target: Tensor | None, share: float | Tensor, key: int | Tensor
) -> None:
    rows, n, grid, sizes = _sizes(weight)
    mix_kernel[grid](
        weight, trained, keep.view(torch.uint8), target, key_on_device(key, weight.device), *_share(share), rows, n,
        **_shared_by(keep, weight), **sizes,
    )  # fmt: skip


def unmix(weight: Tensor, trained: Tensor, keep: Tensor, gradient: Tensor, share: float | Tensor) -> None:
    rows, n, grid, sizes = _sizes(weight)
    unmix_kernel[grid](
        weight, trained, keep.view(torch.uint8), gradient, *_share(share), rows, n,
        **_shared_by(keep, weight), **sizes,
    )  # fmt: skip


def dropout_(x: Tensor, share: float | Tensor, key: int | Tensor) -> None:
    if x.numel():
        rows, n, grid, sizes = _sizes(x)
        dropout_kernel[grid](x, key_on_device(key, x.device), *_share(share), rows, n, **sizes)


def _sizes(x: Tensor) -> tuple[int, int, tuple[int, int], dict[str, int]]:
    """Return rows and columns of a tensor, the grid, and the sizes of a program."""
    rows = x.shape[0] if x.dim() else 1
    n = x.numel() // rows
    width = min(256, triton.next_power_of_2(n))
    block = min(4096 // width, triton.next_power_of_2(rows))
    return rows, n, (triton.cdiv(rows, block), triton.cdiv(n, width)), {"BLOCK": block, "WIDTH": width}


def _shared_by(keep: Tensor, weight: Tensor) -> dict[str, bool]:
    """Return whether each row, and each column, has its own draws."""
    return {"BY_ROW": keep.shape[0] == weight.shape[0], "BY_COLUMN": keep.numel() // keep.shape[0] > 1}


def _share(share: float | Tensor) -> tuple[Tensor | None, float]:
    return (share, 0.0) if isinstance(share, Tensor) else (None, float(share))
