"""Concrete dropout: the dropout rate after each block is learned.

    z = σ((log p − log(1 − p) + log u − log(1 − u)) / τ),  u ~ U(0, 1)        p of each block
    h ← h (1 − z) / (1 − p)
    L = CE + λ · d · Σ_l [p_l log p_l + (1 − p_l) log(1 − p_l)]                 d: the width of h

Gal, Hron and Kendall, "Concrete Dropout", arXiv 1705.07832.
Differs from the paper in: dropout acts on the hidden states after each block, not on the input of every linear layer;
the term ℓ²‖W‖²/(1 − p) is left out, since weight decay is the optimizer's and the term is negligible at the paper's
ℓ = 1e-4; the rates have their own Adam.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import PenalizesParameters, ReadsHiddenGradients
from ..core.hyper import hyper
from ..core.step import MicroBatch, Step
from ..model.plan import Edit, Plan
from ._shared.dropping import draws_like
from ._shared.learned import LearnsParameter

_LIMIT = 6.9  # of the logits: p stays between 0.001 and 0.999


def keep_factor(logit: Tensor, draws: Tensor, temperature: float) -> Tensor:
    """(1 − z)/(1 − p) from the logit of p and draws in [0, 1)."""
    u = draws + 2**-25  # above 0, since draws are multiples of 2⁻²⁴
    z = ((logit + u.log() - torch.log1p(-u)) / temperature).sigmoid()
    return (1 - z) / (1 - logit.sigmoid())


def negative_entropy(logit: Tensor) -> Tensor:
    """Return p log p + (1 − p) log(1 − p)."""
    p = logit.sigmoid()
    return p * nn.functional.logsigmoid(logit) + (1 - p) * nn.functional.logsigmoid(-logit)


@dataclass
class ConcreteDropout(LearnsParameter, PenalizesParameters, ReadsHiddenGradients):
    """Dropout with a learned rate after each block.

    Args:
        init: p at the start; a number from 0 to below 1; 0: no dropout, and nothing is learned
        lr: learning rate of the rates' logits; a number from 0; 0: the rates do not change
        entropy: λ, a number from 0; it pulls the rates towards ½. In the paper it is 1/N for N training examples, and
            2/N in regression
        temperature: τ, a number above 0
    """

    name: ClassVar[str] = "concrete_dropout"
    state_name: ClassVar[str] = "logits"

    init: float = hyper(0.1, below=1, search="0.05..0.3")
    lr: float = hyper(0.01, search="log:0.001..0.1")
    entropy: float = hyper(1e-4, search="log:1e-6..1e-2")
    temperature: float = hyper(0.1, above=0)

    def reset(self) -> None:
        super().reset()
        self._widths: dict[int, int] = {}
        self._widths_on_device: tuple[tuple[int, ...], Tensor] | None = None

    def probabilities(self) -> list[float]:
        """Return the current rates, one for each block in calling order."""
        return [] if self.learned is None else self.learned.detach().sigmoid().tolist()

    def first_value(self, step: Step) -> Tensor | None:
        if self.init == 0:
            return None
        start = min(_LIMIT, max(-_LIMIT, math.log(self.init) - math.log1p(-self.init)))
        return torch.full((len(step.seams.blocks),), start)

    def limit(self, learned: nn.Parameter) -> None:
        learned.clamp_(-_LIMIT, _LIMIT)

    def capture_key(self, step: Step) -> Hashable:
        return self.learned is not None

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if self.learned is None:
            return Plan()
        return Plan(edits={block: (self._edit(batch, block),) for block in range(len(step.seams.blocks))})

    def _edit(self, batch: MicroBatch, block: int) -> Edit:
        rates = self.learned
        assert rates is not None

        def edit(x: Tensor) -> Tensor:
            self._widths[block] = x.shape[-1]
            draws = draws_like(x, batch, block, self.name)
            return x * keep_factor(rates[block], draws, self.temperature).to(x.dtype)

        return edit

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        if self.learned is None:
            return None
        if self.entropy == 0:
            return self.unit
        return self.unit + self.entropy * (self._block_widths() * negative_entropy(self.learned)).sum()

    def _block_widths(self) -> Tensor:
        """Return the width of each block's hidden states.

        It is copied to the device once, before a step is captured.
        """
        assert self.learned is not None
        widths = tuple(self._widths.get(block, 0) for block in range(len(self.learned)))
        if self._widths_on_device is None or self._widths_on_device[0] != widths:
            self._widths_on_device = widths, torch.tensor(widths, device=self.learned.device)
        return self._widths_on_device[1]

    def on_step_end(self, step: Step) -> None:
        super().on_step_end(step)
        if self.learned is None:
            return
        for block, p in enumerate(self.learned.detach().sigmoid()):
            step.metrics[f"concrete_dropout/p_block_{block}"] = p
