"""From a keep mask to the bias of the attention kernel: one Triton pass on a GPU, `Mask.of` itself elsewhere.

Under `torch.compile` it is `Mask.of` too, which the compiler fuses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import has_triton
from .reference import Mask


def mask_of(keep: Tensor, valid: Tensor, dtype: torch.dtype) -> Mask:
    """`Mask.of`, by the fastest implementation for the device."""
    if keep.is_cuda and not torch.compiler.is_compiling() and dtype != torch.float64 and has_triton():
        from .triton import mask_of as in_one_pass

        return in_one_pass(keep, valid, dtype)
    return Mask.of(keep, valid, dtype)
