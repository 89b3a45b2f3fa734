"""What several methods drop in the same way: features, and whole blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.regularizer import Step
from ...model.plan import Edit


def dropout_factor(draws: Tensor, p: float) -> Tensor:
    """0 with probability p, else 1/(1 − p); at p = 1 nothing is left."""
    return (draws >= p) / (1 - p) if p < 1 else torch.zeros_like(draws)


def draws_like(x: Tensor, step: Step, place: int, stream: str) -> Tensor:
    """Draws in [0, 1) for each element of x, [views · rows, ..., d], others in each view.

    Edits may draw while the model runs: counters draw the same again in a replay.
    """
    shape = (x.shape[0] // step.views, 1, x[0, ..., 0].numel(), x.shape[-1])
    return step.uniform_of_views(place, shape, x.device, stream).reshape(x.shape)


def feature_dropout(step: Step, p: float, place: int, stream: str) -> Edit:
    """An edit that drops features with probability p."""
    return lambda x: x * dropout_factor(draws_like(x, step, place, stream), p).to(x.dtype)


def dropped_blocks(step: Step, p: float, stream: str) -> frozenset[int]:
    """Each block with probability p. It is structure: every process draws the same."""
    draws = torch.rand(len(step.seams.blocks), generator=step.shared_generator(stream))
    return frozenset(int(block) for block in (draws < p).nonzero())
