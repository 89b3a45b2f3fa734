"""The peak of the bytes that tensors take while a function runs, and its matrix products: ratios without a clock."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry


class Work(TorchDispatchMode):
    """What runs inside: the peak of the bytes of its tensors, and the operations of its matrix products.

    PyTorch's own counter of operations does not work with gradients to leaves (`torch.autograd.grad`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.flops = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage() for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        for x in tree_iter(result):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                if storage not in given and storage not in self._known:
                    self._known.add(storage)
                    self._count(storage.nbytes())
                    weakref.finalize(storage, self._count, -storage.nbytes())
        return result

    def _count(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)


def work_of(function: Callable[[], Any]) -> Work:
    """The work that `function` does."""
    with Work() as work:
        function()
    return work
