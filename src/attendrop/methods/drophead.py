"""Scheduled DropHead: whole heads are dropped, and the other heads of the layer are scaled up.

    O_h ← O_h ξ_h · H / Σ ξ                ξ_h = 0 with probability p_t, for each example and layer
    p_t falls from p to 0 while the learning rate warms up, and rises from 0 to p from there to the end

Zhou et al., "Scheduled DropHead: A Regularization Method for Transformer Models", arXiv 2004.13342.
Differs from the paper in: where all heads of a layer would be dropped, one of them, chosen at random, is kept; the
length of the warm-up is a field, a share of the training.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Schedule, Strength, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.sites import map_shape

SCHEDULES = ("v", "constant")


def head_factors(draws: Tensor, p: float | Tensor) -> Tensor:
    """ξ_h · H / Σ ξ for draws [..., H] in [0, 1). The head with the highest draw is always kept."""
    keep = (draws >= p) | (draws == draws.amax(-1, keepdim=True))
    return keep * draws.shape[-1] / keep.sum(-1, keepdim=True)


def v_shape(p: float, warmup: float, fraction: float) -> float:
    """Return the probability at `fraction` of the training: p at both ends, 0 where the warm-up ends."""
    if fraction < warmup:
        return p * (1 - fraction / warmup)
    return p * (fraction - warmup) / (1 - warmup) if warmup < 1 else 0.0


@dataclass
class DropHead(Regularizer):
    """Dropout of whole heads.

    Args:
        p: probability that a head is dropped, a number from 0 to 1; with schedule="v", that at both ends of training
        schedule: "v", the paper's, or "constant", with which p may be a schedule
        warmup: share of the training at which the "v" is 0, a number from 0 to 1: the learning rate's warm-up
    """

    name: ClassVar[str] = "drophead"

    p: Strength = hyper(0.2, high=1, search="0.05..0.5")
    schedule: str = hyper("v", choices=SCHEDULES)
    warmup: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "v" and isinstance(self.p, Schedule):
            raise ValueError("DropHead.p is a schedule, and DropHead.schedule is 'v'; set schedule='constant' with it.")
        if isinstance(self.warmup, bool) or not isinstance(self.warmup, (int, float)) or not 0 <= self.warmup <= 1:
            raise ValueError(f"DropHead.warmup is {self.warmup!r}; it must be a share of the training, from 0 to 1.")

    def probability(self, step: Step) -> float:
        """p_t, the probability in this step."""
        p = value_at(self.p, step.progress)
        return v_shape(p, self.warmup, step.progress.fraction) if self.schedule == "v" else p

    def on_step_begin(self, step: Step) -> None:
        p = self.probability(step)
        if step.measure and p > 0:
            step.metrics["drophead/p"] = torch.tensor(p, device=step.device)

    def capture_key(self, step: Step) -> Hashable:
        return self.probability(step) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if self.probability(step) == 0:
            return Plan()
        p = step.number(f"{self.name} p", self.probability)
        device = step.device
        scale: dict[int, float | Tensor] = {}
        for site in step.seams.sites:
            rows, _, _ = map_shape(site, batch.examples)
            draws = batch.uniform_of_views(site.index, (rows, 1, 1, site.heads), device, self.name)
            scale[site.index] = head_factors(draws, p).transpose(2, 3)  # [B, 1, H, 1]
        return Plan(scale=scale)
