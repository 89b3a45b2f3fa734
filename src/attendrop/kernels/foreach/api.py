"""Passes over all weights of a model at once: one Triton kernel on a GPU, the reference elsewhere.

A pass takes as long as the memory that it reads and writes. On a GPU each of these reads and writes every number once,
and all tensors share one launch. All of them work in place, because captured graphs read weights at their addresses.
The lists of a call have tensors of the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import has_triton
from . import reference

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def average(averages: Sequence[Tensor], weights: Sequence[Tensor], share: float | Tensor) -> None:
    """Move averages towards weights: a ← a + share · (w − a).

    Args:
        averages: a.
        weights: w.
        share: a number from 0 to 1, or 0-d float32 tensor on the device.
    """
    _implementation(averages, weights).average(averages, weights, share)


def pull(
    gradients: Sequence[Tensor], weights: Sequence[Tensor], targets: Sequence[Tensor] | None, strength: float | Tensor
) -> None:
    """Add the gradient of a penalty on the distance from targets: g ← g + strength · (w − u).

    Args:
        gradients: g.
        weights: w.
        targets: u; None: zero.
        strength: a number, or 0-d float32 tensor on the device.
    """
    _implementation(gradients, weights, targets or ()).pull(gradients, weights, targets, strength)


def ascend(
    weights: Sequence[Tensor],
    trained: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rho: float | Tensor,
    eta: float | None,
    is_moved: Tensor,
    scaled: Sequence[bool] | None = None,
) -> None:
    """Move weights along a gradient: W ← W + e, e = ρ T² g / ‖T g‖; the norm is over all weights.

    Where the norm is zero or not finite, weights stay.

    Args:
        weights: W.
        trained: W is kept here.
        gradients: g.
        rho: ρ, above 0; a number, or 0-d float32 tensor on the device.
        eta: T is |W| + eta; None: T is 1.
        is_moved: 0-d bool tensor on the device; it becomes True.
        scaled: for each weight, whether eta is used for it; otherwise its T is 1. None: for all of them.
    """
    gradients = [gradient.contiguous() for gradient in gradients]
    implementation = _implementation(weights, trained, gradients)
    etas = [eta if scaled is None or is_scaled else None for is_scaled in scaled or [True] * len(weights)]
    implementation.ascend(weights, trained, gradients, rho, etas, is_moved)


def restore(weights: Sequence[Tensor], trained: Sequence[Tensor], is_moved: Tensor) -> None:
    """Write the trained weights back, bit for bit, if they have been moved: a captured graph decides it on the device.

    Args:
        weights: the weights.
        trained: their values, as `ascend` keeps them.
        is_moved: as in `ascend`; it becomes False.
    """
    _implementation(weights, trained).restore(weights, trained, is_moved)


def _implementation(*lists: Sequence[Tensor]) -> Any:
    tensors = [x for tensors in lists for x in tensors]
    if tensors and has_one_gpu(tensors) and has_triton():
        from . import triton

        return triton
    return reference


def has_one_gpu(tensors: Sequence[Tensor]) -> bool:
    """Return whether the kernels can read these tensors: dense, aligned, and on one GPU."""
    device = tensors[0].device
    return device.type == "cuda" and all(
        x.device == device and x.dtype in _DTYPES and x.is_contiguous() and x.data_ptr() % 16 == 0 for x in tensors
    )
