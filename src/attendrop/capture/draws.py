"""Values that Python computes in each step, in device memory for captured work: keys of draws, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from ..core.step import MicroBatch, Step
from ..kernels.draws.reference import signed
from ..model.probe import Probe
from ..random import key_of, keys_of
from .errors import NotCaptured

_SLOTS = 4096  # the number of keys that one run may use
_NUMBERS = 1 << 16  # how many numbers


class DrawKeys:
    """Two tables on the device.

    The keys: the first position of the micro-batch, and one key for each (site, stream). The numbers: those that
    methods compute in Python (`Step.number`, `Step.values`).
    """

    def __init__(self, device: torch.device) -> None:
        self._table = torch.zeros(_SLOTS, dtype=torch.int32, device=device)
        self._numbers = torch.zeros(_NUMBERS, dtype=torch.float64, device=device)
        self._slots: dict[tuple[int, str], int] = {}
        self._functions: dict[Hashable, Callable[[Step], Tensor]] = {}
        self._places: dict[Hashable, tuple[slice, torch.Size]] = {}
        self._first_position = 0
        self._step: Step | None = None
        self._written: tuple[int, ...] | None = None

    def key(self, site: int, stream: str) -> Tensor:
        """Return the key, a 0-d int32 tensor. A key that is new gets a slot of the table."""
        slot = self._slots.get((site, stream))
        if slot is None:
            slot = self._slots[site, stream] = 1 + len(self._slots)
            if slot == _SLOTS:
                raise NotCaptured(f"it draws for more than {_SLOTS} sites")
            if self._step is not None and not self._is_capturing:
                self._table[slot].fill_(signed(self._key_now(site, stream)))
        return self._table[slot]

    def values(self, name: Hashable, function: Callable[[Step], Tensor]) -> Tensor:
        """Return the result of `function` for the current step, in float64.

        A name that is new gets a place in the table.
        """
        if name not in self._places:
            assert self._step is not None, "numbers are read while a step runs"
            result = function(self._step)
            start = sum(size.numel() for _, size in self._places.values())
            if start + result.numel() > _NUMBERS:
                raise NotCaptured(f"its methods compute more than {_NUMBERS} numbers in Python")
            self._places[name] = slice(start, start + result.numel()), result.shape
            self._functions[name] = function
            if not self._is_capturing:
                self._numbers[self._places[name][0]].copy_(result.flatten())
        place, shape = self._places[name]
        return self._numbers[place].view(shape)

    def first_position(self) -> Tensor:
        """Return the position of the micro-batch's first example in the global batch."""
        return self._table[0]

    def forget(self) -> None:
        """Write everything again before the next replay: another run begins, whose steps have the same numbers."""
        self._step = self._written = None

    def write(self, work: MicroBatch | Step) -> None:
        """Update the tables before a replay: all keys and numbers become those of this micro-batch or step."""
        if isinstance(work, MicroBatch):
            self._first_position = work.first_position
        step = self._step = work.step if isinstance(work, MicroBatch) else work
        now = (step.seed, step.progress.step, self._first_position, len(self._slots), len(self._places))
        if now == self._written:
            return
        sites, streams = [site for site, _ in self._slots], [stream for _, stream in self._slots]
        words = np.empty(1 + len(sites), dtype=np.int32)
        words[0], words[1:] = self._first_position, keys_of(step.seed, step.progress.step, sites, streams)
        self._copy(torch.from_numpy(words), self._table)
        if self._functions:
            numbers = [function(step).flatten().double() for function in self._functions.values()]
            self._copy(torch.cat(numbers), self._numbers)
        self._written = now

    def _copy(self, new: Tensor, table: Tensor) -> None:
        if table.is_cuda:
            new = new.pin_memory()
        table[: len(new)].copy_(new, non_blocking=True)

    def _key_now(self, site: int, stream: str) -> int:
        assert self._step is not None
        return key_of(self._step.seed, self._step.progress.step, site, stream)

    @property
    def _is_capturing(self) -> bool:
        return self._table.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass
class StaticStep(Step):
    """A step for work that is captured: it reads keys and numbers from device memory, and logs nothing."""

    draw_keys: DrawKeys | None = None

    @classmethod
    def of(cls, step: Step, draw_keys: DrawKeys) -> StaticStep:
        values = {f.name: getattr(step, f.name) for f in fields(Step)} | {"measure": False, "metrics": {}}
        return cls(**values, draw_keys=draw_keys)

    def key(self, site: int, stream: str) -> Tensor:
        assert self.draw_keys is not None
        return self.draw_keys.key(site, stream)

    def keys(self, sites: Sequence[int], stream: str, device: torch.device) -> Tensor:
        return torch.stack([self.key(site, stream) for site in sites]).unsqueeze(1)

    @property
    def is_captured(self) -> bool:
        return True

    def number(self, name: Hashable, function: Callable[[Step], float], dtype: torch.dtype = torch.float32) -> Tensor:
        assert self.draw_keys is not None
        return self.draw_keys.values(name, lambda step: torch.tensor(function(step), dtype=torch.float64)).to(dtype)

    def values(self, name: Hashable, function: Callable[[Step], Tensor]) -> Tensor:
        assert self.draw_keys is not None
        return self.draw_keys.values(name, function).float()


@dataclass(frozen=True)
class StaticMicroBatch(MicroBatch):
    """A micro-batch for work that is captured: its draws read their keys and positions from device memory.

    Args:
        may_probe: whether it is for a graph of the plan alone, after which the random state is restored.
    """

    may_probe: bool = False

    @classmethod
    def of(cls, batch: MicroBatch, draw_keys: DrawKeys) -> StaticMicroBatch:
        values = {f.name: getattr(batch, f.name) for f in fields(MicroBatch)}
        return cls(**values | {"step": StaticStep.of(batch.step, draw_keys)})

    def probe(self) -> Probe:
        if not self.may_probe:
            raise NotCaptured("a method probes the model in a step in which its `probes` is False")
        return super().probe()

    def positions(self, rows: int, device: torch.device) -> Tensor:
        assert isinstance(self.step, StaticStep)
        assert self.step.draw_keys is not None
        return self.step.draw_keys.first_position() * (rows // self.size) + torch.arange(rows, device=device)
