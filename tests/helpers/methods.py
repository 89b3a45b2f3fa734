"""Small regularizers that several test files train with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attendrop import Regularizer


@dataclass
class TwoViews(Regularizer):
    """Like R-Drop: a penalty on the difference between the two views of each example."""

    views: ClassVar[int] = 2
    weight: float = 1.0

    def penalty(self, outputs: Any, batch: Any) -> torch.Tensor:
        first, second = outputs["logits"].chunk(2)
        return self.weight * (first - second).square().mean()
