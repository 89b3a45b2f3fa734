"""Methods that remember the weights with which training starts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...core.capabilities import KeepsState
from ...core.regularizer import Regularizer
from ...core.step import Step
from ...model.seams import Seams
from ...model.sites import pretrained_part
from .averages import ListedParameters, refuse_frozen
from .weights import end_mixing, reason_against, refuse_sharded


class RemembersOrigin(KeepsState):
    """The base class of methods that compare the trained weights of the pretrained part with their first values.

    A subclass calls `remember(step)` in `on_gradients`: then other methods have made their changes of the first step,
    such as fresh weights in some blocks. What is remembered is a part of a checkpoint.
    """

    def reset(self) -> None:
        self._origin: dict[str, Tensor] = {}
        self._is_on_device = False
        self._parameters = ListedParameters()

    def origin(self, name: str, parameter: nn.Parameter) -> Tensor | None:
        """Return the value of a weight at which the model is the pretrained one; None: it is not remembered."""
        raise NotImplementedError

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded(type(self).__name__, model)
        refuse_frozen(type(self).__name__, model, seams)

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def remember(self, step: Step) -> dict[str, Tensor]:
        """Return the first values by name, on the device of the model.

        Trained weights and their gradients are restored.
        """
        end_mixing(step)
        parameters = self.trained(step.model)
        if not self._origin:
            refuse_sharded(type(self).__name__, step.model)
            inside = {id(parameter) for parameter in pretrained_part(step.model).parameters()}
            values = {name: self.origin(name, p) for name, p in parameters.items() if id(p) in inside}
            self._origin = {name: value for name, value in values.items() if value is not None}
        elif not self._is_on_device:
            self._origin = {name: x.to(parameters[name].device) for name, x in self._origin.items()}
        self._is_on_device = True
        return self._origin

    def trained(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters of the model that are trained, by name."""
        return self._parameters.trained(model)

    def on_close(self) -> None:
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self._origin), {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._origin, self._is_on_device = dict(tensors), False
