"""Executes runs sequentially in the current process, for debugging and notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...records import StudyRecord
from ..records import worker_name
from . import NextSpec, OnProgress
from .host import load_worker, run_spec


class InlineExecutor:
    """See `make_executor(workers=0)`.

    Args:
        device: The device of the worker.
        make_worker: The import path of the worker class, `module:name`.
    """

    def __init__(self, device: str | None, make_worker: str) -> None:
        self.device, self.make_worker = device, make_worker
        self._worker: Any = None

    def results(self, next_spec: NextSpec, on_progress: OnProgress | None = None) -> Iterator[StudyRecord]:
        name = worker_name(self.device or "main")

        def progress(report: dict[str, Any]) -> bool:
            return on_progress is not None and bool(on_progress({**report, "worker": name}))

        while (spec := next_spec()) is not None:
            if self._worker is None:
                self._worker = load_worker(self.make_worker, self.device)
            yield run_spec(self._worker, spec, progress, name)[0]

    def close(self) -> None:
        self._worker = None
