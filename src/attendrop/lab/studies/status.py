"""The progress of a study: finished, running, failed and remaining runs, and the remaining time."""

from __future__ import annotations

import calendar
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..records import Progress, RunningRun, StudyRecord
from .configuration import STUDY_FILE as STUDY_FILE
from .configuration import read_configuration
from .records import read_records

PROGRESS_FILE = "progress.json"
_STALE = 60.0  # seconds after which the driver on another machine counts as gone; it writes every few seconds
_RECENT = 30  # latest runs that are used to estimate the duration of the next ones


@dataclass
class Status:
    """The progress of a study.

    Attributes:
        folder: The folder of the study.
        kind: "compare" or "tune".
        total: The total number of runs; None if not known yet.
        records: The records of all runs that have ended.
        running: The current runs.
        is_active: Whether a driver is running.
        broken: One sentence for each record that is none, and for progress that cannot be read.
    """

    folder: Path
    kind: str
    total: int | None
    records: Mapping[str, StudyRecord]
    running: Sequence[RunningRun]
    is_active: bool
    broken: Sequence[str] = field(default_factory=list)

    def of(self, status: str) -> list[StudyRecord]:
        """Return the records of the runs that ended with this status, in the order of their ends."""
        records = [record for record in self.records.values() if record.status == status]
        return sorted(records, key=lambda record: record.ended)

    @property
    def done(self) -> int:
        """How many runs have a result."""
        return len(self.records) - len(self.of("failed"))

    @property
    def left(self) -> int | None:
        """How many runs have not been started."""
        if self.total is None:
            return None
        return max(0, self.total - len({*self.records, *(run.id for run in self.running)}))

    @property
    def eta(self) -> float | None:
        """Seconds until the end, from the durations of the last runs; None if they are not known or nothing runs."""
        durations = [seconds for record in self.of("finished")[-_RECENT:] if (seconds := duration(record)) is not None]
        if self.left is None or not durations or not self.running:
            return None
        mean, now = sum(durations) / len(durations), time.time()
        remaining = self.left * mean + sum(max(0.0, mean - (now - run.since)) for run in self.running)
        return remaining / len(self.running)


class Watcher:
    """Observes a running study. The methods do nothing; override those that you need."""

    def watching(self, status: Callable[[], Status]) -> AbstractContextManager[Any]:
        """Entered when the study begins. `status` may be called at any time, by any thread."""
        return nullcontext()

    def note(self, text: str) -> None:
        """Show a sentence to the user."""

    def ended(self, record: StudyRecord, status: Status) -> None:
        """Handle the record of a run that has ended."""


def duration(record: StudyRecord) -> float | None:
    """Return how many seconds a run took, everything included."""
    try:
        begin, end = (time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ") for moment in (record.started, record.ended))
    except ValueError:
        return None
    return float(calendar.timegm(end) - calendar.timegm(begin))


def read_status(folder: str | Path) -> Status:
    """Read the progress of a study, while its driver runs or afterwards.

    Args:
        folder: The folder of the study.

    Raises:
        UserError: The folder has no study.
    """
    folder = Path(folder)
    study = read_configuration(folder)
    broken: list[str] = []
    records = read_records(folder, broken.append)
    progress = Progress()
    if (path := folder / PROGRESS_FILE).exists():
        try:
            progress = Progress.read(path, "it is written again when the study continues")
        except UserError as error:
            broken.append(str(error))
    is_active = _is_alive(progress)
    running = progress.running if is_active else []
    return Status(folder, study.kind, progress.total, records, running, is_active, broken)


def _is_alive(progress: Progress) -> bool:
    """Return whether the driver that wrote the progress is still running."""
    if not progress.pid:
        return False
    if progress.host != socket.gethostname():
        return time.time() - progress.updated < _STALE
    try:
        os.kill(progress.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it belongs to another user
    return True
