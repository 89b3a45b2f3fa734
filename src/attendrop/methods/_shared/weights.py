"""Methods that train with other weights for the length of one step, and random draws over weights.

    W̃ = U + f ⊙ (W − U),    f = keep / (1 − p),    ∂L/∂W = f ⊙ ∂L/∂W̃

W are the trained weights, those that the optimizer updates. When a step begins, the mixed weights W̃ are written over W.
When the gradients of the step have been computed, W is restored bit for bit and the gradient of W̃ becomes that of W.
U is a target (mixout) or zero (DropConnect). E[W̃] = W.

All draws are functions of counters, as in random.py: the same on every process and every device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ...core.capabilities import EditsWeights
from ...core.networks import TrainsNetworks
from ...core.regularizer import Regularizer
from ...core.schedule import Schedule, Strength, largest, value_at
from ...core.step import Step
from ...kernels.draws import uniform
from ...kernels.random_scaling import mix, unmix
from ...model.seams import Seams
from ...model.sites import pretrained_part

PATTERNS = ("column", "element")
_CHUNK = 1 << 24  # draws at a time, which bounds the extra memory


def draws(step: Step, stream: str, shape: torch.Size, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Return draws in [0, 1) for a weight of `shape`, a range of rows at a time: yields the rows and their draws."""
    key = step.key(0, stream)
    rows = max(1, _CHUNK // max(1, shape[1:].numel()))
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        values = uniform(key, torch.arange(first, last, device=device), (max(1, shape[1:].numel()),), device)
        yield slice(first, last), values.view(last - first, *shape[1:])


def in_graph(step: Step, name: Hashable, tensors: Sequence[Tensor], work: Callable[[Step], None]) -> None:
    """Run `work(step)`, which changes tensors in place; where steps are captured, as a CUDA graph.

    What it leaves for later work must be in `tensors`: other graphs overwrite what it creates itself.

    Args:
        step: the step.
        name: names the work.
        tensors: all tensors that it reads or writes.
        work: the work, on a step whose keys and numbers are in device memory where it is captured.
    """
    graphs = step.loop.graphs
    if graphs is None or not tensors:
        work(step)
        return
    key = name, tuple(tensor.data_ptr() for tensor in tensors)
    graphs.run_once(key, lambda: work(graphs.static_step(step)), step)


@dataclass(frozen=True)
class LinearWeight:
    """The trainable weight of a linear layer."""

    name: str
    weight: nn.Parameter
    input_dim: int  # the dimension that counts inputs: 1, and 0 in GPT-2's Conv1D

    @property
    def is_lora_a(self) -> bool:
        """Whether it is the first of the two factors of a low-rank change of a pretrained weight."""
        return ".lora_A." in self.name


def linear_weights(model: nn.Module) -> list[LinearWeight]:
    """Return the trainable weights of the linear layers in the pretrained part, each weight once.

    A weight that another kind of layer shares (an embedding, for example) is not included.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    of_other_layers = {
        id(parameter)
        for module in model.modules()
        if not isinstance(module, (nn.Linear, Conv1D))
        for parameter in module.parameters(recurse=False)
    }
    weights: dict[int, LinearWeight] = {}
    for module in pretrained_part(model).modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            weight: Any = module.weight
            if weight.requires_grad and id(weight) not in of_other_layers:
                input_dim = 0 if isinstance(module, Conv1D) else 1
                weights[id(weight)] = LinearWeight(names[id(weight)], weight, input_dim)
    return list(weights.values())


def refuse_sharded(owner: str, model: nn.Module) -> None:
    """Raise a `ValueError` if the weights of the model are sharded over the processes."""
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh") or hasattr(parameter, "ds_id"):  # FSDP2's, and ZeRO's
            raise ValueError(
                f"{owner} works on whole weights, and {name} is sharded over the processes; use DDP instead of FSDP "
                "or ZeRO."
            )


def reason_against(owner: Regularizer, other: Regularizer) -> str | None:
    """Return why a method that changes weights or gradients cannot act with one that trains a second network."""
    if not isinstance(other, TrainsNetworks):
        return None
    return (
        f"of which {type(owner).__name__} changes weights or gradients of the model alone, and {type(other).__name__} "
        "trains networks beside it that must take the same steps; choose one of them."
    )


# The method that has replaced the weights of a model for now.
_editing: WeakKeyDictionary[nn.Module, RestoresWeights] = WeakKeyDictionary()


class RestoresWeights(EditsWeights):
    """The base class of methods that replace weights for the length of a step or of a micro-batch."""

    def register(self, model: nn.Module) -> None:
        """Mark the weights of the model as replaced by this method."""
        _editing[model] = self

    def unregister(self, model: nn.Module) -> None:
        """Restore the trained weights of the model."""
        _editing.pop(model, None)

    def restore_weights(self) -> None:
        """Write the trained weights back, bit for bit."""
        raise NotImplementedError


@contextmanager
def trained_weights(step: Step) -> Iterator[None]:
    """Give the model its trained weights in the block; weights that were mixed for this step are mixed again."""
    method = _editing.get(step.model)
    if method is None:
        yield
        return
    method.restore_weights()
    yield
    method.on_step_begin(step)


def end_mixing(step: Step) -> None:
    """Restore trained weights and their gradients now: for methods that work on them in `on_gradients`."""
    method = _editing.get(step.model)
    if method is not None:
        method.on_gradients(step)


@dataclass(frozen=True)
class _Mixed:
    """A weight that is mixed in each step, and what is kept for the length of the step."""

    linear: LinearWeight
    trained: Tensor  # its trained values
    keep: Tensor  # bool, of the weight's shape or with one column or row of it

    @classmethod
    def of(cls, linear: LinearWeight, pattern: str) -> _Mixed:
        shape = linear.weight.shape
        if pattern == "column":
            shape = torch.Size(n if dim == linear.input_dim else 1 for dim, n in enumerate(shape))
        weight = linear.weight.detach()
        return cls(linear, torch.empty_like(weight), torch.empty(shape, dtype=torch.bool, device=weight.device))

    @property
    def weight(self) -> nn.Parameter:
        return self.linear.weight


def _restore(changed: list[_Mixed]) -> None:
    if changed:
        torch._foreach_copy_([entry.weight for entry in changed], [entry.trained for entry in changed])


class MixedWeights(RestoresWeights):
    """The base class of methods that train with mixed weights. A subclass has `p` and `pattern`, and says what U is."""

    p: Strength
    pattern: str = "element"

    def __post_init__(self) -> None:
        given: Any = self.p
        super().__post_init__()
        if largest(self.p) == 1:
            raise ValueError(
                f"{type(self).__name__}.p is {given!r}; it must be below 1, or no weight is left to train."
            )

    def reset(self) -> None:
        self._model: nn.Module | None = None
        self._mixed: list[_Mixed] = []
        self._all: tuple[nn.Module, list[_Mixed]] | None = None

    def weights(self, model: nn.Module) -> list[LinearWeight]:
        """Return the weights that are mixed."""
        return linear_weights(model)

    def target(self, linear: LinearWeight, step: Step) -> Tensor | None:
        """U; None is zero."""
        return None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded(type(self).__name__, model)
        if not self.weights(model):
            raise ValueError(
                f"{seams.name} has no linear layer in its base model whose weights are trained, so "
                f"{type(self).__name__} would do nothing."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    @torch.no_grad()
    def on_step_begin(self, step: Step) -> None:
        self.restore_weights()  # a step that was interrupted has left mixed weights
        if self.p == 0:
            return
        self._model = step.model
        self.register(step.model)
        weights = self._weights_of(step.model)
        targets = [self.target(entry.linear, step) for entry in weights]
        if value_at(self.p, step.progress) == 0:
            return
        tensors = [x for entry in weights for x in (entry.weight, entry.trained, entry.keep)]
        tensors += [target for target in targets if target is not None]
        in_graph(step, (self.name, "mix"), tensors, lambda step: self._mix(step, weights, targets))
        self._mixed = weights

    def _weights_of(self, model: nn.Module) -> list[_Mixed]:
        """Return the mixed weights, at fixed addresses, where graphs read them."""
        if (
            self._all is None
            or self._all[0] is not model
            or any(x.weight.device != x.keep.device for x in self._all[1])
        ):
            refuse_sharded(type(self).__name__, model)
            self._all = model, [_Mixed.of(linear, self.pattern) for linear in self.weights(model)]
        return self._all[1]

    def _share(self, step: Step) -> float | Tensor:
        """Return 1 − p."""
        if not isinstance(self.p, Schedule):
            return 1 - self.p
        return step.number((self.name, "share"), lambda step: 1 - value_at(self.p, step.progress))

    @torch.no_grad()
    def _mix(self, step: Step, weights: list[_Mixed], targets: list[Tensor | None]) -> None:
        """Write the mixed weights over the trained ones, which are kept."""
        share = self._share(step)
        for entry, target in zip(weights, targets, strict=True):
            key = step.key(0, f"{self.name} {entry.linear.name}")
            mix(entry.weight, entry.trained, entry.keep, target, share, key)

    @torch.no_grad()
    def restore_weights(self) -> None:
        _restore(self._mixed)
        self._mixed = []
        if self._model is not None:
            self.unregister(self._model)
            self._model = None

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        changed = self._mixed
        gradients = [entry.weight.grad for entry in changed if entry.weight.grad is not None]
        tensors = [x for entry in changed for x in (entry.weight, entry.trained, entry.keep)] + gradients
        in_graph(step, (self.name, "unmix"), tensors, lambda step: self._unmix(step, changed))
        self._mixed = []
        self.restore_weights()

    @torch.no_grad()
    def _unmix(self, step: Step, changed: list[_Mixed]) -> None:
        """Restore the trained weights, and make the gradients of the mixed weights theirs."""
        share = self._share(step)
        for entry in changed:
            unmix(entry.weight, entry.trained, entry.keep, entry.weight.grad, share)

    def on_close(self) -> None:
        self.restore_weights()
