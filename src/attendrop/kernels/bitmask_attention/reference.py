"""The specification: attention with its mask as bits and dropout by counters, in plain torch, with a map in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..draws.reference import GOLDEN, MULTIPLY_1, MULTIPLY_2, WORD, words_torch
from ..mask_bits.reference import Bits


class Dropout(NamedTuple):
    """The model's own dropout of attention weights. Its probability has 16 bits, so that a word has two draws."""

    p: float
    key: Tensor  # of the draws: 0-d int32 tensor, on the device

    @classmethod
    def of(cls, p: float, key: Tensor) -> Dropout:
        """With the nearest probability of 16 bits below 1."""
        return cls(min(round(p * 2**16), 2**16 - 1) / 2**16, key)


def kept(dropout: Dropout, shape: torch.Size) -> Tensor:
    """Return the weights that stay: bool [B, H, Q, K].

    One computation gives two words, and so the draws of four positions: of 16 queries the first 8 have the first word,
    and the others the second; of 16 keys the first 8 have the lower halves of words, and the others the upper halves.
    This takes fewer steps than the words of `attendrop.random`, because the word of a row is well mixed already.
    """
    batch, heads, queries, keys = shape
    device = dropout.key.device
    rows, columns = (-(-n // 16) * 8 for n in (queries, keys))
    words = words_torch(dropout.key, torch.arange(batch, device=device), (heads, rows), device)
    mixed = words.unsqueeze(-1) + torch.arange(columns, device=device) * GOLDEN & WORD
    mixed = _folded(mixed * MULTIPLY_1)
    product = mixed * MULTIPLY_2
    words = torch.stack([_folded(product), (product >> 16 & WORD) ^ mixed])  # the latter: the middle of the product
    words = words.view(2, batch, heads, -1, 8, columns // 8, 8).permute(1, 2, 3, 0, 4, 5, 6)
    draws = torch.stack([words & 0xFFFF, words >> 16], dim=-2)
    draws = draws.reshape(batch, heads, 2 * rows, 2 * columns)[:, :, :queries, :keys]
    return draws >= round(dropout.p * 2**16)


def _folded(product: Tensor) -> Tensor:
    """Combine the halves of a 64-bit number by exclusive or; words are int64 without a sign."""
    return (product ^ product >> 32) & WORD


def attend(
    query: Tensor, key: Tensor, value: Tensor, bits: Bits | None, scaling: float, dropout: Dropout | None = None
) -> Tensor:
    """Return attention, [B, Q, H, d], of a query [B, H, Q, d] to keys and values [B, G, K, d]; G < H if heads share.

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
        weights = weights * kept(dropout, weights.shape) / (1 - dropout.p)
    return (weights @ value).transpose(1, 2).contiguous()
