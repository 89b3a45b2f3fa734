"""Counter-based draws: NumPy on a CPU, a Triton kernel on a GPU, plain torch elsewhere. All give the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import has_triton
from . import cpu
from .reference import signed, uniform_torch, words_torch

_CHUNK = 1 << 24  # draws at a time, which bounds the extra memory


def uniform(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
    """Return draws in [0, 1), 24 bits each, for examples at `positions` of the global batch: [len(positions), *shape].

    Args:
        key: a 32-bit key (`attendrop.random.key_of`), or an int32 tensor on `device`, which a captured graph reads
            there. A tensor may have dimensions, of which the last is that of the examples or 1: keys [layers, 1] draw
            [layers, len(positions), *shape] at once, each layer as its key alone would.
        positions: the positions of the examples in the global batch, [B].
        shape: the shape of the draws of one example, usually (H, Q, K).
        device: where the draws are needed.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return cpu.uniform(key, positions, shape)
    if kind == "cuda" and has_triton():
        from .triton import uniform as of_words
        from .triton import uniform_at

        if len(shape) <= 3 and not (isinstance(key, Tensor) and key.dim()):
            return uniform_at(key_on_device(key, device), positions.to(device), shape)
        return of_words(words_torch(key, positions, shape[:-1], device), shape[-1])
    return uniform_torch(key, positions, shape, device)


def dropout_factors(
    p: float | Tensor, key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str = "cpu"
) -> Tensor:
    """Return dropout factors from the draws of `uniform`: 0 where a draw is below p, else 1 / (1 − p); at p = 1 all 0.

    Args:
        p: the probability, or a 0-d float32 tensor on `device`.
        key: a 32-bit key, or a 0-d int32 tensor on `device`.
        positions: the positions of the examples in the global batch, [B].
        shape: the shape of the draws of one example.
        device: where they are needed.
    """
    if torch.device(device).type == "cuda" and has_triton() and len(shape) <= 3:
        from .triton import uniform_at

        return uniform_at(key_on_device(key, device), positions.to(device), shape, p)
    return as_factors(uniform(key, positions, shape, device), p)


def as_factors(draws: Tensor, p: float | Tensor) -> Tensor:
    """Return draws in [0, 1) as factors of dropout: 0 where they are below p, else 1 / (1 − p); at p = 1 all 0."""
    if isinstance(p, Tensor):
        return (draws >= p) / (1 - p).clamp(min=2**-24)  # at p = 1 no draw is kept
    return (draws >= p) / (1 - p) if p < 1 else torch.zeros_like(draws)


def bernoulli(p: Tensor, key: int | Tensor, positions: Tensor) -> Tensor:
    """Return True with probability `p`, which has one value for each draw: bool, of the shape of `p`."""
    shape = p.shape[max(1, key.dim()) if isinstance(key, Tensor) else 1 :]
    if p.is_cuda and has_triton():
        from .triton import are_below

        return are_below(words_torch(key, positions, shape[:-1], p.device), p)
    return uniform(key, positions, shape, p.device) < p


def bernoulli_rows(
    p: float | Tensor, key: int | Tensor, rows: int, n: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Return True with probability `p`, for n draws of each of the positions 0 … rows − 1: bool [rows, n].

    It is `uniform(key, torch.arange(rows), (n,), device) < p`, without the draws in memory.

    Args:
        p: the probability, or a 0-d float32 tensor on `device`.
        key: a 32-bit key, or a 0-d int32 tensor on `device`.
        rows: the number of positions.
        n: the number of draws of each.
        device: where they are needed.
    """
    device = torch.device(device)
    if device.type == "cuda" and has_triton():
        from .triton import rows_below

        return rows_below(key_on_device(key, device), p, rows, n)
    if device.type == "cpu":
        return cpu.rows_below(key, p, rows, n)
    is_below = torch.empty(rows, n, dtype=torch.bool, device=device)
    size = max(1, _CHUNK // max(1, n))
    for first in range(0, rows, size):
        positions = torch.arange(first, min(first + size, rows), device=device)
        is_below[first : first + size] = uniform(key, positions, (n,), device) < p
    return is_below


def key_on_device(key: int | Tensor, device: torch.device | str) -> Tensor:
    """Return a key as a 0-d int32 tensor on the device, where kernels read it."""
    return key if isinstance(key, Tensor) else torch.full((), signed(key), dtype=torch.int32, device=device)
