"""Dropout of features and of whole blocks, which several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.schedule import Strength, value_at
from ...core.step import MicroBatch, Step
from ...model.plan import Edit, Plan


def draws_like(x: Tensor, batch: MicroBatch, block: int, stream: str) -> Tensor:
    """Return draws in [0, 1) for each element of x, [views · rows, ..., d], different in each view.

    They may be drawn during the forward pass: a recomputation under gradient checkpointing draws the same values.
    """
    return batch.uniform_of_views(block, _shape_of_view(x, batch), x.device, stream).reshape(x.shape)


def _shape_of_view(x: Tensor, batch: MicroBatch) -> tuple[int, int, int, int]:
    return x.shape[0] // batch.step.views, 1, x[0, ..., 0].numel(), x.shape[-1]


def feature_dropout(batch: MicroBatch, p: float | Tensor, block: int, stream: str) -> Edit:
    """Return an edit that drops features of the block's hidden states with probability p."""

    def edit(x: Tensor) -> Tensor:
        factor = batch.dropout_of_views(block, _shape_of_view(x, batch), x.device, stream, p)
        return x * factor.view(x.shape).to(x.dtype)

    return edit


def dropped_blocks(step: Step, p: Strength, stream: str) -> Plan:
    """Return a plan that skips blocks, each with probability p. Every process draws the same."""
    blocks = len(step.seams.blocks)

    def are_dropped(step: Step) -> Tensor:
        return torch.rand(blocks, generator=step.shared_generator(stream)) < value_at(p, step.progress)

    if step.is_captured:
        return Plan(skip_where=dict(enumerate(step.values(f"{stream} blocks", are_dropped) > 0)))
    return Plan(skip=frozenset(int(block) for block in are_dropped(step).nonzero()))
