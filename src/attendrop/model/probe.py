"""The probe: an untracked pass in which a method asks the model something before the pass that trains it.

A probe restores the random state and the modes of all modules, and leaves gradients alone. Because the random state is
restored, the pass that follows draws the same ordinary dropout: the probe asks the very network that is about to be
trained. Where a model skips layers by itself (`encoder_layerdrop`), both passes skip the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..random import preserved
from .calls import planned_calls
from .modes import evaluating
from .plan import Edit, Plan
from .seams import Record, Seams
from .sites import called_by_name

# Gradients in fp16 underflow below 6e-8. The factor is a power of two, so that dividing by it is exact.
_FP16_SCALE = 1024.0

Key = TypeVar("Key")

LABELS = ("labels", "label", "start_positions", "end_positions", "next_sentence_label")


@dataclass
class LoopLoss:
    """The loss of a micro-batch in a loop whose loss calls the model by itself, maybe several times.

    Args:
        compute: computes it, without a trace in what the loop counts and logs.
    """

    compute: Callable[[], Tensor]
    # ∂(−loss)/∂O and the records of all calls, by sites: one backward is enough for all calls of a step.
    gradients: dict[tuple[int, ...], list[tuple[dict[int, Tensor], dict[int, Record]]]] = field(default_factory=dict)


@dataclass
class Probe:
    """Asks a bound model about a batch.

    Args:
        model: the model.
        seams: its seams.
        batch: the inputs, with labels; where the loop's loss calls the model, the inputs of one call.
        loop_loss: the loss of the micro-batch, where the loop's loss calls the model by itself.
        call: the number of the call in that loss.
    """

    model: nn.Module
    seams: Seams
    batch: Mapping[str, Any]
    loop_loss: LoopLoss | None = None
    call: int = 0

    @contextmanager
    def untracked(self, training: bool = True) -> Iterator[None]:
        """Restores the random state after what runs inside. With `training=False` the model is in eval mode there."""
        device = next(self.model.parameters()).device
        with preserved(device), nullcontext() if training else evaluating(self.model):
            yield

    def forward(self, plan: Plan, with_labels: bool = False) -> tuple[Any, dict[int, Record]]:
        """One pass under `plan`: the outputs and the records."""
        with self.seams.applied(plan):
            outputs = called_by_name(self.model)(**(self.batch if with_labels else self._without_labels()))
            return outputs, self.seams.records

    def loss(self, plan: Plan) -> Tensor:
        """The loss, with this pass under `plan`: the loop's where it calls the model by itself, else the model's."""
        if self.loop_loss is None:
            with self.seams.applied(plan):
                return self.model(**self.batch)["loss"]
        with planned_calls(self.model, self.seams, lambda call, _: plan if call == self.call else Plan()):
            return self.loop_loss.compute()

    def gradients(
        self, plan: Plan, objective: Callable[[Any], Tensor], sites: Sequence[int], with_labels: bool = False
    ) -> tuple[dict[int, Tensor], dict[int, Record]]:
        """∂objective/∂O of the given sites, [B, Q, H, d] each, with one backward for all; and the records.

        A site whose block the model has skipped by itself is in neither.
        """
        with torch.enable_grad(), self.seams.applied(Plan(record=frozenset(sites)) | plan):
            outputs = called_by_name(self.model)(**(self.batch if with_labels else self._without_labels()))
            records = self.seams.records
            return _gradients({site: record.output for site, record in records.items()}, objective(outputs)), records

    def gradients_of_loop_loss(
        self, sites: Sequence[int], plan: Plan | None = None
    ) -> tuple[dict[int, Tensor], dict[int, Record]]:
        """As `gradients` with the objective −loss, where the loop's loss calls the model: those of this call.

        Args:
            sites: the sites.
            plan: what this call changes; the other calls change nothing.
        """
        assert self.loop_loss is not None
        known = self.loop_loss.gradients
        if plan is not None:
            return self._gradients_of_calls(sites, plan)[self.call]
        if tuple(sites) not in known:
            known[tuple(sites)] = self._gradients_of_calls(sites, Plan())
        return known[tuple(sites)][self.call]

    def _gradients_of_calls(
        self, sites: Sequence[int], plan: Plan
    ) -> list[tuple[dict[int, Tensor], dict[int, Record]]]:
        """∂(−loss)/∂O of the sites in each call of the model, and the records, with one backward for all."""
        assert self.loop_loss is not None
        recording = Plan(record=frozenset(sites))

        def plan_of(call: int, inputs: dict[str, Any]) -> Plan:
            return recording | plan if call == self.call else recording

        with torch.enable_grad(), planned_calls(self.model, self.seams, plan_of) as calls:
            loss = self.loop_loss.compute()
            outputs = {(n, site): r.output for n, records in enumerate(calls) for site, r in records.items()}
            found = _gradients(outputs, -loss)
        return [({site: found[n, site] for site in records}, records) for n, records in enumerate(calls)]

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
            return _gradients(seen, self.loss(plan))

    def _without_labels(self) -> dict[str, Any]:
        """Without labels no loss is computed. Where labels are the decoder's input, that input is kept."""
        inputs = {name: value for name, value in self.batch.items() if name not in LABELS}
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if "labels" in self.batch and "decoder_input_ids" not in inputs and shift is not None:
            inputs["decoder_input_ids"] = shift(labels=self.batch["labels"])
        elif "labels" in self.batch and getattr(self.model.config, "is_encoder_decoder", False):
            inputs["labels"] = self.batch["labels"]
        return inputs


def _gradients(tensors: Mapping[Key, Tensor], objective: Tensor) -> dict[Key, Tensor]:
    """∂objective/∂x of all tensors; zero where the objective does not depend on one."""
    if not tensors:
        return {}
    scale = _FP16_SCALE if any(x.dtype == torch.float16 for x in tensors.values()) else 1.0
    found = torch.autograd.grad(objective * scale, list(tensors.values()), allow_unused=True)
    return {
        key: torch.zeros_like(x) if grad is None else (grad.float() / scale if scale != 1.0 else grad)
        for (key, x), grad in zip(tensors.items(), found, strict=True)
    }
