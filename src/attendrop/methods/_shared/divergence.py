"""The divergence between the predictions of two views of a batch, for every kind of head but spans.

    kl    ½ (KL(P₁‖P₂) + KL(P₂‖P₁)) = ½ Σ (P₁ − P₂)(log P₁ − log P₂)
    js    ½ (KL(P₁‖M) + KL(P₂‖M)),  M = ½ (P₁ + P₂)
    from_middle    ½ (KL(M‖P₁) + KL(M‖P₂))

P is the predicted distribution: over the classes or the choices of an example; over the vocabulary at each position
with a label, for token labels and language models (in a causal model the label is the next token); Bernoulli for each
label of a multi-label head. In regression both divergences are the squared difference. The mean is over what the loss
is a mean over, so that a weight means the same for every batch size. All of it is computed in float32 at least, and for
tokens a part of the positions at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.step import MicroBatch
from ...model.objective import head_of
from .by_parts import at_least_float32
from .predictions import loss_of, predictions_of, reduced, token_loss

REDUCTIONS = ("batchmean", "sum")


def symmetric_kl(a: Tensor, b: Tensor) -> Tensor:
    """½ (KL(P₁‖P₂) + KL(P₂‖P₁)) from log P₁ and log P₂, over the last dimension."""
    return 0.5 * ((a.exp() - b.exp()) * (a - b)).sum(-1)


def jensen_shannon(a: Tensor, b: Tensor) -> Tensor:
    """½ (KL(P₁‖M) + KL(P₂‖M)) from log P₁ and log P₂, over the last dimension."""
    middle = torch.logaddexp(a, b) - math.log(2)
    return 0.5 * (a.exp() * (a - middle) + b.exp() * (b - middle)).sum(-1)


def from_middle(a: Tensor, b: Tensor) -> Tensor:
    """½ (KL(M‖P₁) + KL(M‖P₂)) from log P₁ and log P₂, over the last dimension."""
    middle = torch.logaddexp(a, b) - math.log(2)
    return (middle.exp() * (middle - 0.5 * (a + b))).sum(-1)


_KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": symmetric_kl,
    "js": jensen_shannon,
    "from_middle": from_middle,
}


@dataclass(frozen=True)
class Pair:
    """The predictions of the model for views of the same examples, of which the first two are compared."""

    head: str
    logits: Tensor  # [views · B, C], or [views · B, T, V]
    labels: Tensor | None  # of one view; None where the loop has removed them from the inputs
    counted: Tensor | None  # bool [B, T]: the positions that predict a label; None where each example has one
    views: int = 2

    def divergence(self, kind: str, reduction: str = "batchmean") -> Tensor:
        """Return the divergence of the two views.

        Args:
            kind: "kl", "js" or "from_middle".
            reduction: "batchmean", the mean over examples or positions, or "sum" over all of them.
        """
        if self.head == "regression":
            first, second = self._of_examples()
            values = (first - second).square()
            return values.sum() if reduction == "sum" else values.mean()
        between = _KINDS[kind]
        return reduced(
            self.head, self.logits, self.views, self.counted, lambda log_p: between(log_p[0], log_p[1]), reduction
        )

    def both_ways(self) -> Tensor:
        """Return KL(P₁‖P₂) + KL(P₂‖P₁). For two normals of variance 1 (regression) it is the squared difference."""
        return self.divergence("kl") * (1 if self.head == "regression" else 2)

    def from_mean_to_first(self) -> Tensor:
        """Return the correction from the mean loss of both views to that of the first: ½ (CE₁ − CE₂)."""
        return self.loss_difference() / 2

    def loss_difference(self) -> Tensor:
        """Return the loss of the first view minus that of the second, as transformers' models compute them."""
        assert self.labels is not None
        if self.counted is not None:
            return token_loss(self.logits, self.labels, self.counted, self.views, lambda losses: losses[0] - losses[1])
        first, second = (loss_of(self.head, logits, self.labels) for logits in self._of_examples())
        return first - second

    def _of_examples(self) -> tuple[Tensor, Tensor]:
        first, second = at_least_float32(self.logits).chunk(self.views)[:2]
        return first, second


def pair_of(outputs: Any, batch: MicroBatch) -> Pair:
    """Return the predictions of the first two views of the tracked pass."""
    every = predictions_of(outputs, batch)
    views = batch.step.views
    labels, counted = (None if x is None else x.chunk(views)[0] for x in (every.labels, every.counted))
    return Pair(every.head, every.logits, labels, counted, views)


def check_head(owner: str, model: nn.Module) -> None:
    """Raise a `ValueError` for a span head, which predicts two distributions."""
    if head_of(model, {}) == "span":
        raise ValueError(
            f"{owner} compares the predictions of two views and is not defined for a span head; it must be a head for "
            "classification, regression, token labels, multiple choice or language modelling."
        )
