"""`progress.json`: what a study is running now."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from .schema import Stored


@dataclass(kw_only=True)
class RunningRun:
    """A run that is running: what its record will begin with, and what its worker reported last.

    Attributes:
        id: The id of the run, see `RunSpec.id`.
        method: Its contender.
        task: Its task.
        size: How much it is trained on.
        seed: Its seed.
        since: The time of its start in seconds.
        worker: The worker that runs it.
        epoch: The epoch of its last evaluation.
        epochs: The number of its epochs.
        score: The score of its last evaluation.
    """

    id: str
    method: str
    task: str
    size: str
    seed: int
    since: float
    worker: str = ""
    epoch: float | None = None
    epochs: float | None = None
    score: float | None = None

    def __post_init__(self) -> None:
        if not isfinite(self.since):
            raise ValueError(f"'since' is {self.since!r}; it must be a finite number")


REPORTED = frozenset({"worker", "epoch", "epochs", "score"})  # what a worker reports while it trains


@dataclass(kw_only=True)
class Progress(Stored):
    """What a study is running now.

    Attributes:
        pid: The process of its driver; None at its end.
        host: The machine of the driver.
        updated: The time of the last change in seconds.
        total: The total number of runs; None if not known yet.
        running: The current runs.
    """

    pid: int | None = None
    host: str = ""
    updated: float = 0.0
    total: int | None = None
    running: list[RunningRun] = field(default_factory=list)
