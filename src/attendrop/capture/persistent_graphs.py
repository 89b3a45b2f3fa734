"""Graphs that outlive a run, for many runs on one model object: each of them would spend seconds on its captures.

    kept = PersistentGraphs()
    for seed in range(10):
        reset the weights and the optimizer's state in place
        trainer = RegularizedTrainer(model, ...)
        trainer.capture.keep_graphs(kept, scope="addrop")
        trainer.train()

A graph reads and writes fixed addresses. So the runs must share the parameters and the optimizer. Graphs of a method or
a loss that holds its own tensors are captured again in each run, because those tensors are new.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .batches import ExactShapes
from .graphs import Graphs
from .optimizers import OptimizerGraph


class PersistentGraphs:
    """The graphs of several runs on one model object.

    Args:
        limit: the largest number of graphs, of all runs together. When it is reached, all are dropped before a run.
    """

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._graphs: Graphs | None = None
        self._addresses: list[int] = []
        self._optimizers: list[tuple[torch.optim.Optimizer, OptimizerGraph]] = []

    def begin_run(self, model: nn.Module, shapes: ExactShapes, scope: Hashable) -> Graphs:
        """Return the graphs for a run that begins. They are dropped if the model's parameters have moved."""
        parameters = list(model.parameters())
        addresses = [parameter.data_ptr() for parameter in parameters]
        if self._graphs is None or addresses != self._addresses or self._graphs.is_full:
            self.clear()
            self._graphs = Graphs(parameters[0].device, shapes, self._limit)
            self._addresses = addresses
        self._graphs.begin_run(shapes, scope)
        return self._graphs

    def begin_evaluation(self, model: nn.Module, scope: Hashable) -> Graphs:
        """Return the graphs for an evaluation that begins, outside of training."""
        return self.begin_run(model, ExactShapes(), ("evaluation", scope))

    def optimizer_graph(self, optimizer: torch.optim.Optimizer, new: OptimizerGraph) -> OptimizerGraph:
        """Return the graph of this optimizer's step; `new` where there is none yet."""
        for known, graph in self._optimizers:
            if known is optimizer:
                return graph
        self._optimizers.append((optimizer, new))
        return new

    def end_run(self, parts: Iterable[Any]) -> None:
        """Drop the graphs of the finished run if they cannot be reused.

        Args:
            parts: the parts of this run that a graph may read: the methods, and the loss function.
        """
        assert self._graphs is not None
        if self._graphs.failure is not None or any(holds_tensors(part) for part in parts):
            self._graphs.drop_scope()

    def clear(self) -> None:
        """Free the memory."""
        if self._graphs is not None:
            self._graphs.clear()
        self._graphs, self._optimizers = None, []


def holds_tensors(value: Any, depth: int = 4) -> bool:
    """Return whether an object refers to a tensor or a module, in its attributes or in their containers."""
    if isinstance(value, (Tensor, nn.Module)):
        return True
    if depth == 0 or value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return False
    if isinstance(value, Mapping):
        parts: Iterable[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        parts = vars(value).values() if not isinstance(value, type) else ()
    else:
        return False
    return any(holds_tensors(part, depth - 1) for part in parts)
