"""Bi-Drop: two passes with different dropout say which weights to update: those on whose gradient they agree.

    g_1, g_2    the gradients of two passes over the batch, each of its own sub-net of the ordinary dropout
    g = ½ (g_1 + g_2)
    score = |g| / √((g_1 − g)² + (g_2 − g)²)        by="perturbation": the gradient against its spread
    score = |g| / |W|                               by="scaling": the gradient against the weight
    g ← g ⊙ M,    M = 1 for the share p of the blocks' weights with the highest score

Tong et al., "Bi-Drop: Enhancing Fine-tuning Generalization via Synchronous sub-net Estimation and Optimization",
arXiv 2305.14760.
Differs from the paper in: only its abstract could be read. That sub-nets are drawn by dropout, that their gradients on
one batch choose the weights to update, and that there are these two factors is the paper's; the formulas of the
factors, one of them at a time, and the choice among the weights of the blocks are a reconstruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import EditsWeights, RunsSeveralPasses
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.step import MicroBatch, Step
from ..model.seams import Seams
from ..utils.distributed import mean_over_processes
from ._shared.selection import largest_share, parameters_of_blocks, refuse_without_blocks
from ._shared.weights import reason_against, refuse_sharded

BY = ("perturbation", "scaling")


def stability(gradient: Tensor, first: Tensor) -> Tensor:
    """Return |g| / √(Σ_i (g_i − g)²) of two gradients; 0 where g is zero.

    Args:
        gradient: g, the mean of both.
        first: g_1.
    """
    spread = (2.0**0.5) * (first - gradient).abs()
    return torch.where(gradient == 0, 0.0, gradient.abs() / spread)


def relative_size(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return |g| / |W|; 0 where g is zero."""
    return torch.where(gradient == 0, 0.0, gradient.abs() / weight.abs())


@dataclass
class BiDrop(RunsSeveralPasses):
    """Updates of the weights on whose gradient two sub-nets agree.

    Args:
        p: share of the blocks' weights that is updated in a step; a number above 0 and at most 1. With 1 one pass
        by: the score: "perturbation" or "scaling"
    """

    name: ClassVar[str] = "bi_drop"
    same_dropout: ClassVar[bool] = False

    p: float = hyper(0.5, above=0, high=1, search="0.1..0.9")
    by: str = hyper("perturbation", choices=BY, search="perturbation,scaling")

    def reset(self) -> None:
        self._model: nn.Module | None = None
        self._weights: dict[str, nn.Parameter] = {}
        self._sums: dict[str, Tensor] = {}  # ½ g_1, added up over the micro-batches of a step

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded("BiDrop", model)
        if self.p < 1:
            refuse_without_blocks("BiDrop", model, seams)

    def refuses(self, other: Regularizer) -> str | None:
        if self.p < 1 and isinstance(other, EditsWeights):
            return (
                "of which the first compares the gradients of two passes, and the second replaces the weights that "
                "they belong to; choose one of them."
            )
        return reason_against(self, other)

    def passes(self, step: Step) -> int:
        return 2 if self.p < 1 else 1

    def on_step_begin(self, step: Step) -> None:
        if self._model is not step.model:
            refuse_sharded("BiDrop", step.model)
            self._model, self._weights = step.model, parameters_of_blocks(step.model, step.seams)
        self._sums = {}

    @torch.no_grad()
    def on_pass(self, batch: MicroBatch, number: int) -> None:
        """Add up what the first pass adds to the gradients: what they are after it, minus what they were before."""
        if self.p == 1:
            return
        for name, weight in self._weights.items():
            if weight.grad is None:
                continue
            sums = self._sums.get(name)
            if sums is None:
                self._sums[name] = weight.grad.clone() if number else -weight.grad
            elif number:
                sums.add_(weight.grad)
            else:
                sums.sub_(weight.grad)

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        if self.p == 1:
            return
        gradients = {name: x.grad for name, x in self._weights.items() if x.grad is not None and name in self._sums}
        scores = {}
        for name, gradient in gradients.items():
            if self.by == "scaling":
                scores[name] = relative_size(gradient, self._weights[name])
            else:
                half = mean_over_processes(self._sums[name], step.loop.world)
                scores[name] = stability(gradient, 2 * half)
        for name, kept in largest_share(scores, self.p).items() if scores else ():
            gradient = gradients[name]
            gradient.mul_(kept)
        self._sums = {}

    def on_close(self) -> None:
        self.reset()
