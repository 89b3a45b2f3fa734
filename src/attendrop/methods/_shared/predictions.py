"""The predicted distributions of the tracked pass, for every kind of head but spans.

P is over the classes or the choices of an example; over the vocabulary at each position with a label, for token labels
and language models (in a causal model the label is the next token); Bernoulli for each label of a multi-label head. All
of it is computed in float32 at least, and for tokens a part of the positions at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...core.step import MicroBatch
from ...model.objective import IGNORED, counted_positions, head_of, predicted_labels
from ...model.sites import unwrapped
from .by_parts import at_least_float32, sum_by_parts

ValuesOf = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Predictions:
    """The predictions of the model for all views."""

    head: str
    logits: Tensor  # [views · B, C], or [views · B, T, V]
    labels: Tensor | None  # of all views; None where the loop has removed them from the inputs
    counted: Tensor | None  # bool [views · B, T]: the positions that predict a label; None where each example has one

    def mean(self, values_of: ValuesOf) -> Tensor:
        """Return the mean of one value for each distribution, over what the loss is a mean over.

        Args:
            values_of: computes the values from log P, over the last dimension.
        """
        return reduced(self.head, self.logits, 1, self.counted, lambda log_p: values_of(log_p[0]))

    def loss(self) -> Tensor:
        """Return the loss, as transformers' models compute it."""
        assert self.labels is not None
        if self.counted is None:
            return loss_of(self.head, at_least_float32(self.logits), self.labels)
        return token_loss(self.logits, self.labels, self.counted, 1, lambda losses: losses[0])


def predictions_of(outputs: Any, batch: MicroBatch) -> Predictions:
    """Return the predictions of all views of the tracked pass."""
    inputs, logits = batch.inputs, outputs["logits"]
    head, labels, counted = head_of(batch.step.model, inputs), inputs.get("labels"), None
    if head in ("token", "causal"):
        shift = head == "causal"
        counted = counted_positions(inputs, tuple(logits.shape[:2]), logits.device, shift)
        labels = None if labels is None else predicted_labels(labels, shift)
    elif head == "regression":
        logits = logits.squeeze(-1) if logits.shape[-1] == 1 else logits
        logits, labels = _standardised(unwrapped(batch.step.model), logits, labels)
    return Predictions(head, logits, labels, counted)


def _standardised(model: Any, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Divide the numbers of a regression by the scale in which its model computes the loss (`model/pooled.py`)."""
    scale = getattr(model, "output_scale", None)
    if scale is None:
        return logits, labels
    shift = model.output_shift
    return (logits - shift) / scale, None if labels is None else (labels - shift) / scale


def reduced(
    head: str,
    logits: Tensor,
    views: int,
    counted: Tensor | None,
    values_of: ValuesOf,
    reduction: str = "batchmean",
) -> Tensor:
    """Return the "batchmean" or the "sum" of one value for each distribution that counts.

    Args:
        head: the kind of head.
        logits: [views · B, C], or [views · B, T, V].
        views: how many of them the values are computed from.
        counted: bool [B, T], or None where every example counts.
        values_of: computes the values from log P of all views, [views, ..., C].
        reduction: "batchmean" or "sum".
    """
    if counted is None:
        values = values_of(log_probabilities(head, at_least_float32(logits)).unflatten(0, (views, -1)))
        return values.sum() if reduction == "sum" else values.mean()
    chosen = counted.flatten()
    total = sum_by_parts(logits, views, lambda x, part: (values_of(x.log_softmax(-1)) * chosen[part]).sum())
    return total if reduction == "sum" else total / chosen.sum().clamp(min=1)


def token_loss(logits: Tensor, labels: Tensor, counted: Tensor, views: int, combined: ValuesOf) -> Tensor:
    """Return the mean over positions of a combination of the losses of all views.

    Args:
        logits: [views · B, T, V].
        labels: of one view, [B, T].
        counted: the positions that have a label, bool [B, T].
        views: the number of views.
        combined: from the losses of the views, [views, n], to one value for each position, [n].
    """
    targets, chosen = labels.masked_fill(~counted, 0).flatten(), counted.flatten()

    def sum_of_part(x: Tensor, part: slice) -> Tensor:
        of_labels = x.gather(-1, targets[part].expand(views, -1).unsqueeze(-1)).squeeze(-1)
        return (combined(x.logsumexp(-1) - of_labels) * chosen[part]).sum()

    return sum_by_parts(logits, views, sum_of_part) / chosen.sum()


def log_probabilities(head: str, logits: Tensor) -> Tensor:
    """Return log P over the last dimension; of a multi-label head, of the two outcomes of each label."""
    if head == "multilabel":
        return torch.stack([functional.logsigmoid(logits), functional.logsigmoid(-logits)], -1)
    return logits.log_softmax(-1)


def loss_of(head: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a head with one label for each example, as transformers' models compute it."""
    if head == "regression":
        return functional.mse_loss(logits, labels.float().view_as(logits))
    if head == "multilabel":
        return functional.binary_cross_entropy_with_logits(logits, labels.float())
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)


def check_distribution(owner: str, model: nn.Module) -> None:
    """Raise a `ValueError` where the model predicts no distribution, or two of them."""
    head = head_of(model, {})
    if head in ("regression", "span"):
        raise ValueError(
            f"{owner} needs one predicted distribution for each example or token, and {type(model).__name__} has a "
            f"{head} head; it must be a head for classification, token labels, multiple choice or language modelling."
        )
