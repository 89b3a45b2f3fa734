"""The start of a new regression head: at the mean of the training labels, and with their spread.

A head of transformers begins near 0 and moves by about the learning rate in a step: in a run on little data it does not
reach labels from 0 to 100. Its weights are therefore multiplied by the deviation of the labels, and its bias is set to
their mean; the rest of the model then learns what it would learn for labels of mean 0 and deviation 1. A head without
a bias gets the root mean square in the place of the deviation. Labels with a root mean square of at most 5, such as
those of STS-B, are reached as they are, and their runs stay as the papers have them. The loss is not divided by the
variance: the penalties of methods are squares of the same numbers, and keep their weight beside it.

A head on a pooling has a scale and a shift of its own (`model/pooled.py`): they are the deviation and the mean.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import tasks

REACHED = 5.0  # the largest root mean square of labels that a head reaches by itself


@torch.no_grad()
def start_at_labels(model: Any, data: tasks.Data) -> str | None:
    """Set the new head of a regression, in place, and return what was done as a sentence; None = nothing.

    Args:
        model: The model with its first weights, from `load_model`.
        data: The data.
    """
    if not tasks.kind_of(data.task).has_numbers or data.train is None:
        return None
    new = tuple(getattr(model, "new_weights", ()))
    if hasattr(model, "output_scale"):
        return _standardise(model, data) if "output_scale" in new else None
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == 1 and _is_new(name, new)
    ]
    labels = np.asarray(data.train[data.task.label][:], float)
    mean, deviation = float(labels.mean()), float(labels.std())
    size = math.hypot(mean, deviation)
    if not layers or not size > REACHED:
        return None
    for layer in layers:
        has_bias = layer.bias is not None
        layer.weight.mul_((deviation or 1.0) if has_bias else size)
        if has_bias:
            layer.bias.fill_(mean)
    return f"the head begins at the mean of the training labels, {mean:.4g}, with their deviation, {deviation:.4g}"


def _standardise(model: Any, data: tasks.Data) -> str:
    """Set the scale and the shift of a pooled head, in place, and return what was done as a sentence."""
    assert data.train is not None
    labels = np.asarray(data.train[data.task.label][:], float)
    mean, deviation = float(labels.mean()), float(labels.std())
    model.output_scale.fill_(deviation or 1.0)
    model.output_shift.fill_(mean)
    return (
        f"the head learns labels of mean 0 and deviation 1; those of the training data have {mean:.4g}, {deviation:.4g}"
    )


def _is_new(name: str, new: tuple[str, ...]) -> bool:
    """Return whether the weight of a layer is new; adapters add parts to the names of layers."""
    plain = name.removeprefix("base_model.model.")
    for part in (".modules_to_save.default", ".original_module"):
        plain = plain.replace(part, "")
    return f"{plain}.weight" in new
