"""What all executors with several workers share: who gets which run, and what happens when a worker is lost."""

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

# What a worker tells: a dictionary with one of the keys "ready", "progress", "record" and "lost".
Message = dict[str, Any]

_START = 120.0  # seconds that a worker may take at least to start: it imports large libraries
_MOST_FAILED_STARTS = 5  # in a row, after which the study ends


@dataclass
class Job:
    """A run that some worker has, had or will get.

    Args:
        spec: The run.
        losses: Why workers were lost while they ran it.
        started: When it was handed out last.
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
        self.heard = time.monotonic()  # when it last told something, or got a run

    @abstractmethod
    def submit(self, spec: RunSpec) -> None:
        """Gives the worker a run."""

    @abstractmethod
    def answer(self, stop: bool) -> None:
        """Answers a report of progress, for which the worker waits."""

    @abstractmethod
    def end(self) -> None:
        """Ends the worker at once."""


class _Source:
    """The runs that are not handed out yet."""

    def __init__(self, next_spec: NextSpec) -> None:
        self.next_spec = next_spec
        self.waiting: deque[Job] = deque()
        self.is_dry = False  # there was nothing; asked again after the next result

    def has(self, count: int) -> bool:
        """Whether this number of runs is waiting; asks for more if it is not."""
        while len(self.waiting) < count and not self.is_dry:
            spec = self.next_spec()
            if spec is None:
                self.is_dry = True
            else:
                self.waiting.append(Job(spec))
        return len(self.waiting) >= count


class Pool(ABC):
    """Hands out runs to workers, which are started when there is work for them. A lost worker takes its run only.

    Args:
        attempts: How many workers a run may lose. It has then failed.
        patience: Seconds without a sign of progress after which a worker is ended and its run has failed; None = a
            worker may take any time.
    """

    def __init__(self, attempts: int, patience: float | None) -> None:
        self.attempts, self.patience = attempts, patience
        self.events: queue.Queue[tuple[WorkerHandle, Message]] = queue.Queue()
        self.handles: list[WorkerHandle] = []
        self._failed_starts = 0  # in a row

    @abstractmethod
    def may_start(self) -> bool:
        """Whether there is room for one more worker."""

    @abstractmethod
    def start(self) -> WorkerHandle:
        """Starts a worker."""

    def may_stay(self, worker: WorkerHandle, message: Message) -> bool:
        """Whether a worker whose run has ended may get another one. Called with the message that told the end."""
        return True

    @abstractmethod
    def lost_memory(self, worker: WorkerHandle) -> None:
        """Called when a worker has ended because memory was full, as it seems, or could not be started."""

    def results(self, next_spec: NextSpec, on_progress: OnProgress | None = None) -> Iterator[StudyRecord]:
        source = _Source(next_spec)
        try:
            while True:
                self._hand_out(source)
                if not source.waiting and all(worker.job is None for worker in self.handles):
                    return
                worker, message = self._next_event()
                if worker not in self.handles:
                    continue  # ended in the meantime
                record = self._handle(worker, message, source, on_progress)
                if record is not None:
                    source.is_dry = False
                    yield record
        finally:
            for worker in [worker for worker in self.handles if worker.job is not None]:
                self._end(worker)  # nobody waits for its run any more

    def close(self) -> None:
        for worker in list(self.handles):
            self._end(worker)

    def _next_event(self) -> tuple[WorkerHandle, Message]:
        """Waits for what a worker tells next, or for the first worker that tells nothing for too long."""
        if self.patience is None:
            return self.events.get()
        while True:
            # What was told while nobody asked for events comes first.
            if self.events.empty() and (silent := self._silent_worker(self.patience)) is not None:
                span = f"{self.patience / 60:.3g} minutes"
                return silent, {"lost": f"the worker showed no progress for {span} and was ended", "hung": True}
            with suppress(queue.Empty):
                return self.events.get(timeout=self.patience / 10)

    def _silent_worker(self, patience: float) -> WorkerHandle | None:
        """A worker that starts or runs something, and has told nothing for longer than this number of seconds."""
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
        """Reacts to what a worker tells. Returns the record of a run that has ended."""
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
        if message.get("hung"):  # once more would take as long
            return failed_record(job.spec, "WorkerHung", reason, started=job.started, worker=worker.name)
        if self._again(job, reason, source):
            return None
        text = f"{reason}; it was tried {len(job.losses)} times"
        return failed_record(job.spec, "WorkerLost", text, started=job.started, worker=worker.name)

    def _lost_idle(self, worker: WorkerHandle, reason: str) -> None:
        """A worker without a run is replaced when there is work. One that did not even start may be one too many."""
        if worker.is_ready:
            return
        self._failed_starts += 1
        if not self.handles or self._failed_starts > _MOST_FAILED_STARTS:
            raise UserError(f"no worker could be started: {reason}.")
        self.lost_memory(worker)

    def _again(self, job: Job, reason: str, source: _Source) -> bool:
        """Puts a run that lost its worker before all others, if it may be tried again."""
        job.losses.append(reason)
        if len(job.losses) < self.attempts:
            source.waiting.appendleft(job)
        return len(job.losses) < self.attempts

    def _end(self, worker: WorkerHandle) -> None:
        self.handles.remove(worker)
        worker.end()
