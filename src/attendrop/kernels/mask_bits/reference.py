"""The specification: a keep mask with one bit for each position, and which of its blocks attend at all.

The bits of a block of 64 keys are in four words of 16 bits, in the order in which the threads of a GPU hold the results
of a matrix product. A thread then finds all bits of its own positions of a row in one word:

    key k  ->  word 4 · (k // 64) + (k mod 8) // 2, bit 2 · ((k mod 64) // 8) + k mod 2

Bits of keys that do not exist are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64  # keys of a block
WORDS = 4  # of a block


def pack(keep: Tensor) -> Tensor:
    """Return bool [..., K] as bits: int16 [..., W]."""
    bits = torch.arange(16, device=keep.device).view(8, 1, 2)
    blocks = pad(keep, (0, -keep.shape[-1] % BLOCK)).unflatten(-1, (-1, 8, WORDS, 2))
    return (blocks.int() << bits).sum((-3, -1)).to(torch.int16).flatten(-2)


def unpack(words: Tensor, keys: int) -> Tensor:
    """Return bits as bool [..., keys]."""
    bits = torch.arange(16, dtype=torch.int16, device=words.device).view(8, 1, 2)
    blocks = words.unflatten(-1, (-1, 1, WORDS, 1)) >> bits & 1
    return blocks.flatten(-4)[..., :keys].bool()


class Bits(NamedTuple):
    """The positions that attend, as bits, with the model's own mask and the rule for empty rows applied."""

    words: Tensor  # int16 [B, H, Q, W]; a dimension that is 1 is the same for all examples, heads or queries
    empty: Tensor | None  # bool [B, H, Q, 1]: nothing of the row was kept; its bits are those of its valid positions
    keys: int

    def bits(self) -> Bits:
        """Return the mask itself. Other masks compute their bits on demand."""
        return self

    @property
    def allowed(self) -> Tensor:
        """Return the positions that attend: bool [B, H, Q, K]."""
        return unpack(self.words, self.keys)

    @property
    def keep(self) -> Tensor:
        """Return bool [B, H, Q, K], False also where a position is not valid."""
        return self.allowed if self.empty is None else self.allowed & ~self.empty

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.words,) if self.empty is None else (self.words, self.empty)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Bits:
        """Apply `function`, which may change the examples, to every tensor."""
        return Bits(function(self.words), None if self.empty is None else function(self.empty), self.keys)


def combined(words: Tensor, valid: Bits) -> Bits:
    """Return the bits for a packed keep mask, [B, H, Q, W], where the model itself allows `valid`."""
    words = words & valid.words
    empty = (words == 0).all(-1, keepdim=True)
    return Bits(torch.where(empty, valid.words, words), empty, valid.keys)


class PackedKeep(NamedTuple):
    """A keep mask as bits, before the model's own mask is known."""

    words: Tensor  # int16 [B, H, Q, W]; a dimension that is 1 is the same for all
    keys: int

    @property
    def keep(self) -> Tensor:
        """Return bool [B, H, Q, K]."""
        return unpack(self.words, self.keys)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.words,)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> PackedKeep:
        """Apply `function`, which may change the examples, to its tensor."""
        return PackedKeep(function(self.words), self.keys)


class Blocks(NamedTuple):
    """Which blocks of `BLOCK` by `BLOCK` positions a kernel must look at: as half-open ranges."""

    keys: Tensor  # int32 [B, blocks of queries, 2]; a dimension that is 1 is the same for all
    queries: Tensor  # int32 [B, blocks of keys, 2]

    @classmethod
    def of(cls, valid: Tensor, queries: int) -> Blocks:
        """Return the blocks with a position in `valid`, bool, broadcastable to [B, H, Q, K]."""
        valid = valid[(None,) * (4 - valid.dim())].any(1)
        if valid.shape[1] > 1:
            valid = _any_of_block(valid, 1)
        attending = _any_of_block(valid, 2)
        of_queries = _range(attending.transpose(1, 2))
        if attending.shape[1] == 1:  # the same for all queries
            of_queries = of_queries * -(-queries // BLOCK)
        return cls(_range(attending), of_queries)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Blocks:
        """Apply `function`, which may change the examples, to every tensor with four dimensions."""
        keys, queries = (function(x.unsqueeze(1)).squeeze(1) for x in self)
        return Blocks(keys, queries)


def _any_of_block(x: Tensor, dim: int) -> Tensor:
    """Return bool [..., ⌈n / BLOCK⌉, ...]."""
    x = x.transpose(dim, -1)
    x = pad(x, (0, -x.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK)).any(-1)
    return x.transpose(dim, -1)


def _range(attending: Tensor) -> Tensor:
    """Return the half-open range from the first to the last True of each row: [..., 2]; (0, 0) without one."""
    places = torch.arange(attending.shape[-1], device=attending.device)
    behind = ((places + 1) * attending).amax(-1)
    first = places.masked_fill(~attending, attending.shape[-1]).amin(-1)
    return torch.stack([torch.minimum(first, behind), behind], -1).int()
