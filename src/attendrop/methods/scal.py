"""SCAL: the model is also trained on an adversarial view of each example, with a contrastive loss between the two.

    r = ε g / ‖g‖,  g = ∂CE/∂x of each example            by a probe, no gradients for the weights; x: the embeddings
    L = ½ (CE(x) + CE(x + r)) + ½ α · InfoNCE(h, h_adv)     half of the paper's CE + CE_adv + α · InfoNCE
    InfoNCE = −mean_i log softmax_j(cos(h_i, h_adv_j) / τ)_i

h is the output of the last block: at the first token; at the last token in a causal model; the mean over the decoder's
tokens in a model with an encoder and a decoder.

Miao et al., "Simple Contrastive Representation Adversarial Learning for NLP Tasks", arXiv 2111.13301.
Differs from the paper in: both losses and the contrastive term count half, so that the loss has the size of a plain
one; x is the input of the first block, after the sum with the positions, its norm and dropout.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..core.capabilities import ComparesViews, ProbesModel, ReadsHiddenGradients
from ..core.hyper import hyper
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.tokens import real_keys
from ._shared.pooling import keep_last_block, pooled, pooling_for


def adversarial(gradient: Tensor, epsilon: float | Tensor) -> Tensor:
    """Return ε g / ‖g‖, [B, L, d], the norm over all tokens of an example; zero where there is no gradient."""
    size = gradient.flatten(1).norm(dim=1).view(-1, *[1] * (gradient.dim() - 1))
    return epsilon * gradient / size.masked_fill(size == 0, 1)


def info_nce(h: Tensor, h_adv: Tensor, tau: float) -> Tensor:
    """−mean_i log softmax_j(cos(h_i, h_adv_j)/τ)_i; [B, d] both. The other examples of the batch are the negatives."""
    with torch.autocast(h.device.type, enabled=False):
        h, h_adv = (functional.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1) for x in (h, h_adv))
        similarity = h @ h_adv.T / tau
        return functional.cross_entropy(similarity, torch.arange(len(h), device=h.device))


@dataclass
class SCAL(ProbesModel, ComparesViews, ReadsHiddenGradients):
    """An adversarial second view and a contrastive loss.

    Args:
        epsilon: length of the adversarial step on the embeddings of an example; a number from 0, or a schedule
        alpha: weight of the contrastive term; a number from 0, or a schedule
        tau: temperature of the contrastive term, a number above 0
    """

    name: ClassVar[str] = "scal"

    epsilon: Strength = hyper(1.0, search="log:0.05..2")
    alpha: Strength = hyper(0.5, search="0.1..1")
    tau: float = hyper(0.05, above=0)

    @property
    def views(self) -> int:
        return 2 if largest(self.epsilon) > 0 or largest(self.alpha) > 0 else 1

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.epsilon, step.progress) > 0, value_at(self.alpha, step.progress) > 0

    def probes(self, step: Step) -> bool:
        return value_at(self.epsilon, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if self.views == 1:
            return Plan()
        edits = {}
        if value_at(self.epsilon, step.progress) > 0:
            epsilon = step.strength(f"{self.name} epsilon", self.epsilon)
            gradients = batch.probe().loss_gradients("edits", [-1])
            if gradients:  # none where the model has skipped its first block by itself
                shift = adversarial(gradients[-1], epsilon)
                edits[-1] = (lambda x: x + torch.cat([torch.zeros_like(shift), shift]).to(x.dtype),)
        plan = Plan(edits=edits)
        return plan | keep_last_block(step, self.name) if value_at(self.alpha, step.progress) > 0 else plan

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        hidden = step.seams.kept.get(self.name)  # the output of the last block
        if value_at(self.alpha, step.progress) == 0 or hidden is None:  # or the model has skipped that block by itself
            return None
        alpha = step.strength(f"{self.name} alpha", self.alpha)
        site = [site for site in step.seams.sites if site.kind == "self"][-1]
        one, two = hidden.chunk(2)
        real = real_keys(step.model, site, batch.inputs).chunk(2)[0]
        h, h_adv = (pooled(view, real, pooling_for(step.model, site)) for view in (one, two))
        return 0.5 * alpha * info_nce(h, h_adv, self.tau)
