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

from ..core.capabilities import HasParameters, KeepsState, PenalizesParameters, ReadsHiddenGradients
from ..core.hyper import hyper
from ..core.state import load_optimizer_tensors, optimizer_tensors
from ..core.step import MicroBatch, Step
from ..model.plan import Edit, Plan
from ..utils.distributed import average_gradients
from ._shared.dropping import draws_like

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
class ConcreteDropout(HasParameters, PenalizesParameters, ReadsHiddenGradients, KeepsState):
    """Dropout with a learned rate after each block.

    Args:
        init: p at the start; a number from 0 to below 1; 0: no dropout, and nothing is learned
        lr: learning rate of the rates' logits; a number from 0; 0: the rates do not change
        entropy: λ, a number from 0; it pulls the rates towards ½. In the paper it is 1/N for N training examples, and
            2/N in regression
        temperature: τ, a number above 0
    """

    name: ClassVar[str] = "concrete_dropout"

    init: float = hyper(0.1, below=1, search="0.05..0.3")
    lr: float = hyper(0.01, search="log:0.001..0.1")
    entropy: float = hyper(1e-4, search="log:1e-6..1e-2")
    temperature: float = hyper(0.1, above=0)

    def reset(self) -> None:
        self._rates: nn.ParameterList | None = None
        self._unit = nn.Parameter(torch.zeros(()))  # a term of the loss whose value is 0, see `_unscale`
        self._optimizer: torch.optim.Optimizer | None = None
        self._loaded: dict[str, Tensor] = {}
        self._widths: dict[int, int] = {}
        self._widths_on_device: tuple[tuple[int, ...], Tensor] | None = None

    def probabilities(self) -> list[float]:
        """Return the current rates, one for each block in calling order."""
        return [] if self._rates is None else self._rates[0].detach().sigmoid().tolist()

    def on_step_begin(self, step: Step) -> None:
        if self.init == 0 or self._rates is not None:
            return
        start = min(_LIMIT, max(-_LIMIT, math.log(self.init) - math.log1p(-self.init)))
        device = step.device
        self._rates = nn.ParameterList([torch.full((len(step.seams.blocks),), start, device=device)])
        self._unit = nn.Parameter(torch.zeros((), device=device))
        # On a GPU the fused optimizer skips a step whose gradients are not finite without waiting for the GPU.
        self._optimizer = torch.optim.Adam(self._rates.parameters(), lr=self.lr, fused=device.type == "cuda")
        if self._loaded:
            logits = self._loaded.pop("logits")
            with torch.no_grad():
                self._rates[0].copy_(logits)
            load_optimizer_tensors(self._optimizer, self._loaded)
            self._loaded = {}

    def capture_key(self, step: Step) -> Hashable:
        return self._rates is not None

    def parameters(self) -> list[nn.Parameter]:
        return [] if self._rates is None else [*self._rates.parameters(), self._unit]

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if self._rates is None:
            return Plan()
        return Plan(edits={block: (self._edit(batch, block),) for block in range(len(step.seams.blocks))})

    def _edit(self, batch: MicroBatch, block: int) -> Edit:
        rates = self._rates
        assert rates is not None

        def edit(x: Tensor) -> Tensor:
            self._widths[block] = x.shape[-1]
            draws = draws_like(x, batch, block, self.name)
            return x * keep_factor(rates[0][block], draws, self.temperature).to(x.dtype)

        return edit

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        if self._rates is None:
            return None
        if self.entropy == 0:
            return self._unit
        return self._unit + self.entropy * (self._block_widths() * negative_entropy(self._rates[0])).sum()

    def _block_widths(self) -> Tensor:
        """Return the width of each block's hidden states.

        It is copied to the device once, before a step is captured.
        """
        assert self._rates is not None
        widths = tuple(self._widths.get(block, 0) for block in range(len(self._rates[0])))
        if self._widths_on_device is None or self._widths_on_device[0] != widths:
            self._widths_on_device = widths, torch.tensor(widths, device=self._rates[0].device)
        return self._widths_on_device[1]

    def on_step_end(self, step: Step) -> None:
        if self._rates is None:
            return
        assert self._optimizer is not None
        average_gradients([*self._rates.parameters(), self._unit], step.loop.world)
        self._unscale()
        logits = self._rates[0]
        if logits.grad is not None:
            self._take_step(self._optimizer, logits.grad.isfinite().all())
            with torch.no_grad():
                logits.clamp_(-_LIMIT, _LIMIT)
        self._optimizer.zero_grad()
        for block, p in enumerate(logits.detach().sigmoid()):
            step.metrics[f"concrete_dropout/p_block_{block}"] = p

    @staticmethod
    def _take_step(optimizer: Any, is_finite: Tensor) -> None:
        """Take one step if the gradients are finite: with fp16 the scaled loss may have overflowed."""
        if is_finite.is_cuda:
            optimizer.found_inf = (~is_finite).float()
            optimizer.step()
        elif is_finite:
            optimizer.step()

    def _unscale(self) -> None:
        """Divide the gradient of the rates by the factor with which the loop has multiplied the loss.

        With fp16 that is the loss scale, which changes during training: Adam would average gradients of different
        scales. A loss scaler unscales only the gradients of its own optimizer. The loss contains `_unit` with the
        factor 1, so that the gradient of `_unit` is the factor of the loss.
        """
        assert self._rates is not None
        factor, self._unit.grad = self._unit.grad, None
        if factor is not None and self._rates[0].grad is not None:
            self._rates[0].grad.div_(factor)

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self._rates is None or self._optimizer is None:
            return {}, {}
        return {"logits": self._rates[0], **optimizer_tensors(self._optimizer)}, {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._loaded = dict(tensors)  # used when the first step begins, which creates the rates
