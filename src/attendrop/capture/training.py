"""The micro-batches of captured training steps: what is recorded, and under which keys.

    plan    the methods' `plan`, where it asks the model: AD-DROP's probe, attribution and masks
    pass    the tracked forward, the loss, penalties and the backward under that plan, as the Trainer runs them; where
            no method asks the model, the plan too

These are two graphs, because both passes draw the same ordinary dropout: the random state is restored between them.
There is one pair for each shape of the batch and each kind of step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.capabilities import HasParameters, ProbesModel
from ..core.engine import Engine
from ..core.step import MicroBatch
from ..core.trainer_protocol import TrainerProtocol
from ..model.plan import Plan
from ..random import preserved
from ..utils.batches import batch_size, tiled
from .batches import PaddedShapes
from .draws import StaticMicroBatch
from .errors import NotCaptured, RunEagerly
from .graphs import Graphs
from .host import capturable_work
from .measured import MeasuredPlans
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
        self._trainer, self._engine, self._model, self._recording = trainer, engine, trainer.model, plan
        self.graphs, self.shapes = graphs, shapes
        self.graphs.ignores_cpu_draws = not any(getattr(module, "layerdrop", 0) for module in trainer.model.modules())
        self._measured = MeasuredPlans(self._model, graphs)
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
        """As `Steps.try_captured`. Raises `NotCaptured` where no step of this run can be captured."""
        try:
            static, items, key = self._prepare(inputs, items, batch)
        except RunEagerly as reason:
            self.skipped[str(reason)] += 1
            return None
        if self.graphs.failure is not None:
            raise NotCaptured(self.graphs.failure)
        if self._parameter_addresses() != self._addresses:
            raise NotCaptured("the model's weights have moved to other tensors")
        if self._engine is None or batch is None:
            work = capturable_work(self._model, lambda: run(self._model, dict(static), items))
            found = self.graphs.run(("pass", key), work, network=self._model).clone()
        else:
            found = self._regularized_loss(self._engine, run, static, items, key, batch)
        return found

    def clip_gradients(self, max_norm: float) -> Tensor | None:
        """As `Steps.clip_gradients`."""
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
        """The loss of a micro-batch with the engine's methods."""
        inputs = {name: x for name, x in static.items() if name not in engine.columns}

        def backward(network: nn.Module, examples: Mapping[str, Any]) -> Tensor:
            function = capturable_work(network, lambda: run(network, dict(inputs), items))
            return self.graphs.run(("another network", id(network), key), function, network=network)

        batch = replace(batch, examples=static, inputs=inputs, backward=backward)
        engine.on_batch(batch)
        work = self.graphs.static_micro_batch(batch)
        plan = self._plan(engine, key, batch, work)

        def tracked_pass() -> Tensor:
            views = replace(work, inputs=tiled(inputs, engine.views, batch.size))
            engine.use_batch(views)
            with engine.seams.applied(engine.plan(views) if plan is None else plan):
                return run(self._model, dict(views.inputs), None if items is None else items * engine.views)

        function, network = capturable_work(self._model, tracked_pass), self._trained(engine)
        count = engine.number_of_passes(batch.step)
        losses: list[Tensor] = []
        for number in range(count):
            engine.on_pass(batch, number)
            # The next pass draws the same ordinary dropout.
            with nullcontext() if number == count - 1 else preserved(self.graphs.device):
                name = ("pass", key, number) if number else ("pass", key)
                # Cloned, because the graph of another pass may use the memory of this one.
                losses.append(self.graphs.run(name, function, batch=batch, network=network).clone())
        return losses[0] if count == 1 else torch.stack(losses).sum()

    def _trained(self, engine: Engine) -> nn.Module:
        """The model, with the parameters of the methods that the pass gives gradients."""
        if self._network is None:
            own = [
                p for method in engine.regularizers if isinstance(method, HasParameters) for p in method.parameters()
            ]
            self._network = nn.ModuleList([self._model, nn.ParameterList(own)]) if own else self._model
        return self._network

    def _prepare(
        self, inputs: Mapping[str, Any], items: Tensor | int | None, batch: MicroBatch | None
    ) -> tuple[dict[str, Any], Any, Hashable]:
        """The inputs and the number of items in buffers, and the key of the graphs for them."""
        is_full = batch_size(inputs) == self._trainer._train_batch_size
        if not (self.shapes.repays(inputs) if is_full else self._recording.small_batches):
            raise RunEagerly("their shape comes up too rarely in this run to repay its recording")
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
        """The kind of step: what the methods' plans depend on."""
        if self._engine is None or batch is None:
            return ()
        keys = []
        for method in self._engine.regularizers:
            keys.append(method.capture_key(batch.step))
            if keys[-1] is None:
                raise RunEagerly(f"{type(method).__name__} changes from step to step")
        return tuple(keys)

    def _plan(self, engine: Engine, key: Hashable, batch: MicroBatch, work: StaticMicroBatch) -> Plan | None:
        """The plan of methods that ask the model, in a graph of its own; None where it is a part of the pass."""
        probing = [method for method in engine.regularizers if isinstance(method, ProbesModel)]
        if not any(method.probes(batch.step) for method in probing):
            return None
        work = replace(work, may_probe=True)
        with preserved(self.graphs.device):
            plan = self.graphs.run(("plan", key), capturable_work(self._model, lambda: engine.plan(work)), batch=batch)
        if batch.step.measure and any(method.measures_plan for method in probing):
            self._measured.write_masks(plan, engine, key, batch, work)
        return plan
