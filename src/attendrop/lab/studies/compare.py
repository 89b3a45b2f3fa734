"""`attendrop compare`: fixed or sequential numbers of seeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ...errors import UserError
from ..records import StudyRecord
from ..report.analysis import Analysis
from ..statistics.sequential import FIRST_LOOK, SequentialDesign
from ..statistics.verdict import is_decided
from ..tasks.metrics import is_share
from ..tasks.outcomes import SCORE, all_deltas
from .analysis.build import analyse_records, reader_of
from .analysis.groups import Read, group_records
from .analysis.outcomes import verdicts_of
from .design import Design, RunSpec
from .driver import Study
from .executors import Executor, NextSpec
from .kept_models import MODELS_FOLDER, check_space
from .plan import Plan
from .status import Watcher


class FixedSeeds:
    """Runs a fixed number of seeds.

    Args:
        design: The study.
        seeds: The number of seeds.
    """

    def __init__(self, design: Design, seeds: int) -> None:
        self._waiting = deque(design.all_runs(seeds))
        self.total: int | None = len(self._waiting)

    def next_run(self) -> RunSpec | None:
        """Return the next run; None when all have been returned."""
        return self._waiting.popleft() if self._waiting else None

    def add(self, record: StudyRecord) -> None:
        """No-op: the number of seeds is fixed."""


class UntilDecided:
    """Adds seeds until every method is decided against the baseline, or the largest number of seeds is reached.

    A method that is decided gets no more seeds. Tasks come one after the other.

    Args:
        design: The study.
        looks: The schedule of looks, with the largest number of seeds.
        delta: The smallest difference of the score that matters.
        confidence: Confidence of the verdicts.
        read: Reads the outputs of a run.
    """

    total: int | None = None

    def __init__(
        self,
        design: Design,
        looks: SequentialDesign,
        delta: float,
        confidence: float = 0.95,
        read: Read | None = None,
    ) -> None:
        self._design, self._looks, self._delta, self._confidence = design, looks, delta, confidence
        self._read = read
        self._cells = deque(design.cells)
        self._waiting: deque[RunSpec] = deque()
        self._records: list[StudyRecord] = []
        self._seeds = 0  # that were started in the present cell
        self._missing: set[str] = set()  # runs of the present cell that have not ended
        self._open = set(design.methods[1:])  # methods of the present cell that are not decided

    def next_run(self) -> RunSpec | None:
        """Return the next run; None if it depends on unfinished runs, or if all methods are decided."""
        while not self._waiting and self._cells:
            if not self._open or self._seeds == self._looks.max_seeds:
                if self._missing and self._open:
                    return None
                self._begin_next_cell()
                continue
            if self._seeds >= self._looks.first and self._is_behind():
                return None
            runs = self._design.runs(self._cells[0], self._seeds)
            wanted = [run for run in runs if run.method == self._design.baseline or run.method in self._open]
            self._waiting.extend(wanted)
            self._missing.update(run.id for run in wanted)
            self._seeds += 1
        return self._waiting.popleft() if self._waiting else None

    def _is_behind(self) -> bool:
        """Return whether enough runs are pending that the next look may make a further seed unnecessary."""
        return len(self._missing) > 2 * len(self._design.methods)

    def _begin_next_cell(self) -> None:
        self._cells.popleft()
        self._seeds, self._missing, self._open = 0, set(), set(self._design.methods[1:])

    def add(self, record: StudyRecord) -> None:
        """Process a record and take the next look if it is due."""
        self._records.append(record)
        self._missing.discard(record.id)
        if not self._cells or (record.task, record.size) != self._cells[0]:
            return
        mine = [r for r in self._records if (r.task, r.size) == self._cells[0]]
        group = group_records(mine, self._design.methods)[0]
        if group.finished:
            verdicts = verdicts_of(group, self._design.baseline, self._delta, self._confidence, self._looks, self._read)
            self._open = {method for method in self._open if not is_decided(verdicts[method])}


def compare(
    design: Design,
    folder: str | Path,
    executor: Executor,
    *,
    seeds: int = 10,
    max_seeds: int | None = None,
    deltas: Mapping[str, float] | None = None,
    confidence: float = 0.95,
    command: str = "",
    retry_failed: bool = False,
    keep_models: bool = False,
    watcher: Watcher | None = None,
    plan: Plan | None = None,
) -> Analysis:
    """Run a comparison and return its analysis. After an interruption, rerun it to continue.

    Args:
        design: The study, from `make_design`.
        folder: Its folder.
        executor: Runs the runs; it is closed at the end.
        seeds: The number of seeds.
        max_seeds: Adds seeds until every method is decided, at most this number; None = the number `seeds`.
        deltas: Outcome -> the smallest difference that matters; see `OUTCOMES` for the defaults.
        confidence: Confidence of intervals and verdicts.
        command: The command that the report shows.
        retry_failed: Whether to retry failed runs.
        keep_models: Whether the trained models are kept in the folder, for `attendrop soup`. Workers must be able to
            write to it.
        watcher: Observes the study.
        plan: The plan, whose hash goes into every record.

    Example:
        ```python
        design = make_design({"model": "roberta-base"}, ["plain", "addrop"], tasks=("glue/rte",))
        analysis = compare(design, "studies/rte", make_executor(), seeds=10)
        ```
    """
    every_delta = all_deltas(deltas)
    if keep_models and (design.score_on, design.score_epochs) != ("validation", 1):
        raise UserError(
            f"keep_models is on, score_on is {design.score_on!r} and score_epochs is {design.score_epochs}; models are "
            "kept with their own score on the validation examples, so leave the two out."
        )
    _check_seeds(design, max_seeds or seeds)
    looks = None
    if max_seeds is not None:
        if max_seeds < FIRST_LOOK:
            raise UserError(f"max_seeds is {max_seeds}; it must be at least {FIRST_LOOK}, the seeds of the first look.")
        looks = SequentialDesign(max_seeds=max_seeds)
    source: FixedSeeds | UntilDecided
    if looks is None:
        source = FixedSeeds(design, seeds)
    else:
        source = UntilDecided(design, looks, every_delta[SCORE.name], confidence, reader_of(folder))
    study = design.configuration(
        kind="compare", seeds=None if looks else seeds, max_seeds=max_seeds,
        first_look=None if looks is None else looks.first, delta=every_delta, confidence=confidence,
        command=command, plan=None if plan is None else {"hash": plan.hash, **plan.content},
    )  # fmt: skip
    with closing(executor), Study(folder, study, retry_failed=retry_failed, watcher=watcher) as running:
        checked = running.check([run for cell in design.task_cells for run in design.runs(cell, 0)], executor)
        _check_steps(checked, every_delta[SCORE.name], SCORE.name in (deltas or {}), running.watcher)
        runs, next_run = design.all_runs(max_seeds or seeds), source.next_run
        if keep_models:
            next_run = _keeping_models(next_run, running, checked, [run.id for run in runs])
        if plan is not None:
            next_run = _with_plan(next_run, plan.hash)
        for record in running.run(next_run, executor, source.total):
            source.add(record)
        wanted = {run.id for run in runs}
        return analyse_records([r for r in running.records.values() if r.id in wanted], study, running.folder)


def _check_seeds(design: Design, seeds: int) -> None:
    """Refuse seeds that vary nothing: linear models of frozen features, fitted to the same examples."""
    if seeds > 1 and not design.resample and all(run.is_frozen for run in design.runs(design.cells[0], 0)):
        raise UserError(
            f"seeds is {seeds}, and the seeds vary nothing: every method is a linear model of frozen features, "
            "fitted to the same examples; compare with a method that is trained, or draw examples with "
            "--fraction or --shots."
        )


def _check_steps(checked: Sequence[StudyRecord], delta: float, is_asked: bool, watcher: Watcher) -> None:
    """Refuse, or without a delta of the user mention, a delta below the step in which the score moves."""
    for record in checked:
        examples = record.examples.get("validation", 0)
        if examples and delta and is_share(str(record.metric)) and delta * examples < 1:
            text = (
                f"{record.task} is scored on {examples} examples, so that the {record.metric} of a run moves in "
                f"steps of {1 / examples:.2g}, more than delta, {delta:g}"
            )
            if is_asked:
                raise UserError(f"{text}; score on more examples, or ask for a larger --delta.")
            watcher.note(text)
            return


def _with_plan(next_run: NextSpec, plan: str) -> NextSpec:
    def next_planned() -> RunSpec | None:
        run = next_run()
        return None if run is None else replace(run, plan=plan)

    return next_planned


def _keeping_models(next_run: NextSpec, study: Study, checked: Sequence[StudyRecord], runs: Sequence[str]) -> NextSpec:
    """Add the folder for models to all runs, and note how much space the models take."""
    folder = study.folder.absolute() / MODELS_FOLDER
    if lost := [run for run in runs if study.has_result(run) and not (folder / run).is_dir()]:
        study.watcher.note(f"{len(lost)} runs have ended before; they are not repeated, and their models are not kept")
    left = sum(not study.has_result(run) for run in runs)
    if sizes := [record.model_bytes for record in checked if record.model_bytes is not None]:
        study.watcher.note(check_space(study.folder, max(sizes), left))

    def next_kept() -> RunSpec | None:
        run = next_run()
        return None if run is None else replace(run, models_folder=str(folder))

    return next_kept
