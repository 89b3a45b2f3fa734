"""The draws of `attendrop.random` in one kernel: a draw is a function of the word of its row and of its place there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import reference

GOLDEN = tl.constexpr(reference.GOLDEN)
MULTIPLY_1 = tl.constexpr(reference.MULTIPLY_1)
MULTIPLY_2 = tl.constexpr(reference.MULTIPLY_2)


@triton.jit
def nearly_mixed(x):  # type: ignore[no-untyped-def]
    """As in attendrop.random, on uint32, but for the last step."""
    x ^= x >> 16
    x *= MULTIPLY_1
    x ^= x >> 15
    x *= MULTIPLY_2
    return x


@triton.jit
def mix(x):  # type: ignore[no-untyped-def]
    x = nearly_mixed(x)
    return x ^ (x >> 16)


@triton.jit
def draws_kernel(words_ptr, p_ptr, out_ptr, ROWS, N, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Draw ROWS rows of N numbers, or, with p, whether they are below it. Grid: (rows, places in them)."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    places = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_bounds = (rows[:, None] < ROWS) & (places[None, :] < N)
    at = rows[:, None] * N + places[None, :]
    word = tl.load(words_ptr + rows, mask=rows < ROWS, other=0).to(tl.uint32, bitcast=True)
    word = mix(word[:, None] + places.to(tl.uint32)[None, :] * GOLDEN)
    draw = (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    if p_ptr is not None:
        draw = (draw < tl.load(p_ptr + at, mask=in_bounds, other=0.0)).to(tl.int8)
    tl.store(out_ptr + at, draw, mask=in_bounds)


@triton.jit(do_not_specialize_on_alignment=["key_ptr", "p_ptr"])
def uniform_kernel(  # type: ignore[no-untyped-def]
    key_ptr, positions_ptr, out_ptr, p_ptr, p, share, ROWS, D1, D2, N,
    AXES: tl.constexpr, FACTOR: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Draw [examples, D1, D2, N] from the positions of the examples, without (AXES = 0) or with D1 alone (1), or both.

    With FACTOR they become factors of dropout. ROWS is the number of rows of N draws. Grid: (rows, places in them).
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    places = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    position = tl.load(positions_ptr + rows // (D1 * D2), mask=rows < ROWS, other=0).to(tl.uint32)
    word = mix(tl.load(key_ptr).to(tl.uint32, bitcast=True) + position * GOLDEN)
    if AXES > 0:
        word = mix(word + (rows // D2 % D1).to(tl.uint32) * GOLDEN)
    if AXES > 1:
        word = mix(word + (rows % D2).to(tl.uint32) * GOLDEN)
    word = mix(word[:, None] + places.to(tl.uint32)[None, :] * GOLDEN)
    draw = (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    if FACTOR:
        if p_ptr is not None:
            p = tl.load(p_ptr)
            share = tl.maximum(1.0 - p, 5.9604644775390625e-08)
        draw = tl.where(draw >= p, tl.div_rn(1.0, share), 0.0)
    in_bounds = (rows[:, None] < ROWS) & (places[None, :] < N)
    tl.store(out_ptr + rows[:, None] * N + places[None, :], draw, mask=in_bounds)


def uniform_at(key: Tensor, positions: Tensor, shape: tuple[int, ...], p: float | Tensor | None = None) -> Tensor:
    """Return draws in [0, 1) for one key: [len(positions), *shape], where `shape` has one to three dimensions.

    Args:
        key: 0-d int32 tensor on the device.
        positions: of the examples, on the device.
        shape: the shape of the draws of one example.
        p: where it is given, the result is 0 where a draw is below it, and 1 / (1 − p) elsewhere; a number, or a 0-d
            float32 tensor on the device.
    """
    draws = torch.empty((len(positions), *shape), device=positions.device)
    *axes, n = shape
    if draws.numel():
        d1, d2 = (*axes, 1, 1)[:2]
        rows, width = draws.numel() // n, min(1024, triton.next_power_of_2(n))
        block = 1024 // width
        uniform_kernel[triton.cdiv(rows, block), triton.cdiv(n, width)](
            key, positions, draws, p if isinstance(p, Tensor) else None,
            *((0.0, 1.0) if p is None or isinstance(p, Tensor) else (float(p), float(max(1 - p, 2**-24)))),
            rows, d1, d2, n, AXES=len(axes), FACTOR=p is not None, BLOCK=block, WIDTH=width,
        )  # fmt: skip
    return draws


@triton.jit(do_not_specialize_on_alignment=["key_ptr", "p_ptr"])
def rows_kernel(key_ptr, p_ptr, p, out_ptr, ROWS, N, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Draw whether N draws of each position 0 … ROWS − 1 are below p, or below *p_ptr. Grid: (rows, places)."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    places = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_bounds = (rows[:, None] < ROWS) & (places[None, :] < N)
    if p_ptr is not None:
        p = tl.load(p_ptr)
    word = mix(tl.load(key_ptr).to(tl.uint32, bitcast=True) + rows.to(tl.uint32) * GOLDEN)
    word = mix(word[:, None] + places.to(tl.uint32)[None, :] * GOLDEN)
    draw = (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    tl.store(out_ptr + rows[:, None] * N + places[None, :], (draw < p).to(tl.int8), mask=in_bounds)


def rows_below(key: Tensor, p: float | Tensor, rows: int, n: int) -> Tensor:
    """Return whether the n draws of each of the positions 0 … rows − 1 are below p: bool [rows, n].

    Args:
        key: 0-d int32 tensor on the device.
        p: a number, or 0-d float32 tensor on the device.
        rows: the number of positions.
        n: the number of draws of each.
    """
    is_below = torch.empty(rows, n, dtype=torch.bool, device=key.device)
    if is_below.numel():
        width = min(1024, triton.next_power_of_2(n))
        block = 1024 // width
        is_tensor = isinstance(p, Tensor)
        rows_kernel[triton.cdiv(rows, block), triton.cdiv(n, width)](
            key, p if is_tensor else None, 0.0 if is_tensor else float(p), is_below.view(torch.uint8), rows, n,
            BLOCK=block, WIDTH=width,
        )  # fmt: skip
    return is_below


def uniform(words: Tensor, n: int) -> Tensor:
    """Return draws in [0, 1) for rows with these words, int32 [...]: [..., n]."""
    draws = torch.empty((*words.shape, n), device=words.device)
    _launch(words, None, draws, n)
    return draws


def are_below(words: Tensor, p: Tensor) -> Tensor:
    """Return whether those draws are below p, [..., n]."""
    is_below = torch.empty(p.shape, dtype=torch.bool, device=p.device)
    _launch(words.expand(p.shape[:-1]), p.float().contiguous(), is_below.view(torch.uint8), p.shape[-1])
    return is_below


def _launch(words: Tensor, p: Tensor | None, out: Tensor, n: int) -> None:
    if out.numel():
        rows, width = words.numel(), min(1024, triton.next_power_of_2(n))
        block = 1024 // width
        draws_kernel[triton.cdiv(rows, block), triton.cdiv(n, width)](
            words.contiguous(), p, out, rows, n, BLOCK=block, WIDTH=width
        )
