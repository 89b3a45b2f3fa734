"""Small regularizers that several test files train with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attendrop import ComparesViews


@dataclass
class TwoViews(ComparesViews):
    """Like R-Drop: a penalty on the difference between the two views of each example."""

    weight: float = 1.0

    @property
    def views(self) -> int:
        return 2

    def penalty(self, outputs: Any, batch: Any) -> torch.Tensor:
        first, second = outputs["logits"].chunk(2)
        return self.weight * (first - second).square().mean()
