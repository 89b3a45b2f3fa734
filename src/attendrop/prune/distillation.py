"""Trains a compressed model to compute what the uncompressed one does: its outputs and its hidden states.

    loss = D(teacher's outputs, student's) + Σ_blocks ‖h_S − h_T‖² / ‖h_T‖² / blocks

    D    classes: KL of the probabilities · labels: cross entropy of each · numbers: squared error, in units of the
         teacher's deviation

h_T and h_S are the hidden states after each block that the student still has, of all valid tokens; in a summary tail
those of its rows, which stand for the first token and for the mean of the teacher's tokens. (Hinton et al.,
arXiv 1503.02531; hidden states as in TinyBERT, arXiv 1909.10351.)
Differs from the papers in: the student begins with the teacher's weights, and its own dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..model.probe import LABELS
from ..random import preserved
from .constant_attention import mean_weights
from .fading import Fading
from .layer_plan import plan_of, remaining_layers
from .tail import FIRST, encoder_blocks, tail_of

Batch = Mapping[str, Any]
Watch = Callable[[int, int], None]  # steps that are done, and all

CLASSES, LABELLED, NUMBERS = "classes", "labels", "numbers"
WARM_UP, FADE = 0.1, 0.5  # shares of the steps of a stage
MAX_NORM = 1.0  # of the gradient


def inputs_of(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Return a batch without its labels, on a device.

    Args:
        batch: The batch.
        device: The device.
    """
    return {
        name: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x
        for name, x in batch.items()
        if name not in LABELS
    }


