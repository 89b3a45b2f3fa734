"""Copies of weights in half precision, from which the linear layers of a captured step read.

Under autocast each linear layer converts its weight and its bias to half precision in the forward, and the backward
converts each of their gradients to float32: hundreds of small kernels in a step. In a graph the layers read copies of
the weights instead, which stay at their addresses. One operation makes all copies when the graph begins, and one writes
the gradients of all copies, converted, to where the optimizer reads them. The numbers are those of autocast, bit for
bit.

The run before a capture is a trial, in which it is noted what the work does with its weights. A weight is read from its
copy where only linear layers read it, and, if it gets a gradient, where it is read once. All others are left to
autocast: tied weights, weights that a method edits or asks for, layers that are called twice, quantised weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LINEAR_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (nn.functional.linear, torch.addmm)  # addmm: GPT-2's Conv1D

# What may be asked of a weight beside that: its description, and whether it requires a gradient.
_DESCRIPTIONS = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in ("dtype", "device", "shape", "ndim", "is_cuda", "is_leaf")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
        *(Tensor.requires_grad.__get__, Tensor.requires_grad.__set__, Tensor.requires_grad_),  # type: ignore[attr-defined]
    ]
)

# The copies of all graphs that share their memory. They live as long as a graph that reads them, and take two bytes for
# each weight, as those of autocast.
Copies = WeakValueDictionary[tuple[nn.Parameter, torch.dtype], Tensor]


class Trial(TorchFunctionMode):
    """To be entered for the run before a capture. Notes what the work inside does with its weights.

    Linear layers read from copies already, so that those of autocast take no memory beside them.

    Args:
        copies: the copies that there are; new ones are added.
    """

    def __init__(self, copies: Copies) -> None:
        super().__init__()
        self._copies = copies
        self._dtype: torch.dtype | None = None  # of all copies in this work
        self._read: dict[nn.Parameter, Tensor] = {}  # from copies
        self._used_otherwise: set[nn.Parameter] = set()
        self._uses: Counter[nn.Parameter] = Counter()
        self._backwards: Counter[nn.Parameter] = Counter()  # how often a gradient of the weight has arrived

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR_FUNCTIONS:
            is_kept = _keeps_weights([*args, *kwargs.values()])
            args, kwargs = _replaced(lambda weight: self._copy_of(weight, is_kept), args, kwargs)
        elif func not in _DESCRIPTIONS:
            self._used_otherwise.update(_parameters_in((args, kwargs)))
        return func(*args, **kwargs)

    def _copy_of(self, weight: nn.Parameter, is_kept: bool) -> Tensor:
        """What a linear layer reads instead of the weight; the weight itself where there is no copy of it.

        Args:
            weight: the weight.
            is_kept: whether autocast's own copy would stay in memory until the backward.
        """
        dtype = _dtype_of_copy(weight)
        self._dtype = self._dtype or dtype
        if dtype is None or dtype != self._dtype:
            self._used_otherwise.add(weight)
            return weight
        self._uses[weight] += 1
        copy = self._copies.get((weight, dtype))
        if copy is None:
            if not is_kept:
                return weight
            copy = self._copies[weight, dtype] = torch.empty_like(weight, dtype=dtype, requires_grad=True)
        if weight not in self._read:
            with torch.no_grad():
                copy.copy_(weight)
            self._read[weight] = copy
        if not weight.requires_grad:
            return copy.detach()
        found: Tensor = _Copied.apply(weight, copy.detach, self._backwards)
        return found

    def usable(self, trained: Iterable[nn.Parameter]) -> LinearCopies:
        """The copies from which the linear layers of this work can read.

        Args:
            trained: the weights whose gradients are taken after the work.
        """
        trained = set(trained)
        return LinearCopies(
            {
                weight: copy
                for weight, copy in self._read.items()
                if weight not in self._used_otherwise
                and (not self._backwards[weight] or (weight in trained and self._has_one_gradient(weight)))
            }
        )

    def _has_one_gradient(self, weight: nn.Parameter) -> bool:
        """Where there are several, autocast may add them up in float32, and a copy would in half precision."""
        return self._uses[weight] == self._backwards[weight] == 1


class _Copied(torch.autograd.Function):
    """The copy of a weight, with autocast's way for gradients: each is converted and goes to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: nn.Parameter, copy: Callable[[], Tensor], backwards: Counter[nn.Parameter]) -> Tensor:
        ctx.weight, ctx.backwards = weight, backwards
        return copy()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.backwards[ctx.weight] += 1
        return gradient.to(ctx.weight.dtype), None, None


