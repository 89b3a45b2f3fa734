"""Which batches of a training run are worth recording as graphs."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from ..core.engine import Engine
from ..core.schedule import Progress
from ..core.step import Step
from ..core.trainer_protocol import TrainerProtocol
from .buckets import (
    BREAK_EVEN_STEPS,
    Buckets,
    buckets_for,
    doubling_buckets,
    expected_at_random,
    expected_grouped,
    lengths_of,
)


@dataclass(frozen=True)
class RecordingPlan:
    """Which shapes are recorded in a run. By default, all.

    Args:
        buckets: the lengths to which batches are padded.
        small_batches: whether batches are recorded that are not full: the last ones of the epochs.
    """

    buckets: Buckets = field(default_factory=Buckets)
    small_batches: bool = True

    @classmethod
    def of(cls, trainer: TrainerProtocol, engine: Engine | None) -> RecordingPlan:
        """Return which shapes are worth recording in the run of this trainer, which is about to begin.

        A graph is for batches of one length in steps of one kind. So the number of its uses is the number of batches
        in the run, times the share of its length, divided by the number of kinds.
        """
        state, args = trainer.state, trainer.args
        accumulation = args.gradient_accumulation_steps
        # The first micro-batch of a step has its own graphs: it writes gradients, and the others add to them.
        kinds = len(_kinds(trainer, engine)) * min(2, accumulation)
        small_batches = state.num_train_epochs >= BREAK_EVEN_STEPS * kinds
        lengths = lengths_of(trainer.train_dataset)
        if not lengths:
            return cls(small_batches=small_batches)
        batches = state.max_steps * accumulation / kinds
        is_grouped = str(getattr(args, "train_sampling_strategy", "")) == "group_by_length"
        expected = (
            expected_grouped(lengths, batches)
            if is_grouped
            else expected_at_random(lengths, trainer._train_batch_size, batches)
        )
        return cls(buckets_for(expected, BREAK_EVEN_STEPS), small_batches)

    @classmethod
    def for_many_runs(cls, trainer: TrainerProtocol) -> RecordingPlan:
        """Return the recording of a run whose graphs are kept for later runs: all shapes.

        Lengths are rounded up to powers of two, so that a run on another sample of the data finds its graphs recorded.
        """
        lengths = lengths_of(trainer.train_dataset)
        return cls(doubling_buckets(max(lengths))) if lengths else cls()


def _kinds(trainer: TrainerProtocol, engine: Engine | None) -> set[Hashable]:
    """Return the kinds of steps that the methods know, as far as the first steps of the epochs show them."""
    if engine is None:
        return {()}
    state = trainer.state
    epochs = max(1, math.ceil(min(state.num_train_epochs, state.max_steps)))
    keys: set[Hashable] = set()
    for epoch in range(min(epochs, 100)):
        progress = Progress(epoch * state.max_steps // epochs, state.max_steps, epoch, epochs)
        step = Step(engine.model, engine.seams, progress, views=engine.views, columns=engine.columns)
        keys.add(tuple(method.capture_key(step) for method in engine.regularizers))
    return keys


def evaluations_of_run(trainer: TrainerProtocol) -> int:
    """Return how often this run evaluates."""
    state, strategy = trainer.state, trainer.args.eval_strategy
    if str(getattr(strategy, "value", strategy)) == "steps":
        return max(1, state.max_steps // max(1, int(state.eval_steps or 1)))
    return max(1, math.ceil(min(state.num_train_epochs, state.max_steps)))
