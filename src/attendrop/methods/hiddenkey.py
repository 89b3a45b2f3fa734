"""HiddenKey: keys are dropped before the softmax and single numbers after the feed-forward, and two views are compared.

    S'_ij = −∞ for all i with probability p_key             a key j of a head, for all queries
    FFN(h)_td = 0 with probability p_hidden, else FFN(h)_td / (1 − p_hidden)
    L = ½ (CE₁ + CE₂) + α · ½ (KL(P₁‖P₂) + KL(P₂‖P₁))       two views with other draws

Wang et al., "LoRA Meets Dropout under a Unified Framework", arXiv 2403.00812.
Differs from the paper in: the two cross-entropies are averaged, so that the loss has the size of a plain one; a row of
attention that loses every key becomes uniform over its valid positions; it works without LoRA too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.capabilities import ComparesViews
from ..core.hyper import hyper
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.seams import Seams
from ._shared.divergence import check_head, pair_of
from ._shared.dropping import feature_dropout
from ._shared.patterns import draw_keep


@dataclass
class HiddenKey(ComparesViews):
    """Dropout of keys and of hidden states, and a penalty on the divergence between two views.

    Args:
        p_key: probability that a key is dropped for all queries of a head; a number from 0 to 1, or a schedule
        p_hidden: probability that a number of the feed-forward's output is zero; a number from 0 to below 1, or a
            schedule
        alpha: weight of the divergence; a number from 0, or a schedule. With 0 there is one view
    """

    name: ClassVar[str] = "hiddenkey"

    p_key: Strength = hyper(0.1, high=1, search="0.05..0.4")
    p_hidden: Strength = hyper(0.1, below=1, search="0.05..0.4")
    alpha: Strength = hyper(1.0, search="log:0.05..5")

    @property
    def views(self) -> int:
        return 2 if largest(self.alpha) > 0 else 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        if self.views > 1:
            check_head("HiddenKey", model)
        seams.needs_feed_forward("HiddenKey")

    def capture_key(self, step: Step) -> Hashable:
        return tuple(value_at(strength, step.progress) > 0 for strength in (self.p_key, self.p_hidden, self.alpha))

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        plan = Plan()
        if value_at(self.p_key, step.progress) > 0:
            p_key = step.strength(f"{self.name} p_key", self.p_key)
            plan = Plan(keep=dict(draw_keep(batch, "all", p_key, "column", 1, "HiddenKey")))
        if value_at(self.p_hidden, step.progress) > 0:
            p_hidden = step.strength(f"{self.name} p_hidden", self.p_hidden)
            blocks = range(len(step.seams.blocks))
            plan |= Plan(ffn={block: (feature_dropout(batch, p_hidden, block, self.name),) for block in blocks})
        return plan

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if value_at(self.alpha, step.progress) == 0:
            return None
        return step.strength(f"{self.name} alpha", self.alpha) * pair_of(outputs, batch).divergence("kl")
