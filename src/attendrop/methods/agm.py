"""Attribution-guided masking: the model must also be right without the tokens that its loss depends on most.

    a_t = ‖∂CE/∂x_t‖                    by a probe, no gradients for the weights; x: the input of the first block
    x̃ = x without the max(1, ⌊share · n⌋) tokens with the largest a: their states are zero, and nothing attends to them
    L = CE(x) + λ · CE(x̃)

The token that the head reads alone, such as the first one of BERT, is never masked.

"Attribution-Guided Masking for Robust Cross-Domain Sentiment Classification", arXiv 2605.03091.
Differs from the paper in: only its abstract could be read. That tokens with a high gradient attribution are found
during training, that a loss of their own is added, and the random control are the paper's; a, the mask, the form of the
added loss and all defaults are a reconstruction. The optional contrastive loss on counterfactuals is left out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ComparesViews, ProbesModel, RequiresModelLoss, views_of
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.seams import Seams
from ..model.tokens import real_keys
from ._shared.divergence import check_head, pair_of
from ._shared.pooling import token_of_head
from ._shared.predictions import predictions_of

BY = ("gradient", "random")


def most_attributed(attribution: Tensor, real: Tensor, allowed: Tensor, share: float | Tensor) -> Tensor:
    """Return the tokens that are masked, bool [B, L].

    Args:
        attribution: a, [B, L].
        real: the tokens that are not padding, bool [B, L]; n is their number.
        allowed: those that may be masked, bool [B, L].
        share: the share of the n tokens, rounded down, but at least one token.
    """
    n = real.sum(-1, keepdim=True)
    # The small number makes 0.1 of 10 tokens 1, also where the product is rounded down.
    count = (n.double() * share + 1e-9).floor().long().clamp(min=1)
    rank = attribution.masked_fill(~allowed, -inf).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return allowed & (rank < count)


@dataclass
class AGM(ProbesModel, ComparesViews, RequiresModelLoss):
    """A second loss on each example without the tokens that the first one depends on most.

    Args:
        weight: λ of the loss without these tokens; a number from 0, or a schedule
        share: share of the tokens that is masked; a number from 0 to 1, or a schedule
        by: which tokens: "gradient", those with the largest attribution, or "random" ones, the control
    """

    name: ClassVar[str] = "agm"

    weight: Strength = hyper(1.0, search="log:0.1..5")
    share: Strength = hyper(0.1, high=1, search="0.05..0.4")
    by: str = hyper("gradient", choices=BY)

    @property
    def views(self) -> int:
        return 2 if largest(self.weight) > 0 and largest(self.share) > 0 else 1

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        needs = "AGM.weight weighs the model's own loss with and without tokens"
        return (needs, "choose one of them") if self.views > 1 else None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_head("AGM", model)

    def refuses(self, other: Regularizer) -> str | None:
        if self.views == 1:
            return None
        replaces_loss = isinstance(other, RequiresModelLoss) and other.requires_model_loss is not None
        if replaces_loss or views_of(other) > 1:
            return "of which the first weighs the losses of its two views by itself; choose one of them."
        return None

    def capture_key(self, step: Step) -> Hashable:
        return self.views, value_at(self.share, step.progress) > 0

    def probes(self, step: Step) -> bool:
        return self.by == "gradient" and self._masks(step)

    def _masks(self, step: Step) -> bool:
        return self.views > 1 and value_at(self.share, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if not self._masks(step):
            return Plan()
        sites = step.seams.sites
        real = real_keys(step.model, sites[0], batch.examples)
        if self.by == "gradient":
            gradients = batch.probe().loss_gradients("edits", [-1])
            if not gradients:  # the model has skipped its first block by itself
                return Plan()
            attribution = gradients[-1].norm(dim=-1)
        else:
            shape = (real.shape[0], 1, 1, real.shape[1])
            attribution = batch.uniform(-1, shape, real.device, self.name).reshape(real.shape)
        # In float64, in which the number of tokens is rounded down.
        share = step.strength(f"{self.name} share", self.share, torch.float64)
        masked = most_attributed(attribution, real, real & ~token_of_head(step.model, sites, real), share)
        gone = torch.cat([torch.zeros_like(masked), masked])
        readers = [site.index for site in sites if site.kind == "cross" or site.stack == sites[0].stack]
        keep = dict.fromkeys(readers, ~gone[:, None, None])
        return Plan(keep=keep, edits={-1: (lambda x: x.masked_fill(gone.unsqueeze(-1), 0),)})

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if self.views == 1:
            return None
        to_first = pair_of(outputs, batch).from_mean_to_first()  # the loss is the mean of both views
        without = predictions_of(outputs, batch).loss() - to_first
        return to_first + step.strength(f"{self.name} weight", self.weight) * without
