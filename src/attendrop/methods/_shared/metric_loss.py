"""Methods that replace a share of the cross-entropy by a loss on distances between the texts of a batch.

    L = (1 − λ) · CE + λ · M(h, y)        h: each text as one vector (`pooling.py`), y: the labels

In a batch with several views each view of an example counts as an example with the same label.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...core.capabilities import RequiresModelLoss
from ...core.regularizer import Regularizer
from ...core.schedule import Strength, largest, value_at
from ...core.step import MicroBatch, Step
from ...model.objective import head_of
from ...model.plan import Plan
from ...model.seams import Seams
from .pooling import features_of, keep_last_block
from .predictions import predictions_of


class MetricLoss(RequiresModelLoss):
    """The base class of such methods. A subclass has `weight`, which is λ, and `metric_loss`, which is M."""

    weight: Strength

    def metric_loss(self, h: Tensor, labels: Tensor) -> Tensor:
        """Return M.

        Args:
            h: the texts as vectors of length 1, [N, d], in float32 at least.
            labels: their classes, [N].
        """
        raise NotImplementedError

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        head = head_of(model, {})
        if head != "classification":
            raise ValueError(
                f"{type(self).__name__} compares texts by their class, and {seams.name} has a {head} head; it must be "
                "a head for classification with one class for each example."
            )

    def refuses(self, other: Regularizer) -> str | None:
        if isinstance(other, RequiresModelLoss) and other.requires_model_loss is not None and largest(self.weight) > 0:
            return "of which both replace a part of the model's own loss; choose one of them."
        return None

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        needs = f"{type(self).__name__}.weight replaces a share of the model's own loss"
        return (needs, "choose one of them") if largest(self.weight) > 0 else None

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.weight, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        if value_at(self.weight, batch.step.progress) == 0:
            return Plan()
        return keep_last_block(batch.step, self.name)

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        features = features_of(batch, self.name)
        if value_at(self.weight, step.progress) == 0 or features is None:
            return None
        own = predictions_of(outputs, batch)
        assert own.labels is not None
        with torch.autocast(features.device.type, enabled=False):
            wide = features.to(torch.promote_types(features.dtype, torch.float32))
            distances = self.metric_loss(functional.normalize(wide, dim=-1), own.labels.flatten())
        # The loss has (1 − λ) CE + λ CE: the second part is replaced.
        return step.strength(f"{self.name} weight", self.weight) * (distances - own.loss())
