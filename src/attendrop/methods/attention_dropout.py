"""Attention dropout: weights are dropped after the softmax, as in every model or as in DropAttention.

    A' = A ⊙ m / (1−p)                     m = 0 with probability p
    A' = A ⊙ m / sg(Σ_k A_ik m_ik)         renormalise=True, DropAttention; sg: stop-gradient

Srivastava et al., "Dropout", JMLR 2014; Zehui et al., "DropAttention: A Regularization Method for Fully-Connected
Self-Attention Networks", arXiv 1907.11065; compared in Wang et al., "LoRA Meets Dropout under a Unified Framework",
arXiv 2403.00812.
Differs from the papers in: the model's own attention dropout stays on and comes after it; renormalised, a row that
loses everything becomes uniform over its valid positions; runs start at random, at the rate at which a share p of the
keys is dropped, where DropAttention uses p divided by the length of a run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import MapEdit, Plan
from ..model.seams import Seams
from ..model.sites import Layers
from ._shared.patterns import PATTERNS, draw_keep


def renormalised(weights: Tensor, keep: Tensor, valid: Tensor) -> Tensor:
    """Return a ⊙ m / sg(Σ A ⊙ m), [B, H, Q, K]; uniform over the valid positions where a row has lost everything."""
    remaining = weights * keep
    total = remaining.detach().sum(-1, keepdim=True, dtype=torch.float32).to(weights.dtype)
    uniform = valid / valid.sum(-1, keepdim=True)
    return torch.where(total > 0, remaining / torch.where(total > 0, total, 1), uniform.to(weights.dtype))


@dataclass
class AttentionDropout(Regularizer):
    """Attention dropout after the softmax.

    Args:
        p: probability that a weight is dropped; a number from 0 to below 1 (renormalised: to 1), or a schedule
        pattern: "element", "column" (a key for all queries of a head) or "span" (runs of such keys)
        renormalise: True: divide by the sum of the remaining weights of the row, as DropAttention does; False: by 1−p
        layers: the layers: "first", "all", a number, a list or a slice of numbers; in a model with an encoder and a
            decoder also "encoder", "decoder" (self attention) or "cross"
        span: length of a run of keys, for pattern="span"; a whole number from 1
    """

    name: ClassVar[str] = "attention_dropout"

    p: Strength = hyper(0.1, high=1, search="0.05..0.5", paper="0.1,0.2")
    pattern: str = hyper("element", choices=PATTERNS)
    renormalise: bool = False
    layers: Layers = "all"
    span: int = hyper(3, low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.renormalise, bool):
            raise ValueError(f"AttentionDropout.renormalise is {self.renormalise!r}; it must be True or False.")
        if largest(self.p) == 1 and not self.renormalise:
            raise ValueError("AttentionDropout.p is 1, for which A ⊙ m / (1−p) is not defined; it must be below 1.")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        seams.select(self.layers, "AttentionDropout.layers")

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.p, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.p, step.progress) == 0:
            return Plan()
        p = step.strength(f"{self.name} p", self.p)
        keep = dict(draw_keep(batch, self.layers, p, self.pattern, self.span, "AttentionDropout"))
        if self.renormalise:
            return Plan(maps={site: (_renormalise(mask),) for site, mask in keep.items()})
        return Plan(weights={site: mask / (1 - p) for site, mask in keep.items()})


def _renormalise(keep: Tensor) -> MapEdit:
    return lambda weights, valid: renormalised(weights, keep, valid)
