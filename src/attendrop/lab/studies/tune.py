"""The search of `attendrop tune`: it selects the next run and processes the records of finished runs.

A trial is one point of the search space of one method. It is scored on several random stratified splits of the training
data. The development set is used once, at the end: for the chosen setting of each method, and for the random setting
whose score is the median.
"""

from __future__ import annotations

import json
import math
import random
import socket
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..records import StudyRecord
from ..report.page.words import PAPER_LABEL
from ..runs.folder import empty_folders_removed
from .driver import Study
from .records import RUNS_FOLDER
from .sampling import make_sampler, points
from .spec import RunSpec
from .status import PROGRESS_FILE, STUDY_FILE, Watcher
from .trials import JOURNAL_FILE, MethodTrials, open_storage
from .tune_design import MAY_GROW, TuneConfig


@dataclass
class Setting:
    """A setting that is run on the development set at the end.

    Attributes:
        role: "chosen", or "median": the random setting whose score is the median.
        method: The method.
        trial: The trial that it comes from, as Optuna stores it.
        scores: Seed -> score on the development set.
    """

    role: str
    method: str
    trial: Any
    scores: dict[int, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@dataclass
class _Run:
    """A run of a trial (with its number among the runs of the trial), or of a setting at the end."""

    spec: RunSpec
    owner: _RunningTrial | Setting
    number: int = 0


@dataclass
class _RunningTrial:
    """A trial whose runs have not all ended."""

    method: str
    trial: Any
    specs: list[RunSpec]
    records: dict[int, StudyRecord] = field(default_factory=dict)
    evaluations: int = 0
    is_over: bool = False


class TuneListener:
    """Receives the events of a search. The methods do nothing here."""

    def trial_ended(self, method: str, number: int, state: str, score: float | None) -> None:
        """Handle the end of a trial; `state` is "finished", "pruned" or "failed"."""

    def search_ended(self, settings: Sequence[Setting]) -> None:
        """Act before the development set is used for the first time, with the settings that will be run on it."""


class Tuner:
    """Selects the next run and processes the records of finished runs.

    Args:
        config: The design of the study.
        storage: From `open_storage`.
        owner: Names the folder of the study, for drivers that share a storage.
        finished: Name of a run -> its record, for runs that an earlier process has finished.
        is_shared: Whether other drivers may use the storage at the same time.
        listener: Receives the events of the search.
    """

    def __init__(
        self,
        config: TuneConfig,
        storage: Any,
        owner: str,
        finished: Mapping[str, StudyRecord] | None = None,
        is_shared: bool = False,
        listener: TuneListener | None = None,
    ) -> None:
        self.config, self.listener = config, listener or TuneListener()
        self.finished = {name: r for name, r in (finished or {}).items() if r.is_finished}
        self.searches = {
            method: MethodTrials(
                storage, config.study_name(method), space,
                make_sampler(space, config.sampler, config.trials, config.seed), config.trials, owner, is_shared,
            )
            for method, space in config.spaces.items()
        }  # fmt: skip
        self.random_trials = {
            method: len(points(space, config.sampler, config.trials, config.seed))
            for method, space in config.spaces.items()
        }
        self.settings: list[Setting] = []  # what is run on the development set; empty during the search
        self.metric: str | None = None
        self.greater_is_better: bool | None = None
        self._queue: deque[_Run] = deque()
        self._in_flight: dict[str, list[_Run]] = {}
        self._running: list[_RunningTrial] = []
        for method, search in self.searches.items():
            self._learn_metric(search.study.user_attrs.get("metric"), search.study.user_attrs.get("greater_is_better"))
            for trial in search.interrupted():
                self._begin(method, trial)

    # ---- the next run ------------------------------------------------------------------------------------------

    def next_spec(self) -> RunSpec | None:
        """Return the run that should come next; None = nothing until a run has ended, or nothing at all."""
        while self._queue or self._fill():
            run = self._queue.popleft()
            if isinstance(run.owner, _RunningTrial) and run.owner.is_over:
                continue
            if (record := self.finished.get(run.spec.id)) is not None:
                self._take(run, record)
                continue
            runs = self._in_flight.setdefault(run.spec.id, [])  # two trials with the same settings share their runs
            runs.append(run)
            if len(runs) == 1:
                return run.spec
        return None

    def _fill(self) -> bool:
        """Add runs to the queue: those of a new trial, or those on the development set when all trials have ended."""
        if self.settings:
            return False
        for method in sorted(self.searches, key=lambda m: len(self.searches[m].all())):
            trial = self.searches[method].ask()
            if trial is not None:
                self._begin(method, trial)
                return True
        if self._running or self.running_elsewhere:
            return False
        self._queue.extend(self._final_runs())
        return bool(self._queue)

    @property
    def running_elsewhere(self) -> int:
        """The number of trials that other drivers of the same search have not finished."""
        return sum(search.running_elsewhere() for search in self.searches.values())

    def _begin(self, method: str, trial: Any) -> None:
        specs = self.config.trial_specs(method, trial.params, trial.number)
        running = _RunningTrial(method, trial, specs)
        self._running.append(running)
        # Where trials are pruned, the scores of the first split decide whether the others are needed.
        count = 1 if self.config.prunes else len(specs)
        self._queue.extend(_Run(spec, running, number) for number, spec in enumerate(specs[:count]))

    def _final_runs(self) -> list[_Run]:
        for method in self.searches:
            if (best := self.best(method)) is not None:
                self.settings.append(Setting("chosen", method, best))
                median = self.median_random(method)
                if median is not None and median.params != best.params:
                    self.settings.append(Setting("median", method, median))
        self.listener.search_ended(self.settings)
        return [
            _Run(spec, setting, number)
            for setting in self.settings
            for number, spec in enumerate(self._final_specs(setting))
        ]

    def _final_specs(self, setting: Setting) -> list[RunSpec]:
        role = "" if setting.role == "chosen" else "median random setting"
        return self.config.final_specs(setting.method, setting.trial.params, role)

    def best(self, method: str) -> Any | None:
        """Return the trial with the best score; of equal ones that with the smallest loss."""
        return max(self.searches[method].finished(), key=self._rank, default=None)

    def median_random(self, method: str) -> Any | None:
        """Of the trials whose setting was drawn at random, the one with the median score."""
        drawn = [trial for trial in self.searches[method].finished() if trial.number < self.random_trials[method]]
        ranked = sorted(drawn, key=self._rank)
        return ranked[(len(ranked) - 1) // 2] if ranked else None

    def _rank(self, trial: Any) -> tuple[float, float, float]:
        """Return the score, then the loss, then a lot: what comes first in the order of trials is no reason."""
        losses = trial.user_attrs.get("losses")
        lot = random.Random(f"{self.config.seed}/{trial.number}").random()
        return round(trial.value, 9), -statistics.fmean(losses) if losses else -math.inf, lot

    # ---- finished runs -----------------------------------------------------------------------------------------

    def on_record(self, record: StudyRecord) -> None:
        """Process the record of a finished run."""
        if record.is_finished:
            self.finished[record.id] = record
        for run in self._in_flight.pop(record.id, []):
            self._take(run, record)

    def on_progress(self, report: Mapping[str, Any]) -> bool:
        """Process an intermediate evaluation, and return whether the run should stop.

        Args:
            report: What a worker reports: "id" and, after an evaluation, "score", among others.
        """
        if "score" not in report:
            return False
        runs = self._in_flight.get(report["id"], [])
        if not self.config.prunes or not runs or runs[0].number != 0 or self.greater_is_better is None:
            return False
        trial = runs[0].owner
        if not isinstance(trial, _RunningTrial) or trial.is_over:
            return False
        step, trial.evaluations = trial.evaluations, trial.evaluations + 1
        return self.searches[trial.method].report(trial.trial, step, self._signed(float(report["score"])))

    def _learn_metric(self, metric: str | None, greater_is_better: bool | None) -> None:
        # A driver that was killed between its writes has stored the metric alone.
        if self.metric is None and metric is not None and greater_is_better is not None:
            self.metric, self.greater_is_better = metric, greater_is_better
            for search in self.searches.values():
                search.study.set_user_attr("metric", self.metric)
                search.study.set_user_attr("greater_is_better", self.greater_is_better)

    def _signed(self, score: float) -> float:
        """Return the score, or its negative where smaller is better: Optuna maximises. The same turns it back."""
        return score if self.greater_is_better else -score

    def shown_score(self, trial: Any) -> float | None:
        """Return the score of a trial with the sign of the metric."""
        return None if trial.value is None else self._signed(trial.value)

    def _take(self, run: _Run, record: StudyRecord) -> None:
        self._learn_metric(record.metric, record.greater_is_better)
        if isinstance(run.owner, Setting):
            if record.is_finished:
                run.owner.scores[run.spec.seed] = _score(record)
            else:
                run.owner.errors.append(_message(record))
        elif not run.owner.is_over:
            self._take_part(run.owner, run.number, record)

    def _take_part(self, running: _RunningTrial, number: int, record: StudyRecord) -> None:
        """Add one of its runs to a trial, and end the trial after the last one."""
        running.records[number] = record
        if record.has_failed:
            self._end(running, None, error=_message(record))
        elif record.status == "stopped" or (number == 0 and self._is_worse(running, record)):
            self._end(running, None, is_pruned=True)
        elif len(running.records) == len(running.specs):
            mean = statistics.fmean(_score(r) for r in running.records.values())
            is_number = math.isfinite(mean)
            self._end(running, mean if is_number else None, error=None if is_number else "the score is not a number")
        elif self.config.prunes and number == 0:
            following = [_Run(spec, running, i) for i, spec in enumerate(running.specs) if i]
            self._queue.extendleft(reversed(following))

    def _is_worse(self, running: _RunningTrial, record: StudyRecord) -> bool:
        """Return whether the first split already shows that a trial is worse than most."""
        if not self.config.prunes:
            return False
        values = [value for row in record.curves if (value := row.get(str(record.metric))) is not None]
        search = self.searches[running.method]
        answers = [search.report(running.trial, step, self._signed(value)) for step, value in enumerate(values)]
        return bool(answers) and answers[-1]

    def _end(
        self, running: _RunningTrial, score: float | None, error: str | None = None, is_pruned: bool = False
    ) -> None:
        running.is_over = True
        self._running.remove(running)
        search = self.searches[running.method]
        value = None if score is None else self._signed(score)
        search.end(running.trial, value, self._facts(running, error), is_pruned)
        state = "finished" if score is not None else "pruned" if is_pruned else "failed"
        self.listener.trial_ended(running.method, running.trial.number, state, score)

    def _facts(self, running: _RunningTrial, error: str | None) -> dict[str, Any]:
        """Return the facts that make a trial repeatable."""
        record = next(iter(running.records.values()))
        finished = {number: r for number, r in sorted(running.records.items()) if r.is_finished}
        settings = {name: value for name, value in running.specs[0].settings.items() if name != "seed"}
        return {
            "settings": json.loads(json.dumps(settings, default=str)),
            "seeds": [spec.seed for spec in running.specs],
            "runs": [spec.id for spec in running.specs],
            "scores": [_score(r) for r in finished.values()],
            "losses": [loss for r in finished.values() if (loss := r.score("validation", "loss")) is not None],
            "useless": record.score("validation", "majority"),
            "versions": record.versions,
            "device": record.device or None,
            "protocol": PAPER_LABEL if self.config.is_paper else "honest",
            **({"error": error} if error else {}),
        }


def _score(record: StudyRecord) -> float:
    score = record.score("validation")
    assert score is not None, record.id
    return float(score)


def _message(record: StudyRecord) -> str:
    return record.message or "the run was stopped"


class _LabelledExecutor:
    """Labels each record as part of a search on the development set."""

    def __init__(self, executor: Any) -> None:
        self._engine = executor

    def results(self, next_spec: Any, on_progress: Any = None) -> Iterator[StudyRecord]:
        for record in self._engine.results(next_spec, on_progress):
            record.protocol = PAPER_LABEL
            yield record

    def close(self) -> None:
        self._engine.close()


@contextmanager
def _removed_if_refused(folder: Path) -> Iterator[None]:
    """Remove a new study that is rejected at its first run, so that the user can correct it."""
    is_new = not (folder / STUDY_FILE).exists()
    with empty_folders_removed(folder):
        try:
            yield
        except UserError:
            if is_new and not (folder / RUNS_FOLDER).exists():
                for name in (STUDY_FILE, PROGRESS_FILE, JOURNAL_FILE):
                    (folder / name).unlink(missing_ok=True)
            raise


def tune(
    config: TuneConfig,
    folder: str | Path,
    executor: Any,
    storage: str | None = None,
    listener: TuneListener | None = None,
    watcher: Watcher | None = None,
    command: str = "",
    retry_failed: bool = False,
) -> Tuner:
    """Search, and run the chosen settings on the development set. After an interruption, rerun it to continue.

    Args:
        config: The configuration of the search.
        folder: The folder of the study. `tuning.json` in it has the result.
        executor: From `make_executor`.
        storage: Where the trials are stored, see `open_storage`. Drivers on several machines, each with a folder of
            its own, share the trials of one storage.
        listener: Receives the events of the search.
        watcher: Observes the runs.
        command: The command that the user gave, for the report.
        retry_failed: Whether to retry failed runs.
    """
    from .tune_result import write_result

    folder = Path(folder)
    total = len(config.spaces) * (config.trials * config.repeats + 2 * config.final_seeds)
    shared = None if storage is None else open_storage(folder, storage)  # refused before anything is written
    made = Study(folder, config.configuration(command), may_grow=MAY_GROW, retry_failed=retry_failed, watcher=watcher)
    with _removed_if_refused(folder), made as study:
        owner = f"{socket.gethostname()}:{folder.resolve()}"
        trials = open_storage(folder, None) if shared is None else shared
        tuner = Tuner(config, trials, owner, study.records, shared is not None, listener)
        study.check(config.examples(), executor)
        labelled = _LabelledExecutor(executor) if config.is_paper else executor
        for record in study.run(tuner.next_spec, labelled, total, tuner.on_progress):
            tuner.on_record(record)
        write_result(tuner, folder)
    return tuner