@dataclass(frozen=True)
class Teacher:
    """The uncompressed model, and what its outputs are.

    Attributes:
        model: The model, in eval mode.
        outputs: "classes", "labels" (any number of them for an example) or "numbers".
        scale: The deviation of the outputs, of numbers.
        targets: For each batch, the outputs to learn, such as those of an ensemble; None = those of the model.
    """

    model: Any
    outputs: str
    scale: float = 1.0
    targets: Sequence[Tensor] | None = None

    @classmethod
    def of(cls, model: Any, targets: Sequence[Tensor] | None = None) -> Teacher:
        """Return the teacher of a model, whose configuration says what its outputs are.

        Args:
            model: The model.
            targets: For each batch, the outputs to learn; None = those of the model.
        """
        config = model.config
        if config.problem_type == "multi_label_classification":
            return cls(model.eval(), LABELLED, targets=targets)
        is_number = config.problem_type == "regression" or config.num_labels == 1
        has_rows = type(model).__name__.endswith("ForMultipleChoice")
        return cls(model.eval(), NUMBERS if is_number and not has_rows else CLASSES, targets=targets)

    def fitted(self, batches: Sequence[Batch]) -> Teacher:
        """Return the teacher with the scale of its outputs on some batches.

        Args:
            batches: The batches.
        """
        if self.outputs != NUMBERS:
            return self
        with torch.inference_mode():
            values = torch.cat([self.model(**inputs_of(x, self.model.device)).logits.flatten() for x in batches])
        return replace(self, scale=max(float(values.float().std()), 1e-6)) if len(values) > 1 else self

    def divergence(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return how far outputs are from those of the teacher, as a mean.

        Args:
            logits: The outputs of the student.
            target: Those of the teacher.
            valid: Of a head for tokens: which positions count, `[B, L]`.
        """
        logits, target = logits.float(), target.float()
        if self.outputs == NUMBERS:
            each = ((logits - target) / self.scale).square().mean(-1)
        elif self.outputs == LABELLED:
            shares = target.sigmoid()
            entropy = functional.binary_cross_entropy_with_logits(target, shares, reduction="none")
            each = (functional.binary_cross_entropy_with_logits(logits, shares, reduction="none") - entropy).sum(-1)
        else:
            log_p, log_q = target.log_softmax(-1), logits.log_softmax(-1)
            each = (log_p.exp() * (log_p - log_q)).sum(-1)
        if valid is None or each.dim() < 2:
            return each.mean()
        return (each * valid).sum() / valid.sum()


@contextmanager
def _states(model: Any) -> Iterator[list[Tensor]]:
    """Collect the hidden states after each block in the list, in each forward."""
    states: list[Tensor] = []

    def collect(block: nn.Module, args: Any, output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    handles = [block.register_forward_hook(collect) for _, block in encoder_blocks(model)]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _state_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], weights: Tensor, reads: str) -> Tensor:
    """Return the mean relative error of the hidden states.

    Args:
        student: Those of the student: `[B, L, d]`, or the rows of a summary.
        teacher: Those of the teacher after the same blocks, `[B, L, d]`.
        weights: The weights of the mean over the valid tokens, `[B, 1, L]`.
        reads: What the head reads.
    """
    valid, losses = (weights > 0).transpose(1, 2), []
    for own, other in zip(student, teacher, strict=True):
        if own.shape[1] == other.shape[1]:
            error = ((own - other) * valid).float().square().sum() / (other * valid).float().square().sum()
        else:
            rows = [other[:, :1]] if reads == FIRST else []
            if own.shape[1] > len(rows):
                rows.append(weights.to(other.dtype) @ other)
            truth = torch.cat(rows, 1).float()
            error = (own.float() - truth).square().sum() / truth.square().sum()
        losses.append(error)
    return torch.stack(losses).mean()


def distil(
    student: Any,
    teacher: Teacher,
    batches: Sequence[Batch],
    *,
    steps: int,
    learning_rate: float,
    seed: int,
    fading: Fading | None = None,
    decays: bool = False,
    watch: Watch = lambda done, total: None,
) -> None:
    """Train a student, in place. The same arguments give the same weights.

    Args:
        student: The compressed model, without an exact tail.
        teacher: The teacher.
        batches: The batches, whose labels are not read; their order is drawn anew for each pass over them.
        steps: The number of optimizer steps.
        learning_rate: The highest learning rate.
        seed: The seed of the order.
        fading: What is faded out in the first half of the steps.
        decays: Whether the learning rate falls to zero; otherwise it stays.
        watch: Called after each step.
    """
    device = student.device
    parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.01, fused=device.type == "cuda")
    plan, tail = plan_of(student), tail_of(student)
    kept = remaining_layers(student.config, plan.removed)
    reads = tail["reads"] if tail is not None else FIRST
    student.eval()
    with preserved(device), _states(student) as own, _states(teacher.model) as theirs:
        for step, number in enumerate(_order(len(batches), steps, seed)):
            share = step / max(1, steps)
            scale = min(1.0, (share + 1 / max(1, steps)) / WARM_UP)
            optimizer.param_groups[0]["lr"] = learning_rate * scale * ((1 - share) if decays else 1)
            if fading is not None:
                fading.share = max(0.0, 1 - share / FADE)
            inputs = inputs_of(batches[number], device)
            own.clear()
            theirs.clear()
            with torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext():
                with torch.no_grad():
                    target = teacher.model(**inputs).logits
                if teacher.targets is not None:
                    target = teacher.targets[number].to(device)
                logits = student(**inputs).logits
                weights = _weights(inputs, theirs[0])
                valid = (weights[:, 0] > 0).float() if logits.dim() == 3 else None
                loss = teacher.divergence(logits, target, valid)
                loss = loss + _state_loss(own, [theirs[layer] for layer in kept], weights, reads)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            watch(step + 1, steps)
    if fading is not None:
        fading.share = 0.0


def _weights(inputs: Mapping[str, Any], hidden: Tensor) -> Tensor:
    mask = inputs.get("attention_mask")
    mask = torch.ones(hidden.shape[:2], device=hidden.device) if mask is None else mask.reshape(hidden.shape[:2])
    return mean_weights(mask, torch.float32)


def _order(count: int, steps: int, seed: int) -> Iterator[int]:
    """Return the number of the batch of each step."""
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(steps):
        order = order or torch.randperm(count, generator=generator).tolist()
        yield order.pop()


@torch.inference_mode()
def divergence_of(
    student: Any, teacher: Teacher, batches: Sequence[Batch], outputs: Sequence[Tensor] | None = None
) -> float:
    """Return how far the outputs of a student are from those of its teacher, as a mean over batches.

    Args:
        student: The student.
        teacher: The teacher.
        batches: The batches.
        outputs: The outputs of the teacher for each batch; None = they are computed.
    """
    student.eval()
    total, device = 0.0, student.device
    for number, batch in enumerate(batches):
        inputs = inputs_of(batch, device)
        target = teacher.model(**inputs).logits if outputs is None else outputs[number]
        logits = student(**inputs).logits
        mask = inputs.get("attention_mask")
        valid = mask.float() if mask is not None and logits.dim() == 3 and mask.dim() == 2 else None
        total += float(teacher.divergence(logits, target, valid))
    return total / len(batches)
