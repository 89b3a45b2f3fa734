"""Methods with a parameter of their own, which their own Adam updates after each step of the model."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...core.capabilities import HasParameters, KeepsState
from ...core.state import load_optimizer_tensors, optimizer_tensors
from ...core.step import Step
from ...utils.distributed import average_gradients


class LearnsParameter(HasParameters, KeepsState):
    """The base class of such methods. A subclass has `lr`, `first_value`, and adds `self.unit` to its penalty.

    `learned` is the parameter, None before the first step of a run.
    """

    lr: float
    state_name: ClassVar[str] = "learned"  # the name of the parameter in a checkpoint

    def reset(self) -> None:
        self.learned: nn.Parameter | None = None
        self.unit = nn.Parameter(torch.zeros(()))  # a term of the loss whose value is 0, see `_unscale`
        self._optimizer: torch.optim.Optimizer | None = None
        self._loaded: dict[str, Tensor] = {}

    def first_value(self, step: Step) -> Tensor | None:
        """Return the value at the start, the same on all processes; None: nothing is learned."""
        raise NotImplementedError

    def limit(self, learned: nn.Parameter) -> None:
        """Bring the parameter back into its range, in place, after a step."""

    def on_step_begin(self, step: Step) -> None:
        value = self.first_value(step) if self.learned is None else None
        if value is None:
            return
        device = step.device
        self.learned = nn.Parameter(value.to(device))
        self.unit = nn.Parameter(torch.zeros((), device=device))
        # On a GPU the fused optimizer skips a step whose gradients are not finite without waiting for the GPU.
        self._optimizer = torch.optim.Adam([self.learned], lr=self.lr, fused=device.type == "cuda")
        if self._loaded:
            with torch.no_grad():
                self.learned.copy_(self._loaded.pop(self.state_name))
            load_optimizer_tensors(self._optimizer, self._loaded)
            self._loaded = {}

    def parameters(self) -> list[nn.Parameter]:
        return [] if self.learned is None else [self.learned, self.unit]

    def on_step_end(self, step: Step) -> None:
        if self.learned is None:
            return
        assert self._optimizer is not None
        average_gradients([self.learned, self.unit], step.loop.world)
        self._unscale()
        if self.learned.grad is not None:
            self._take_step(self._optimizer, self.learned.grad.isfinite().all())
            with torch.no_grad():
                self.limit(self.learned)
        self._optimizer.zero_grad()

    @staticmethod
    def _take_step(optimizer: Any, is_finite: Tensor) -> None:
        """Take one step if the gradients are finite: with fp16 the scaled loss may have overflowed."""
        if is_finite.is_cuda:
            optimizer.found_inf = (~is_finite).float()
            optimizer.step()
        elif is_finite:
            optimizer.step()

    def _unscale(self) -> None:
        """Divide the gradient by the factor with which the loop has multiplied the loss.

        With fp16 that is the loss scale, which changes during training: Adam would average gradients of different
        scales. A loss scaler unscales only the gradients of its own optimizer. The loss contains `unit` with the
        factor 1, so that the gradient of `unit` is the factor of the loss.
        """
        assert self.learned is not None
        factor, self.unit.grad = self.unit.grad, None
        if factor is not None and self.learned.grad is not None:
            self.learned.grad.div_(factor)

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.learned is None or self._optimizer is None:
            return {}, {}
        return {self.state_name: self.learned, **optimizer_tensors(self._optimizer)}, {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._loaded = dict(tensors)  # used when the first step begins, which creates the parameter
