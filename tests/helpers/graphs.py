"""Graphs without a GPU: a replay calls the function again and writes into the outputs of the first call.

Everything but the capture itself is that of `attendrop.capture.graphs`. What a replay returns is overwritten by the
next one, as with CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attendrop.capture.graphs import Graphs, _Graph


class _Replay:
    def __init__(self, function: Callable[[], Any], outputs: Any) -> None:
        self._function, self._outputs = function, outputs

    def replay(self) -> None:
        for into, new in zip(tree_leaves(self._outputs), tree_leaves(self._function()), strict=True):
            if isinstance(into, Tensor) and into is not new:
                into.copy_(new)


class PythonGraphs(Graphs):
    """Graphs that replay in Python."""

    recorded = 0  # of all objects, in a test

    def _try_to_capture(
        self, function: Callable[[], Any], network: nn.Module | None, adds: bool, warm_up: bool
    ) -> _Graph | None:
        type(self).recorded += 1
        outputs = function()
        return _Graph(_Replay(function, outputs), outputs)
