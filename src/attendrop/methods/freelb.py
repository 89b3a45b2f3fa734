"""FreeLB: the gradient is averaged over K passes, whose embeddings move step by step to where the loss is higher.

    δ_0 ~ U(−ε, ε) / √N                                          N: the numbers in the embeddings of the text
    δ_t = Π(δ_{t−1} + α g_t / ‖g_t‖),    g_t = ∂L(x + δ_{t−1})/∂δ        Π: scaled back where ‖δ‖ > ε
    ∂L/∂W = 1/K Σ_t ∂L(x + δ_{t−1})/∂W                           t = 1 … K

All norms are Frobenius norms of one example. The K passes draw the same ordinary dropout.

Zhu et al., "FreeLB: Enhanced Adversarial Training for Natural Language Understanding", arXiv 1909.11764.
x are the word embeddings, before the sum with the positions, its norm and dropout.
Differs from the paper in: in a model that reads no token ids x is the input of the first block.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.capabilities import ReadsHiddenGradients, RunsSeveralPasses
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.tokens import real_keys
from ..utils.checks import check_number
from ._shared.dropping import draws_like
from ._shared.noise import noise_of
from ._shared.passes import LeftTensors
from ._shared.weights import reason_against


def norms(x: Tensor) -> Tensor:
    """Return the Frobenius norm of each example of x, [B, ...], with as many dimensions as x."""
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


def ascended(delta: Tensor, gradient: Tensor, step_size: float, epsilon: float | Tensor) -> Tensor:
    """Π(δ + α g / ‖g‖); an example whose gradient is zero or not finite keeps its δ.

    Args:
        delta: δ, [B, ...].
        gradient: g, of the same shape.
        step_size: α.
        epsilon: ε.
    """
    length = norms(gradient)
    is_usable = length.isfinite() & (length > 0)
    moved = delta + step_size * gradient / length.masked_fill(~is_usable, 1)
    size = norms(moved)
    projected = moved * (epsilon / size.clamp(min=1e-30)).clamp(max=1)
    return torch.where(is_usable, projected, delta)


@dataclass
class FreeLB(RunsSeveralPasses, ReadsHiddenGradients):
    """Adversarial training with the gradients of all ascent steps.

    Args:
        epsilon: ε, the largest norm of the perturbation of an example; a number from 0, or a schedule; 0 is plain
            training
        steps: K, the passes over each micro-batch; a whole number from 1
        step_size: α, the length of an ascent step; a number from 0
        init: the size of the first perturbation, in place of ε; a number from 0; None: ε
    """

    name: ClassVar[str] = "freelb"

    epsilon: Strength = hyper(0.4, search="log:0.05..2")
    steps: int = hyper(3, low=1, search="2,3")
    step_size: float = hyper(0.04, search="log:0.01..0.3")
    init: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init is not None:
            check_number("FreeLB.init", self.init)

    def reset(self) -> None:
        self._number = 0  # of the current pass
        self._deltas = LeftTensors()

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def passes(self, step: Step) -> int:
        return self.steps if value_at(self.epsilon, step.progress) > 0 else 1

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.epsilon, step.progress) > 0

    def on_pass(self, batch: MicroBatch, number: int) -> None:
        self._number = number

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.epsilon, step.progress) == 0:
            return Plan()
        epsilon = step.strength(f"{self.name} epsilon", self.epsilon)
        real = real_keys(step.model, step.seams.sites[0], batch.examples).repeat(step.views, 1)

        def perturb(x: Tensor) -> Tensor:
            counted = (real if real.shape == x.shape[:-1] else torch.ones_like(x[..., 0])).unsqueeze(-1)
            number = self._number
            if number == 0:
                delta = self._first(x, batch, counted, epsilon)
            else:
                delta = self._deltas.read(number - 1, x.shape, step)
            delta = delta.detach()
            if number < self.steps - 1 and torch.is_grad_enabled():
                delta.requires_grad_()

                def leave(g: Tensor) -> None:
                    self._deltas.leave(number, ascended(delta, g * counted, self.step_size, epsilon), step)

                delta.register_hook(leave)
            return x + delta.to(x.dtype)

        return Plan(words=(perturb,))

    def _first(self, x: Tensor, batch: MicroBatch, counted: Tensor, epsilon: float | Tensor) -> Tensor:
        """δ_0; padding has none."""
        count = counted.flatten(1).sum(1).view(-1, *[1] * (x.dim() - 1)) * x.shape[-1]
        size = epsilon if self.init is None else self.init
        noise = noise_of(draws_like(x, batch, -1, self.name), size) * counted / count.clamp(min=1).sqrt()
        return noise.to(torch.promote_types(x.dtype, torch.float32))

    def on_close(self) -> None:
        self.reset()
