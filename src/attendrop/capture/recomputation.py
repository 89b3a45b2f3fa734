"""Ordinary dropout in blocks that gradient checkpointing runs again in the backward, inside of a graph.

The second forward of a block must draw what the first drew. Outside of graphs, checkpointing reads the state of the
generator before the first, which a capture cannot. Here the second forward has its own generator state. Before each
replay it gets the seed and the offset at which the first will draw: the current offset plus the numbers that earlier
blocks draw, which the run before the capture has counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ..random import advancing, cuda_generator
from .forward_patches import Contexts


class RecomputedDraws:
    """The states of the generator for the second forwards in a graph.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._offsets: list[int] = []  # of each first forward, from the beginning of the work
        self._states: list[Any] = []
        self._start = self._next = 0

    @property
    def _generator(self) -> Any:
        return cuda_generator(self._device)

    def _offset(self) -> int:
        """Return how many numbers have been drawn. The state is a seed and this offset, 8 bytes each."""
        return int(self._generator.get_state().view(torch.int64)[1])

    @contextmanager
    def counting(self) -> Iterator[Contexts]:
        """Enter this for the run before the capture; yields the contexts of its blocks, for `capturable`."""
        self._start = self._offset()
        with advancing():
            yield self._of_eager_run

    def capturing(self) -> Contexts:
        """Return the contexts of the blocks of the run that is captured, for `capturable`."""
        self._next = 0
        return self._of_captured_run

    def register(self, graph: Any) -> None:
        """Create the states for a graph that will be captured."""
        self._states = [self._generator.clone_state() for _ in self._offsets]
        for state in self._states:
            graph.register_generator_state(state)

    def prepare_replay(self) -> None:
        """Call this before each replay."""
        if self._states:
            now = self._generator.get_state()
            seed_and_offset = now.view(torch.int64)
            start = int(seed_and_offset[1])
            for state, offset in zip(self._states, self._offsets, strict=True):
                seed_and_offset[1] = start + offset
                state.set_state(now)

    def _of_eager_run(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of the two forwards of a block."""
        self._offsets.append(self._offset() - self._start)
        return nullcontext(), self._from(self._generator.clone_state())

    def _of_captured_run(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        self._next += 1
        return nullcontext(), self._from(self._states[self._next - 1])

    @contextmanager
    def _from(self, state: Any) -> Iterator[None]:
        """Give the global generator this state for the block."""
        before = self._generator.graphsafe_get_state()
        self._generator.graphsafe_set_state(state)
        try:
            yield
        finally:
            self._generator.graphsafe_set_state(before)
