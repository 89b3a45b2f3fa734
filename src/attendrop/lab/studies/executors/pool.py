"""The part that all executors with several workers share: it assigns runs to workers and handles lost workers."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ....errors import UserError
from ...records import StudyRecord
from ..records import failed_record, now
from ..spec import RunSpec
from . import NextSpec, OnProgress

# A worker message: a dictionary with one of the keys "ready", "progress", "record" and "lost".
Message = dict[str, Any]

_START = 120.0  # seconds that a worker may take at least to start: it imports large libraries
_MOST_FAILED_STARTS = 5  # in a row, after which the study ends


@dataclass
class Job:
    """A run and its attempts.

    Args:
        spec: The run.
        losses: The reasons why workers were lost while they ran it.
        started: The time when it was last assigned.
    """

    spec: RunSpec
    losses: list[str] = field(default_factory=list)
    started: str = ""


class WorkerHandle(ABC):
    """A worker as the executor sees it. Worker messages go to the queue `events`, with this handle.

    Args:
        events: The queue.
    """

    def __init__(self, events: queue.Queue[tuple[WorkerHandle, Message]]) -> None:
        self.events = events
        self.name = "a worker"
        self.job: Job | None = None
        self.is_ready = False
        self.heard = time.monotonic()  # time of its last message or of its last run

    @abstractmethod
    def submit(self, spec: RunSpec) -> None:
        """Send a run to the worker."""

    @abstractmethod
    def answer(self, stop: bool) -> None:
        """Answer a progress report; the worker waits for the answer."""

    @abstractmethod
    def end(self) -> None:
        """Kill the worker."""


class _Source:
    """The queue of runs that are not assigned yet."""

    def __init__(self, next_spec: NextSpec) -> None:
        self.next_spec = next_spec
        self.waiting: deque[Job] = deque()
        self.is_dry = False  # it had no run; polled again after the next result

    def has(self, count: int) -> bool:
        """Return whether at least `count` runs are waiting; fetches more if needed."""
        while len(self.waiting) < count and not self.is_dry:
            spec = self.next_spec()
            if spec is None:
                self.is_dry = True
            else:
                self.waiting.append(Job(spec))
        return len(self.waiting) >= count


class Pool(ABC):
    """Assigns runs to workers and starts workers on demand. Losing a worker affects only its current run.

    Args:
        attempts: The number of workers that a run may lose before it fails.
        patience: A worker that is silent for this number of seconds is killed, and its run fails; None = no limit.
    """

    def __init__(self, attempts: int, patience: float | None) -> None:
        self.attempts, self.patience = attempts, patience
        self.events: queue.Queue[tuple[WorkerHandle, Message]] = queue.Queue()
        self.handles: list[WorkerHandle] = []
        self._failed_starts = 0  # in a row

    @abstractmethod
    def may_start(self) -> bool:
        """Return whether one more worker fits."""

    @abstractmethod
    def start(self) -> WorkerHandle:
        """Start a worker."""

    def may_stay(self, worker: WorkerHandle, message: Message) -> bool:
        """Return whether a worker may get another run. Called with the message that ended its last one."""
        return True

    @abstractmethod
    def lost_memory(self, worker: WorkerHandle) -> None:
        """Note that a worker probably ran out of memory, or failed to start."""

    def results(self, next_spec: NextSpec, on_progress: OnProgress | None = None) -> Iterator[StudyRecord]:
        source = _Source(next_spec)
        try:
            while True:
                self._hand_out(source)
                if not source.waiting and all(worker.job is None for worker in self.handles):
                    return
                worker, message = self._next_event()
                if worker not in self.handles:
                    continue  # it was killed in the meantime
                record = self._handle(worker, message, source, on_progress)
                if record is not None:
                    source.is_dry = False
                    yield record
        finally:
            for worker in [worker for worker in self.handles if worker.job is not None]:
                self._end(worker)  # its result is no longer needed

    def close(self) -> None:
        for worker in list(self.handles):
            self._end(worker)

    def _next_event(self) -> tuple[WorkerHandle, Message]:
        """Wait for the next worker message, or for the first worker that exceeds the timeout."""
        if self.patience is None:
            return self.events.get()
        while True:
            # Messages that are already queued come first.
            if self.events.empty() and (silent := self._silent_worker(self.patience)) is not None:
                span = f"{self.patience / 60:.3g} minutes"
                return silent, {"lost": f"the worker showed no progress for {span} and was killed", "hung": True}
            with suppress(queue.Empty):
                return self.events.get(timeout=self.patience / 10)

    def _silent_worker(self, patience: float) -> WorkerHandle | None:
        """Return a starting or busy worker whose last message is older than the timeout; None if there is none."""
        for worker in self.handles:
            limit = patience if worker.is_ready else max(patience, _START)
            if (worker.job is not None or not worker.is_ready) and time.monotonic() - worker.heard > limit:
                return worker
        return None

    def _hand_out(self, source: _Source) -> None:
        for worker in self.handles:
            if worker.is_ready and worker.job is None and source.has(1):
                worker.job = source.waiting.popleft()
                worker.job.started, worker.heard = now(), time.monotonic()
                worker.submit(worker.job.spec)
        while self.may_start() and source.has(1 + sum(not worker.is_ready for worker in self.handles)):
            self.handles.append(self.start())

    def _handle(
        self, worker: WorkerHandle, message: Message, source: _Source, on_progress: OnProgress | None
    ) -> StudyRecord | None:
        """Process a worker message. Returns the record if a run has ended."""
        worker.heard = time.monotonic()
        if "ready" in message:
            worker.name, worker.is_ready, self._failed_starts = message["ready"], True, 0
        elif "progress" in message:
            report = {**message["progress"], "worker": worker.name}
            worker.answer(on_progress is not None and bool(on_progress(report)))
        elif "record" in message:
            return self._ended(worker, message, source)
        elif "lost" in message:
            return self._lost(worker, message, source)
        return None

    def _ended(self, worker: WorkerHandle, message: Message, source: _Source) -> StudyRecord | None:
        job, worker.job = worker.job, None
        assert job is not None
        record = StudyRecord.from_json(message["record"])
        record.lost_workers = job.losses
        if not message.get("fatal"):
            if not self.may_stay(worker, message):
                self._end(worker)
            return record
        self._end(worker)
        if "memory" in record.message.lower():
            self.lost_memory(worker)
        return None if self._again(job, record.message, source) else record

    def _lost(self, worker: WorkerHandle, message: Message, source: _Source) -> StudyRecord | None:
        self._end(worker)
        job, worker.job = worker.job, None
        reason: str = message["lost"]
        if job is None:
            self._lost_idle(worker, reason)
            return None
        if message.get("memory_full"):
            self.lost_memory(worker)
        if message.get("hung"):  # a retry would probably hang as well
            return failed_record(job.spec, "WorkerHung", reason, started=job.started, worker=worker.name)
        if self._again(job, reason, source):
            return None
        text = f"{reason}; it was tried {len(job.losses)} times"
        return failed_record(job.spec, "WorkerLost", text, started=job.started, worker=worker.name)

    def _lost_idle(self, worker: WorkerHandle, reason: str) -> None:
        """Handle a lost worker without a run. One that failed to start may have exceeded the memory."""
        if worker.is_ready:
            return
        self._failed_starts += 1
        if not self.handles or self._failed_starts > _MOST_FAILED_STARTS:
            raise UserError(f"no worker could be started: {reason}.")
        self.lost_memory(worker)

    def _again(self, job: Job, reason: str, source: _Source) -> bool:
        """Put a run that lost its worker at the front of the queue, if it has attempts left."""
        job.losses.append(reason)
        if len(job.losses) < self.attempts:
            source.waiting.appendleft(job)
        return len(job.losses) < self.attempts

    def _end(self, worker: WorkerHandle) -> None:
        self.handles.remove(worker)
        worker.end()
