"""Confidence penalty: predictions of low entropy are penalised.

    L = CE − β · H(P),    H(P) = −Σ_c P_c log P_c

Pereyra et al., "Regularizing Neural Networks by Penalizing Confident Output Distributions", arXiv 1701.06548.
Differs from the paper in: nothing. The mean is over what the loss is a mean over: examples, or tokens with a label.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import MicroBatch, Step
from ..model.seams import Seams
from ._shared.predictions import check_distribution, predictions_of


@dataclass
class ConfidencePenalty(Regularizer):
    """A penalty on the negative entropy of the predictions.

    Args:
        beta: weight of the entropy; a number from 0, or a schedule
    """

    name: ClassVar[str] = "confidence_penalty"

    beta: Strength = hyper(0.1, search="log:0.01..1")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_distribution("ConfidencePenalty", model)

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.beta, step.progress) > 0

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if value_at(self.beta, step.progress) == 0:
            return None
        negative_entropy = predictions_of(outputs, batch).mean(lambda log_p: (log_p.exp() * log_p).sum(-1))
        return step.strength(f"{self.name} beta", self.beta) * negative_entropy
