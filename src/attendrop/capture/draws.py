"""The keys of local draws in device memory, where a captured plan reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..core.step import MicroBatch
from ..kernels.draws.reference import signed
from .errors import NotCaptured

_SLOTS = 4096  # the number of keys that one run may use


class DrawKeys:
    """A table on the device: the first position of the micro-batch, and one key for each (site, stream)."""

    def __init__(self, device: torch.device) -> None:
        self._table = torch.zeros(_SLOTS, dtype=torch.int32, device=device)
        self._slots: dict[tuple[int, str], int] = {}
        self._batch: MicroBatch | None = None
        self._written: tuple[int, int, int] | None = None

    def key(self, site: int, stream: str) -> Tensor:
        """The key, an int32 of no dimensions. A key that is new gets a slot of the table."""
        slot = self._slots.get((site, stream))
        if slot is None:
            slot = self._slots[site, stream] = 1 + len(self._slots)
            if slot == _SLOTS:
                raise NotCaptured(f"it draws for more than {_SLOTS} sites")
            if self._batch is not None and not (self._table.is_cuda and torch.cuda.is_current_stream_capturing()):
                self._table[slot].fill_(signed(int(self._batch.key(site, stream))))
        return self._table[slot]

    def first_position(self) -> Tensor:
        """The position of the micro-batch's first example in the global batch."""
        return self._table[0]

    def forget(self) -> None:
        """Writes all keys again before the next replay: another run begins, whose steps have the same numbers."""
        self._batch = self._written = None

    def write(self, batch: MicroBatch) -> None:
        """Updates the table before a replay: every key becomes that of `batch`, and so do keys added later."""
        self._batch = batch
        now = (batch.step.progress.step, batch.first_position, len(self._slots))
        if now == self._written:
            return
        keys = (batch.key(site, stream) for site, stream in self._slots)
        words = torch.tensor([batch.first_position, *(signed(int(key)) for key in keys)], dtype=torch.int32)
        if self._table.is_cuda:
            words = words.pin_memory()
        self._table[: len(words)].copy_(words, non_blocking=True)
        self._written = now


@dataclass(frozen=True)
class StaticMicroBatch(MicroBatch):
    """A micro-batch for a plan that is captured: its draws read their keys from device memory, and it logs nothing."""

    draw_keys: DrawKeys | None = None

    @classmethod
    def of(cls, batch: MicroBatch, draw_keys: DrawKeys) -> StaticMicroBatch:
        values = {f.name: getattr(batch, f.name) for f in fields(MicroBatch)}
        values["step"] = replace(batch.step, measure=False, metrics={})
        return cls(**values, draw_keys=draw_keys)

    def key(self, site: int, stream: str) -> Tensor:
        assert self.draw_keys is not None
        return self.draw_keys.key(site, stream)

    def keys(self, sites: Sequence[int], stream: str, device: torch.device) -> Tensor:
        return torch.stack([self.key(site, stream) for site in sites]).unsqueeze(1)

    def positions(self, rows: int, device: torch.device) -> Tensor:
        assert self.draw_keys is not None
        return self.draw_keys.first_position() * (rows // self.size) + torch.arange(rows, device=device)
