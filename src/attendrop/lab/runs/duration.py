"""How long a run will take, roughly, from a few forward passes before its first step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from ...core.capabilities import ProbesModel, RunsSeveralPasses, views_of
from ...core.networks import TrainsNetworks
from ...core.regularizer import Regularizer
from ...errors import UserError, on_one_line
from ...model.modes import evaluating
from ...random import all_preserved
from .. import tasks
from .frozen import inputs_of, move

_STEP = 3  # forward passes that a forward and a backward take
_PROBE = 2.5  # forward passes that a probe takes
_TIMED = 3  # batches


def duration_of(trainer: Any, prepared: tasks.Prepared, task: tasks.Task) -> str | None:
    """Return a sentence on how long training will take; None where forward passes of single batches do not tell.

    Args:
        trainer: The Trainer before training.
        prepared: The tokenised data.
        task: The task.
    """
    is_divided = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    if not tasks.kind_of(task).has_new_head or is_divided or not prepared.train:
        return None
    origin = move(trainer.model, trainer.args)
    more = [of.name for of in trainer.regularizers if isinstance(of, (RunsSeveralPasses, TrainsNetworks))]
    longer = f", and longer with {', '.join(more)}" if more else ""
    seconds = estimate_seconds(trainer, prepared)
    if origin is not None:
        trainer.model.to(origin)
    return f"training will take about {spoken(seconds)}, as a rough estimate before the first step{longer}"


def estimate_seconds(trainer: Any, prepared: tasks.Prepared, batches: int = _TIMED) -> float:
    """Return the seconds that training and its evaluations may take. Neither model nor random state is changed.

    Args:
        trainer: The Trainer before training.
        prepared: The tokenised data.
        batches: The number of batches that are timed, evenly spaced in the training data.
    """
    args, train, model = trainer.args, prepared.train, trainer.model
    assert train is not None
    size, rows = args.per_device_train_batch_size, len(train)
    epochs = args.num_train_epochs
    per_epoch = math.ceil(rows / (size * args.world_size * args.gradient_accumulation_steps))
    steps = math.ceil(epochs * per_epoch) if args.max_steps <= 0 else args.max_steps
    forward = _seconds_of_forward(model, train, prepared.collator, min(size, rows), batches)
    in_step = forward * _passes(trainer.regularizers) * args.gradient_accumulation_steps
    evaluated = 0 if prepared.validation is None else len(prepared.validation)
    in_evaluation = forward * evaluated / min(size, rows) / args.world_size
    return steps * in_step + math.ceil(steps / per_epoch) * in_evaluation


def _seconds_of_forward(model: Any, train: Any, collator: Any, size: int, batches: int) -> float:
    """Return the mean time of a forward pass of a batch, after a first one that is not timed."""
    seconds = []
    device = next(model.parameters()).device
    with torch.no_grad(), all_preserved(device), evaluating(model):
        for number in range(1 + batches):
            rows = [(number * size + place) * len(train) // ((1 + batches) * size) for place in range(size)]
            batch, _ = inputs_of(model, train, rows, collator)
            start = time.perf_counter()
            try:
                model(**batch)
            except (ValueError, TypeError, IndexError, KeyError) as error:
                raise UserError(f"the model cannot be run on its first batch ({on_one_line(error)}).") from error
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    return sum(seconds[1:]) / batches


def _passes(regularizers: Sequence[Regularizer]) -> float:
    """Return how many forward passes a micro-batch takes, with the views and probes of these methods."""
    return _STEP * views_of(*regularizers) + _PROBE * sum(isinstance(method, ProbesModel) for method in regularizers)


def spoken(seconds: float) -> str:
    """Return a duration in words, with one or two digits: `40 seconds`, `12 minutes`, `3 hours`."""
    for name, size, most in (("second", 1, 90), ("minute", 60, 90), ("hour", 3600, 48), ("day", 86400, math.inf)):
        count = seconds / size
        if count < most:
            rounded = max(1, round(count) if count < 10 else round(count / 5) * 5)
            return f"{rounded} {name}{'' if rounded == 1 else 's'}"
    raise AssertionError(seconds)
