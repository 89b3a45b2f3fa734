"""Label smoothing: a share of each label is spread evenly over all classes.

    L = (1 − ε) · CE + ε · mean_c(−log P_c)

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567.
Differs from the paper in: nothing for one label of several classes. The two outcomes of each label of a multi-label
head are smoothed in the same way. ε may be a schedule, which the Trainer's `label_smoothing_factor` cannot be.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.capabilities import RequiresModelLoss
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.seams import Seams
from ._shared.predictions import check_distribution, predictions_of


@dataclass
class LabelSmoothing(RequiresModelLoss):
    """Labels that are smoothed towards the uniform distribution.

    Args:
        epsilon: share of a label that is spread over all classes; a number from 0 to 1, or a schedule
    """

    name: ClassVar[str] = "label_smoothing"

    epsilon: Strength = hyper(0.1, high=1, search="0.02..0.3")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_distribution("LabelSmoothing", model)

    def refuses(self, other: Regularizer) -> str | None:
        # R3F computes the loss of its first view from unsmoothed labels.
        if getattr(other, "loss", None) == "clean":
            name = type(other).__name__
            return f"of which {name} trains on the loss of unsmoothed labels; set {name}(loss='both')."
        return None

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        needs = "LabelSmoothing.epsilon changes the model's own loss"
        return (needs, "choose one of them") if largest(self.epsilon) > 0 else None

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.epsilon, step.progress) > 0

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if value_at(self.epsilon, step.progress) == 0:
            return None
        predictions = predictions_of(outputs, batch)
        uniform = predictions.mean(lambda log_p: -log_p.mean(-1))
        # The loss has (1 − ε) CE + ε CE: the second part is replaced.
        return step.strength(f"{self.name} epsilon", self.epsilon) * (uniform - predictions.loss())
