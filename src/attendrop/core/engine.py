"""One regularised training step, for any training loop; the Trainer drives the same engine.

engine = Engine(model, [ADDrop(p=0.3, q=0.3)], epochs=3, steps_per_epoch=len(loader))
for batch in loader:
    with engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        engine.loss(outputs).backward()
    engine.before_optimizer()
    optimizer.step()
    engine.after_optimizer()
engine.close()
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..model.calls import planned_calls
from ..model.plan import Plan
from ..model.probe import LoopLoss
from ..model.seams import Seams, bind
from ..model.sites import map_shape
from ..random import preserved
from ..utils.batches import batch_size as size_of
from ..utils.batches import tiled
from .capabilities import (
    AveragesWeights,
    ReadsHiddenGradients,
    RequiresModelLoss,
    RunsSeveralPasses,
    adds_penalty,
    columns_of,
    start_order,
    views_of,
)
from .checks import as_list, check_calls, check_checkpointing, check_columns, check_model_loss, check_regularizers
from .networks import TrainsNetworks
from .rates import Rates
from .regularizer import Regularizer
from .schedule import Progress
from .state import load_state, load_trained_weights, save_state, save_trained_weights
from .step import Loop, MicroBatch, Step
from .weights import replaced_weights, write_weights

# Plans the passes over a micro-batch and returns what makes the context of each.
Planner = Callable[[MicroBatch], Callable[[], AbstractContextManager[None]]]


class Runner(Protocol):
    """Plans and runs the tracked passes over a micro-batch: eagerly, or as CUDA graphs (`capture/training.py`)."""

    def plan(self, batch: MicroBatch) -> Callable[[], AbstractContextManager[None]]: ...

    def run(self, number: int, inputs: dict[str, Any]) -> Tensor: ...


class EagerRunner:
    """Runs passes as Python comes to them.

    Args:
        engine: plans the passes.
        step: forward, loss and backward on the inputs of a pass; returns the loss.
    """

    def __init__(self, engine: Engine, step: Callable[[dict[str, Any]], Tensor]) -> None:
        self.plan, self._step = engine.planned, step

    def run(self, number: int, inputs: dict[str, Any]) -> Tensor:
        """Return forward, loss and backward of one pass."""
        return self._step(inputs)


class Engine:
    """Binds a model and calls the hooks of the methods at their places in the training step.

    Args:
        model: a transformers model in train mode, not wrapped by DDP.
        regularizers: the methods, or one method.
        epochs: the number of epochs; None: not known, and nothing that depends on it is checked.
        steps_per_epoch: optimizer steps in an epoch.
        seed: the seed of all draws.
        rank: the number of this process.
        world: the number of processes.
        batch_size: the examples of one process and micro-batch; by default those of the first batch. With `rank` and
            `world` it gives each example its position in the global batch, so that several processes draw what one
            process would.
        example: a batch for the dry run that finds the attention calls; text and image models need none.
        loop: the services of the training loop for methods that train their own networks or draw examples.
    """

    def __init__(
        self,
        model: nn.Module,
        regularizers: Regularizer | Sequence[Regularizer],
        *,
        epochs: int | None = 1,
        steps_per_epoch: int = 1,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        batch_size: int | None = None,
        example: Mapping[str, Any] | None = None,
        loop: Loop | None = None,
    ) -> None:
        self.model = model
        self.regularizers = as_list(regularizers)
        check_regularizers(self.regularizers)
        self.is_open = False
        self.loop = loop or Loop(world=world)
        if self.loop.calls_model:
            check_calls(self.regularizers)
        for regularizer in self.regularizers:
            regularizer._claim(self)
        self.seams: Seams = bind(model, example)
        self._rates = Rates((), model, self.seams)
        try:
            for regularizer in self.regularizers:
                regularizer.reset()
                check_model_loss(regularizer, self.loop.replaces_loss)
                regularizer.check_loop(model, self.loop)
            self._rates = Rates(self.regularizers, model, self.seams)
            self._rates.freeze(model)  # before the checks, which look at what is trained
            for regularizer in self.regularizers:
                self._check(regularizer, epochs)
            check_checkpointing(model)
            self.scale_learning_rates()
        except BaseException:
            self._rates.restore(model)
            self.seams.unbind()
            raise
        self.views, self.columns = views_of(*self.regularizers), columns_of(*self.regularizers)
        self.reads_outputs = any(map(adds_penalty, self.regularizers))
        self.seed, self.rank, self.world, self.batch_size = seed, rank, world, batch_size
        self._steps_per_epoch = steps_per_epoch
        self._progress = Progress(0, (epochs or 1) * steps_per_epoch, 0, epochs or 1)
        self._step: Step | None = None
        self._tracked: MicroBatch | None = None  # that of the pass that runs now
        self._micro_batches = 0
        self._has_loss, self._lacks_loss = False, False  # whether `loss` was called; whether a micro-batch lacked it
        self._metrics: dict[str, list[Tensor]] = {}
        self._has_evaluated_weights = False
        self.is_open = True

    def _check(self, regularizer: Regularizer, epochs: int | None) -> None:
        """Call its `check`. Where it fails only because other methods freeze weights, the error names them."""
        try:
            regularizer.check(self.model, self.seams, epochs)
        except ValueError as error:
            others = [type(other).__name__ for other in self._rates.freezing if other is not regularizer]
            if not others:
                raise
            self._rates.restore(self.model)
            regularizer.check(self.model, self.seams, epochs)  # raises the same error if it does not depend on them
            raise ValueError(
                f"regularizers has {' and '.join(others)} and {type(regularizer).__name__}, which cannot act together, "
                f"because of the weights that are frozen: {error}"
            ) from None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def scale_learning_rates(self) -> None:
        """Give each weight the learning rate that the methods want, where the loop has its optimizer already.

        A loop that creates its optimizer after the engine calls this before it creates the learning rate scheduler.
        """
        self._rates.scale(self.model, self.loop.optimizer)

    def begin_step(
        self, progress: Progress | None = None, measure: bool = False, model: nn.Module | None = None
    ) -> None:
        """Open an optimizer step. `micro_batch` does this by itself.

        Args:
            progress: how far training has come; by default one step further than the last.
            measure: whether the metrics of this step will be logged.
            model: the bound model, where the loop has replaced the object (FSDP does).
        """
        if progress is not None:
            self._progress = progress
        if model is not None:
            self.model = model
        self._step = Step(
            self.model,
            self.seams,
            self._progress,
            seed=self.seed,
            measure=measure,
            loop=self.loop,
            views=self.views,
            columns=self.columns,
            reads_gradients=any(isinstance(r, ReadsHiddenGradients) for r in self.regularizers),
        )
        self._micro_batches, self._lacks_loss = 0, False
        self._rates.check_scaled()
        for regularizer in sorted(self.regularizers, key=start_order):
            regularizer.on_step_begin(self._step)

    @contextmanager
    def micro_batch(
        self, batch: Mapping[str, Any], loop_loss: Callable[[], Tensor] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Plan the pass over `batch` and yield the inputs for it. Forward *and* backward belong inside.

        Where a method needs several passes, all but the last run here, with the loss that `loss` returns. A loop that
        scales its loss, for accumulation for example, uses `passes` instead:

            for inputs in engine.passes(engine.begin_micro_batch(batch)):
                (engine.loss(model(**inputs)) / micro_batches).backward()

        Args:
            batch: the batch as the data loader gave it, on the device of the model.
            loop_loss: where the loss calls the model by itself (`Loop(calls_model=True)`): computes it.
        """
        planned = self.begin_micro_batch(batch, loop_loss=loop_loss)
        with closing(self.passes(planned)) as passes:
            inputs = next(passes)
            for _ in range(self.number_of_passes(planned.step) - 1):
                self.loss(self.model(**inputs)).backward()
                inputs = next(passes)
            self._has_loss = loop_loss is not None
            yield inputs
            self._lacks_loss |= not self._has_loss

    def begin_micro_batch(
        self,
        batch: Mapping[str, Any],
        backward: Callable[[nn.Module, Mapping[str, Any]], Any] | None = None,
        loop_loss: Callable[[], Tensor] | None = None,
    ) -> MicroBatch:
        """Open a micro-batch, for a loop that does by itself what `micro_batch` does with the result.

        Args:
            batch: the batch as the data loader gave it, on the device of the model.
            backward: forward, loss (through `loss`) and backward of a network on given inputs, as the loop does it for
                the model.
            loop_loss: where the loop's loss calls the model by itself: computes it, without a trace in what the loop
                counts and logs.
        """
        if self.loop.calls_model != (loop_loss is not None):
            raise ValueError(
                f"Loop.calls_model is {self.loop.calls_model} and loop_loss is {'not ' if loop_loss else ''}None; a "
                "loop whose loss calls the model by itself needs both, and any other loop neither."
            )
        if not self.model.training:
            raise ValueError(
                f"{self.seams.name} is in eval mode, in which nothing is regularised; call model.train() first."
            )
        if self._step is None:
            self.begin_step()
        assert self._step is not None
        size = size_of(batch)
        if self.batch_size is None:
            self.batch_size = size
        first_position = (self._micro_batches * self.world + self.rank) * self.batch_size
        self._micro_batches += 1
        check_columns(self.regularizers, batch)
        inputs = tiled({name: x for name, x in batch.items() if name not in self.columns}, self.views, size)
        begun = MicroBatch(self._step, dict(batch), inputs, first_position, size)
        run = backward or (lambda network, inputs: self.loss(network(**inputs)).backward())
        begun = replace(
            begun,
            backward=lambda network: self.run_beside(
                network, begun, EagerRunner(self, lambda inputs: run(network, inputs))
            ),
        )
        if loop_loss is not None:
            begun = replace(begun, loop_loss=LoopLoss(loop_loss))
        return begun

    def run_passes(self, batch: MicroBatch, runner: Runner) -> Tensor:
        """Run the tracked passes over a micro-batch, forward and backward, and return the sum of their losses.

        Args:
            batch: what `begin_micro_batch` returned.
            runner: plans the passes and runs them.
        """
        with closing(self.passes(batch, runner.plan)) as passes:
            losses = [runner.run(number, inputs) for number, inputs in enumerate(passes)]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def run_beside(self, network: nn.Module, batch: MicroBatch, runner: Runner) -> Any:
        """Run forward, loss and backward of a network that is trained beside the model.

        All methods but those that train networks act on it as they act on the model, with the same draws. Nothing of it
        is logged.

        Args:
            network: a copy of the bound model, with its seams.
            batch: the micro-batch of the model.
            runner: plans the pass and runs it.
        """
        seams = Seams.of(network)
        assert seams is not None
        own = replace(batch, step=replace(batch.step, model=network, seams=seams, measure=False, metrics={}))
        with runner.plan(own)():
            return runner.run(0, dict(own.inputs))

    def _acting_on(self, step: Step) -> list[Regularizer]:
        """Return the methods that act on the network of this step."""
        if step.model is self.model:
            return self.regularizers
        return [method for method in self.regularizers if not isinstance(method, TrainsNetworks)]

    def passes(self, batch: MicroBatch, plan: Planner | None = None) -> Generator[dict[str, Any], None, None]:
        """Call the hooks of the micro-batch, and for each tracked pass yield its inputs while the plan is applied.

        Args:
            batch: what `begin_micro_batch` returned.
            plan: plans the passes, after `on_batch`; by default with `plan` of all methods.
        """
        for regularizer in self.regularizers:
            regularizer.on_batch(self._for(regularizer, batch))
        tracked = (plan or self.planned)(batch)
        count = self.number_of_passes(batch.step)
        several = [method for method in self.regularizers if isinstance(method, RunsSeveralPasses)]
        same_dropout = all(method.same_dropout for method in several)
        for number in range(count):
            for method in several:
                method.on_pass(self._for(method, batch), number)
            redraws = number == count - 1 or not same_dropout
            with nullcontext() if redraws else preserved(batch.step.device), tracked():
                yield dict(batch.inputs)

    def number_of_passes(self, step: Step) -> int:
        """Tracked passes over each micro-batch of this step."""
        return max((r.passes(step) for r in self.regularizers if isinstance(r, RunsSeveralPasses)), default=1)

    def planned(self, batch: MicroBatch) -> Callable[[], AbstractContextManager[None]]:
        """Plan and return what makes the context of a pass. Where the loss calls the model, each call has its plan."""
        if batch.loop_loss is None:
            plan = self.plan(batch)
            return lambda: self.tracked(batch, batch.step.seams.applied(plan))

        def plan_of(call: int, inputs: dict[str, Any]) -> Plan:
            size = self.batch_size or batch.size  # a call may have several rows for each example
            return self.plan(replace(batch, examples=inputs, inputs=inputs, call=call, size=size))

        return lambda: self.tracked(batch, planned_calls(self.model, self.seams, plan_of))

    @contextmanager
    def tracked(self, batch: MicroBatch, applied: AbstractContextManager[Any]) -> Iterator[None]:
        """Track a pass in the block: `applied` applies its plan, and `loss` reads the micro-batch.

        A Trainer calls `loss` from its `compute_loss`, to which it cannot hand the micro-batch.
        """
        before, self._tracked = self._tracked, batch
        try:
            with applied:
                yield
        finally:
            self._tracked = before

    def plan(self, batch: MicroBatch) -> Plan:
        """Return the plans of all methods for the tracked pass, combined."""
        plan = Plan()
        rows, _, _ = map_shape(self.seams.sites[0], batch.examples)
        for regularizer in self._acting_on(batch.step):
            own = regularizer.plan(self._for(regularizer, batch))
            # Each is repeated by itself: some are made for all views already.
            plan = plan | own.repeated(self.views, rows)
        return plan

    def _for(self, regularizer: Regularizer, batch: MicroBatch) -> MicroBatch:
        """Return the batch with the columns of this method and of no other."""
        others = self.columns - columns_of(regularizer)
        if not others:
            return batch
        return replace(batch, examples={k: value for k, value in batch.examples.items() if k not in others})

    def loss(self, outputs: Any, loss: Tensor | None = None, share: float | Tensor = 1.0) -> Tensor:
        """Return the loss of the tracked pass with all penalties added; its share, where there are several passes.

        Args:
            outputs: the outputs of the model.
            loss: the loss, where it is not the model's own (`outputs["loss"]`).
            share: the share of this micro-batch in the step, where `loss` is only a share of the step's loss.
        """
        assert self._tracked is not None, "loss() belongs inside micro_batch()"
        self._has_loss = True
        total: Tensor = outputs["loss"] if loss is None else loss
        for regularizer in self._acting_on(self._tracked.step):
            if loss is not None and isinstance(regularizer, RequiresModelLoss):
                check_model_loss(regularizer, outputs.get("loss") is None)
            penalty = regularizer.penalty(outputs, self._for(regularizer, self._tracked))
            if penalty is None:
                continue
            if total.requires_grad and not penalty.requires_grad:
                raise ValueError(
                    f"{type(regularizer).__name__} adds a penalty on the model's outputs, and the outputs that it got "
                    "carry no gradient; they must come from the pass that is trained."
                )
            total = total + share * penalty
        return self.averaged(total)

    def averaged(self, loss: Tensor) -> Tensor:
        """Return the loss of one tracked pass, divided by the number of passes over the micro-batch."""
        count = 1 if self._step is None else self.number_of_passes(self._step)
        return loss / count if count > 1 else loss

    def before_optimizer(self) -> None:
        """Call this when all gradients of the step are computed, before the optimizer's step."""
        assert self._step is not None, "before_optimizer() comes after micro_batch()"
        penalized = [type(r).__name__ for r in self.regularizers if type(r).penalty is not Regularizer.penalty]
        if self._lacks_loss and penalized:
            raise ValueError(
                f"the loss of this step is not that of engine.loss, so that the penalty of {', '.join(penalized)} is "
                "lost; call engine.loss(outputs).backward() instead of outputs.loss.backward()."
            )
        for regularizer in self.regularizers:
            regularizer.on_gradients(self._step)

    def after_optimizer(self) -> None:
        """Call this after the optimizer's step."""
        assert self._step is not None, "after_optimizer() comes after before_optimizer()"
        # An average is taken of the weights as all other methods leave them.
        for regularizer in sorted(self.regularizers, key=lambda r: isinstance(r, AveragesWeights)):
            regularizer.on_step_end(self._step)
        for name, value in self._step.metrics.items():
            self._metrics.setdefault(name, []).append(value.detach().float())
        self._step = None
        done = self._progress.step + 1
        self._progress = Progress(
            done, self._progress.total_steps, done // self._steps_per_epoch, self._progress.epochs
        )

    def pop_metrics(self) -> dict[str, Tensor]:
        """Return the means of the metrics since the last call."""
        means = {name: torch.stack(values).mean() for name, values in self._metrics.items()}
        self._metrics = {}
        return means

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Give the model, for the block, the weights with which it is evaluated and saved, such as an average.

        They are written in place and back, so that captured graphs find the weights at their addresses.
        """
        with ExitStack() as stack:
            if not self._has_evaluated_weights:
                self._has_evaluated_weights = True
                stack.callback(setattr, self, "_has_evaluated_weights", False)
                stack.enter_context(replaced_weights(self.model, self._evaluated_weights()))
            yield

    def finish(self) -> None:
        """Give the model the weights with which it is evaluated. Call this when training has ended."""
        write_weights(self.model, self._evaluated_weights())

    def _evaluated_weights(self) -> dict[str, Tensor]:
        """Return the weights of the one method that keeps an average."""
        method = next((r for r in self.regularizers if isinstance(r, AveragesWeights)), None)
        return {} if method is None else method.evaluated_weights(self.model)

    def save_state(self, folder: str | Path) -> None:
        """Write the state that a resumed run needs beside the weights. Every process calls it, with the same folder."""
        save_state(self.regularizers, folder, self.rank)
        averaged = self._evaluated_weights()
        if averaged and self.rank == 0:  # the model in the checkpoint is the averaged one
            save_trained_weights(self.model, averaged, folder)

    def load_state(self, folder: str | Path) -> None:
        """Load what `save_state` wrote."""
        load_state(self.regularizers, folder, self.rank)
        write_weights(self.model, load_trained_weights(folder))

    def close(self) -> None:
        """Restore the model as it was, also in the middle of a step."""
        if not self.is_open:
            return
        self.is_open = False
        with ExitStack() as stack:  # calls all, and raises at the end
            stack.callback(self.seams.unbind)
            stack.callback(lambda: self._rates.restore(self.model))
            for regularizer in reversed(self.regularizers):
                stack.callback(regularizer.on_close)
