"""Attention LayerDrop: in each step, the attention of some layers is the constant 1/n.

    A_l = 1/n over the valid positions, with probability p for each layer and step

Wu, Zhao and Zhang, "Not All Attention Is All You Need", arXiv 2104.04692 v2, section 7 and Eq. 4.
Differs from the paper in: nothing known.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan


@dataclass
class AttentionLayerDrop(Regularizer):
    """Dropout of the attention of whole layers.

    Args:
        p: probability that the attention of a layer is uniform for the step; a number from 0 to 1, or a schedule
    """

    name: ClassVar[str] = "attention_layerdrop"

    p: Strength = hyper(0.2, high=1, search="0.05..0.5")

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.p, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if step.is_captured:
            return Plan(uniform_where=dict(enumerate(step.values(f"{self.name} sites", self._are_uniform) > 0)))
        return Plan(uniform=frozenset(int(site) for site in self._are_uniform(step).nonzero()))

    def _are_uniform(self, step: Step) -> Tensor:
        """Return which sites are uniform, bool [sites]. It is the same on every process."""
        draws = torch.rand(len(step.seams.sites), generator=step.shared_generator(self.name))
        return draws < value_at(self.p, step.progress)
