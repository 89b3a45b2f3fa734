"""Methods that keep an average of the weights: the model trains with its own and is evaluated with the average."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.capabilities import AveragesWeights, KeepsState
from ...core.regularizer import Regularizer
from ...core.step import Step
from ...kernels.foreach import average
from ...model.seams import Seams
from .weights import in_graph, reason_against, refuse_sharded


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


class ListedParameters:
    """The parameters of a model, which are listed once: to walk through a model takes longer than a captured step."""

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._all: dict[str, nn.Parameter] = {}

    def trained(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Like `trained_parameters`."""
        if self._model is not model:
            self._model, self._all = model, dict(model.named_parameters())
        return {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}


def refuse_frozen(owner: str, model: nn.Module, seams: Seams) -> None:
    """Raise a `ValueError` if no parameter of the model is trained."""
    if not trained_parameters(model):
        raise ValueError(f"{seams.name} has no weight that is trained, so {owner} has nothing to act on.")


class WeightAverage(AveragesWeights, KeepsState):
    """The base class of methods that keep a running average of the trained weights.

    A subclass says in `is_averaged` after which steps the weights are averaged, and in `share` with which weight the
    newest ones count. The first weights are the first average. It is kept in float32 where weights have less precision.
    """

    def reset(self) -> None:
        self._average: dict[str, Tensor] = {}
        # averages at their final addresses, and their weights
        self._lists: tuple[list[Tensor], list[nn.Parameter]] | None = None

    def is_averaged(self, step: Step) -> bool:
        """Return whether the weights after this step are averaged."""
        raise NotImplementedError

    def share(self, step: Step) -> float:
        """Return the weight of the weights after this step in the average. It depends on the step alone."""
        raise NotImplementedError

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded(type(self).__name__, model)
        refuse_frozen(type(self).__name__, model, seams)

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    @torch.no_grad()
    def on_step_end(self, step: Step) -> None:
        if not self.is_averaged(step):
            return
        if not self._average:
            self.begin_average(step.model)
        else:
            self._update(step)

    def begin_average(self, model: nn.Module) -> None:
        """Start the average from the current weights."""
        refuse_sharded(type(self).__name__, model)
        self._average = {name: _wide(parameter) for name, parameter in trained_parameters(model).items()}

    def _update(self, step: Step) -> None:
        averages, weights = self._on_device(step.model)

        def work(step: Step) -> None:
            average(averages, weights, step.number((self.name, "share"), self.share))

        in_graph(step, (self.name, "average"), [*averages, *weights], work)

    def _on_device(self, model: nn.Module) -> tuple[list[Tensor], list[nn.Parameter]]:
        """Return the averages and their weights. They stay at their addresses: graphs read and write them there."""
        if self._lists is None:
            parameters = dict(model.named_parameters())
            self._average = {name: x.to(parameters[name].device) for name, x in self._average.items()}
            self._lists = list(self._average.values()), [parameters[name] for name in self._average]
        return self._lists

    def evaluated_weights(self, model: nn.Module) -> dict[str, Tensor]:
        return self._average

    def on_close(self) -> None:
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self._average), {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._average, self._lists = dict(tensors), None


def _wide(parameter: Tensor) -> Tensor:
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
