"""Weights and gradients that are changed by random factors: one Triton kernel on a GPU, the reference elsewhere.

All of them work in place, because captured graphs read weights and gradients at their addresses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import has_triton
from . import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def mix(
    weight: Tensor, trained: Tensor, keep: Tensor, target: Tensor | None, share: float | Tensor, key: int | Tensor
) -> None:
    """Write mixed weights over the trained ones, which are kept: W ← U + f ⊙ (W − U), f = m / share.

    Args:
        weight: W, [rows, n]; the mixed weight is written over it.
        trained: of the same shape; W itself is written here.
        keep: bool, of the same shape, or with one row or one column of it that all share; m is written here.
        target: U; None is zero.
        share: the probability that an element of m is 1, above 0; a number, or 0-d float32 tensor on the device.
        key: of the draws; a number, or 0-d int32 tensor on the device.
    """
    _implementation(weight, trained, keep, target).mix(weight, trained, keep, target, share, key)


def unmix(weight: Tensor, trained: Tensor, keep: Tensor, gradient: Tensor | None, share: float | Tensor) -> None:
    """Restore the trained weights, and make the gradient of the mixed weights theirs: it is multiplied by f.

    Args:
        weight: the mixed weight.
        trained: as `mix` wrote it.
        keep: as `mix` wrote it.
        gradient: that of the mixed weight; None: it has none.
        share: as in `mix`.
    """
    if gradient is None:
        weight.copy_(trained)
    else:
        _implementation(weight, trained, keep, gradient).unmix(weight, trained, keep, gradient, share)


def dropout_(x: Tensor, share: float | Tensor, key: int | Tensor) -> None:
    """Keep elements with probability `share`, and divides them by it: x ← x ⊙ m / share.

    Args:
        x: the tensor.
        share: as in `mix`.
        key: as in `mix`.
    """
    _implementation(x).dropout_(x, share, key)


def _implementation(*tensors: Tensor | None) -> Any:
    given = [x for x in tensors if x is not None]
    fits = all(x.is_cuda and x.is_contiguous() and x.dtype in (*_DTYPES, torch.bool) for x in given)
    if fits and has_triton():
        from . import triton

        return triton
    return reference