class LinearCopies(TorchFunctionMode):
    """Inside, linear layers read from copies of their weights, which are made when it is entered.

    The gradients of the copies are taken with `take_gradients`.

    Args:
        copies: the copy of each weight, all in one precision.
    """

    def __init__(self, copies: Mapping[nn.Parameter, Tensor]) -> None:
        super().__init__()
        self._copies = copies

    def __enter__(self) -> Any:
        self.fill()
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self.take_gradients()
        super().__exit__(kind, error, traceback)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR_FUNCTIONS:
            args, kwargs = _replaced(self._copy_of, args, kwargs)
        return func(*args, **kwargs)

    def _copy_of(self, weight: nn.Parameter) -> Tensor:
        copy = self._copies.get(weight)
        if copy is None:
            return weight
        return copy if weight.requires_grad else copy.detach()

    @torch.no_grad()
    def fill(self) -> None:
        """Makes the copies."""
        if self._copies:
            torch._foreach_copy_(list(self._copies.values()), list(self._copies))

    @torch.no_grad()
    def load_kernels(self) -> None:
        """CUDA loads a kernel on its first call, which is not allowed during a capture."""
        self.fill()
        for weight, copy in list(self._copies.items())[:1]:
            torch._foreach_copy_([weight.new_zeros(1)], [copy.new_zeros(1)])

    def take_gradients(self) -> dict[nn.Parameter, Tensor]:
        """The gradients that the work has left, in half precision. The copies have none afterwards."""
        found = {weight: copy.grad for weight, copy in self._copies.items() if copy.grad is not None}
        for copy in self._copies.values():
            copy.grad = None
        return found


def write_gradients(into: Mapping[nn.Parameter, Tensor], new: Mapping[nn.Parameter, Tensor], adds: bool) -> None:
    """Copies or adds gradients into tensors that stay at their addresses, with few kernels.

    Args:
        into: these tensors.
        new: the gradients, all in one precision, maybe in another than the tensors.
        adds: whether they are added.
    """
    targets, gradients = [into[parameter] for parameter in new], list(new.values())
    if not gradients:
        return
    if adds and gradients[0].dtype != targets[0].dtype:
        converted = [torch.empty_like(target) for target in targets]
        torch._foreach_copy_(converted, gradients)
        gradients = converted
    (torch._foreach_add_ if adds else torch._foreach_copy_)(targets, gradients)


def _dtype_of_copy(weight: nn.Parameter) -> torch.dtype | None:
    """The precision to which autocast converts a weight now; None where it does not, or where others depend on it."""
    device = weight.device.type
    if not torch.is_autocast_enabled(device) or weight.dtype != torch.float32 or not weight.is_contiguous():
        return None
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return None
    dtype = torch.get_autocast_dtype(device)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _keeps_weights(values: Iterable[Any]) -> bool:
    """Whether a linear layer with these arguments saves its weight for the backward.

    Without a gradient it does not, and nor does it under gradient checkpointing: there autocast's copies are freed one
    after the other, and copies of ours would take memory beside them.
    """
    if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return False
    return any(value.requires_grad for value in values if isinstance(value, Tensor))


def _replaced(copy_of: Callable[[nn.Parameter], Tensor], args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments of a function with copies in place of weights. Subclasses of parameters are left as they are."""

    def one(value: Any) -> Any:
        return copy_of(value) if type(value) is nn.Parameter else value

    return tuple(one(value) for value in args), {name: one(value) for name, value in kwargs.items()}


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    """The parameters among arguments and in the containers that they hold."""
    if type(value) is nn.Parameter:
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _parameters_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _parameters_in(part)
