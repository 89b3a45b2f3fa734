"""Learning rates that methods scale, and weights that they do not train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..model.seams import Seams
from .capabilities import ScalesLearningRates
from .regularizer import Regularizer


class Rates:
    """The factors that the methods give to the learning rates of a model, from `freeze` to `restore`.

    Args:
        regularizers: the methods.
        model: the model.
        seams: its seams.
    """

    def __init__(self, regularizers: Sequence[Regularizer], model: nn.Module, seams: Seams) -> None:
        factors: dict[str, float] = {}
        self._owners: list[str] = []  # methods that need the optimizer
        self.freezing: list[Regularizer] = []  # methods that freeze weights
        for regularizer in (r for r in regularizers if isinstance(r, ScalesLearningRates)):
            own = regularizer.rate_factors(model, seams)
            for name, factor in own.items():
                factors[name] = factors.get(name, 1.0) * factor
            if any(factor not in (0, 1) for factor in own.values()):
                self._owners.append(type(regularizer).__name__)
            if any(factor == 0 for factor in own.values()):
                self.freezing.append(regularizer)
        self._factors = {name: factor for name, factor in factors.items() if factor not in (0, 1)}
        self._zeros = frozenset(name for name, factor in factors.items() if factor == 0)
        self._frozen: list[str] = []
        self._groups: DividedGroups | None = None

    def freeze(self, model: nn.Module) -> None:
        """Turn off the gradients of weights whose factor is 0, so that no optimizer changes them."""
        for name, parameter in model.named_parameters():
            if name in self._zeros and parameter.requires_grad:
                parameter.requires_grad_(False)
                self._frozen.append(name)

    def scale(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Give each weight its learning rate, where an optimizer is given. A second call with it does nothing."""
        if not self._factors or optimizer is None or (self._groups and self._groups.optimizer is optimizer):
            return
        owner = " and ".join(self._owners)
        factors = {p: self._factors[name] for name, p in model.named_parameters() if name in self._factors}
        _check_optimizer(owner, optimizer, factors)
        self._groups = DividedGroups(optimizer, factors)

    def check_scaled(self) -> None:
        """Raise a `ValueError` if a method scales learning rates and no optimizer was given."""
        if self._factors and self._groups is None:
            raise ValueError(
                f"{' and '.join(self._owners)} scales learning rates and needs the optimizer; pass "
                "Engine(loop=Loop(optimizer=optimizer)), and create the learning rate scheduler after the engine."
            )

    def restore(self, model: nn.Module) -> None:
        """Restore the groups of the optimizer and the weights that were frozen."""
        if self._groups is not None:
            self._groups.restore()
            self._groups = None
        if self._frozen:
            parameters = dict(model.named_parameters())
            for name in self._frozen:
                parameters[name].requires_grad_(True)
            self._frozen = []


def _check_optimizer(owner: str, optimizer: torch.optim.Optimizer, factors: Mapping[nn.Parameter, float]) -> None:
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if any(group.get("lr") is None for group in groups):
        raise ValueError(f"{owner} scales learning rates, and {name} has none (lr=None); give it a learning rate.")
    if any("initial_lr" in group for group in groups):
        raise ValueError(
            f"{owner} scales learning rates, and {name} has a learning rate scheduler already; pass the optimizer "
            "without one: optimizers=(optimizer, None), or create the scheduler after the engine."
        )
    if not any(parameter in factors for group in groups for parameter in group["params"]):
        raise ValueError(
            f"{owner} scales learning rates, and {name} trains none of the weights that it scales; pass an optimizer "
            "of the model's parameters."
        )


class DividedGroups:
    """The parameter groups of an optimizer, divided so that all weights of a group have one factor.

    Adam, SGD and others compute each weight by itself, so that the division alone changes no bit. The part with the
    largest factor comes first, because the Trainer logs the learning rate of the first group.

    Args:
        optimizer: the optimizer.
        factors: the factor of the learning rate of a parameter; 1 where it is not named.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factors: Mapping[nn.Parameter, float]) -> None:
        self.optimizer = optimizer
        self._own: list[dict[str, Any]] = list(optimizer.param_groups)
        self._parts = [_parts(group, factors) for group in self._own]
        optimizer.param_groups[:] = [part for parts in self._parts for part, _ in parts]

    def restore(self) -> None:
        """Restore the optimizer's own groups, with the parameters that it has now: FSDP replaces them."""
        for group, parts in zip(self._own, self._parts, strict=True):
            for part, positions in parts:
                for position, parameter in zip(positions, part["params"], strict=True):
                    group["params"][position] = parameter
        self.optimizer.param_groups[:] = self._own


def _parts(group: dict[str, Any], factors: Mapping[nn.Parameter, float]) -> list[tuple[dict[str, Any], list[int]]]:
    """Return the parts of a group, each with the positions of its parameters in the group."""
    of_parameters = [factors.get(parameter, 1.0) for parameter in group["params"]]
    parts = []
    for factor in sorted(set(of_parameters), reverse=True):
        positions = [i for i, own in enumerate(of_parameters) if own == factor]
        lists: dict[str, Any] = {
            name: [group[name][i] for i in positions] for name in ("params", "param_names") if name in group
        }
        parts.append(({**group, **lists, "lr": group["lr"] * factor}, positions))
    return parts
