"""Losses for labels that are not balanced: class weights and the focal loss.

    classification, tokens     w_y · (1 − p_y)^γ · CE          p_y: the probability of the right class
    multiple choice            (1 − p_y)^γ · CE
    multilabel                 Σ_c of w_c · (1 − p)^γ · −log p where label c is present, and p^γ · −log(1 − p) elsewhere

γ is `focal_gamma` (Lin et al., arXiv 1708.02002), and CE has the label smoothing of the training arguments. The loss is
the sum over all labels of an optimizer step divided by their number, however the step is divided into micro-batches
and processes. Weights of classes are scaled so that their mean over the training labels is 1: the learning rate keeps
its meaning.

    balanced    w_c ∝ 1 / n_c                                   n_c: the number of training labels of the class
    sqrt        w_c ∝ 1 / √n_c, at most 10 times the smallest   what is chosen for classes of different sizes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...errors import UserError
from ...model.objective import IGNORED
from .. import tasks
from .settings import RunConfig

BALANCED, SQUARE_ROOT, UNWEIGHTED = "balanced", "sqrt", "none"  # of --class-weights
MOST_UNEQUAL = 10.0  # the largest of the chosen weights over the smallest: a class of one example decides little


class LabelLoss:
    """A loss with class weights and the focal term, for the Trainer's `compute_loss_func`.

    All of it stays on the device, so that steps can be captured.

    Args:
        weights: The weight of each class, `[C]`, on the device of the model; None = all are 1.
        gamma: The exponent of the focal loss; 0 = none.
        smoothing: The label smoothing.
        has_several_labels: Whether an example has several labels: one output for each, `[B, C]`.
    """

    def __init__(
        self, weights: Tensor | None, gamma: float = 0.0, smoothing: float = 0.0, has_several_labels: bool = False
    ) -> None:
        self.weights, self.gamma, self.smoothing = weights, gamma, smoothing
        self.has_several_labels = has_several_labels

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of a micro-batch.

        Args:
            outputs: The outputs of the model.
            labels: The labels; -100 is ignored.
            num_items_in_batch: The number of labels of the whole optimizer step; None = those of this batch.
        """
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.has_several_labels:
            losses = self._binary(logits, labels.to(logits.dtype))
        else:
            losses = self._cross_entropy(logits.flatten(0, -2), labels.flatten())
        if num_items_in_batch is None:
            num_items_in_batch = labels.ne(IGNORED).sum().clamp(min=1)
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(losses.device)
        return losses.sum() / num_items_in_batch

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each label, [N]; 0 where it is ignored."""
        losses = functional.cross_entropy(
            logits, labels, reduction="none", ignore_index=IGNORED, label_smoothing=self.smoothing
        )
        gold = labels.clamp(min=0)  # an ignored label has the loss 0 already
        if self.gamma:
            probability = logits.log_softmax(-1).gather(-1, gold.unsqueeze(-1)).squeeze(-1).exp()
            losses = losses * _focus(probability, self.gamma)
        return losses if self.weights is None else losses * self.weights.to(losses.dtype)[gold]

    def _binary(self, logits: Tensor, present: Tensor) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(logits, present, reduction="none")
        if self.gamma:
            probability = torch.sigmoid(torch.where(present > 0.5, logits, -logits))
            losses = losses * _focus(probability, self.gamma)
        return losses if self.weights is None else torch.where(present > 0.5, self.weights.to(losses.dtype), 1) * losses


def _focus(probability: Tensor, gamma: float) -> Tensor:
    """(1 − p)^γ. The lower limit keeps its gradient finite for γ below 1 where p is rounded to 1."""
    return (1 - probability).clamp(min=torch.finfo(probability.dtype).eps) ** gamma


def make_loss(config: RunConfig, data: tasks.Data, arguments: Any) -> LabelLoss | None:
    """Make the loss that the settings ask for; None = that of the model.

    Args:
        config: The settings of the run.
        data: Its data.
        arguments: Its `TrainingArguments`.
    """
    check_losses(config, data.task, arguments.label_smoothing_factor)
    weighs = weighs_classes(config)
    if not weighs and not config.focal_gamma:
        return None
    weights = None
    if weighs:
        weights = torch.tensor(class_weights(config.class_weights, data), device=arguments.device)
    return LabelLoss(
        weights, config.focal_gamma or 0.0, arguments.label_smoothing_factor,
        tasks.kind_of(data.task).has_several_labels,
    )  # fmt: skip


def weighs_classes(config: RunConfig) -> bool:
    """Return whether the classes have weights in the loss."""
    return config.class_weights not in ([], [UNWEIGHTED])


def check_losses(config: RunConfig, task: tasks.Task, smoothing: float) -> None:
    """Refuse settings of the loss that a task of this kind does not have."""
    for name, value, fact in (
        ("class_weights", config.class_weights if weighs_classes(config) else None, "can_weigh_classes"),
        ("focal_gamma", config.focal_gamma, "can_focus"),
        ("balanced_sampling", config.balanced_sampling, "has_one_class"),
        ("label_smoothing_factor", smoothing, "can_smooth"),
    ):
        kinds = tasks.kinds_that(fact)
        if value and task.kind not in kinds:
            shown = ", ".join(value) if isinstance(value, list) else value
            raise UserError(f"{name} is {shown!r}, and {task.name} is of kind {task.kind}; it is for {_any_of(kinds)}.")


def _any_of(kinds: Sequence[str]) -> str:
    return f"the kind{'s' if len(kinds) > 1 else ''} {' and '.join(kinds)}"


def class_weights(given: Sequence[str], data: tasks.Data) -> list[float]:
    """Return the weight of each class.

    Args:
        given: `["balanced"]`, for weights that are inversely proportional to the number of training labels; `["sqrt"]`,
            to its square root; or pairs such as `spam=4`. Classes that are not named have the weight 1.
        data: The data of the run.
    """
    task, kind, counts = data.task, tasks.kind_of(data.task), label_counts(data)
    if list(given) in ([BALANCED], [SQUARE_ROOT]):
        power = 1.0 if list(given) == [BALANCED] else 0.5
        if kind.has_several_labels:  # so that presence and absence of each label weigh alike
            assert data.train is not None
            return (((len(data.train) - counts).clip(min=1) / counts.clip(min=1)) ** power).tolist()
        weights = counts.clip(min=1) ** -power
        if power < 1:
            weights = weights.clip(max=MOST_UNEQUAL * weights.min())
    else:
        pairs = _parse_weights(given, task)
        weights = np.array([pairs.get(name, 1.0) for name in task.labels])
        if kind.has_several_labels:
            return weights.tolist()
    return (weights * counts.sum() / (weights * counts).sum()).tolist()


def label_counts(data: tasks.Data) -> np.ndarray:
    """Return how often each label occurs in the training data, `[C]`."""
    assert data.train is not None
    flat = tasks.kind_of(data.task).reading.flat(data.train[data.task.label][:])
    return np.bincount(np.asarray(flat, dtype=int), minlength=len(data.task.labels)).astype(float)


def _parse_weights(given: Sequence[str], task: tasks.Task) -> dict[str, float]:
    pairs: dict[str, float] = {}
    for pair in chain.from_iterable(text.split(",") for text in given):
        name, _, written = pair.rpartition("=")
        name = name.strip()
        try:
            weight = float(written)
        except ValueError:
            weight = 0.0
        if not name or not 0 < weight < float("inf"):
            raise UserError(
                f"class_weights is {pair!r}; it must be balanced, sqrt, none, or pairs of a label and a weight above "
                f"0, such as {task.labels[0]}=2."
            )
        if name not in task.labels:
            raise UserError(f"class_weights names the label {name!r}; {task.name} has {', '.join(task.labels[:10])}.")
        pairs[name] = weight
    return pairs
