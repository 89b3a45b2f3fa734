"""Mixup of hidden states: at a random layer the examples of a batch are mixed in pairs, and so are their losses.

    h̃_i = λ h_i + (1 − λ) h_π(i)    at one block, drawn for each step; λ ~ Beta(α, α), π a permutation of the batch
    L = λ · CE(P̃_i, y_i) + (1 − λ) · CE(P̃_i, y_π(i))

Verma et al., "Manifold Mixup: Better Representations by Interpolating Hidden States", arXiv 1806.05236.
Differs from the paper in: tokens are mixed where both texts have one, since padding has no state to mix with.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import RequiresModelLoss
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..kernels.mixed_rows import mixed_rows
from ..model.objective import head_of
from ..model.plan import Edit, Plan
from ..model.seams import Seams
from ..model.tokens import real_keys
from ._shared.predictions import predictions_of

HEADS = ("classification", "multilabel", "regression")


@dataclass(frozen=True)
class Pairs:
    """The rows that are mixed at each place.

    Args:
        partners: π, [rows].
        back: π⁻¹.
        shares: s, the share of the partner at each place, row and token: [places, rows, tokens, 1].
        shares_back: s of the rows that each row is the partner of.
    """

    partners: Tensor
    back: Tensor
    shares: Tensor
    shares_back: Tensor

    @classmethod
    def of(cls, partners: Tensor, shares: Tensor) -> Pairs:
        back = partners.argsort()
        return cls(partners, back, shares, shares.index_select(1, back))

    def mix(self, place: int) -> Edit:
        """Return the edit of hidden states, [rows, tokens, d], at a place."""
        return lambda x: mixed_rows(x, self.partners, self.back, self.shares[place], self.shares_back[place])


@dataclass
class HiddenMixup(RequiresModelLoss):
    """Mixup of hidden states.

    Args:
        alpha: both parameters of the Beta distribution of λ; a number from 0, or a schedule. With 0 nothing is mixed
    """

    name: ClassVar[str] = "hidden_mixup"

    alpha: Strength = hyper(0.5, search="log:0.1..2")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        head = head_of(model, {})
        if head not in HEADS:
            raise ValueError(
                f"HiddenMixup mixes the labels of whole examples, and {seams.name} has a {head} head; it must be a "
                "head for classification of sequences or images, multi-label classification or regression."
            )

    def refuses(self, other: Regularizer) -> str | None:
        name = type(other).__name__
        if getattr(other, "loss", None) == "clean":
            return f"of which {name} trains on the loss of unmixed labels; set {name}(loss='both')."
        if other.name == "label_smoothing":
            return "of which both replace labels in the model's own loss; choose one of them."
        return None

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        return ("HiddenMixup mixes the model's own loss", "choose one of them") if largest(self.alpha) > 0 else None

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.alpha, step.progress) > 0

    def _shares(self, step: Step) -> Tensor:
        """1 − λ at the drawn block and 0 at all others, [1 + blocks]; the first is the embeddings."""

        def drawn(step: Step) -> Tensor:
            generator = step.shared_generator(self.name)
            alpha = torch.full((2,), value_at(self.alpha, step.progress), dtype=torch.float64)
            one, other = torch._standard_gamma(alpha, generator).clamp(min=1e-300)
            shares = torch.zeros(1 + len(step.seams.blocks))
            shares[torch.randint(len(shares), (), generator=generator)] = other / (one + other)
            return shares

        return step.values(f"{self.name} shares", drawn)

    def _partners(self, batch: MicroBatch) -> Tensor:
        """π, [B]: the order of one draw for each example."""
        draws = batch.uniform(0, (batch.size, 1, 1, 1), batch.step.device, self.name)
        return draws.flatten().argsort(stable=True)

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.alpha, step.progress) == 0:
            return Plan()
        partners = self._partners(batch)
        real = real_keys(step.model, step.seams.sites[0], batch.examples)
        # Where texts are encoded apart, an example has several rows; each is mixed with that of the partner.
        texts = torch.arange(len(real) // batch.size, device=partners.device)
        partners = (partners.unsqueeze(-1) * len(texts) + texts).flatten()
        both = (real & real[partners]).repeat(step.views, 1).unsqueeze(-1)
        # The same pairs in each view.
        first = torch.arange(step.views, device=partners.device).unsqueeze(-1) * len(partners)
        pairs = Pairs.of((partners + first).flatten(), self._shares(step).view(-1, 1, 1, 1) * both)
        count = 1 + len(step.seams.blocks)
        return Plan(edits={number - 1: (pairs.mix(number),) for number in range(count)})

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if value_at(self.alpha, step.progress) == 0:
            return None
        own = predictions_of(outputs, batch)
        assert own.labels is not None
        partners = self._partners(batch)
        mixed = torch.cat([labels[partners] for labels in own.labels.chunk(step.views)])
        # The loss has λ CE + (1 − λ) CE: the second part is replaced.
        return self._shares(step).sum() * (replace(own, labels=mixed).loss() - own.loss())
