"""Counter-based draws: numpy on a CPU, a Triton kernel on a GPU, plain torch elsewhere. All give the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import has_triton
from .reference import uniform_numpy, uniform_torch, words_torch


def uniform(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
    """Draws in [0, 1), 24 bits each, for the examples at `positions` of the global batch: [len(positions), *shape].

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
        return uniform_numpy(key, positions, shape)
    if kind == "cuda" and has_triton():
        from .triton import uniform as in_one_kernel

        return in_one_kernel(words_torch(key, positions, shape[:-1], device), shape[-1])
    return uniform_torch(key, positions, shape, device)


def bernoulli(p: Tensor, key: int | Tensor, positions: Tensor) -> Tensor:
    """True with probability `p`, which has one value for each draw: bool, of the shape of `p`."""
    shape = p.shape[max(1, key.dim()) if isinstance(key, Tensor) else 1 :]
    if p.is_cuda and has_triton():
        from .triton import are_below

        return are_below(words_torch(key, positions, shape[:-1], p.device), p)
    return uniform(key, positions, shape, p.device) < p
