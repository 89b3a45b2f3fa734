"""Runs the steps of a Trainer: captured as CUDA graphs if this is requested and possible, otherwise eagerly.

At the batch sizes of fine-tuning a GPU waits for Python most of the time. A captured step needs only a few calls.
Micro-batches are captured by training.py, evaluation by evaluation.py. Gradients are clipped by a graph, and the
optimizer's step is one where the optimizer allows it (optimizers.py); the learning rate schedule is the Trainer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from transformers.utils import logging

from ..core.engine import Engine
from ..core.step import MicroBatch
from ..core.trainer_protocol import TrainerProtocol
from ..utils.checks import check_choice
from .batches import PaddedShapes
from .buckets import BREAK_EVEN_FORWARDS
from .eligibility import reason_against, reason_against_auto, reason_against_evaluation
from .errors import NotCaptured
from .evaluation import CapturedEvaluation, PredictionStep
from .graphs import Graphs
from .kept_batches import KeptBatches, kept_batches
from .nonfinite_filter import NonfiniteFilter
from .optimizers import OptimizerGraph, replaying_steps
from .persistent_graphs import PersistentGraphs, holds_tensors
from .recording import RecordingPlan, evaluations_of_run
from .training import CapturedTraining, TrainingStep

logger = logging.get_logger(__name__)

MODES = ("auto", "eager", "captured")


class StepCapture:
    """Runs the training steps of a Trainer: captured if this is requested and possible, otherwise eagerly.

    Args:
        trainer: the Trainer.
        mode: "auto", "eager" or "captured".
    """

    def __init__(self, trainer: TrainerProtocol, mode: str) -> None:
        check_choice("capture", mode, MODES)
        self._trainer, self._mode = trainer, mode
        self._captured: CapturedTraining | None = None
        self._filter = NonfiniteFilter(trainer)
        self._resources = ExitStack()
        self._kept: PersistentGraphs | None = None
        self._scope: Hashable = None
        self._evaluation: CapturedEvaluation | None = None  # of this run, or of the evaluation that runs now
        self.gave_up: str | None = None  # why steps are not captured any more
        self.were_captured = False  # whether steps of the last training were captured

    @property
    def are_captured(self) -> bool:
        """Whether steps are captured now."""
        return self._captured is not None

    @property
    def graphs(self) -> Graphs | None:
        """The graphs of this run; None where steps are eager."""
        return None if self._captured is None else self._captured.graphs

    def check(self) -> str | None:
        """Return why steps cannot be captured; raises a `ValueError` where they must be."""
        reason = reason_against(self._trainer)
        if reason is not None and self._mode == "captured":
            raise ValueError(
                f"capture is 'captured', which is not possible, because {reason}; it must be 'auto' or 'eager'."
            )
        return reason

    def keep_graphs(self, kept: PersistentGraphs, scope: Hashable) -> None:
        """Use graphs of earlier runs, and leave those of this run for later ones. To be called before training.

        Args:
            kept: the graphs. All runs that use them train the same model object, one after the other.
            scope: names what is fixed in a graph and not seen by it: the methods and the training arguments.
        """
        self._kept, self._scope = kept, scope

    @property
    def may_capture(self) -> bool:
        """Whether steps may be captured in this run."""
        return self._mode != "eager" and self._trainer.args.device.type == "cuda"

    @contextmanager
    def loading_ahead(self) -> Iterator[None]:
        """Keep dataloaders that the block creates from waiting for the GPU at every batch, if steps may be captured."""
        loading = self._trainer.accelerator.dataloader_config
        before = loading.non_blocking
        loading.non_blocking = before or self.may_capture
        try:
            yield
        finally:
            loading.non_blocking = before

    @contextmanager
    def running(self) -> Iterator[None]:
        """Enter this for the whole of training."""
        with self.loading_ahead():
            try:
                yield
            finally:
                self._stop()
                self._filter.stop()

    def begin(self, engine: Engine | None) -> None:
        """Call this when the model, the optimizer and the engine of this run have been created."""
        self._stop()
        self.gave_up, self.were_captured = None, False
        if self._mode == "eager":
            return
        reason = self.check()
        if reason is None and self._mode == "auto":
            reason = reason_against_auto(self._trainer)
        if reason is not None:
            # On a CPU captured steps are not expected.
            log = logger.info if self._trainer.args.device.type != "cuda" else logger.warning
            log(f"Steps are not captured, because {reason}.")
            return
        # With capture="captured" everything is captured, even where it does not save time.
        if self._mode == "captured":
            plan = RecordingPlan()
        elif self._kept is not None:
            plan = RecordingPlan.for_many_runs(self._trainer)
        else:
            plan = RecordingPlan.of(self._trainer, engine)
        shapes = PaddedShapes(self._trainer, plan.buckets, self._trainer._train_batch_size)
        self._captured = CapturedTraining(self._trainer, engine, self._make_graphs(shapes), shapes, plan)
        if self._trainer.accelerator.scaler is None:  # a loss scaler reads gradients on the CPU before each step
            optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
            graph = OptimizerGraph(optimizer, self._captured.graphs)
            if self._kept is not None:
                graph = self._kept.optimizer_graph(optimizer, graph)
            self._resources.enter_context(replaying_steps(optimizer, graph))
        self._filter.start()

    def _make_graphs(self, shapes: PaddedShapes) -> Graphs:
        if self._kept is not None:
            return self._kept.begin_run(self._trainer.model, shapes, self._scope)
        return Graphs(next(self._trainer.model.parameters()).device, shapes)

    def try_captured(
        self,
        run: TrainingStep,
        inputs: Mapping[str, Any],
        items: Tensor | int | None,
        batch: MicroBatch | None,
        has_no_padding: bool = False,
    ) -> Tensor | None:
        """Return the loss of a micro-batch, its gradients added; None where it must run eagerly.

        Args:
            run: the Trainer's forward, loss and backward: `run(network, inputs, items)`.
            inputs: the batch.
            items: the Trainer's `num_items_in_batch`.
            batch: the micro-batch of the engine, where there is one.
            has_no_padding: whether all of the attention mask is known to be 1.
        """
        if self._captured is None:
            return None
        try:
            if has_no_padding:
                inputs = self._captured.shapes.without_mask(inputs)
            loss = self._captured.loss(run, inputs, items, batch)
        except NotCaptured as reason:
            self._give_up(str(reason))
            return None
        if self._captured.graphs.failure is not None:
            self._give_up(self._captured.graphs.failure)
        else:
            self.were_captured = self.were_captured or loss is not None
        return loss

    def clip_gradients(self, max_norm: float) -> Tensor | None:
        """Clip the model's gradients as the Trainer does and return their norm; None if the Trainer must do it."""
        return None if self._captured is None else self._captured.clip_gradients(max_norm)

    def remembered(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return a result that stays the same while the current steps are captured. It is computed once.

        Args:
            key: names the result.
            compute: computes it.
        """
        assert self._captured is not None
        if key not in self._captured.results:
            self._captured.results[key] = compute()
        return self._captured.results[key]

    def _give_up(self, reason: str) -> None:
        self.gave_up = reason
        self._stop()
        if self._mode == "captured":
            raise RuntimeError(f"capture is 'captured', which is not possible, because {reason}.")
        logger.warning(f"Steps are not captured from here on, because {reason}.")

    def _stop(self) -> None:
        if self._captured is not None:
            for reason, count in self._captured.skipped.items():
                logger.info(f"{count} micro-batches were not captured: {reason}.")
            self._resources.close()
            if self._kept is None:
                self._captured.graphs.clear()
            else:
                self._kept.end_run(self._own_parts)
            self._captured = self._evaluation = None

    @property
    def _own_parts(self) -> list[Any]:
        """The parts of this Trainer that a graph may read: the methods, and the loss function."""
        return [*self._trainer.regularizers, getattr(self._trainer, "compute_loss_func", None)]

    def kept_batches(self, dataset: Any) -> KeptBatches | None:
        """Return the batches of an evaluation that may be captured, to be kept; None where they are made each time.

        Args:
            dataset: the evaluation data.
        """
        trainer = self._trainer
        if (
            not self.may_capture
            or trainer.args.dataloader_num_workers
            or reason_against_evaluation(trainer) is not None
        ):
            return None
        columns = partial(trainer._remove_unused_columns, description="Evaluation")
        return kept_batches(dataset, columns, trainer.data_collator)

    @contextmanager
    def evaluating(self, dataset: Any) -> Iterator[None]:
        """Enter this for an evaluation or a prediction. Its forward passes are captured where that is possible.

        Args:
            dataset: the evaluation data.
        """
        if not self.may_capture or reason_against_evaluation(self._trainer) is not None:
            yield
            return
        if self._captured is not None:
            if self._evaluation is None:
                self._evaluation = CapturedEvaluation(self._trainer, self._captured.graphs)
            self._evaluation.begin(dataset, evaluations_of_run(self._trainer))
            yield
            return
        kept = None if self._kept is None or any(map(holds_tensors, self._own_parts)) else self._kept
        if kept is None:
            graphs, evaluations = Graphs(next(self._trainer.model.parameters()).device), 1
        else:  # later runs will evaluate on the same data
            graphs, evaluations = kept.begin_evaluation(self._trainer.model, self._scope), BREAK_EVEN_FORWARDS
        self._evaluation = CapturedEvaluation(self._trainer, graphs)
        self._evaluation.begin(dataset, evaluations)
        try:
            yield
        finally:
            self._evaluation = None
            if kept is None:
                graphs.clear()

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation runs whose forward passes may be captured."""
        return self._evaluation is not None

    def evaluation_step(self, run: PredictionStep, batch: Mapping[str, Any], kind: Hashable) -> Any:
        """Return the result of `run` for a batch, from a graph; None if it must run eagerly.

        Args:
            run: a prediction step of the Trainer.
            batch: the batch, on the device.
            kind: what else `run` depends on.
        """
        assert self._evaluation is not None
        return self._evaluation.step(run, batch, kind)

    def replace_nonfinite(self, loss: Tensor) -> Tensor:
        """Filter a loss that is not finite as the Trainer does, without waiting for the GPU."""
        return self._filter(loss)

    def saving(self) -> AbstractContextManager[None]:
        """Enter this while the arguments are saved beside the model: they are as the user gave them."""
        return self._filter.as_given()
