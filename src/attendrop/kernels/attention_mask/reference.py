"""The specification: a keep mask, in the form in which an attention kernel takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class KeepForm(Protocol):
    """A keep mask in another form than a bool tensor."""

    @property
    def keep(self) -> Tensor:
        """bool, broadcastable to [B, H, Q, K], True = stays."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The difference between two masks of the same shape and kind."""

    def mapped(self, function: Callable[[Tensor], Tensor]) -> KeepForm:
        """Apply `function`, which may change the examples, to every tensor."""


class Mask(NamedTuple):
    """A keep mask as a bias for the attention kernel, with the model's own mask and the rule for empty rows applied."""

    bias: Tensor  # [B, H, Q, K], in the query's precision: 0, or −∞ where nothing attends
    empty: Tensor  # bool [B, H, Q, 1]: nothing of the row was kept; its bias is that of its valid positions

    @classmethod
    def of(cls, keep: Tensor, valid: Tensor, dtype: torch.dtype) -> Mask:
        """Return the mask for `keep` (bool, True = stays) where the model allows `valid`, with a bias of `dtype`."""
        allowed, empty = allowed_and_empty(keep, valid)
        bias = torch.zeros(allowed.shape, dtype=dtype, device=keep.device)
        return cls(bias.masked_fill(~allowed, float("-inf")), empty)

    @property
    def keep(self) -> Tensor:
        """Return bool [B, H, Q, K], False also where a position is not valid."""
        return (self.bias == 0) & ~self.empty

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.bias, self.empty

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Mask:
        """Apply `function`, which may change the examples, to every tensor."""
        return Mask(function(self.bias), function(self.empty))


def allowed_and_empty(keep: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions that attend, and the rows of which nothing is kept, [..., 1].

    In an empty row all valid positions attend again: with a zero query its attention is uniform over them.
    """
    allowed = keep & valid
    empty = ~allowed.any(-1, keepdim=True)
    return allowed | (empty & valid), empty


def as_keep(mask: Tensor | KeepForm) -> Tensor:
    """Return the keep mask, bool (True = stays), from any form of it."""
    return mask if isinstance(mask, Tensor) else mask.keep


def tensors_of(mask: Tensor | KeepForm) -> tuple[Tensor, ...]:
    """Return the tensors of a mask, in any form of it."""
    return (mask,) if isinstance(mask, Tensor) else mask.tensors
