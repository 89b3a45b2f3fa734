"""Weights that are not the true ones for the length of a step, and draws over weights.

    W̃ = U + f ⊙ (W − U),    f = keep / (1 − p),    ∂L/∂W = f ⊙ ∂L/∂W̃

When a step begins, W̃ takes the place of W; when its gradients are there, W comes back, bit for bit, and the gradient
of W̃ becomes that of W. U is a target (mixout) or zero (DropConnect). E[W̃] = W.

All draws are counters, as in random.py: the same on every process and every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ...core.networks import TrainsNetworks
from ...core.regularizer import Regularizer
from ...core.schedule import Strength, as_strength, largest, value_at
from ...core.step import Step
from ...kernels.draws import uniform
from ...model.seams import Seams
from ...model.sites import unwrapped
from ...random import key_of

PATTERNS = ("column", "element")
_CHUNK = 1 << 24  # draws at a time: beside the result, a few words of memory for each


def draws(step: Step, stream: str, shape: torch.Size, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Draws in [0, 1) for a weight of `shape`, some rows at a time: the rows and their draws."""
    key = key_of(step.seed, step.progress.step, 0, stream)
    rows = max(1, _CHUNK // max(1, shape[1:].numel()))
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        drawn = uniform(key, torch.arange(first, last), (max(1, shape[1:].numel()),), device)
        yield slice(first, last), drawn.view(last - first, *shape[1:])


def kept(step: Step, stream: str, shape: torch.Size, probability: float, device: torch.device) -> Tensor:
    """True with `probability`, for each element of `shape`."""
    keep = torch.empty(shape or (1,), dtype=torch.bool, device=device)
    for rows, chunk in draws(step, stream, keep.shape, device):
        keep[rows] = chunk < probability
    return keep.view(shape)


@dataclass(frozen=True)
class Map:
    """The trainable weight of a linear map."""

    name: str
    weight: nn.Parameter
    inputs: int  # the dimension that counts inputs: 1, and 0 in GPT-2's Conv1D

    @property
    def is_lora_a(self) -> bool:
        """Whether it is the first of the two factors of a low-rank change of a pretrained weight."""
        return ".lora_A." in self.name


def pretrained_part(model: nn.Module) -> nn.Module:
    """The base model (`base_model_prefix`): what is outside of it is the head."""
    return unwrapped(model).base_model


def linear_maps(model: nn.Module) -> list[Map]:
    """The linear maps of the pretrained part whose weights are trained, each weight once.

    A weight that is an embedding too is no linear map's own, and is left out.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    elsewhere = {
        id(parameter)
        for module in model.modules()
        if not isinstance(module, (nn.Linear, Conv1D))
        for parameter in module.parameters(recurse=False)
    }
    found: dict[int, Map] = {}
    for module in pretrained_part(model).modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            weight: Any = module.weight
            if weight.requires_grad and id(weight) not in elsewhere:
                found[id(weight)] = Map(names[id(weight)], weight, 0 if isinstance(module, Conv1D) else 1)
    return list(found.values())


def refuse_sharded(owner: str, model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh") or hasattr(parameter, "ds_id"):  # FSDP2's, and ZeRO's
            raise ValueError(
                f"{owner} works on whole weights, and {name} is sharded over the processes; use DDP instead of FSDP "
                "or ZeRO."
            )


def reason_against(owner: Regularizer, other: Regularizer) -> str | None:
    """Why a method that changes weights or gradients does not go with one that trains a network beside the model."""
    if not isinstance(other, TrainsNetworks):
        return None
    return (
        f"of which {type(owner).__name__} changes weights or gradients of the model alone, and {type(other).__name__} "
        "compares the model with a network that takes the same steps; choose one of them."
    )


def as_drop_probability(owner: str, value: Any) -> Strength:
    p = as_strength(owner, "p", value, 0, 1)
    if largest(p) == 1:
        raise ValueError(f"{owner}.p is {value!r}; it must be below 1, or no weight is left to train.")
    return p


def factor(keep: Tensor, share: float, like: Tensor) -> Tensor:
    """f: 1/(1 − p) where kept, else 0; of single precision at least."""
    return keep.to(torch.promote_types(like.dtype, torch.float32)) / share


def mixed(weight: Tensor, target: Tensor | None, f: Tensor) -> Tensor:
    """U + f ⊙ (W − U), rounded once; where W is U it is U, to the bit."""
    if target is None:
        return (weight * f).to(weight.dtype)
    wide = target.to(f.dtype)
    return torch.addcmul(wide, weight.to(f.dtype) - wide, f).to(weight.dtype)


_at_work: WeakKeyDictionary[nn.Module, MixedWeights] = WeakKeyDictionary()


@contextmanager
def true_weights(step: Step) -> Iterator[None]:
    """The model has its true weights inside, also where another method has mixed them for this step already."""
    mixing = _at_work.get(step.model)
    if mixing is None:
        yield
        return
    mixing.take_out()
    yield
    mixing.on_step_begin(step)


def settle(step: Step) -> None:
    """Weights and gradients are the true ones from here on: for methods that work on them in `on_gradients`."""
    mixing = _at_work.get(step.model)
    if mixing is not None:
        mixing.on_gradients(step)


class MixedWeights(Regularizer):
    """The mechanics of a method that trains with mixed weights. The method has p and pattern, and says what U is."""

    edits_weights: ClassVar[bool] = True

    p: Strength
    pattern: str = "element"

    def reset(self) -> None:
        self._model: nn.Module | None = None
        self._swapped: list[tuple[nn.Parameter, Tensor, Tensor, float]] = []  # weight, true values, keep, 1 − p

    def maps(self, model: nn.Module) -> list[Map]:
        """The weights that are mixed."""
        return linear_maps(model)

    def target(self, of: Map, step: Step) -> Tensor | None:
        """U; None is zero."""
        return None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded(type(self).__name__, model)
        if not self.maps(model):
            raise ValueError(
                f"{seams.name} has no linear map in its base model whose weights are trained, so {type(self).__name__} "
                "would do nothing."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    @torch.no_grad()
    def on_step_begin(self, step: Step) -> None:
        self.take_out()  # a step that was given up has left mixed weights behind
        if self.p == 0:
            return
        refuse_sharded(type(self).__name__, step.model)
        self._model = step.model
        _at_work[step.model] = self
        p = value_at(self.p, step.progress)
        for of in self.maps(step.model):
            weight, target = of.weight, self.target(of, step)
            if p == 0:
                continue
            shape = weight.shape
            if self.pattern == "column":
                shape = torch.Size(n if dim == of.inputs else 1 for dim, n in enumerate(shape))
            keep = kept(step, f"{self.name} {of.name}", shape, 1 - p, weight.device)
            # in place: a captured graph reads the weight where it was
            self._swapped.append((weight, weight.detach().clone(), keep, 1 - p))
            weight.copy_(mixed(weight, target, factor(keep, 1 - p, weight)))

    @torch.no_grad()
    def take_out(self) -> None:
        """The true weights are back, bit for bit."""
        for weight, true, _, _ in self._swapped:
            weight.copy_(true)
        self._swapped = []
        if self._model is not None:
            _at_work.pop(self._model, None)
            self._model = None

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        for weight, _, keep, share in self._swapped:
            if weight.grad is not None:
                weight.grad.mul_(factor(keep, share, weight.grad))
        self.take_out()

    def on_close(self) -> None:
        self.take_out()
