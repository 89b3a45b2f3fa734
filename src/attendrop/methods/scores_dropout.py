"""Scores dropout (DropKey): keys are dropped before the softmax, so that the other keys get their weight.

    S'_ij = −∞ with probability p          for single positions, whole keys of a head, or runs of keys

Li et al., "DropKey", arXiv 2208.02646; as an element, column or span dropout of language models: Wang et al., "LoRA
Meets Dropout under a Unified Framework", arXiv 2403.00812.
Differs from the papers in: a row that loses everything becomes uniform over its valid positions; p is the same in every
layer (in the first paper it falls with depth); runs start at random, at the rate at which a share p of the keys is
dropped, where the second paper drops one run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import MicroBatch, Step
from ..kernels.bitmask_attention import stored
from ..model.plan import Plan
from ..model.seams import Seams
from ..model.sites import Layers
from ._shared.patterns import PATTERNS, draw_keep


@dataclass
class ScoresDropout(Regularizer):
    """Attention dropout before the softmax.

    Args:
        p: probability that a position is dropped; a number from 0 to 1, or a schedule
        pattern: "element", "column" (a key for all queries of a head) or "span" (runs of such keys)
        layers: the layers: "first", "all", a number, a list or a slice of numbers; in a model with an encoder and a
            decoder also "encoder", "decoder" (self attention) or "cross"
        span: length of a run of keys, for pattern="span"; a whole number from 1
    """

    name: ClassVar[str] = "scores_dropout"

    p: Strength = hyper(0.1, high=1, search="0.05..0.5")
    pattern: str = hyper("column", choices=PATTERNS)
    layers: Layers = "all"
    span: int = hyper(3, low=1)

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        seams.select(self.layers, "ScoresDropout.layers")

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.p, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.p, step.progress) == 0:
            return Plan()
        p = step.strength(f"{self.name} p", self.p)
        drawn = draw_keep(batch, self.layers, p, self.pattern, self.span, "ScoresDropout")
        return Plan(keep={site: stored(keep) for site, keep in drawn})
