"""An optimizer's step as a CUDA graph, for optimizers whose whole state is on the GPU: torch's fused Adam and AdamW.

AdamW is the Trainer's default. The learning rate changes from step to step, so the graph reads it from device memory,
in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.step import Graphs

_NOT_FIXED = ("params", "param_names", "lr", "initial_lr")  # of a group, in a graph


def allows_capture(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a replay does everything that a step of this optimizer does."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return False
    has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return not has_hooks and all(group["fused"] for group in optimizer.param_groups)


@contextmanager
def replaying_steps(optimizer: torch.optim.Optimizer, graph: OptimizerGraph) -> Iterator[None]:
    """Let `optimizer.step()` in the block replay the graph where possible.

    The Trainer calls `step` of the optimizer deep inside its loop, through accelerate's wrapper, and learning rate
    schedulers have replaced it on the instance already. So it is replaced on the instance here too, and restored at
    the end. This is the only function of another library's object that capture replaces.
    """
    eager_step, is_on_instance = optimizer.step, "step" in vars(optimizer)

    @functools.wraps(eager_step)
    def step(closure: Any = None) -> Any:
        return eager_step(closure) if closure is not None else graph.step(eager_step)

    optimizer.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        optimizer.step = eager_step  # type: ignore[method-assign]
        if not is_on_instance:
            del optimizer.step


class OptimizerGraph:
    """Replays the steps of `optimizer`, where its gradients are the tensors into which `graphs` write them."""

    def __init__(self, optimizer: torch.optim.Optimizer, graphs: Graphs) -> None:
        self._optimizer, self._graphs = optimizer, graphs
        self._allows = allows_capture(optimizer)
        self._all_rates: list[Tensor] = []  # at their addresses for all graphs; groups may be divided in a later run
        self._is_warm = False
        # Steps before the capture have `capturable` too. torch warns of that, once for each optimizer, except for those
        # that were created and not copied: https://github.com/pytorch/pytorch/issues/72948
        optimizer._warned_capturable_if_run_uncaptured = True

    @property
    def _learning_rates(self) -> list[Tensor]:
        """The learning rate of each group, in device memory."""
        count = len(self._optimizer.param_groups)
        while len(self._all_rates) < count:
            self._all_rates.append(torch.zeros((), device=self._graphs.device))
        return self._all_rates[:count]

    def step(self, eager_step: Callable[[], Any]) -> None:
        """Take a step: a replay, or `eager_step` where that is not possible."""
        if not self._allows:
            eager_step()
            return
        for rate, group in zip(self._learning_rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        states: list[Any] = list(map(self._optimizer.state.get, parameters))
        # The first step creates the state, and gradients of an eager pass are elsewhere. These steps compute in the
        # same way, so that a run with graphs of an earlier run gives the same bits as one without.
        if None in states or not self._graphs.owns_gradients(parameters):
            self._capturable(eager_step)
            return
        if not self._is_warm:
            self._warm_up_kernels()
        key = self._key(parameters, states)
        self._graphs.run(key, lambda: self._capturable(eager_step), warm_up=False, all_scopes=True)

    def _key(self, parameters: list[nn.Parameter], states: list[dict[str, Any]]) -> tuple[Any, ...]:
        """Everything that is fixed in a graph: the settings of the groups and the addresses of the tensors."""
        settings = [
            (len(group["params"]), *((name, value) for name, value in group.items() if name not in _NOT_FIXED))
            for group in self._optimizer.param_groups
        ]
        of_states = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        addresses = map(Tensor.data_ptr, (*parameters, *self._learning_rates, *of_states))
        return ("optimizer", id(self), tuple(settings), tuple(addresses))

    def _capturable(self, eager_step: Callable[[], Any]) -> None:
        """Take the step with settings that allow a capture: `capturable`, and learning rates in device memory."""
        groups = self._optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        for group, rate in zip(groups, self._learning_rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        try:
            eager_step()
        finally:
            for group, (lr, capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = lr, capturable

    def _warm_up_kernels(self) -> None:
        """Run a dummy step, because CUDA loads a kernel on its first call, which is not allowed during a capture."""
        dtypes = {p.dtype for group in self._optimizer.param_groups for p in group["params"]}
        parameters = [nn.Parameter(torch.zeros(1, dtype=dtype, device=self._graphs.device)) for dtype in dtypes]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        make: Any = type(self._optimizer)
        make(parameters, lr=torch.zeros((), device=self._graphs.device), fused=True, capturable=True).step()
        self._is_warm = True
