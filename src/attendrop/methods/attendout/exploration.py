"""AttendOut's exploration: which layers a round masks, and by how much their logits are shifted at random.

    P_l = sigmoid(S_l + ε_l), ε_l ~ N(0, σ²)              one ε for each layer and round
    ∇_{c_l} = A · ε_l / σ²                                 the likelihood of ε as a function of the offset c_l

Without shifts the generator learns the rate of a layer only from how far the share of dropped positions happens to be
from P. A round decides about so many positions (T · batch · n²) that this share hardly differs from P, and its effect
is lost among all else that changes the reward. With shifts a layer drops visibly more in one round than in another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...random import key_of
from .generator import Generator


def draw_active(seed: int, turn: int, layers: int, share: float) -> list[bool]:
    """Return which layers are masked in a round, the same on all processes.

    Args:
        seed: the seed of the run.
        turn: the number of the round.
        layers: the number of layers.
        share: of the layers that are masked.
    """
    if share >= 1:
        return [True] * layers
    draws = torch.Generator().manual_seed(key_of(seed, turn, 0, "attendout-active"))
    chosen = torch.randperm(layers, generator=draws)[: max(1, round(share * layers))].tolist()
    return [layer in chosen for layer in range(layers)]


def draw_shifts(seed: int, turn: int, is_active: Sequence[bool], size: float) -> list[float]:
    """Return the shift of each layer in a round, the same on all processes; 0 for layers that are not masked.

    Args:
        seed: the seed of the run.
        turn: the number of the round.
        is_active: whether each layer is masked in this round.
        size: the standard deviation σ.
    """
    draws = torch.Generator().manual_seed(key_of(seed, turn, 0, "attendout-explore"))
    shifts = size * torch.randn(len(is_active), generator=draws, dtype=torch.float32)
    return [shift if active else 0.0 for shift, active in zip(shifts.tolist(), is_active, strict=True)]


@torch.no_grad()
def learn_from_shifts(generator: Generator, shifts: Sequence[float], size: float, weight: float) -> None:
    """Add the gradient of −weight · Σ log N(ε) to that of the generator's offsets.

    Args:
        generator: the generator, whose offsets are learned.
        shifts: the shifts of the round.
        size: their standard deviation.
        weight: the advantage of the round, divided by the number of rounds of an update.
    """
    offsets = generator.offsets
    gradient = torch.tensor(shifts, dtype=offsets.dtype, device=offsets.device).mul_(-weight / size**2)
    offsets.grad = gradient if offsets.grad is None else offsets.grad.add_(gradient)
