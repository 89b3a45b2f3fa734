"""The divergence between the predictions of two views of a batch, for every kind of head but spans.

    kl    ½ (KL(P₁‖P₂) + KL(P₂‖P₁)) = ½ Σ (P₁ − P₂)(log P₁ − log P₂)
    js    ½ (KL(P₁‖M) + KL(P₂‖M)),  M = ½ (P₁ + P₂)

P is the predicted distribution: over the classes or the choices of an example; over the vocabulary at each position
with a label, for token labels and language models (in a causal model the label is the next token); Bernoulli for each
label of a multi-label head. In regression both divergences are the squared difference. The mean is over what the loss
is a mean over, so that a weight means the same for every batch size. All of it is computed in float32 at least.
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
from .predictions import log_probabilities, loss_of, predictions_of, reduced

REDUCTIONS = ("batchmean", "sum")


def symmetric_kl(a: Tensor, b: Tensor) -> Tensor:
    """½ (KL(P₁‖P₂) + KL(P₂‖P₁)) from log P₁ and log P₂, over the last dimension."""
    return 0.5 * ((a.exp() - b.exp()) * (a - b)).sum(-1)


def jensen_shannon(a: Tensor, b: Tensor) -> Tensor:
    """½ (KL(P₁‖M) + KL(P₂‖M)) from log P₁ and log P₂, over the last dimension."""
    middle = torch.logaddexp(a, b) - math.log(2)
    return 0.5 * (a.exp() * (a - middle) + b.exp() * (b - middle)).sum(-1)


_KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"kl": symmetric_kl, "js": jensen_shannon}


@dataclass(frozen=True)
class Pair:
    """The predictions of the model for two views of the same examples."""

    head: str
    first: Tensor  # logits [B, C], or [B, T, V]; in a causal model without the last position
    second: Tensor
    labels: Tensor | None  # of one view; None where the loop has removed them from the inputs
    counted: Tensor | None  # bool [B, T]: the positions that have a label; None where each example has one

    def divergence(self, kind: str, reduction: str = "batchmean") -> Tensor:
        """The divergence of the two views.

        Args:
            kind: "kl" or "js".
            reduction: "batchmean", the mean over examples or positions, or "sum" over all of them.
        """
        if self.head == "regression":
            values = (self.first - self.second).square()
        else:
            values = _KINDS[kind](log_probabilities(self.head, self.first), log_probabilities(self.head, self.second))
        return reduced(values, self.counted, reduction)

    def both_ways(self) -> Tensor:
        """KL(P₁‖P₂) + KL(P₂‖P₁). For two normals of variance 1, in regression, this is the squared difference."""
        return self.divergence("kl") * (1 if self.head == "regression" else 2)

    def from_mean_to_first(self) -> Tensor:
        """What makes the loss of the first view of the mean loss of both: ½ (CE₁ + CE₂) + ½ (CE₁ − CE₂) = CE₁."""
        assert self.labels is not None
        first, second = (loss_of(self.head, logits, self.labels) for logits in (self.first, self.second))
        return (first - second) / 2


def pair_of(outputs: Any, batch: MicroBatch) -> Pair:
    """The predictions of the first two views of the tracked pass."""
    both = predictions_of(outputs, batch)
    views = batch.step.views
    first, second = both.logits.chunk(views)[:2]
    labels, counted = (None if x is None else x.chunk(views)[0] for x in (both.labels, both.counted))
    return Pair(both.head, first, second, labels, counted)


def check_head(owner: str, model: nn.Module) -> None:
    """Raises a `ValueError` for a span head, which predicts two distributions."""
    if head_of(model, {}) == "span":
        raise ValueError(
            f"{owner} compares the predictions of two views and is not defined for a span head; it must be a head for "
            "classification, regression, token labels, multiple choice or language modelling."
        )
