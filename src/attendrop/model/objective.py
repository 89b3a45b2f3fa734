"""A model's prediction as one number to differentiate: the `F` of an attribution, for every kind of head.

    classification     Σ_b F_{b, c̃}, the logit of the predicted class (or of the gold one)
    regression         −loss against the gold value
    everything else    Σ_i log P(c̃_i), over choices, labels, span ends or positions (below)
    no prediction      −loss, where the training loop computes a loss from embeddings or scores of several texts

`c̃` is the model's own prediction (`label="pseudo"`) or the gold label (`label="gold"`). Positions of token labels are
all that are not padding (`positions="all"`) or those with a label (`positions="labelled"`); only the latter have a gold
label, and a language model predicts no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..utils.checks import check_choice
from .seams import Seams
from .sites import unwrapped

IGNORED = -100
LABEL_SOURCES = ("pseudo", "gold")
POSITIONS = ("all", "labelled")

# Names of classes whose head has one prediction for each example.
_OF_WHOLE_EXAMPLES = tuple(f"For{what}Classification" for what in ("Sequence", "Image", "Video", "Audio"))

Objective = Callable[[Any], Tensor]


def head_of(model: nn.Module, batch: Mapping[str, Any]) -> str:
    """Return the kind of head: causal, choice, span, regression, multilabel, classification or token."""
    inner = unwrapped(model)
    name, config = type(inner).__name__, inner.config
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "causal"
    if name.endswith("ForMultipleChoice"):
        return "choice"
    if name.endswith("ForQuestionAnswering"):
        return "span"
    observed = _observed(model)
    if name.endswith(_OF_WHOLE_EXAMPLES) or observed == "sequence":
        labels = batch.get("labels")
        problem = getattr(config, "problem_type", None)
        floating = labels is not None and labels.is_floating_point()
        if problem == "regression" or (problem is None and config.num_labels == 1):
            return "regression"
        if problem == "multi_label_classification" or (problem is None and floating):
            return "multilabel"
        return "classification"
    if name.endswith(("ForTokenClassification", "ForMaskedLM", "ForConditionalGeneration", "MTModel", "MTForCausalLM")):
        return "token"
    if getattr(config, "is_encoder_decoder", False) and "labels" in batch and batch["labels"].dim() == 2:
        return "token"
    if observed is not None:
        return observed
    raise ValueError(
        f"{name} has no head whose prediction is known; supported are sequence, image, audio and token "
        "classification, regression, multiple choice, question answering, masked, causal and sequence-to-sequence "
        "language models, and models of your own whose outputs are named `logits`, with a row of classes for each "
        "example or for each token, or `start_logits` and `end_logits`."
    )


def _observed(model: nn.Module) -> str | None:
    """Return the kind of head by the outputs of the dry run: sequence, token, causal or span; None if they do not say.

    It decides for classes of the user, whose names say nothing.
    """
    seams = Seams.of(model)
    shapes = {} if seams is None else seams.outputs
    if {"start_logits", "end_logits"} <= set(shapes):
        return "span"
    dimensions = len(shapes.get("logits", ()))
    if dimensions < 3:
        return "sequence" if dimensions == 2 else None
    inner = unwrapped(model)
    is_causal = isinstance(inner, GenerationMixin) and not getattr(inner.config, "is_encoder_decoder", False)
    return "causal" if is_causal else "token"


def predicts_class(model: nn.Module) -> bool:
    """Return whether the model predicts one class per example; AD-DROP then attributes it, not the loop's loss."""
    try:
        return head_of(model, {}) == "classification"
    except ValueError:  # a model without a head, for embeddings
        return False


def needs_labels(head: str) -> bool:
    """Return whether the model needs the labels, because its loss is the objective."""
    return head == "regression"


def objective_for(
    model: nn.Module, batch: Mapping[str, Any], label: str = "pseudo", positions: str = "all"
) -> Objective:
    """Return the objective of `model` on `batch`.

    Targets are fixed at the first call: an integrated path keeps its label.
    """
    head = head_of(model, batch)
    check_choice("label", label, LABEL_SOURCES)
    check_choice("positions", positions, POSITIONS)
    wanted = ("start_positions", "end_positions") if head == "span" else ("labels",)
    if (label == "gold" or head == "regression") and not all(name in batch for name in wanted):
        raise ValueError(
            f"the batch has no {' and '.join(wanted)} (it has {', '.join(sorted(batch))}), which "
            + ("regression" if head == "regression" else "label='gold'")
            + " needs."
        )
    gold = label == "gold"
    fixed: list[Tensor] = []

    def target(choose: Callable[[], Tensor]) -> Tensor:
        if not fixed:
            fixed.append(choose().detach())
        return fixed[0]

    def regression(outputs: Any) -> Tensor:
        return -outputs["loss"]

    def classification(outputs: Any) -> Tensor:
        logits = outputs["logits"].float()
        classes = target(lambda: batch["labels"].view(-1) if gold else logits.argmax(-1))
        return logits.gather(-1, classes.unsqueeze(-1)).sum()

    def multilabel(outputs: Any) -> Tensor:
        logits = outputs["logits"].float()
        present = target(lambda: (batch["labels"] if gold else logits > 0).float())
        return -functional.binary_cross_entropy_with_logits(logits, present, reduction="sum")

    def choice(outputs: Any) -> Tensor:
        logits = outputs["logits"].float()
        chosen = target(lambda: batch["labels"].view(-1) if gold else logits.argmax(-1))
        return -functional.cross_entropy(logits, chosen, reduction="sum")

    def span(outputs: Any) -> Tensor:
        logits = torch.stack([outputs["start_logits"], outputs["end_logits"]]).float()
        ends = target(
            lambda: torch.stack([batch["start_positions"], batch["end_positions"]]) if gold else logits.argmax(-1)
        )
        # A gold end beyond the text is the library's way of saying "cut off", and is ignored as it is in the loss.
        ends = ends.masked_fill((ends < 0) | (ends >= logits.shape[-1]), IGNORED)
        return -functional.cross_entropy(logits.flatten(0, 1), ends.flatten(), reduction="sum", ignore_index=IGNORED)

    heads: dict[str, Objective] = {
        "regression": regression,
        "classification": classification,
        "multilabel": multilabel,
        "choice": choice,
        "span": span,
    }
    if head not in ("token", "causal"):
        return heads[head]
    is_tagger = type(unwrapped(model)).__name__.endswith("ForTokenClassification")
    return TokenObjective(batch, gold, head == "causal", positions == "all" and is_tagger and not gold)


