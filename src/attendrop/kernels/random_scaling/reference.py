"""The specification: weights and gradients that are changed by random factors, in plain torch.

    f = m / s,    m ~ Bernoulli(s)

The draws are those of `kernels.draws.bernoulli_rows`: the first dimension of a weight counts its rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..draws import bernoulli_rows


def keep_factor(keep: Tensor, share: float | Tensor, dtype: torch.dtype) -> Tensor:
    """f: 1/share where `keep` is True, else 0; in `dtype`, or in float32 where that is wider."""
    return keep.to(torch.promote_types(dtype, torch.float32)) / share


def mixed(weight: Tensor, target: Tensor | None, factor: Tensor) -> Tensor:
    """U + f ⊙ (W − U), rounded once. Where W equals U the result is exactly U."""
    if target is None:
        return (weight * factor).to(weight.dtype)
    wide = target.to(factor.dtype)
    return torch.addcmul(wide, weight.to(factor.dtype) - wide, factor).to(weight.dtype)


def drawn(shape: torch.Size, share: float | Tensor, key: int | Tensor, device: torch.device) -> Tensor:
    """m: bool of `shape`."""
    rows = (shape or (1,))[0]
    return bernoulli_rows(share, key, rows, max(1, torch.Size(shape[1:]).numel()), device).view(shape)


def mix(
    weight: Tensor, trained: Tensor, keep: Tensor, target: Tensor | None, share: float | Tensor, key: int | Tensor
) -> None:
    """Write U + f ⊙ (W − U) over the weight, W itself into `trained`, and m into `keep`."""
    trained.copy_(weight)
    keep.copy_(drawn(keep.shape, share, key, keep.device))
    weight.copy_(mixed(weight, target, keep_factor(keep, share, weight.dtype)))


def unmix(weight: Tensor, trained: Tensor, keep: Tensor, gradient: Tensor, share: float | Tensor) -> None:
    """Multiply the gradient by f, and write `trained` over the weight."""
    gradient.mul_(keep_factor(keep, share, gradient.dtype))
    weight.copy_(trained)


def dropout_(x: Tensor, share: float | Tensor, key: int | Tensor) -> None:
    """Multiply x by f."""
    x.mul_(keep_factor(drawn(x.shape, share, key, x.device), share, x.dtype))
