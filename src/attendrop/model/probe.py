"""The probe: an untracked pass in which a method asks the model something before the pass that trains it.

A probe restores the random state and the modes of all modules, and leaves gradients alone. Because the random state is
restored, the pass that follows draws the same ordinary dropout: the probe asks the very network that is about to be
trained. Where a model skips layers by itself (`encoder_layerdrop`), both passes skip the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..random import preserved
from .modes import evaluating, frozen
from .objective import Objective, TokenObjective
from .plan import Edit, Plan
from .seams import Record, Seams
from .token_head import TokenHead

# Gradients in fp16 underflow below 6e-8. The factor is a power of two, so that dividing by it is exact.
_FP16_SCALE = 1024.0

LABELS = ("labels", "label", "start_positions", "end_positions", "next_sentence_label")


@dataclass
class Probe:
    """Asks a bound model about a batch.

    Args:
        model: the model.
        seams: its seams.
        batch: the inputs, with labels.
    """

    model: nn.Module
    seams: Seams
    batch: Mapping[str, Any]

    @contextmanager
    def untracked(self, training: bool = True) -> Iterator[None]:
        """Restores the random state after what runs inside. With `training=False` the model is in eval mode there."""
        device = next(self.model.parameters()).device
        with preserved(device), nullcontext() if training else evaluating(self.model):
            yield

    def forward(self, plan: Plan, with_labels: bool = False) -> tuple[Any, dict[int, Record]]:
        """One pass under `plan`: the outputs and the records."""
        with self.seams.applied(plan):
            outputs = self.model(**(self.batch if with_labels else self._without_labels()))
            return outputs, self.seams.records

    def gradients(
        self, plan: Plan, objective: Objective, sites: Sequence[int], with_labels: bool = False
    ) -> tuple[dict[int, Tensor], dict[int, Record]]:
        """∂objective/∂O of the given sites, [B, Q, H, d] each, with one backward for all; and the records.

        A site whose block the model has skipped by itself is in neither. Nothing below the lowest site is saved for
        the backward, and nothing that only gradients of weights would need.
        """
        head = self.seams.token_head(self.model) if isinstance(objective, TokenObjective) else None
        inputs = self.batch if with_labels else self._without_labels()
        with torch.enable_grad(), frozen(self.model), self.seams.applied(Plan(record=frozenset(sites)) | plan):
            end = self.model(**inputs) if head is None else head.hidden_states(inputs)
            records = self.seams.records
            sites = [site for site in sites if site in records]
            tensors = [records[site].output for site in sites]
            scale = _scale_of(tensors)
            gradient = None
            if isinstance(objective, TokenObjective) and head is not None:
                gradient = _gradient_of_head(head, objective, end, inputs, scale)
            else:
                end = objective(end) * scale
            grads = _gradients(end, tensors, gradient)
        for record in records.values():
            record.output = record.output.detach()  # it would keep the graph in memory
        pairs = zip(sites, tensors, grads, strict=True)
        return {site: _unscaled(output, grad, scale) for site, output, grad in pairs}, records

    def loss_gradients(self, field: str, blocks: Sequence[int]) -> dict[int, Tensor]:
        """∂loss/∂h at these blocks, [B, L, d] each, with one backward for all; the loss is the model's own.

        Args:
            field: the field of a plan that edits them: "edits", the hidden states after a block (-1: the embeddings),
                or "ffn".
            blocks: the numbers of the blocks. One that the model has skipped by itself is not in the result.
        """
        seen: dict[int, Tensor] = {}

        def keep(block: int) -> Edit:
            def edit(x: Tensor) -> Tensor:
                if torch.is_grad_enabled() and not x.requires_grad:
                    x.requires_grad_()
                seen.setdefault(block, x)  # gradient checkpointing comes here again
                return x

            return edit

        plan = Plan(**{field: {block: (keep(block),) for block in blocks}})  # type: ignore[arg-type]
        with self.untracked(), torch.enable_grad(), frozen(self.model), self.seams.applied(plan):
            loss = self.model(**self.batch)["loss"]
            scale = _scale_of(seen.values())
            grads = _gradients(loss * scale, list(seen.values()))
        return {block: _unscaled(x, grad, scale) for (block, x), grad in zip(seen.items(), grads, strict=True)}

    def _without_labels(self) -> dict[str, Any]:
        """Without labels no loss is computed. Where labels are the decoder's input, that input is kept."""
        inputs = {name: value for name, value in self.batch.items() if name not in LABELS}
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if "labels" in self.batch and "decoder_input_ids" not in inputs and shift is not None:
            inputs["decoder_input_ids"] = shift(labels=self.batch["labels"])
        elif "labels" in self.batch and getattr(self.model.config, "is_encoder_decoder", False):
            inputs["labels"] = self.batch["labels"]
        return inputs


def _gradients(end: Tensor, tensors: list[Tensor], gradient: Tensor | None = None) -> tuple[Tensor | None, ...]:
    """∂end/∂tensors; None where a tensor has no effect, because the model has skipped all blocks behind it."""
    if not tensors or not end.requires_grad:
        return (None,) * len(tensors)
    return torch.autograd.grad(end, tensors, gradient, allow_unused=True)


def _scale_of(tensors: Iterable[Tensor]) -> float:
    """The factor of gradients to these tensors."""
    return _FP16_SCALE if any(x.dtype == torch.float16 for x in tensors) else 1.0


def _unscaled(tensor: Tensor, gradient: Tensor | None, scale: float) -> Tensor:
    """The gradient to a tensor without the factor, and zero where the tensor has no effect."""
    if gradient is None:
        return torch.zeros_like(tensor)
    return gradient if scale == 1.0 else gradient.float() / scale


def _gradient_of_head(
    head: TokenHead, objective: TokenObjective, hidden: Tensor, inputs: Mapping[str, Any], scale: float
) -> Tensor:
    """∂objective/∂hidden, [B, T, d], with the logits of a few tokens in memory at a time."""
    gradient = torch.empty_like(hidden)
    for part in head.parts(hidden):
        tokens = hidden[:, part].detach().requires_grad_()
        logits = head.logits(tokens, inputs)
        of_logits = objective.gradient(logits.detach(), part, hidden.shape[1], scale).to(logits.dtype)
        gradient[:, part] = torch.autograd.grad(logits, tokens, of_logits)[0]
    return gradient
