"""The micro-batches of captured training steps: which work is recorded, and under which keys.

    plan    the methods' `plan`, where it probes the model: AD-DROP's probe, attribution and masks
    pass    the tracked forward, the loss, penalties and the backward under that plan, as the Trainer runs them; where
            no method probes the model, the plan too

These are two graphs, because both passes draw the same ordinary dropout: the random state is restored between them.
There is one pair for each shape of the batch and each kind of step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..core.capabilities import HasParameters, ProbesModel
from ..core.engine import Engine
from ..core.step import MicroBatch
from ..core.trainer_protocol import TrainerProtocol
from ..model.plan import Plan
from ..random import preserved
from ..utils.batches import batch_size, tiled
from .batches import PaddedShapes
from .errors import NotCaptured, RunEagerly
from .graphs import Graphs
from .measured_plans import MeasuredPlans
from .recording import RecordingPlan

TrainingStep = Callable[..., Tensor]


class CapturedTraining:
    """Captures and replays the micro-batches of a Trainer whose model and optimizer have been created."""

    def __init__(
        self,
        trainer: TrainerProtocol,
        engine: Engine | None,
        graphs: Graphs,
        shapes: PaddedShapes,
        plan: RecordingPlan,
    ) -> None:
        self._trainer, self._engine, self.model, self._recording = trainer, engine, trainer.model, plan
        self.graphs, self.shapes = graphs, shapes
        self.graphs.ignores_cpu_draws = not any(getattr(module, "layerdrop", 0) for module in trainer.model.modules())
        self.measured = MeasuredPlans(self.model, graphs)
        self.skipped: Counter[str] = Counter()  # reason -> micro-batches that ran eagerly
        self.results: dict[Hashable, Any] = {}  # that do not change while these steps are captured
        self._known: set[Hashable] = set()
        self._network: nn.Module | None = None
        self._parameters = list(trainer.model.parameters())
        self._addresses = self._parameter_addresses()

    def _parameter_addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    def loss(
        self, run: TrainingStep, inputs: Mapping[str, Any], items: Tensor | int | None, batch: MicroBatch | None
    ) -> Tensor | None:
        """Like `StepCapture.try_captured`. Raises `NotCaptured` where no step of this run can be captured."""
        try:
            static, items, key = self._prepare(inputs, items, batch)
        except RunEagerly as reason:
            self.skipped[str(reason)] += 1
            return None
        if self.graphs.failure is not None:
            raise NotCaptured(self.graphs.failure)
        if self._parameter_addresses() != self._addresses:
            raise NotCaptured("the model's weights have moved to other tensors")
        if self._engine is not None and batch is not None:
            return self._regularized_loss(self._engine, run, static, items, key, batch)
        loss: Tensor = self.graphs.run(
            ("pass", key), lambda: run(self.model, dict(static), items), network=self.model, forward_of=self.model
        )
        return loss.clone()

    def clip_gradients(self, max_norm: float) -> Tensor | None:
        """Like `StepCapture.clip_gradients`."""
        clipped = [parameter for parameter in self._parameters if parameter.grad is not None]
        if self._trainer.accelerator.scaler is not None or not clipped:
            return None  # a loss scaler looks at gradients on the CPU
        if not self.graphs.owns_gradients(clipped):
            return None  # those of an eager step
        key = ("clipping", max_norm, tuple(map(id, clipped)))
        norm = self.graphs.run_once(key, lambda: nn.utils.clip_grad_norm_(clipped, max_norm))
        return norm.clone()  # the graph of the optimizer may use its memory

    def _regularized_loss(
        self,
        engine: Engine,
        run: TrainingStep,
        static: dict[str, Any],
        items: Any,
        key: Hashable,
        batch: MicroBatch,
    ) -> Tensor:
        """Return the loss of a micro-batch with the engine's methods."""
        inputs = {name: x for name, x in static.items() if name not in engine.columns}

        def backward(network: nn.Module) -> Tensor:
            runner = _GraphRunner(self, engine, run, items, ("another network", id(network), key), network)
            return engine.run_beside(network, batch, runner)

        batch = replace(batch, examples=static, inputs=inputs, backward=backward)
        return engine.run_passes(batch, _GraphRunner(self, engine, run, items, key, self.model))

    def trained(self, engine: Engine) -> nn.Module:
        """Return the model, with the parameters of the methods that the pass gives gradients."""
        if self._network is None:
            own = [
                p for method in engine.regularizers if isinstance(method, HasParameters) for p in method.parameters()
            ]
            self._network = nn.ModuleList([self.model, nn.ParameterList(own)]) if own else self.model
        return self._network

    def _prepare(
        self, inputs: Mapping[str, Any], items: Tensor | int | None, batch: MicroBatch | None
    ) -> tuple[dict[str, Any], Any, Hashable]:
        """Return the inputs and the number of items in buffers, and the key of the graphs for them."""
        is_full = batch_size(inputs) == self._trainer._train_batch_size
        if not (self.shapes.is_worth_capturing(inputs) if is_full else self._recording.small_batches):
            raise RunEagerly("their shape is too rare in this run to be worth recording")
        static, shapes = self.graphs.static_batch(inputs)
        if isinstance(items, Tensor):
            items = self.graphs.static("items", {"items": items})["items"]
            shapes = (shapes, "items")
        else:
            shapes = (shapes, items)
        key = (shapes, self._kind(batch), self._trainer.current_gradient_accumulation_steps)
        if self.graphs.is_full and key not in self._known and not self.graphs.has(("pass", key)):
            raise RunEagerly(f"more than {self.graphs.limit} graphs")
        self._known.add(key)
        return static, items, key

    def _kind(self, batch: MicroBatch | None) -> tuple[Hashable, ...]:
        """Return the kind of step, on which the methods' plans depend."""
        if self._engine is None or batch is None:
            return ()
        keys = []
        for method in self._engine.regularizers:
            keys.append(method.capture_key(batch.step))
            if keys[-1] is None:
                raise RunEagerly(f"{type(method).__name__} changes from step to step")
        return tuple(keys)


