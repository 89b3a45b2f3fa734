"""Dropout of features and of whole blocks, which several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.schedule import Strength, value_at
from ...core.step import MicroBatch, Step
from ...model.plan import Edit, Plan


def dropout_factor(draws: Tensor, p: float | Tensor) -> Tensor:
    """0 with probability p, else 1/(1 − p); at p = 1 all zero. `draws` are in [0, 1)."""
    if isinstance(p, Tensor):
        return (draws >= p) / (1 - p).clamp(min=2**-24)  # at p = 1 no draw is kept
    return (draws >= p) / (1 - p) if p < 1 else torch.zeros_like(draws)


def draws_like(x: Tensor, batch: MicroBatch, block: int, stream: str) -> Tensor:
    """Draws in [0, 1) for each element of x, [views · rows, ..., d], different in each view.

    They may be drawn during the forward pass: a recomputation under gradient checkpointing draws the same values.
    """
    shape = (x.shape[0] // batch.step.views, 1, x[0, ..., 0].numel(), x.shape[-1])
    return batch.uniform_of_views(block, shape, x.device, stream).reshape(x.shape)


def feature_dropout(batch: MicroBatch, p: float | Tensor, block: int, stream: str) -> Edit:
    """An edit that drops features of the block's hidden states with probability p."""
    return lambda x: x * dropout_factor(draws_like(x, batch, block, stream), p).to(x.dtype)


def dropped_blocks(step: Step, p: Strength, stream: str) -> Plan:
    """A plan that skips blocks, each with probability p. Every process draws the same."""
    blocks = len(step.seams.blocks)

    def are_dropped(step: Step) -> Tensor:
        return torch.rand(blocks, generator=step.shared_generator(stream)) < value_at(p, step.progress)

    if step.is_captured:
        return Plan(skip_where=dict(enumerate(step.values(f"{stream} blocks", are_dropped) > 0)))
    return Plan(skip=frozenset(int(block) for block in are_dropped(step).nonzero()))
