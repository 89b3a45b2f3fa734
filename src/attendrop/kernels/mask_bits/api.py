"""Keep masks as bits: by Triton on a GPU, by the reference elsewhere."""

from __future__ import annotations

from torch import Tensor

from .. import has_triton
from . import reference
from .reference import Bits, PackedKeep


def pack(keep: Tensor) -> PackedKeep:
    """Return a keep mask, bool, broadcastable to [B, H, Q, K], as bits."""
    keep = keep[(None,) * (4 - keep.dim())]
    if keep.is_cuda and has_triton():
        from . import triton

        return PackedKeep(triton.pack(keep), keep.shape[-1])
    return PackedKeep(reference.pack(keep), keep.shape[-1])


def bits_of_valid(valid: Tensor) -> Bits:
    """Return the bits of the positions that the model itself allows: bool, broadcastable to [B, H, Q, K]."""
    return Bits(pack(valid).words, None, valid.shape[-1])


def combined(keep: PackedKeep, valid: Bits | None, in_place: bool = False) -> Bits:
    """Return the positions that attend: those of `keep` that the model itself allows, and the rule for empty rows.

    Args:
        keep: the positions that stay.
        valid: the positions that the model itself allows; None: all.
        in_place: whether the memory of `keep` may be used for the result.
    """
    if keep.words.is_cuda and has_triton():
        from . import triton

        return triton.combined(keep, valid, in_place)
    if valid is None:
        valid = bits_of_valid(keep.words.new_ones(keep.keys).bool())
    return reference.combined(keep.words, valid)
