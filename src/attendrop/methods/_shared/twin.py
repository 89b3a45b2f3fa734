"""A copy of the model that takes the same optimizer steps, without the plans of the method that trains it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...capture.optimizers import OptimizerGraph
from ...core.step import Loop, MicroBatch, Step
from ...model.seams import Seams
from ...random import preserved
from ...utils.distributed import average_gradients


class Twin:
    """A copy of the model, with seams of its own, and of its optimizer, in their current state.

    Args:
        step: the optimizer step in which the copy is made.
    """

    def __init__(self, step: Step) -> None:
        network = copy.deepcopy(step.model)
        # accelerate stores its wrapped forward on the instance. The copy would run it with the weights of the original.
        for attribute in ("forward", "_original_forward", "_is_accelerate_prepared"):
            network.__dict__.pop(attribute, None)
        self.network: Any = step.loop.prepare(network)
        parameters = zip(step.model.parameters(), self.network.parameters(), strict=True)
        # The memo maps each parameter of the model to its copy, so that the copied optimizer updates the copies.
        self.optimizer = copy.deepcopy(_optimizer_of(step.loop), {id(p): q for p, q in parameters})
        self._graph: OptimizerGraph | None = None

    def backward(self, batch: MicroBatch, seed: int | None = None) -> None:
        """Forward, loss and backward. Then the random state is restored, so that the model draws as it would without.

        Args:
            batch: the micro-batch.
            seed: of the ordinary dropout; None: the copy draws the same as the model.
        """
        assert batch.backward is not None
        with preserved(next(self.network.parameters()).device):
            if seed is not None:
                torch.manual_seed(seed)
            batch.backward(self.network)

    def step(self, step: Step) -> None:
        """Take the optimizer's step, with the clipping and the learning rate that the model's step is about to use."""
        loop = step.loop
        average_gradients(self.network.parameters(), loop.world)
        if loop.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self.network.parameters(), loop.max_grad_norm)
        for group, model_group in zip(self.optimizer.param_groups, _optimizer_of(loop).param_groups, strict=True):
            group.update({name: value for name, value in model_group.items() if name != "params"})
        if loop.graphs is not None:
            self._graph = self._graph or OptimizerGraph(self.optimizer, loop.graphs)
            self._graph.step(self.optimizer.step)
        else:
            self._graph = None
            self.optimizer.step()
        self.network.zero_grad()

    @torch.no_grad()
    def make_equal(self, step: Step, to_model: bool) -> None:
        """Copy weights, buffers and optimizer state from the twin to the model, or from the model to the twin."""
        pair = [(step.model, _optimizer_of(step.loop).state), (self.network, self.optimizer.state)]
        (source, state), (target, target_state) = pair[::-1] if to_model else pair
        tensors = ([*network.parameters(), *network.buffers()] for network in (source, target))
        copies = list(zip(*tensors, strict=True))
        for a, b in zip(source.parameters(), target.parameters(), strict=True):
            for name, value in state[a].items() if a in state else ():
                if isinstance(value, Tensor) and name in target_state[b]:
                    copies.append((value, target_state[b][name]))
                else:
                    target_state[b][name] = value.clone() if isinstance(value, Tensor) else value
        _copy_all(copies)

    def close(self) -> None:
        """Remove the seams of the copy."""
        seams = Seams.of(self.network)
        if seams is not None:
            seams.unbind()


def _optimizer_of(loop: Loop) -> torch.optim.Optimizer:
    if loop.optimizer is None:
        raise ValueError(
            "AttendOut and DENI train copies of the model and need its optimizer: Engine(loop=Loop(optimizer))."
        )
    return loop.optimizer


def _copy_all(copies: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the first tensor of each pair into the second, with few kernel launches."""
    groups: dict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = {}
    for a, b in copies:
        groups.setdefault((a.device, a.dtype, b.device, b.dtype), []).append((a, b))
    for group in groups.values():
        torch._foreach_copy_([b for _, b in group], [a for a, _ in group])
