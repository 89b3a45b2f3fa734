"""A keep mask, worked out for the attention kernel: on a GPU with triton in one pass; elsewhere `Mask.of` itself.

A compiler gets that too, which it fuses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...plan import Mask
from .. import has_triton


def mask_of(keep: Tensor, valid: Tensor, dtype: torch.dtype) -> Mask:
    """`Mask.of`, which is the specification."""
    if keep.is_cuda and not torch.compiler.is_compiling() and dtype != torch.float64 and has_triton():
        from .triton import mask_of as in_one_pass

        return in_one_pass(keep, valid, dtype)
    return Mask.of(keep, valid, dtype)
