"""The captured step: plan, forward, loss and backward of a micro-batch, replayed as CUDA graphs.

At the batch sizes of fine-tuning a GPU waits for Python most of the time. A captured step is launched with a few calls.

    plan    the methods' `plan`: AD-DROP's probe, attribution and masks
    pass    the tracked forward, the loss and the backward under that plan, as the Trainer does them

They are two graphs, because both passes draw the same ordinary dropout: a replay takes the random state as it finds
it, and it is put back in between. There is one pair for each shape of the batch and kind of step. Lengths are rounded
up, so that there are few. The optimizer's step is a graph where the optimizer allows it (optimizers.py); clipping and
schedule are the Trainer's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from ..core.engine import Engine
from ..core.regularizer import Regularizer, Step
from ..kernels.attention_mask import Mask
from ..model.modes import evaluating
from ..model.plan import Plan
from ..model.sites import unwrapped
from ..random import preserved
from ..utils.checks import check_choice
from .graphs import Graphs, NotCaptured, rounded
from .optimizers import OptimizerGraph

logger = logging.get_logger(__name__)

STEPS = ("auto", "eager", "captured")

_PADDED = ("input_ids", "attention_mask", "token_type_ids")
_OWN_STEP = ("training_step", "compute_loss", "compute_loss_context_manager")


def reason_against(trainer: Any) -> str | None:
    """Why the steps of this trainer cannot be captured: the end of a sentence; None where they can."""
    args, model = trainer.args, trainer.model
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices != {"cuda"}:
        return f"the model is on {' and '.join(sorted(devices))}"
    if args.world_size > 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "training is distributed"
    if args.gradient_checkpointing or getattr(model, "is_gradient_checkpointing", False):
        return "of gradient checkpointing"
    if args.torch_compile or hasattr(trainer.model_wrapped, "_orig_mod"):
        return "of torch.compile"
    if "lomo" in str(args.optim) or "layerwise" in str(args.optim):
        return f"the optimizer {args.optim} steps inside the backward"
    if args.n_gpu > 1 or len({parameter.device for parameter in model.parameters()}) > 1:
        return "the model is on several devices"
    for method in trainer.regularizers:
        name = type(method).__name__
        if type(method).penalty is not Regularizer.penalty or method.views > 1:
            return f"{name} adds a penalty or views"
        if type(method).plan is not Regularizer.plan and type(method).capture_key is Regularizer.capture_key:
            return f"{name} plans on the host"
        if method.edits_weights or method.columns:
            return f"{name} exchanges weights" if method.edits_weights else f"{name} reads columns of its own"
    return None


def reason_to_hesitate(trainer: Any) -> str | None:
    """What a replay would leave out, silently: Python that runs in every step. Only `step="captured"` insists."""
    for cls in type(trainer).__mro__:
        for name in _OWN_STEP:
            if name in vars(cls) and not cls.__module__.startswith(("attendrop.", "transformers.")):
                return f"{cls.__name__} has a {name} of its own"
    for module in trainer.model.modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return f"{type(module).__name__} has hooks"
    if trainer.compute_loss_func is not None:
        return "of compute_loss_func"
    return None


class Steps:
    """How a Trainer takes its steps: captured where it is asked for and possible, and otherwise as it always does."""

    def __init__(self, trainer: Any, kind: str) -> None:
        check_choice("step", kind, STEPS)
        self._trainer, self._kind = trainer, kind
        self._captured: CapturedSteps | None = None
        self._give_back_optimizer: Callable[[], None] = lambda: None
        self._filters = False
        self.gave_up: str | None = None  # why steps are not captured any more: the end of a sentence

    @property
    def are_captured(self) -> bool:
        return self._captured is not None

    def check(self) -> str | None:
        """Why steps cannot be captured, the end of a sentence; raises where they must be."""
        reason = reason_against(self._trainer)
        if reason is not None and self._kind == "captured":
            raise ValueError(
                f"step is 'captured', which is not possible, because {reason}; it must be 'auto' or 'eager'."
            )
        return reason

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the whole of training."""
        loading = self._trainer.accelerator.dataloader_config
        before = loading.non_blocking
        if self._kind != "eager" and self._trainer.args.device.type == "cuda":
            loading.non_blocking = True  # or the host would wait for the GPU at every batch
        try:
            yield
        finally:
            loading.non_blocking = before
            self._stop()
            self._trainer.args.logging_nan_inf_filter |= self._filters
            self._filters = False

    def begin(self, engine: Engine | None) -> None:
        """When model, optimizer and engine of this run are made."""
        self._stop()
        self.gave_up = None
        if self._kind == "eager":
            return
        reason = self.check()
        if reason is None and self._kind == "auto":
            reason = reason_to_hesitate(self._trainer)
        if reason is None:
            self._captured = CapturedSteps(self._trainer, engine)
            self._take_over_optimizer(self._captured.graphs)
            if engine is not None:
                engine.surroundings.graphs = self._captured.graphs
            # the Trainer's own filter reads the loss in every step; `filtered` does the same on the GPU
            self._filters |= self._trainer.args.logging_nan_inf_filter
            self._trainer.args.logging_nan_inf_filter = False
        else:
            # on a CPU it goes without saying
            log = logger.info if self._trainer.args.device.type != "cuda" else logger.warning
            log(f"Steps are not captured, because {reason}.")

    def _take_over_optimizer(self, graphs: Graphs) -> None:
        if self._trainer.accelerator.scaler is not None:
            return  # it looks at the gradients on the host before it lets the optimizer step
        optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
        graph, take, is_patched = OptimizerGraph(optimizer, graphs), optimizer.step, "step" in vars(optimizer)

        @functools.wraps(take)
        def step(closure: Any = None) -> Any:
            return take(closure) if closure is not None else graph.step(take)

        def give_back() -> None:
            optimizer.step = take
            if not is_patched:
                del optimizer.step

        optimizer.step, self._give_back_optimizer = step, give_back

    def take(self, run: Any, inputs: Mapping[str, Any], items: Any, step: Step | None) -> Tensor | None:
        """The loss of a micro-batch, its gradients added; None where it must run eagerly."""
        if self._captured is None:
            return None
        try:
            loss = self._captured(run, inputs, items, step)
        except NotCaptured as reason:
            self._give_up(str(reason))
            return None
        if self._captured.graphs.failure is not None:
            self._give_up(self._captured.graphs.failure)
        return loss

    def _give_up(self, reason: str) -> None:
        self.gave_up = reason
        self._stop()
        if self._kind == "captured":
            raise RuntimeError(f"step is 'captured', which is not possible, because {reason}.")
        logger.warning(f"Steps are not captured from here on, because {reason}.")

    def _stop(self) -> None:
        if self._captured is not None:
            for reason, count in self._captured.skipped.items():
                logger.info(f"{count} micro-batches were not captured: {reason}.")
            if self._captured.engine is not None:
                self._captured.engine.surroundings.graphs = None
            self._give_back_optimizer()
            self._give_back_optimizer = lambda: None
            self._captured.graphs.clear()
            self._captured = None

    def filtered(self, loss: Tensor) -> Tensor:
        """What the Trainer does with a loss that is not finite, without waiting for the GPU to know whether it is."""
        if not self._filters:
            return loss
        trainer = self._trainer
        steps = 1 + trainer.state.global_step - trainer._globalstep_last_logged
        return torch.where(loss.isfinite(), loss, trainer._tr_loss / steps)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The arguments are as the user gave them: they are written beside the model."""
        args = self._trainer.args
        args.logging_nan_inf_filter = args.logging_nan_inf_filter or self._filters
        try:
            yield
        finally:
            args.logging_nan_inf_filter = args.logging_nan_inf_filter and not self._filters


class CapturedSteps:
    """Takes micro-batches for a Trainer: the model and its optimizer are made."""

    def __init__(self, trainer: Any, engine: Engine | None) -> None:
        self._trainer, self.engine, self._model = trainer, engine, trainer.model
        self.graphs = Graphs(next(trainer.model.parameters()).device)
        self.graphs.batch = self._batch
        self._known: set[Hashable] = set()
        self._parameters = list(trainer.model.parameters())
        self._addresses = self._where()
        self._pads: bool | None = None
        self.skipped: dict[str, int] = {}  # reason -> micro-batches that ran eagerly

    def __call__(
        self,
        run: Callable[[nn.Module, dict[str, Any], Any], Tensor],
        inputs: Mapping[str, Any],
        items: Tensor | int | None,
        step: Step | None,
    ) -> Tensor | None:
        """The loss of a micro-batch, its gradients added; None where this one must run eagerly.

        `run(network, inputs, items)` is the Trainer's forward, loss and backward. Raises `NotCaptured` where no step
        can be captured.
        """
        try:
            self._check_size(inputs)
            static, items, shape_key = self._static(inputs, items)
            kind = self._kind(step)
            key = (shape_key, kind, self._trainer.current_gradient_accumulation_steps)
            if self.graphs.is_full and key not in self._known:
                raise _RunEagerly(f"more than {self.graphs.limit} graphs")
            self._known.add(key)
        except _RunEagerly as reason:
            self.skipped[str(reason)] = self.skipped.get(str(reason), 0) + 1
            return None
        if self.graphs.failure is not None:
            raise NotCaptured(self.graphs.failure)
        if self._where() != self._addresses:
            raise NotCaptured("the model's weights have moved to other tensors")
        plan = Plan()
        if step is not None:
            assert self.engine is not None

            def beside(network: nn.Module, batch: Mapping[str, Any]) -> Tensor:
                return self.graphs.run(
                    ("beside", id(network), key), lambda: run(network, dict(static), items), network=network
                )

            step = replace(step, inputs=static, around=replace(step.around, backward=beside))
            self.engine.on_batch(static, step)
            plan = self._plan(key, kind, static, step)
        loss = self.graphs.run(("pass", key), self._in_plan(plan, run, static, items), network=self._model)
        return loss.clone()

    def _in_plan(self, plan: Plan, run: Any, static: dict[str, Any], items: Any) -> Callable[[], Tensor]:
        def tracked() -> Tensor:
            if self.engine is None:
                return run(self._model, dict(static), items)
            with self.engine.seams.applied(plan):
                return run(self._model, dict(static), items)

        return tracked

    def _plan(self, key: Hashable, kind: tuple[Hashable, ...], static: dict[str, Any], step: Step) -> Plan:
        engine = self.engine
        assert engine is not None
        if not any(kind):
            return Plan()
        told = self.graphs.told(step)
        with preserved(self.graphs.device):
            plan = self.graphs.run(("plan", key), lambda: engine.plan(static, told), step)
        if step.measure and plan:
            # The figures are taken on the host's side, and the masks are those that they are of.
            _copy(engine.plan(static, step), plan)
        return plan

    # ---- kinds of steps ----------------------------------------------------------------------------------------

    def _kind(self, step: Step | None) -> tuple[Hashable, ...]:
        keys = []
        for method in self.engine.regularizers if self.engine is not None and step is not None else ():
            assert step is not None
            keys.append(method.capture_key(step))
            if keys[-1] is None:
                raise _RunEagerly(f"{type(method).__name__} changes from step to step")
        return tuple(keys)

    def _where(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    # ---- batches -----------------------------------------------------------------------------------------------

    def _check_size(self, inputs: Mapping[str, Any]) -> None:
        size = next(value.shape[0] for value in inputs.values() if isinstance(value, Tensor) and value.dim())
        if size != self._trainer._train_batch_size:
            raise _RunEagerly(f"batches of other than {self._trainer._train_batch_size} examples")

    def _batch(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Hashable]:
        static, _, key = self._static(inputs, None)
        return static, key

    def _static(self, inputs: Mapping[str, Any], items: Any) -> tuple[dict[str, Any], Any, Hashable]:
        """The batch in tensors that stay, its lengths rounded up."""
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        rest = {name: value for name, value in inputs.items() if name not in tensors}
        if not all(isinstance(value, (bool, int, float, str, type(None))) for value in rest.values()):
            raise NotCaptured("batches hold other things than tensors")
        shapes = self._shapes(tensors)
        whole = dict(tensors)
        if isinstance(items, Tensor):
            whole["_items"], shapes["_items"] = items, tuple(items.shape)
        key = (
            tuple(sorted((name, shapes[name], str(value.dtype)) for name, value in whole.items())),
            tuple(sorted(rest.items())),
            None if isinstance(items, Tensor) else items,
        )
        found = dict(self.graphs.static(("batch", key), whole, shapes, self._fill()))
        if isinstance(items, Tensor):
            items = found.pop("_items")
        return {**found, **rest}, items, key

    def _fill(self) -> dict[str, int]:
        pad = getattr(self._trainer.processing_class, "pad_token_id", None)
        if pad is None:
            pad = getattr(unwrapped(self._model).config, "pad_token_id", None) or 0
        return {"input_ids": int(pad), "attention_mask": 0, "token_type_ids": 0, "labels": -100}

    def _shapes(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        exact = {name: tuple(value.shape) for name, value in tensors.items()}
        padded = self._padded(tensors, exact)
        if padded is None or padded == exact or self._pads is False:
            return exact
        if self._pads is None:
            self._pads = self._is_harmless(tensors, padded)
        return padded if self._pads else exact

    def _padded(
        self, tensors: Mapping[str, Tensor], exact: dict[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]] | None:
        """The shapes with lengths rounded up; None where it is not known how to fill a column."""
        config = unwrapped(self._model).config
        if not {"input_ids", "attention_mask"} <= set(tensors):
            return None
        if getattr(self._trainer.processing_class, "padding_side", "right") != "right":
            return None
        length = tensors["input_ids"].shape[-1]
        found = dict(exact)
        for name, value in tensors.items():
            of_tokens = name == "labels" and value.dim() == 2 and not value.is_floating_point()
            if name in _PADDED or of_tokens:
                wanted = rounded(value.shape[-1])
                if wanted > getattr(config, "max_position_embeddings", wanted):
                    wanted = value.shape[-1]
                found[name] = (*value.shape[:-1], wanted)
            elif value.dim() > 1 and length in value.shape[1:]:
                return None
        return found

    @torch.no_grad()
    def _is_harmless(self, tensors: Mapping[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether more padding leaves the loss alone, seen on one batch. A head that reads every position would not."""
        fill, longer = self._fill(), {}
        for name, value in tensors.items():
            longer[name] = value
            if shapes[name] != value.shape:
                longer[name] = nn.functional.pad(value, (0, shapes[name][-1] - value.shape[-1]), value=fill[name])
        with preserved(self.graphs.device), evaluating(self._model):
            losses = [self._trainer.compute_loss(self._model, dict(batch)).float() for batch in (tensors, longer)]
        before, after = (float(loss) for loss in losses)
        half = self._trainer.args.fp16 or self._trainer.args.bf16
        half = half or next(self._model.parameters()).dtype != torch.float32
        return abs(before - after) <= (3e-2 if half else 1e-4) * max(1.0, abs(before))


class _RunEagerly(Exception):
    """Why one micro-batch is not captured, while others are."""


def _copy(source: Plan, target: Plan) -> None:
    if source.edits or source.ffn or source.inner or (source.keep.keys() != target.keep.keys()):
        raise NotCaptured("a measured step has another plan")
    for site, mask in source.keep.items():
        ends = target.keep[site], mask
        for into, new in zip(*(end if isinstance(end, Mask) else (end,) for end in ends), strict=True):
            into.copy_(new)
