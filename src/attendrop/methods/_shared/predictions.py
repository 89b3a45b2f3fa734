"""The predicted distributions of the tracked pass, for every kind of head but spans.

P is over the classes or the choices of an example; over the vocabulary at each position with a label, for token labels
and language models (in a causal model the label is the next token); Bernoulli for each label of a multi-label head. All
of it is computed in float32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...core.step import MicroBatch
from ...model.objective import IGNORED, counted_positions, head_of


@dataclass(frozen=True)
class Predictions:
    """The predictions of the model for all views."""

    head: str
    logits: Tensor  # [B, C], or [B, T, V]; in a causal model without the last position
    labels: Tensor | None  # None where the loop has removed them from the inputs
    counted: Tensor | None  # bool [B, T]: the positions that have a label; None where each example has one

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one value for each distribution, over what the loss is a mean over."""
        return reduced(values, self.counted)

    def log_probabilities(self) -> Tensor:
        """log P, over the last dimension."""
        return log_probabilities(self.head, self.logits)

    def loss(self) -> Tensor:
        """The loss, as transformers' models compute it."""
        assert self.labels is not None
        return loss_of(self.head, self.logits, self.labels)


def predictions_of(outputs: Any, batch: MicroBatch) -> Predictions:
    """The predictions of all views of the tracked pass."""
    inputs = batch.inputs
    head = head_of(batch.step.model, inputs)
    logits = outputs["logits"]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = inputs.get("labels")
    counted = None
    if head in ("token", "causal"):
        shift = head == "causal"
        counted = counted_positions(inputs, logits, shift)
        if shift:
            logits = logits[:, :-1]
            labels = None if labels is None else labels[:, 1:]
    elif head == "regression":
        logits = logits.squeeze(-1) if logits.shape[-1] == 1 else logits
    return Predictions(head, logits, labels, counted)


def reduced(values: Tensor, counted: Tensor | None, reduction: str = "batchmean") -> Tensor:
    """The "batchmean" or the "sum" of the values at the positions that count."""
    if counted is None:
        return values.sum() if reduction == "sum" else values.mean()
    total = (values * counted).sum()
    return total if reduction == "sum" else total / counted.sum().clamp(min=1)


def log_probabilities(head: str, logits: Tensor) -> Tensor:
    """log P, over the last dimension; of a multi-label head the two outcomes of each label."""
    if head == "multilabel":
        return torch.stack([functional.logsigmoid(logits), functional.logsigmoid(-logits)], -1)
    return logits.log_softmax(-1)


def loss_of(head: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of a head, as transformers' models compute it."""
    if head == "regression":
        return functional.mse_loss(logits, labels.float().view_as(logits))
    if head == "multilabel":
        return functional.binary_cross_entropy_with_logits(logits, labels.float())
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def check_distribution(owner: str, model: nn.Module) -> None:
    """Raises a `ValueError` where the model predicts no distribution, or two of them."""
    head = head_of(model, {})
    if head in ("regression", "span"):
        raise ValueError(
            f"{owner} needs one predicted distribution for each example or token, and {type(model).__name__} has a "
            f"{head} head; it must be a head for classification, token labels, multiple choice or language modelling."
        )
