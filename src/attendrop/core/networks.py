"""A copy of the model that takes the same optimizer steps, bit for bit, without our plans."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.optimizers import OptimizerGraph
from ..model.seams import Seams
from ..random import preserved
from .regularizer import Step


class Twin:
    """The network and its optimizer, made from the model and optimizer of `step` as they are now."""

    def __init__(self, step: Step) -> None:
        if step.around.optimizer is None:
            raise ValueError(
                "a network beside the model needs the optimizer: Engine(surroundings=Surroundings(optimizer=...))."
            )
        network = copy.deepcopy(step.model)
        # accelerate puts its wrapped forward on the instance, where a copy would run the original's weights
        for attribute in ("forward", "_original_forward", "_is_accelerate_prepared"):
            network.__dict__.pop(attribute, None)
        seams = Seams.of(network)
        if seams is not None:
            seams.unbind()
        self.network: Any = step.around.prepare(network)
        parameters = zip(step.model.parameters(), self.network.parameters(), strict=True)
        self.optimizer = copy.deepcopy(step.around.optimizer, {id(p): q for p, q in parameters})
        self._graph: OptimizerGraph | None = None

    def backward(self, batch: Mapping[str, Any], step: Step) -> None:
        """Forward, loss and backward. The random state is put back, so that the model draws the same dropout."""
        with preserved(next(self.network.parameters()).device):
            step.around.backward(self.network, batch)

    def step(self, step: Step) -> None:
        """The optimizer's step, clipped and with the learning rate that the model's is about to use."""
        around = step.around
        assert around.optimizer is not None
        average_gradients(self.network, around.world)
        if around.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self.network.parameters(), around.max_grad_norm)
        for group, like in zip(self.optimizer.param_groups, around.optimizer.param_groups, strict=True):
            group.update({name: value for name, value in like.items() if name != "params"})
        if around.graphs is None:
            self._graph = None
            self.optimizer.step()
        else:
            self._graph = self._graph or OptimizerGraph(self.optimizer, around.graphs)
            self._graph.step(self.optimizer.step)
        self.network.zero_grad()

    @torch.no_grad()
    def make_equal(self, step: Step, to_model: bool) -> None:
        """Weights, buffers and optimizer state of the twin go to the model, or the model's to the twin."""
        assert step.around.optimizer is not None
        ends = [(step.model, step.around.optimizer.state), (self.network, self.optimizer.state)]
        (source, state), (target, target_state) = ends[::-1] if to_model else ends
        tensors = ([*network.parameters(), *network.buffers()] for network in (source, target))
        pairs = list(zip(*tensors, strict=True))
        for a, b in zip(source.parameters(), target.parameters(), strict=True):
            for name, value in state[a].items() if a in state else ():
                if isinstance(value, Tensor) and name in target_state[b]:
                    pairs.append((value, target_state[b][name]))
                else:
                    target_state[b][name] = value.clone() if isinstance(value, Tensor) else value
        _copy_all(pairs)


def _copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Each first tensor into the second, in few kernels."""
    groups: dict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = {}
    for a, b in pairs:
        groups.setdefault((a.device, a.dtype, b.device, b.dtype), []).append((a, b))
    for group in groups.values():
        torch._foreach_copy_([b for _, b in group], [a for a, _ in group])


@torch.no_grad()
def exchange(a: nn.Module, b: nn.Module) -> None:
    """The two networks swap weights."""
    for x, y in zip([*a.parameters(), *a.buffers()], [*b.parameters(), *b.buffers()], strict=True):
        x.data, y.data = y.data, x.data


@contextmanager
def exchanged(a: nn.Module, b: nn.Module) -> Iterator[None]:
    exchange(a, b)
    try:
        yield
    finally:
        exchange(a, b)


def average_gradients(network: nn.Module, world: int) -> None:
    """The mean of all processes' gradients, as DDP makes it."""
    if world > 1:
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(world)
                torch.distributed.all_reduce(parameter.grad)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer as named tensors: "<number of the parameter>.<name>"."""
    return {
        f"{number}.{name}": value
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    whole = optimizer.state_dict()
    states: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        states.setdefault(int(number), dict(whole["state"].get(int(number), {})))[key] = value
    optimizer.load_state_dict({**whole, "state": states})
