"""Executors for the tests of tuning: one trains in this process, the scores of the other are a function of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attendrop.lab.records import RunError, StudyRecord
from attendrop.lab.studies.records import describe
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.worker import Worker

NextSpec = Callable[[], RunSpec | None]
OnProgress = Callable[[dict[str, Any]], bool]


class WorkerExecutor:
    """Trains every run in this process, one after the other."""

    def __init__(self) -> None:
        self.worker = Worker("cpu")
        self.specs: list[RunSpec] = []

    def results(self, next_spec: NextSpec, on_progress: OnProgress | None = None) -> Iterator[StudyRecord]:
        while (spec := next_spec()) is not None:
            if not spec.only_check:
                self.specs.append(spec)
            yield self.worker.run(spec, on_progress)

    def close(self) -> None:
        pass


class FunctionExecutor:
    """Scores every run with a function instead of training it, so that only the search is tested.

    Args:
        score: The score of a run after its last epoch. A string is the message of a run that fails.
        workers: How many runs are under way at once.
        epochs: How many evaluations a run reports. Scores rise in equal steps.
        greater_is_better: What the records say about the metric.
        loss: The loss of a run; None = the records have none.
        majority: The score of the most frequent answer; None = the records have none.
    """

    def __init__(
        self,
        score: Callable[[RunSpec], float | str],
        workers: int = 1,
        epochs: int = 3,
        greater_is_better: bool = True,
        loss: Callable[[RunSpec], float] | None = None,
        majority: float | None = None,
    ) -> None:
        self.loss, self.majority = loss, majority
        self.score, self.workers, self.epochs, self.greater_is_better = score, workers, epochs, greater_is_better
        self.specs: list[RunSpec] = []

    def results(self, next_spec: NextSpec, on_progress: OnProgress | None = None) -> Iterator[StudyRecord]:
        running: deque[RunSpec] = deque()
        while True:
            while len(running) < self.workers and (spec := next_spec()) is not None:
                if not spec.only_check:  # there is nothing to find out
                    self.specs.append(spec)
                    running.append(spec)
            if not running:
                return
            yield self._run(running.popleft(), on_progress)

    def close(self) -> None:
        pass

    def record_of(self, spec: RunSpec) -> StudyRecord:
        """The record of a run."""
        return self._run(spec, None)

    def _run(self, spec: RunSpec, on_progress: OnProgress | None) -> StudyRecord:
        score = self.score(spec)
        record = describe(
            spec, "finished", settings=dict(spec.settings), metric="accuracy", versions={"attendrop": "0"},
            greater_is_better=self.greater_is_better, device="cpu",
        )  # fmt: skip
        known = {} if self.majority is None else {"majority": self.majority}
        if isinstance(score, str):
            return replace(record, status="failed", error=RunError("DivergedError", score))
        known |= {} if self.loss is None else {"loss": self.loss(spec)}
        curves: list[dict[str, float]] = []
        for epoch in range(1, self.epochs + 1):
            value = score * epoch / self.epochs
            curves.append({"epoch": epoch, "accuracy": value})
            if on_progress is not None and on_progress({"id": spec.id, "epoch": epoch, "score": value}):
                record.status = "stopped"
                break
        return replace(record, curves=curves, scores={"validation": {"accuracy": curves[-1]["accuracy"], **known}})
