"""Tensors that one tracked pass over a micro-batch leaves for a later one."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from ...core.step import Step


class LeftTensors:
    """Tensors by the number of the pass that leaves them.

    A captured pass reads and writes fixed addresses, so that each shape has its own tensors. It may run several times:
    a pass must not read what it leaves.
    """

    def __init__(self) -> None:
        self._tensors: dict[Hashable, Tensor] = {}

    def read(self, number: int, shape: torch.Size, step: Step) -> Tensor:
        """Return what the pass of this number has left; `shape` is its shape."""
        return self._tensors[_place(number, shape, step)]

    def leave(self, number: int, tensor: Tensor, step: Step) -> None:
        """Keep a tensor of the pass of this number."""
        place = _place(number, tensor.shape, step)
        if step.is_captured and place in self._tensors:
            self._tensors[place].copy_(tensor.detach())  # a trial run has created it
        else:
            self._tensors[place] = tensor.detach().clone()


def _place(number: int, shape: torch.Size, step: Step) -> Hashable:
    return (number, shape) if step.is_captured else number
