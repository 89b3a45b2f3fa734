"""LayerDrop: in each step, whole blocks are skipped.

    h_l = h_{l−1} with probability p for each block and step, else f_l(h_{l−1}); no rescaling

After training, `attendrop.prune.drop_layers` removes blocks from the model.

Fan, Grave and Joulin, "Reducing Transformer Depth on Demand with Structured Dropout", arXiv 1909.11556.
Differs from the paper in: a skipped block still runs, and its result is not used. Its weights get a gradient of zero
instead of none, so that data-parallel and sharded training have the same graph in every step.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ._shared.dropping import dropped_blocks


@dataclass
class LayerDrop(Regularizer):
    """Dropout of whole blocks.

    Args:
        p: probability that a block is skipped for the step; a number from 0 to below 1, or a schedule
    """

    name: ClassVar[str] = "layerdrop"

    p: Strength = hyper(0.2, below=1, search="0.05..0.4")

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.p, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        return dropped_blocks(batch.step, self.p, self.name)
