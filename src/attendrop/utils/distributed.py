"""Sums, means and lists over the processes of a training run. `world` is their number; with one nothing happens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def sum_over_processes(x: Tensor, world: int) -> Tensor:
    """Return the sum of the `x` of all processes, in place."""
    if world > 1:
        torch.distributed.all_reduce(x)
    return x


def mean_over_processes(x: Tensor, world: int) -> Tensor:
    """Return the mean of the `x` of all processes, in place."""
    return sum_over_processes(x.div_(world), world) if world > 1 else x


def average_gradients(parameters: Iterable[nn.Parameter], world: int) -> None:
    """Average the gradient of each parameter over all processes, as DDP does."""
    for parameter in parameters if world > 1 else ():
        if parameter.grad is not None:
            mean_over_processes(parameter.grad, world)


def gather_objects(value: Any, world: int) -> list[Any]:
    """Return the values of all processes, in the order of their ranks."""
    if world == 1:
        return [value]
    values: list[Any] = [None] * world
    torch.distributed.all_gather_object(values, value)
    return values
