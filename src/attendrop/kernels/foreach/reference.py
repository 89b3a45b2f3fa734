"""The specification: passes over all weights of a model, tensor by tensor in plain torch.

Numbers of half precision are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def average(averages: Sequence[Tensor], weights: Sequence[Tensor], share: float | Tensor) -> None:
    """Compute a ← a + share · (w − a)."""
    for mean, weight in zip(averages, weights, strict=True):
        mean.lerp_(weight.to(mean.dtype), share.to(mean.dtype) if isinstance(share, Tensor) else share)


def pull(
    gradients: Sequence[Tensor], weights: Sequence[Tensor], targets: Sequence[Tensor] | None, strength: float | Tensor
) -> None:
    """Compute g ← g + strength · (w − u)."""
    for number, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
        pulled = strength * _wide(weight) if targets is None else (_wide(weight) - targets[number]).mul_(strength)
        gradient.copy_(pulled.add_(gradient))


def ascend(
    weights: Sequence[Tensor],
    trained: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rho: float | Tensor,
    etas: Sequence[float | None],
    is_moved: Tensor,
) -> None:
    """Keep W in `trained`, and write W + e over it."""
    torch._foreach_copy_(list(trained), list(weights))
    norms = []
    for weight, gradient, eta in zip(trained, gradients, etas, strict=True):
        scale = _scale(weight, eta)
        norms.append((_wide(gradient) if scale is None else scale.mul_(gradient)).norm())
    factor = step_factor(torch.stack(norms).square(), rho)
    for weight, before, gradient, eta in zip(weights, trained, gradients, etas, strict=True):
        step, scale = factor * _wide(gradient), _scale(before, eta)
        if scale is not None:
            step.mul_(scale).mul_(scale)
        step.masked_fill_(factor == 0, 0)  # the gradient may not be finite
        weight.copy_(step.add_(before))
    is_moved.fill_(True)


def restore(weights: Sequence[Tensor], trained: Sequence[Tensor], is_moved: Tensor) -> None:
    """Write `trained` over the weights where they have been moved."""
    for weight, before in zip(weights, trained, strict=True):
        torch.where(is_moved, before, weight, out=weight)  # the value of the flag is not read: a graph could not
    is_moved.fill_(False)


def step_factor(squares: Tensor, rho: float | Tensor) -> Tensor:
    """ρ / ‖T g‖; 0 where the norm is zero or not finite.

    Args:
        squares: parts of the sum of the squares of T g.
        rho: ρ.
    """
    norm = squares.sum().sqrt()
    return torch.where((norm > 0) & (norm < math.inf), rho / norm, 0)  # a norm that is not a number is neither


def _scale(weight: Tensor, eta: float | None) -> Tensor | None:
    """T; None: 1."""
    return None if eta is None else _wide(weight).abs().add_(eta)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
