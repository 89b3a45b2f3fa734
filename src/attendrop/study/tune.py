"""Tuning: a search over the fields of methods and the learning rate, with the same number of trials for each method.

A trial is one point of the search space. It is scored on several random stratified splits of the training data; the
development set is used once, at the end, for the chosen setting of each method and for a random setting of median score.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..utils.checks import check_choice, check_whole
from .design import RunSpec
from .sampling import SAMPLERS, choose_sampler, grid_size, make_sampler, points
from .search_space import PLAIN, Space, apply_point, make_spaces
from .trials import MethodTrials

PROTOCOLS = ("honest", "paper")
PAPER_LABEL = "paper protocol: selected on the development set"
FIRST_FINAL_SEED = 1000  # final runs have seeds that no trial had
_REFUSED = ("preset", "resume", "resume_changed", "resume_from_checkpoint", "overwrite")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class TuneConfig:
    """What is tuned, and how. See `make_tune_config`.

    Attributes:
        settings: The settings of `attendrop train` that all runs share, without method and seed.
        spaces: Method as the user wrote it -> its search space. `plain` is the first.
        sampler: "grid", "random", "qmc" or "tpe".
        trials: The number of trials of each method.
        repeats: The number of splits of the training data that score a trial.
        seed: The seed of the search and of the first split.
        protocol: "honest", or "paper": scored on the development set, at its best epoch, without splits.
        final_seeds: The number of runs on the development set for each setting at the end.
    """

    settings: Mapping[str, Any]
    spaces: Mapping[str, Space]
    sampler: str
    trials: int
    repeats: int
    seed: int
    protocol: str
    final_seeds: int

    @property
    def is_paper(self) -> bool:
        return self.protocol == "paper"

    @property
    def prunes(self) -> bool:
        """Whether trials with low scores are stopped."""
        return self.sampler == "tpe"

    def description(self) -> dict[str, Any]:
        """Everything that decides the trials, but not their number, which may grow."""
        spaces = {method: {name: str(dimension) for name, dimension in s.items()} for method, s in self.spaces.items()}
        shared = {"settings": dict(self.settings), "sampler": self.sampler, "seed": self.seed}
        return {**shared, "protocol": self.protocol, "repeats": self.repeats, "spaces": spaces}

    def study_name(self, method: str) -> str:
        """The name of the search in Optuna's storage. The same command on another machine has the same one."""
        description = self.description()
        own = {**description, "spaces": description["spaces"][method]}
        digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return f"attendrop {method} {digest}"

    def spec(self, method: str, point: Mapping[str, Any], seed: int, **fields: Any) -> RunSpec:
        """A run with one point of the search space."""
        settings = self.settings
        axis = next((name for name in ("fraction", "shots") if settings.get(name) is not None), None)
        return RunSpec(
            settings={**apply_point(settings, method, point), "seed": seed},
            method=method,
            task=settings.get("task") or settings["train_file"],
            size=f"{axis}={settings[axis]}" if axis else "all",
            seed=seed,
            **fields,
        )

    def trial_specs(self, method: str, point: Mapping[str, Any], number: int) -> list[RunSpec]:
        """The runs of a trial. A grid that is repeated has other seeds in each repetition."""
        seed = self.seed
        if self.sampler == "grid":
            seed += self.repeats * (number // grid_size(self.spaces[method]))
        if self.is_paper:
            return [self.spec(method, point, seed, keep="dev", trial=number)]
        return [self.spec(method, point, seed + fold, fold=fold, trial=number) for fold in range(self.repeats)]

    def final_specs(self, method: str, point: Mapping[str, Any]) -> list[RunSpec]:
        """The runs of a setting on the development set."""
        return [self.spec(method, point, FIRST_FINAL_SEED + self.seed + i) for i in range(self.final_seeds)]


def make_tune_config(
    settings: Mapping[str, Any],
    spaces: Sequence[str] = (),
    trials: int | None = None,
    repeats: int = 3,
    sampler: str = "auto",
    protocol: str = "honest",
    final_seeds: int = 5,
) -> TuneConfig:
    """Makes and checks a configuration; a `UserError` names the first mistake.

    Args:
        settings: The settings of `attendrop train`; `method` lists what is tuned. `plain` is always tuned too.
        spaces: Search spaces such as "addrop.p=0.1..0.9"; all others have their defaults.
        trials: The number of trials of each method; None = 20, or all points of a grid.
        repeats: The number of splits of the training data that score a trial.
        sampler: "grid", "random", "qmc", "tpe", or "auto": QMC for few trials, TPE with pruning for many.
        protocol: "honest", or "paper", which selects on the development set.
        final_seeds: The number of runs on the development set for each setting at the end.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    check_choice("sampler", sampler, SAMPLERS)
    for name, value in (("repeats", repeats), ("final_seeds", final_seeds), ("trials", 1 if trials is None else trials)):
        check_whole(name, value, 1)
    for name in _REFUSED:
        if settings.get(name):
            raise UserError(f"{name} is {settings[name]!r}; it is for `attendrop train`, and cannot be tuned with.")
    shared = {name: value for name, value in settings.items() if name not in ("method", "seed", "output_dir")}
    methods = _with_plain(settings.get("method") or [])
    is_paper = protocol == "paper"
    made = make_spaces(methods, shared, spaces, is_paper)
    sampler = "grid" if is_paper and sampler == "auto" else choose_sampler(sampler, trials or 20)
    largest = max(grid_size(space) for space in made.values()) if sampler == "grid" else 20
    if sampler == "grid" and trials is not None and trials < largest:
        raise UserError(
            f"trials is {trials}, and the grid has {largest:,} points; it must be at least that, or --space must be "
            "smaller, or --sampler another one."
        )
    return TuneConfig(
        settings=shared, spaces=made, sampler=sampler, trials=trials or largest, repeats=1 if is_paper else repeats,
        seed=int(settings.get("seed", 42)), protocol=protocol, final_seeds=final_seeds,
    )  # fmt: skip


def _with_plain(methods: Sequence[str]) -> list[str]:
    listed = [method for method in methods if method != PLAIN]
    for method in listed:
        if listed.count(method) > 1:
            raise UserError(f"method is {method!r}, which is listed twice; it must be listed once.")
    if len(methods) - len(listed) > 1:
        raise UserError(f"method is {PLAIN!r}, which is listed twice; it must be listed once.")
    return [PLAIN, *listed]


@dataclass
class Setting:
    """A setting that is run on the development set at the end.

    Attributes:
        role: "chosen", or "median": a random setting of median score.
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
    records: dict[int, Record] = field(default_factory=dict)
    evaluations: int = 0
    is_over: bool = False


class TuneListener:
    """Receives the events of a search. The methods do nothing here."""

    def trial_ended(self, method: str, number: int, state: str, score: float | None) -> None:
        """Called when a trial has ended; `state` is "complete", "pruned" or "fail"."""

    def search_ended(self, settings: Sequence[Setting]) -> None:
        """Called before the development set is used for the first time, with the settings that will be run on it."""


class Tuner:
    """Decides which run comes next, and learns from the records of runs that have ended.

    Args:
        config: What is tuned, and how.
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
        finished: Mapping[str, Record] | None = None,
        is_shared: bool = False,
        listener: TuneListener | None = None,
    ) -> None:
        self.config, self.listener = config, listener or TuneListener()
        self.finished = {name: r for name, r in (finished or {}).items() if r["status"] == "finished"}
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
        self.settings: list[Setting] = []  # what is run on the development set; empty while the search goes on
        self.metric: str | None = None
        self.greater_is_better: bool | None = None
        self._queue: deque[_Run] = deque()
        self._in_flight: dict[str, list[_Run]] = {}
        self._running: list[_RunningTrial] = []
        for method, search in self.searches.items():
            self._learn_metric(search.study.user_attrs)
            for trial in search.interrupted():
                self._begin(method, trial)

    # ---- the next run ------------------------------------------------------------------------------------------

    def next_spec(self) -> RunSpec | None:
        """The run that should come next; None = nothing until a run has ended, or nothing at all."""
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
        """Adds runs to the queue: those of a new trial, or those on the development set when all trials have ended."""
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
            for number, spec in enumerate(self.config.final_specs(setting.method, setting.trial.params))
        ]

    def best(self, method: str) -> Any | None:
        """The trial with the best score; of equal ones the first."""
        return max(self.searches[method].finished(), key=lambda trial: (trial.value, -trial.number), default=None)

    def median_random(self, method: str) -> Any | None:
        """Of the trials whose setting was drawn at random, the one with the median score."""
        drawn = [trial for trial in self.searches[method].finished() if trial.number < self.random_trials[method]]
        ranked = sorted(drawn, key=lambda trial: (trial.value, -trial.number))
        return ranked[(len(ranked) - 1) // 2] if ranked else None

    # ---- what has ended ----------------------------------------------------------------------------------------

    def on_record(self, record: Record) -> None:
        """Learns from the record of a run that has ended."""
        self._learn_metric(record)
        if record["status"] == "finished":
            self.finished[record["id"]] = record
        for run in self._in_flight.pop(record["id"], []):
            self._take(run, record)

    def on_progress(self, report: Mapping[str, Any]) -> bool:
        """Learns from an evaluation in the middle of a run, and returns whether the run should stop.

        Args:
            report: What a worker reports: "id" and "score", among others.
        """
        runs = self._in_flight.get(report["id"], [])
        if not self.config.prunes or not runs or runs[0].number != 0 or self.greater_is_better is None:
            return False
        trial = runs[0].owner
        if not isinstance(trial, _RunningTrial) or trial.is_over:
            return False
        step, trial.evaluations = trial.evaluations, trial.evaluations + 1
        return self.searches[trial.method].report(trial.trial, step, self._signed(float(report["score"])))

    def _learn_metric(self, facts: Mapping[str, Any]) -> None:
        if self.metric is None and facts.get("metric") is not None:
            self.metric, self.greater_is_better = facts["metric"], bool(facts["greater_is_better"])
            for search in self.searches.values():
                search.study.set_user_attr("metric", self.metric)
                search.study.set_user_attr("greater_is_better", self.greater_is_better)

    def _signed(self, score: float) -> float:
        """The score, or its negative where smaller is better: Optuna maximises. The same turns it back."""
        return score if self.greater_is_better else -score

    def shown_score(self, trial: Any) -> float | None:
        """The score of a trial as the metric has it."""
        return None if trial.value is None else self._signed(trial.value)

    def _take(self, run: _Run, record: Record) -> None:
        if isinstance(run.owner, Setting):
            if record["status"] == "finished":
                run.owner.scores[run.spec.seed] = _score(record)
            else:
                run.owner.errors.append(_message(record))
        elif not run.owner.is_over:
            self._take_part(run.owner, run.number, record)

    def _take_part(self, running: _RunningTrial, number: int, record: Record) -> None:
        """Adds one of its runs to a trial, and ends the trial after the last one."""
        running.records[number] = record
        if record["status"] == "failed":
            self._end(running, None, error=_message(record))
        elif record["status"] == "stopped" or (number == 0 and self._is_worse(running, record)):
            self._end(running, None, is_pruned=True)
        elif len(running.records) == len(running.specs):
            mean = statistics.fmean(_score(r) for r in running.records.values())
            is_number = math.isfinite(mean)
            self._end(running, mean if is_number else None, error=None if is_number else "the score is not a number")
        elif self.config.prunes and number == 0:
            following = [_Run(spec, running, i) for i, spec in enumerate(running.specs) if i]
            self._queue.extendleft(reversed(following))

    def _is_worse(self, running: _RunningTrial, record: Record) -> bool:
        """Whether the first split is enough to see that a trial is worse than most."""
        if not self.config.prunes:
            return False
        values = [row[record["metric"]] for row in record.get("curves", []) if row.get(record["metric"]) is not None]
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
        state = "complete" if score is not None else "pruned" if is_pruned else "fail"
        self.listener.trial_ended(running.method, running.trial.number, state, score)

    def _facts(self, running: _RunningTrial, error: str | None) -> dict[str, Any]:
        """What is stored with a trial, so that it can be repeated."""
        record = next(iter(running.records.values()))
        finished = {number: r for number, r in sorted(running.records.items()) if r["status"] == "finished"}
        settings = {name: value for name, value in running.specs[0].settings.items() if name != "seed"}
        return {
            "settings": json.loads(json.dumps(settings, default=str)),
            "seeds": [spec.seed for spec in running.specs],
            "runs": [spec.id for spec in running.specs],
            "scores": [_score(r) for r in finished.values()],
            "versions": record.get("versions", {}),
            "device": record.get("device"),
            "protocol": PAPER_LABEL if self.config.is_paper else "honest",
            **({"error": error} if error else {}),
        }


def _score(record: Record) -> float:
    return float(record["scores"]["validation"][record["metric"]])


def _message(record: Record) -> str:
    return str((record.get("error") or {}).get("message", "the run was stopped"))


def owner_of(folder: Path) -> str:
    """Names a folder on this machine, for drivers that share a storage."""
    import socket

    return f"{socket.gethostname()}:{folder.resolve()}"


Run = Callable[[Callable[[], RunSpec | None], Callable[[Mapping[str, Any]], bool]], Any]
