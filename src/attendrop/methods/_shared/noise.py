"""Noise on hidden states, which several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

NOISES = ("uniform", "normal")


def noise_of(draws: Tensor, size: float | Tensor, kind: str = "uniform") -> Tensor:
    """Noise from draws in [0, 1): U(−size, size), or N(0, size²)."""
    centred = 2 * draws - 1
    if kind == "uniform":
        return size * centred
    # Draws are multiples of 2⁻²⁴. Half a step of the grid keeps the quantile finite.
    return size * 2**0.5 * torch.erfinv(centred + 2**-24)