class _GraphRunner:
    """Runs the passes over one micro-batch as graphs, which the first run with a key records."""

    def __init__(
        self,
        training: CapturedTraining,
        engine: Engine,
        step: TrainingStep,
        items: Any,
        key: Hashable,
        model: nn.Module,
    ) -> None:
        self._training, self._engine, self._step, self._items, self._key = training, engine, step, items, key
        self._graphs, self._model = training.graphs, model

    def plan(self, batch: MicroBatch) -> Callable[[], AbstractContextManager[None]]:
        """Plan, in a separate graph if a method probes the model; otherwise the plan is part of the pass."""
        self._batch, self._work = batch, self._graphs.static_micro_batch(batch)
        methods = [method for method in self._engine.regularizers if isinstance(method, ProbesModel)]
        self._plan: Plan | None = None
        if any(method.probes(batch.step) for method in methods):
            work = replace(self._work, may_probe=True)
            with preserved(self._graphs.device):
                self._plan = self._graphs.run(
                    ("plan", self._key), lambda: self._engine.plan(work), batch=batch, forward_of=self._model
                )
            if batch.step.measure and any(method.measures_plan for method in methods):
                self._training.measured.write_masks(self._plan, self._engine, self._key, batch, work)
        return nullcontext  # the plan is applied inside of the graphs

    def run(self, number: int, inputs: dict[str, Any]) -> Tensor:
        """Return forward, loss and backward of one pass."""
        name = ("pass", self._key, number) if number else ("pass", self._key)
        is_model = self._model is self._training.model
        network = self._training.trained(self._engine) if is_model else self._model
        loss = self._graphs.run(name, self._pass, batch=self._batch, network=network, forward_of=self._model)
        return loss.clone()  # the graph of another pass may use its memory

    def _pass(self) -> Tensor:
        engine, items = self._engine, self._items
        views = replace(self._work, inputs=tiled(self._work.inputs, engine.views, self._work.size))
        plan = engine.plan(views) if self._plan is None else self._plan
        with engine.tracked(views, views.step.seams.applied(plan)):
            return self._step(self._model, dict(views.inputs), None if items is None else items * engine.views)
