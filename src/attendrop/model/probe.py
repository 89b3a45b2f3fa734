"""The probe: an untracked pass with which a method queries the model before the pass that trains it.

A probe restores the random state and the modes of all modules, and leaves gradients alone. Because the random state is
restored, the pass that follows draws the same ordinary dropout: the probe asks the very network that is about to be
trained. Where a model skips layers by itself (`encoder_layerdrop`), both passes skip the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..random import preserved
from .calls import planned_calls
from .modes import evaluating, frozen
from .objective import Objective, TokenObjective
from .plan import Edit, Plan
from .seams import Record, Seams
from .sites import called_by_name
from .token_head import TokenHead

# Gradients in fp16 underflow below 6e-8. The factor is a power of two, so that dividing by it is exact.
_FP16_SCALE = 1024.0

Key = TypeVar("Key")
Probed = tuple[dict[int, Tensor], dict[int, Record]]  # gradients and records, by site

LABELS = ("labels", "label", "start_positions", "end_positions", "next_sentence_label")


@dataclass
class LoopLoss:
    """The loss of a micro-batch in a loop whose loss calls the model by itself, maybe several times.

    Args:
        compute: computes it, without a trace in what the loop counts and logs.
    """

    compute: Callable[[], Tensor]
    # Cached results for all its calls: gradients and records by site, for each call.
    cache: dict[Hashable, list[Probed]] = field(default_factory=dict)


@dataclass
class Probe:
    """Queries a bound model about a batch.

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
        """Restore the random state after what runs inside. With `training=False` the model is in eval mode there."""
        device = next(self.model.parameters()).device
        with preserved(device), nullcontext() if training else evaluating(self.model):
            yield

    def forward(
        self, plan: Plan, with_labels: bool = False, weights: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, dict[int, Record]]:
        """Return one pass under `plan`: the outputs and the records.

        Args:
            plan: the changes of the pass.
            with_labels: whether the model gets the labels, so that it computes its loss.
            weights: values by the names of parameters, in place of the model's own.
        """
        inputs = dict(self.batch) if with_labels else self._without_labels()
        with self.seams.applied(plan):
            run = called_by_name(self.model)
            outputs = functional_call(self.model, dict(weights), (), inputs) if weights else run(**inputs)
            return outputs, self.seams.records

    def loss(self, plan: Plan) -> Tensor:
        """Return the loss of this pass under `plan`: the loop's if it calls the model by itself, else the model's."""
        if self.loop_loss is None:
            with self.seams.applied(plan):
                return self.model(**self.batch)["loss"]
        with planned_calls(self.model, self.seams, lambda call, _: plan if call == self.call else Plan()):
            return self.loop_loss.compute()

    def gradients(self, plan: Plan, objective: Objective, sites: Sequence[int], with_labels: bool = False) -> Probed:
        """∂objective/∂O of the given sites, [B, Q, H, d] each, with one backward for all; and the records.

        A site whose block the model has skipped by itself is in neither. Nothing below the lowest site is saved for
        the backward, and nothing that only gradients of weights would need.
        """
        head = self.seams.token_head(self.model) if isinstance(objective, TokenObjective) else None
        inputs = self.batch if with_labels else self._without_labels()
        with torch.enable_grad(), frozen(self.model), self.seams.applied(Plan(record=frozenset(sites)) | plan):
            end = called_by_name(self.model)(**inputs) if head is None else head.hidden_states(inputs)
            records = self.seams.records
            outputs = {site: records[site].output for site in sites if site in records}
            if isinstance(objective, TokenObjective) and head is not None:
                gradient = _gradient_of_head(head, objective, end, inputs, _scale_of(outputs.values()))
                result = _gradients(outputs, end, gradient)
            else:
                result = _gradients(outputs, objective(end))
        for record in records.values():
            record.output = record.output.detach()  # it would keep the graph in memory
        return result, records

    def of_this_call(self, key: Hashable, compute: Callable[[], list[Probed]]) -> Probed:
        """Return the cached result for this call of the loop's loss; `compute` fills the cache for all calls.

        A method asks in `on_batch`, before the loss that is trained begins: some losses keep things between their calls
        of the model, which another computation in the middle would disturb.
        """
        assert self.loop_loss is not None
        cache = self.loop_loss.cache
        if key not in cache:
            cache[key] = compute()
        if self.call >= len(cache[key]):
            raise ValueError(
                f"the loss called the model {len(cache[key])} times in a first computation and more often in the "
                "second, so that its attention cannot be attributed; use a loss that makes the same calls each time."
            )
        return cache[key][self.call]

    def gradients_of_loop_loss(self, sites: Sequence[int]) -> Probed:
        """Like `gradients` with the objective −loss, where the loop's loss calls the model: those of this call."""

        def compute() -> list[Probed]:
            with self.untracked():
                return self.gradients_of_calls(sites)

        return self.of_this_call(("gradients", *sites), compute)

    def gradients_of_calls(
        self, sites: Sequence[int], changed: int | None = None, plan: Plan | None = None
    ) -> list[Probed]:
        """∂(−loss)/∂O of the sites in each call of the model, and the records, with one backward for all.

        Without a gradient (`torch.no_grad`), only the records.

        Args:
            sites: the sites.
            changed: the number of a call that is changed; None: none.
            plan: what that call changes.
        """
        assert self.loop_loss is not None
        recording = Plan(record=frozenset(sites), like_masked=frozenset(sites) if plan is None else frozenset())

        def plan_of(call: int, inputs: dict[str, Any]) -> Plan:
            return recording | plan if call == changed and plan is not None else recording

        with planned_calls(self.model, self.seams, plan_of) as calls:
            loss = self.loop_loss.compute()
            outputs = {(n, site): r.output for n, records in enumerate(calls) for site, r in records.items()}
            gradients = _gradients(outputs, -loss) if torch.is_grad_enabled() else {}
        return [
            ({site: gradients[n, site] for site in records if (n, site) in gradients}, records)
            for n, records in enumerate(calls)
        ]

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
                seen.setdefault(block, x)  # gradient checkpointing runs this again
                return x

            return edit

        plan = Plan(**{field: {block: (keep(block),) for block in blocks}})  # type: ignore[arg-type]
        with self.untracked(), torch.enable_grad(), frozen(self.model), self.seams.applied(plan):
            return _gradients(seen, self.loss(plan))

    def inner_gradients(
        self,
        objective: Objective,
        blocks: Sequence[int],
        with_labels: bool = False,
        scale: Mapping[int, float] | None = None,
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """∂objective/∂Z for the inner activations Z of the feed-forwards, with one backward for all; and these.

        Without a gradient (`torch.no_grad`), only the activations.

        Args:
            objective: the prediction as one number.
            blocks: the numbers of the blocks. One that the model has skipped by itself is in neither.
            with_labels: whether the model gets the labels.
            scale: block -> factor of its activation; the gradient is that of the scaled one.
        """
        seen: dict[int, Tensor] = {}

        def keep(block: int) -> Edit:
            def edit(x: Tensor) -> Tensor:
                x = x * scale[block] if scale and block in scale else x
                if torch.is_grad_enabled() and not x.requires_grad:
                    x.requires_grad_()
                seen.setdefault(block, x)  # gradient checkpointing runs this again
                return x

            return edit

        plan = Plan(inner={block: (keep(block),) for block in {*blocks, *(scale or ())}})
        inputs = dict(self.batch) if with_labels else self._without_labels()
        with frozen(self.model), self.seams.applied(plan):
            end = objective(called_by_name(self.model)(**inputs))
            wanted = {block: seen[block] for block in blocks if block in seen}
            gradients = _gradients(wanted, end) if torch.is_grad_enabled() else {}
        return gradients, {block: x.detach() for block, x in wanted.items()}

    def _without_labels(self) -> dict[str, Any]:
        """Without labels no loss is computed. Where labels are the decoder's input, that input is kept."""
        inputs = {name: value for name, value in self.batch.items() if name not in LABELS}
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if "labels" in self.batch and "decoder_input_ids" not in inputs and shift is not None:
            inputs["decoder_input_ids"] = shift(labels=self.batch["labels"])
        elif "labels" in self.batch and getattr(self.model.config, "is_encoder_decoder", False):
            inputs["labels"] = self.batch["labels"]
        return inputs


def _gradients(tensors: Mapping[Key, Tensor], end: Tensor, gradient: Tensor | None = None) -> dict[Key, Tensor]:
    """∂end/∂x of all tensors; zero where x has no effect, because the model has skipped all blocks behind it.

    Args:
        tensors: the tensors.
        end: a number; or a tensor, with `gradient`.
        gradient: what is propagated from `end`, with the factor of `_scale_of` in it.
    """
    if not tensors or not end.requires_grad:
        return {key: torch.zeros_like(x) for key, x in tensors.items()}
    scale = _scale_of(tensors.values())
    start = end * scale if gradient is None else end
    gradients = torch.autograd.grad(start, list(tensors.values()), gradient, allow_unused=True)
    return {key: _unscaled(x, grad, scale) for (key, x), grad in zip(tensors.items(), gradients, strict=True)}


def _scale_of(tensors: Iterable[Tensor]) -> float:
    """Return the factor of gradients to these tensors."""
    return _FP16_SCALE if any(x.dtype == torch.float16 for x in tensors) else 1.0


def _unscaled(tensor: Tensor, gradient: Tensor | None, scale: float) -> Tensor:
    """Return the gradient to a tensor without the factor, and zero where the tensor has no effect."""
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
