"""Copies of weights in half precision, from which the linear layers of a captured step read.

Under autocast each linear layer converts its weight and its bias to half precision in the forward, and the backward
converts each of their gradients to float32: hundreds of small kernels in a step. In a graph the layers read copies of
the weights instead. One operation makes all copies when the graph begins, and one writes the gradients of all copies,
converted, to where the optimizer reads them. The numbers are those of autocast, bit for bit. The copies are in the
memory of the graph, as autocast's are, and take two bytes for each weight, as those do.

The run before a capture is a trial that records how the work uses its weights. A weight is read from its
copy where only linear layers read it, and, if it gets a gradient, where it is read once. All others are left to
autocast: tied weights, weights that a method edits or asks for, layers that are called twice, quantised weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

LINEAR_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (nn.functional.linear, torch.addmm)  # addmm: GPT-2's Conv1D

# Reads of a weight that do not count: its description, and whether it requires a gradient.
_DESCRIPTIONS = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in ("dtype", "device", "shape", "ndim", "is_cuda", "is_leaf")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
        *(Tensor.requires_grad.__get__, Tensor.requires_grad.__set__, Tensor.requires_grad_),  # type: ignore[attr-defined]
    ]
)


class Trial(TorchFunctionMode):
    """Enter this for the run before a capture. Records how the work inside uses its weights."""

    def __init__(self) -> None:
        super().__init__()
        self._dtype: torch.dtype | None = None  # to which autocast converts weights
        self._reads: Counter[nn.Parameter] = Counter()  # by linear layers under autocast, with a gradient
        self._kept: set[nn.Parameter] = set()  # whose converted form is in memory until the backward
        self._used_otherwise: set[nn.Parameter] = set()
        self._gradients: Counter[nn.Parameter] = Counter()  # how often one has arrived
        self._watched: dict[nn.Parameter, tuple[Any, Any]] = {}  # where gradients arrive, and what counts them there

    def __exit__(self, *error: Any) -> None:
        for _, hook in self._watched.values():
            hook.remove()
        self._watched.clear()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR_FUNCTIONS:
            is_kept = _keeps_weights([*args, *kwargs.values()])
            for weight in _parameters_in((args, kwargs)):
                self._note_read(weight, is_kept)
        elif func not in _DESCRIPTIONS:
            self._used_otherwise.update(_parameters_in((args, kwargs)))
        return func(*args, **kwargs)

    def _note_read(self, weight: nn.Parameter, is_kept: bool) -> None:
        dtype = _dtype_of_copy(weight)
        self._dtype = self._dtype or dtype
        if dtype is None or dtype != self._dtype:
            self._used_otherwise.add(weight)
            return
        if not torch.is_grad_enabled():
            return
        self._reads[weight] += 1
        if is_kept:
            self._kept.add(weight)
        if weight.requires_grad and weight not in self._watched:
            node: Any = get_gradient_edge(weight).node
            self._watched[weight] = node, node.register_prehook(lambda _: self._gradients.update([weight]))

    def usable(self, trained: Iterable[nn.Parameter]) -> LinearCopies:
        """Return copies from which the linear layers of this work can read.

        Args:
            trained: the weights whose gradients are taken after the work.
        """
        trained = set(trained)
        weights = [
            weight
            for weight in self._reads
            if weight in self._kept
            and weight not in self._used_otherwise
            and (not self._gradients[weight] or (weight in trained and self._has_one_gradient(weight)))
        ]
        return LinearCopies(weights, self._dtype)

    def _has_one_gradient(self, weight: nn.Parameter) -> bool:
        """Where there are several, autocast may add them up in float32, and a copy would in half precision."""
        return self._reads[weight] == self._gradients[weight] == 1


class LinearCopies(TorchFunctionMode):
    """Let linear layers in the block read from copies of their weights, which are made on entry.

    Copies with a gradient exist until it is taken (`take_gradients`).

    Args:
        weights: the weights.
        dtype: the precision of the copies.
    """

    def __init__(self, weights: Sequence[nn.Parameter] = (), dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weights, self._dtype = weights, dtype
        self._copies: dict[nn.Parameter, Tensor] = {}

    def __enter__(self) -> Any:
        if self.weights:
            self._copies = {w: torch.empty_like(w, dtype=self._dtype, requires_grad=True) for w in self.weights}
            with torch.no_grad():
                torch._foreach_copy_(list(self._copies.values()), list(self._copies))
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self._copies = {}
        super().__exit__(kind, error, traceback)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR_FUNCTIONS:
            args = tuple(self._copy_of(value) for value in args)
            kwargs = {name: self._copy_of(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _copy_of(self, value: Any) -> Any:
        if type(value) is not nn.Parameter or value not in self._copies:
            return value
        return self._copies[value] if value.requires_grad else self._copies[value].detach()

    def load_kernels(self) -> None:
        """Load the kernels: CUDA loads one on its first call, which is not allowed during a capture."""
        for weight in self.weights[:1]:
            number, half = [weight.new_zeros(1)], [weight.new_zeros(1, dtype=self._dtype)]
            torch._foreach_copy_(half, number)
            torch._foreach_copy_(number, half)

    def take_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return the gradients that the work has left, in half precision. The copies are freed."""
        gradients = {weight: copy.grad for weight, copy in self._copies.items() if copy.grad is not None}
        self._copies = {}
        return gradients


def write_gradients(into: Mapping[nn.Parameter, Tensor], new: Mapping[nn.Parameter, Tensor], adds: bool) -> None:
    """Copy or add gradients into tensors that stay at their addresses, with few kernels.

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
    """Return the precision to which autocast converts a weight now; None if it does not, or if others depend on it."""
    device = weight.device.type
    if not torch.is_autocast_enabled(device) or weight.dtype != torch.float32 or not weight.is_contiguous():
        return None
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return None
    dtype = torch.get_autocast_dtype(device)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _keeps_weights(values: Iterable[Any]) -> bool:
    """Return whether a linear layer with these arguments saves its weight for the backward.

    Without a gradient it does not, and nor does it under gradient checkpointing: there autocast's copies are freed one
    after the other, and copies of ours would take memory beside them.
    """
    if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return False
    return any(value.requires_grad for value in values if isinstance(value, Tensor))


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    """Yield the parameters among arguments and in their containers; none of a subclass, such as quantised weights."""
    if type(value) is nn.Parameter:
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _parameters_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _parameters_in(part)
