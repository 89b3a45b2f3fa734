"""Which evaluation of a run is kept: the best score, and of equal scores the one with the smallest loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.schedule import is_method_epoch
from ...trainer.choice import chosen_at
from ..records import Kept
from ..tasks.findings import plural

_HIGH, _FALL = 0.5, 0.05  # a loss is high above this share of the first one; and falls if it falls by this share
_MOST_NAMED = 5  # epochs with the same score; of more, the sentence has their number


def is_better(metrics: Mapping[str, Any], best: Mapping[str, Any], arguments: Any) -> bool:
    """Return whether an evaluation has a better score than another one, or the same score and a smaller loss.

    Args:
        metrics: The scores of this evaluation.
        best: The scores of the other one.
        arguments: The training arguments, which say what the score is.
    """
    score, before = metrics[score_key(arguments)], best[score_key(arguments)]
    if score != before:
        return bool(score > before if arguments.greater_is_better else score < before)
    return bool(metrics.get("eval_loss", float("inf")) < best.get("eval_loss", float("inf")))


def score_key(arguments: Any) -> str:
    """Return the name in the history of the score that chooses the best model."""
    return f"eval_{(arguments.metric_for_best_model or 'loss').removeprefix('eval_')}"


def evaluation_at(history: Sequence[Mapping[str, Any]], step: int | None) -> Mapping[str, Any] | None:
    """Return the evaluation of the model after a step; None if there was none."""
    return next((entry for entry in history if entry.get("step") == step and "eval_loss" in entry), None)


def kept_epoch(trainer: Any, patience: int | None) -> Kept:
    """Return which epoch's model a finished run keeps, with sentences for the user and what methods chose.

    Args:
        trainer: The Trainer after training.
        patience: The `--patience` of the run; None = no early stopping.
    """
    state, name = trainer.state, score_key(trainer.args)
    history = [entry for entry in state.log_history if name in entry and "step" in entry]
    decision = trainer.decision
    loads_best = trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None
    kept = evaluation_at(state.log_history, state.best_global_step) if loads_best and decision.keeps_best else None
    if kept and not decision.reason:
        sentences = [_reason(kept, history, name, state)]
    else:
        place = f"{_place(kept['epoch'])} of {state.epoch:.4g}" if kept else _place(state.epoch)
        sentences = [f"{place} was kept: {decision.reason or 'it is the last'}"]
    if patience is not None and state.global_step < state.max_steps:
        sentences.append(
            f"training stopped early after {_place(state.epoch)}: {plural(patience, 'evaluation')} in a row had no "
            f"better {name.removeprefix('eval_')} (--patience {patience})"
        )
    elif improving := still_improving(state):
        sentences.append(improving)
    epoch, step = (kept["epoch"], kept["step"]) if kept else (state.epoch, state.global_step)
    chosen = chosen_at(state.log_history, "step", step)
    sentences += [f"{method} chose {value:g} on the validation examples" for method, value in chosen.items()]
    return Kept(epoch, step, sentences=sentences, chosen=chosen)


def still_improving(state: Any) -> str | None:
    """Return a sentence for a run that ended while its training loss was high and fell; None for any other.

    The last fifth of the steps is compared with the fifth before it, although the learning rate is small by then.

    Args:
        state: The state of the Trainer after training.
    """
    losses = np.array([(e["step"], e["loss"]) for e in state.log_history if "loss" in e and "step" in e], float)
    if not len(losses):
        return None
    parts = np.minimum((losses[:, 0] - 1) * 5 // max(state.max_steps, 1), 4)
    first, before, last = (losses[parts == part, 1] for part in (0, 3, 4))
    if min(map(len, (first, before, last))) < 2:
        return None
    begin, earlier, end = first[0], before.mean(), last.mean()
    if not (end > _HIGH * begin and end < (1 - _FALL) * earlier):
        return None
    return (
        f"still improving: the training loss fell by {1 - end / earlier:.0%} in the last fifth of the steps, to "
        f"{end:.3g} from {begin:.3g} at the start; train longer with --num-train-epochs "
        f"{2 * math.ceil(state.epoch or 1)}"
    )


def _reason(kept: Mapping[str, Any], history: Sequence[Mapping[str, Any]], name: str, state: Any) -> str:
    shown = name.removeprefix("eval_")
    # At the end of a run the best model is evaluated again, at the last step: the first entry of a step counts.
    first = {entry["step"]: entry for entry in reversed(history)}.values()
    equal = sorted((e for e in first if e[name] == kept[name]), key=lambda entry: entry["step"])
    where = f"{_place(kept['epoch'])} of {state.epoch:.4g} was kept"
    if len(equal) == 1 or name == "eval_loss":
        return f"{where}: it has the best validation {shown}, {kept[name]:.4f}"
    few = len(equal) <= _MOST_NAMED
    epochs = f"epochs {', '.join(format(e['epoch'], '.4g') for e in equal)}" if few else f"{len(equal)} epochs"
    return (
        f"{where}: of the {epochs} with the best validation {shown}, {kept[name]:.4f}, it has the smallest "
        f"loss, {kept['eval_loss']:.4f}"
    )


def _place(epoch: float | None) -> str:
    return f"epoch {epoch or 0:.4g}"


def method_epochs(regularizers: Sequence[Any], epochs: int) -> list[int]:
    """Return the epochs, from 0, in which a method with cross-tuning acts; empty if there is none.

    Args:
        regularizers: The methods of the run.
        epochs: The number of epochs of the whole training.
    """
    alternating = [method for method in regularizers if getattr(method, "cross_tuning", False)]
    return [e for e in range(epochs) if any(is_method_epoch(e, epochs, method.end_on) for method in alternating)]
