"""The specification: attention with its mask as bits and dropout by counters, in plain torch, with a map in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..attention_bits.reference import Bits
from ..draws import uniform


class Dropout(NamedTuple):
    """The model's own dropout of attention weights. Its probability has 16 bits, so that a draw needs no more."""

    p: float
    key: Tensor  # of the draws: int32 of no dimensions, on the device

    @classmethod
    def of(cls, p: float, key: Tensor) -> Dropout:
        """With the nearest probability of 16 bits below 1."""
        return cls(min(round(p * 2**16), 2**16 - 1) / 2**16, key)


def attend(
    query: Tensor, key: Tensor, value: Tensor, bits: Bits | None, scaling: float, dropout: Dropout | None = None
) -> Tensor:
    """Attention, [B, Q, H, d], of a query [B, H, Q, d] to keys and values [B, G, K, d]; G < H where heads share them.

    A row that lost everything is uniform over its valid positions, and no gradient of it goes to query and key. The
    output of a row without a valid position is 0.
    """
    heads = query.shape[1]
    if bits is not None and bits.empty is not None:
        query = query.masked_fill(bits.empty, 0)
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if bits is not None:
        allowed = bits.allowed
        scores = scores.masked_fill(~allowed, float("-inf"))
    weights = scores.softmax(-1)
    if bits is not None:
        weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0)
    if dropout is not None:
        draws = uniform(dropout.key, torch.arange(len(query), device=query.device), weights.shape[1:], query.device)
        weights = weights * (draws >= dropout.p) / (1 - dropout.p)
    return (weights @ value).transpose(1, 2).contiguous()
