"""Checks that refuse methods that cannot act together, and models, losses and batches that they cannot use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any

from torch import nn

from .capabilities import (
    AveragesWeights,
    EditsWeights,
    ReadsColumns,
    RequiresModelLoss,
    RunsSeveralPasses,
    reads_predictions,
    views_of,
)
from .regularizer import Regularizer

_OTHER_LOSSES = "label_smoothing_factor, class weights, a focal loss or a compute_loss_func of the Trainer"


def as_list(regularizers: Any) -> list[Any]:
    """Return one method, or several, as a list."""
    return [regularizers] if isinstance(regularizers, (Regularizer, str)) else list(regularizers)


def check_regularizers(regularizers: Sequence[Any]) -> None:
    """Refuse objects that are not methods, the same method twice, and methods that cannot act together."""
    for regularizer in regularizers:
        if not isinstance(regularizer, Regularizer):
            raise ValueError(
                f"regularizers has {regularizer!r}, which is not a regulariser; it must be an instance such as "
                "ADDrop(p=0.3, q=0.3), or what parse_method('addrop:p=0.3,q=0.3') returns."
            )
    names = [type(regularizer).__name__ for regularizer in regularizers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"regularizers has {name} {names.count(name)} times; it must have each method once.")
    editors = [type(r).__name__ for r in regularizers if isinstance(r, EditsWeights)]
    if len(editors) > 1:
        raise ValueError(f"regularizers has {' and '.join(editors)}, which both edit the weights; choose one of them.")
    several = [type(r).__name__ for r in regularizers if isinstance(r, RunsSeveralPasses)]
    if len(several) > 1:
        raise ValueError(
            f"regularizers has {' and '.join(several)}, which both decide how often a batch passes through the model; "
            "choose one of them."
        )
    averages = [type(r).__name__ for r in regularizers if isinstance(r, AveragesWeights)]
    if len(averages) > 1:
        raise ValueError(
            f"regularizers has {' and '.join(averages)}, which both decide the weights of the final model; choose one "
            "of them."
        )
    for one, other in permutations(regularizers, 2):
        reason = one.refuses(other)
        if reason is not None:
            raise ValueError(f"regularizers has {type(one).__name__} and {type(other).__name__}, {reason}")


def check_model_loss(regularizer: Regularizer, is_another: bool) -> None:
    """Refuse a method that replaces a part of the model's own loss where another loss is trained.

    Args:
        regularizer: the method.
        is_another: whether it is another loss.
    """
    refusal = regularizer.requires_model_loss if isinstance(regularizer, RequiresModelLoss) else None
    if is_another and refusal is not None:
        needs, remedy = refusal
        raise ValueError(f"{needs}, and another one is in use ({_OTHER_LOSSES}); {remedy}.")


def check_columns(regularizers: Sequence[Regularizer], batch: Mapping[str, Any]) -> None:
    """Refuse a batch that lacks a column which a method reads."""
    for regularizer in regularizers:
        for name in regularizer.columns if isinstance(regularizer, ReadsColumns) else ():
            if name not in batch:
                raise ValueError(
                    f"{type(regularizer).__name__} reads the column {name!r}, and the batch has only "
                    f"{', '.join(sorted(map(str, batch)))}; add it to the training set and let the collator pass it on."
                )


def check_calls(regularizers: Sequence[Regularizer]) -> None:
    """Refuse methods that are not defined where the loop's loss calls the model by itself."""
    for regularizer in regularizers:
        name = type(regularizer).__name__
        if views_of(regularizer) > 1 or reads_predictions(regularizer):
            raise ValueError(
                f"{name} adds a penalty on the prediction of each example, which this trainer's loss does not give; "
                "use a method without such a penalty, such as ADDrop."
            )
        if isinstance(regularizer, RunsSeveralPasses):
            raise ValueError(
                f"{name} needs several passes over a batch, and this trainer's loss calls the model by itself; use a "
                "method that needs one pass, such as ADDrop."
            )
        if isinstance(regularizer, ReadsColumns) and regularizer.columns:
            raise ValueError(
                f"{name} reads the column {regularizer.columns[0]!r} of the model's inputs, and this trainer's loss "
                "makes these inputs by itself; use a method that reads no column."
            )


def check_checkpointing(model: nn.Module) -> None:
    """Refuse reentrant gradient checkpointing, under which recorded tensors would get no gradients."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and isinstance(function, partial):
            refuse_reentrant(function.keywords)


def refuse_reentrant(options: Mapping[str, Any] | None) -> None:
    """Refuse these `gradient_checkpointing_kwargs` if they ask for reentrant checkpointing."""
    if options and options.get("use_reentrant"):
        raise ValueError(
            "gradient_checkpointing_kwargs has use_reentrant=True, which gives attributions no gradient; it must be "
            "{'use_reentrant': False}."
        )
