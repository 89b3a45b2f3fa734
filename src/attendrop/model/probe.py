"""The probe: an untracked pass in which a method asks the model something before the pass that trains it.

A probe restores the random state and the modes of all modules, and leaves gradients alone. Because the random state is
restored, the pass that follows draws the same ordinary dropout: the probe asks the very network that is about to be
trained. Where a model skips layers by itself (`encoder_layerdrop`), both passes skip the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..random import preserved
from .modes import evaluating
from .plan import Edit, Plan
from .seams import Record, Seams

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

    def forward(
        self, plan: Plan, with_labels: bool = False, weights: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, dict[int, Record]]:
        """One pass under `plan`: the outputs and the records.

        Args:
            plan: what the pass changes in the model.
            with_labels: whether the model gets the labels, so that it computes its loss.
            weights: values by the names of parameters, in place of the model's own.
        """
        inputs = dict(self.batch) if with_labels else self._without_labels()
        with self.seams.applied(plan):
            outputs = functional_call(self.model, dict(weights), (), inputs) if weights else self.model(**inputs)
            return outputs, self.seams.records

    def gradients(
        self, plan: Plan, objective: Callable[[Any], Tensor], sites: Sequence[int], with_labels: bool = False
    ) -> tuple[dict[int, Tensor], dict[int, Record]]:
        """∂objective/∂O of the given sites, [B, Q, H, d] each, with one backward for all; and the records.

        A site whose block the model has skipped by itself is in neither.
        """
        with torch.enable_grad(), self.seams.applied(Plan(record=frozenset(sites)) | plan):
            outputs = self.model(**(self.batch if with_labels else self._without_labels()))
            records = self.seams.records
            sites = [site for site in sites if site in records]
            tensors = [records[site].output for site in sites]
            scale = _FP16_SCALE if any(t.dtype == torch.float16 for t in tensors) else 1.0
            grads = torch.autograd.grad(objective(outputs) * scale, tensors, allow_unused=True) if tensors else ()
        gradients = {
            site: torch.zeros_like(tensor) if grad is None else (grad.float() / scale if scale != 1.0 else grad)
            for site, tensor, grad in zip(sites, tensors, grads, strict=True)
        }
        return gradients, records

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
        with self.untracked(), torch.enable_grad(), self.seams.applied(plan):
            loss = self.model(**self.batch)["loss"]
            scale = _FP16_SCALE if any(x.dtype == torch.float16 for x in seen.values()) else 1.0
            grads = torch.autograd.grad(loss * scale, list(seen.values()), allow_unused=True) if seen else ()
        return {
            block: torch.zeros_like(x) if grad is None else (grad.float() / scale if scale != 1.0 else grad)
            for (block, x), grad in zip(seen.items(), grads, strict=True)
        }

    def _without_labels(self) -> dict[str, Any]:
        """Without labels no loss is computed. Where labels are the decoder's input, that input is kept."""
        inputs = {name: value for name, value in self.batch.items() if name not in LABELS}
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if "labels" in self.batch and "decoder_input_ids" not in inputs and shift is not None:
            inputs["decoder_input_ids"] = shift(labels=self.batch["labels"])
        elif "labels" in self.batch and getattr(self.model.config, "is_encoder_decoder", False):
            inputs["labels"] = self.batch["labels"]
        return inputs