@dataclass
class TokenObjective:
    """Σ_i log P(c̃_i) over the positions of a batch: of token labels and of language models.

    It can be differentiated for a part of the positions at a time, because the logits of a whole vocabulary may not fit
    into memory.

    Args:
        batch: the inputs, with labels where they are needed.
        gold: whether c̃ is the label; otherwise it is the model's prediction.
        shift: whether a position predicts the next token.
        is_over_all: whether positions without a label count, too.
    """

    batch: Mapping[str, Any]
    gold: bool
    shift: bool
    is_over_all: bool = False
    targets: Tensor | None = None  # [B, T]: the labels, once they are fixed; ignored positions have IGNORED

    def __call__(self, outputs: Any) -> Tensor:
        logits = outputs["logits"].float()
        if self.targets is None:
            self.targets = self._targets(logits, slice(None), logits.shape[1])
        return -functional.cross_entropy(
            logits.flatten(0, 1), self.targets.flatten(), reduction="sum", ignore_index=IGNORED
        )

    def gradient(self, logits: Tensor, part: slice, length: int, scale: float = 1.0) -> Tensor:
        """∂F/∂logits at some positions: the one-hot vector of c̃ minus P, and zero where nothing is counted.

        Args:
            logits: [B, t, V].
            part: which positions these are.
            length: how many positions there are in all.
            scale: a factor of the result.
        """
        targets = self._targets(logits, part, length) if self.targets is None else self.targets[:, part]
        gradient = logits.float().softmax(-1)
        counted = (targets != IGNORED).to(gradient.dtype).unsqueeze(-1) * scale
        return gradient.mul_(-counted).scatter_add_(-1, targets.clamp(min=0).unsqueeze(-1), counted)

    def repeated(self, copies: int) -> TokenObjective:
        """Return the objective for several copies of the batch, whose labels are those that are fixed now."""
        assert self.targets is not None
        return replace(self, targets=self.targets.repeat(copies, 1))

    def _targets(self, logits: Tensor, part: slice, length: int) -> Tensor:
        batch = {name: x for name, x in self.batch.items() if not (self.is_over_all and name == "labels")}
        counted = counted_positions(batch, (len(logits), length), logits.device, self.shift)[:, part]
        labels = predicted_labels(self.batch["labels"], self.shift)[:, part] if self.gold else logits.argmax(-1)
        return labels.masked_fill(~counted, IGNORED).detach()


def example_scores(model: nn.Module, batch: Mapping[str, Any], outputs: Any) -> tuple[Tensor, Tensor]:
    """Return the score of each example and the share of its labels that is predicted correctly: [B] and [B].

    The score is the mean log-likelihood of the gold labels, or minus the squared error: higher is better.
    """
    head = head_of(model, batch)
    logits = None if head == "span" else outputs["logits"].float()
    if head == "regression":
        error = (logits.flatten() - batch["labels"].flatten().float()).abs()  # type: ignore[union-attr]
        return -error.square(), -error
    if head == "multilabel":
        assert logits is not None
        labels = batch["labels"].float()
        losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return -losses.mean(-1), ((logits > 0) == labels.bool()).float().mean(-1)
    if head == "span":
        logits = torch.stack([outputs["start_logits"], outputs["end_logits"]], 1).float().transpose(1, 2)
        labels = torch.stack([batch["start_positions"], batch["end_positions"]], 1)
        labels = labels.masked_fill((labels < 0) | (labels >= logits.shape[1]), IGNORED)
    elif head == "causal":
        assert logits is not None
        logits, labels = logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:]
    elif head == "token":
        assert logits is not None
        logits, labels = logits.transpose(1, 2), batch["labels"]
    else:
        assert logits is not None
        logits, labels = logits.unsqueeze(-1), batch["labels"].reshape(-1, 1)
    counted = labels != IGNORED
    n = counted.sum(-1).clamp(min=1)
    losses = functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    correct = (logits.argmax(1) == labels) & counted
    return -(losses * counted).sum(-1) / n, correct.sum(-1) / n


def predicted_labels(labels: Tensor, shift: bool) -> Tensor:
    """Return the label that each position predicts, [B, T]; the last position of a causal model predicts none."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED) if shift else labels


def counted_positions(batch: Mapping[str, Any], shape: tuple[int, int], device: torch.device, shift: bool) -> Tensor:
    """Return the positions whose predictions are neither of padding nor of ignored labels: bool [B, T].

    Args:
        batch: the inputs.
        shape: B and T of the predictions.
        device: where the result is needed, if the batch does not say which positions count.
        shift: whether a position predicts the next token. Then the last one is not counted.
    """
    if "labels" in batch:
        return predicted_labels(batch["labels"], shift) != IGNORED
    mask = batch.get("attention_mask")
    if mask is None or mask.shape != shape:
        mask = torch.ones(shape, device=device)
    return functional.pad(mask[:, 1:].bool(), (0, 1)) if shift else mask.bool()
