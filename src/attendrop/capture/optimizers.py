"""An optimizer's step as a CUDA graph, for those whose whole state is on the GPU: torch's fused Adam and AdamW.

AdamW is the Trainer's default. The learning rate changes from step to step, so the graph reads it from device memory;
there it is a float, as fine as the weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .graphs import Graphs


def allows_capture(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a replay does all that a step does."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return False
    has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return not has_hooks and all(group["fused"] for group in optimizer.param_groups)


class OptimizerGraph:
    """Takes the steps of `optimizer` by replaying, where its gradients are the graphs' own."""

    def __init__(self, optimizer: torch.optim.Optimizer, graphs: Graphs) -> None:
        self._optimizer, self._graphs = optimizer, graphs
        self._allows = allows_capture(optimizer)
        self._rates = [torch.zeros((), device=graphs.device) for _ in optimizer.param_groups]
        self._rehearsed = False

    def step(self, take: Callable[[], Any]) -> None:
        """`take` is the eager step."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        state = self._optimizer.state
        # the first step makes the state
        if not self._allows or not all(self._graphs.owns_gradient(p) and p in state for p in parameters):
            take()
            return
        if not self._rehearsed:
            self._rehearse()
        for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self._graphs.run(self._key(parameters), lambda: self._recorded(take), rehearse=False)

    def _key(self, parameters: list[nn.Parameter]) -> tuple[Any, ...]:
        """All that a graph has for granted."""
        settings = [
            tuple((name, value) for name, value in group.items() if name not in ("params", "lr", "initial_lr"))
            for group in self._optimizer.param_groups
        ]
        places = [p.data_ptr() for p in parameters]
        for p in parameters:
            places += [x.data_ptr() for x in self._optimizer.state[p].values() if isinstance(x, Tensor)]
        return ("optimizer", id(self), tuple(settings), tuple(places))

    def _recorded(self, take: Callable[[], Any]) -> None:
        with self._as_graphs_need_it():
            take()

    @contextmanager
    def _as_graphs_need_it(self) -> Iterator[None]:
        groups = self._optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        try:
            yield
        finally:
            for group, (lr, capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = lr, capturable

    def _rehearse(self) -> None:
        """Kernels are loaded at their first call, which must not be in a recording: here, on a number of no account."""
        dtypes = {p.dtype for group in self._optimizer.param_groups for p in group["params"]}
        numbers = [nn.Parameter(torch.zeros(1, dtype=dtype, device=self._graphs.device)) for dtype in dtypes]
        for number in numbers:
            number.grad = torch.zeros_like(number)
        make: Any = type(self._optimizer)
        make(numbers, lr=torch.zeros_like(self._rates[0]), fused=True, capturable=True).step()
        self._rehearsed = True
