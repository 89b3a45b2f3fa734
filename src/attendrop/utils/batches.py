"""Batches: dictionaries of tensors whose first dimension counts examples, with other values beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def batch_size(batch: Mapping[str, Any]) -> int:
    """Return the number of examples: the first dimension of the first tensor that has one, or the length of a list."""
    for value in batch.values():
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.shape[0]
    for value in batch.values():
        if isinstance(value, list):  # of texts
            return len(value)
    raise ValueError(
        f"the batch has no tensor with a batch dimension; it has {', '.join(map(str, batch)) or 'nothing'}."
    )


def tiled(x: Any, copies: int, size: int) -> Any:
    """Return `copies` copies of `x`, one after the other, of every tensor in it that has `size` rows."""
    if copies == 1:
        return x
    if isinstance(x, Tensor):
        return torch.cat([x] * copies) if x.dim() > 0 and x.shape[0] == size else x
    if isinstance(x, tuple):
        return tuple(tiled(y, copies, size) for y in x)
    if isinstance(x, Mapping):
        return {name: tiled(y, copies, size) for name, y in x.items()}
    return x


def rows(batch: Mapping[str, Any], start: int, stop: int, size: int) -> dict[str, Any]:
    """Return the examples from `start` to `stop` of a batch of `size` examples."""
    return {
        name: value[start:stop] if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size else value
        for name, value in batch.items()
    }


def padded_length(length: int) -> int:
    """Return the length rounded up to a multiple of 16, or of about an eighth of it where it is long."""
    unit = 16 if length <= 128 else 32 if length <= 256 else 64 if length <= 1024 else 256
    return -(-length // unit) * unit
