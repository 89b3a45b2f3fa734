"""R-Drop: the batch passes twice with different dropout, and a penalty pulls the two predictions together.

    L = ½ (CE₁ + CE₂) + α · ½ (KL(P₁‖P₂) + KL(P₂‖P₁))          regression: α · (ŷ₁ − ŷ₂)²

Liang et al., "R-Drop: Regularized Dropout for Neural Networks", arXiv 2106.14448.
Differs from the paper in: the two cross-entropies are averaged, as in the authors' README. The paper adds them, so that
its loss and its α are twice these.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.utils import logging

from ..core.capabilities import ComparesViews
from ..core.hyper import hyper
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.seams import Seams
from ._shared.divergence import REDUCTIONS, check_head, pair_of

logger = logging.get_logger(__name__)


@dataclass
class RDrop(ComparesViews):
    """A penalty on the divergence between two views.

    Args:
        alpha: weight of the divergence; a number from 0, or a schedule. The α of the paper is twice this one
        reduction: "batchmean", or "sum" over the batch as in the public code
    """

    name: ClassVar[str] = "rdrop"

    # The paper's 0.1, 0.5 and 1: its losses are added and not averaged.
    alpha: Strength = hyper(1.0, search="log:0.05..5", paper="0.05,0.25,0.5")
    reduction: str = hyper("batchmean", choices=REDUCTIONS)

    @property
    def views(self) -> int:
        return 2 if largest(self.alpha) > 0 else 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_head("RDrop", model)

    def reset(self) -> None:
        self._has_checked = False  # whether the first batch was checked for a divergence of zero

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.alpha, step.progress) > 0

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if value_at(self.alpha, step.progress) == 0:
            return None
        divergence = pair_of(outputs, batch).divergence("kl", self.reduction)
        if not self._has_checked:  # in a captured step, before it is captured
            self._has_checked = True
            if divergence.item() < 1e-12:
                logger.warning(
                    f"RDrop: the two views of the first batch are equal, so that nothing is regularised: "
                    f"{step.seams.name} has no dropout. Set one (attention_dropout in Llama's configuration), or add a "
                    "method that draws for each view."
                )
        return step.strength(f"{self.name} alpha", self.alpha) * divergence
