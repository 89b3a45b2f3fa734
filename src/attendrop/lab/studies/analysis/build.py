"""Build the analysis of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....utils.files import damaged
from ...records import TUNING_FILE, RunError, StudyConfiguration, StudyRecord, TuningResult
from ...report.analysis import (
    Analysis,
    Cell,
    Ensemble,
    Failure,
    Heatmap,
    Method,
    MethodSummary,
    Result,
    Run,
    Sequential,
)
from ...statistics.rules import Collapses, Items
from ...statistics.sequential import SequentialDesign
from ...statistics.verdict import Question
from ...tasks.outcomes import OUTCOMES, SCORE, all_deltas, compared_outcomes
from .curves import curves_of, method_metrics_of
from .examples import agreement_of, disagreements_of
from .groups import Group, Read, group_records
from .learned import unlearned, without_verdicts
from .matched import with_controls
from .outcomes import compare, outcomes_of
from .scope import scope_of, scored_of, with_scope, with_scope_over_tasks


def analyse(folder: str | Path) -> Analysis:
    """Analyse the study in a folder.

    Args:
        folder: The folder of `attendrop compare` or `attendrop tune`.
    """
    from ..configuration import STUDY_FILE, read_configuration
    from ..records import read_records

    study = read_configuration(folder)
    if not study.methods:
        raise damaged(Path(folder, STUDY_FILE), "'methods' is missing or empty", "copy it again, or repeat the study")
    tuning = None
    if (path := Path(folder, TUNING_FILE)).is_file():
        tuning = TuningResult.read(path, "rerun the command of the study")
    return analyse_records(list(read_records(folder).values()), study, folder, tuning)


def analyse_records(
    records: Sequence[StudyRecord],
    study: StudyConfiguration,
    folder: str | Path | None = None,
    tuning: TuningResult | None = None,
) -> Analysis:
    """Compare the methods of a study and collect the content of its report.

    Args:
        records: The records of its runs.
        study: Its configuration, with at least the methods, of which the first is the baseline.
        folder: The folder of the study, which has the predictions for ensembles; None = there are no ensembles.
        tuning: The result of the search, of `attendrop tune`.
    """
    order = {name: place for place, name in enumerate(study.methods)}
    scored = sorted(
        (record for record in records if record.fold is None),
        key=lambda r: (r.task, r.size, r.seed, order.get(r.method, len(order)), r.id),
    )
    methods = [m for m in study.methods if any(record.method == m for record in scored)]
    baseline = study.methods[0]
    deltas, confidence = all_deltas(study.delta), study.confidence
    looks, read = looks_of(study.max_seeds, study.first_look), reader_of(folder)
    groups = group_records([record for record in scored if record.method in methods], methods)
    for group in groups:
        group.selection = selection_of(tuning)
    cells = [
        cell for group in groups if group.finished for cell in _cells(group, baseline, deltas, confidence, looks, read)
    ]
    ensembles, without = _ensembles(groups, read, deltas[SCORE.name], confidence)
    example = next((r for r in scored if r.is_finished), None)
    greater_is_better = example is None or example.greater_is_better
    is_paper = study.protocol == "paper" or study.keep == "dev"
    return Analysis(
        baseline=baseline,
        methods=[_method(name, scored, baseline) for name in methods],
        cells=cells,
        title=study.title or _title(study, example),
        created=max((record.ended for record in records), default=""),
        command=study.command,
        kind=study.kind,
        protocol="paper" if is_paper else "honest",
        delta=deltas,
        confidence=confidence,
        sequential=None if looks is None else Sequential(looks.max_seeds, looks.first),
        model=_model_name(example),
        metric=(example and example.metric) or "score",
        greater_is_better=greater_is_better,
        device=example.device if example else "",
        versions=example.versions if example else {},
        summary=with_scope_over_tasks(
            _summary(cells, baseline, confidence, deltas, greater_is_better), [r for r in scored if r.is_finished]
        ),
        ensembles=ensembles,
        runs=[_run(record) for record in scored],
        searched=len(records) - len(scored),
        method_metrics={
            name: series
            for name in methods
            if (series := method_metrics_of([r for r in scored if r.method == name], confidence))
        },
        heatmaps=heatmaps(cells, methods),
        agreement=[of for group in groups for method in methods if (of := agreement_of(group, method)) is not None],
        disagreements=[row for group in groups if group.finished for row in disagreements_of(group)],
        explorer=next((record.explorer for record in scored if record.explorer), None),
        tuning=tuning,
        failures=[_failure(record) for record in scored if record.has_failed],
        notes=[*_notes(scored), *without, *_without_selection(tuning, groups)],
        plan=_plan(study, scored),
        scored=scored_of([record for record in scored if record.is_finished]),
    )


def selection_of(tuning: TuningResult | None) -> dict[str, dict[str, Items]]:
    """Return outcome -> method -> the noise of the selection of its settings; empty without a search.

    Args:
        tuning: The result of the search.
    """
    from ...statistics.selection import noise_of_selection

    known: dict[str, dict[str, Items]] = {}
    for method in tuning.chosen if tuning else ():
        trials = [t for t in (tuning.trials if tuning else ()) if t.method == method and t.state == "finished"]
        noise = noise_of_selection([trial.scores for trial in trials], bool(tuning and tuning.greater_is_better))
        if noise is not None:
            known.setdefault(SCORE.name, {})[method] = noise
    return known


def _without_selection(tuning: TuningResult | None, groups: Sequence[Group]) -> list[str]:
    """Return the sentence that the intervals of a search lack the noise of its selection; empty if they have it."""
    if tuning is None or not tuning.chosen or any(group.selection for group in groups):
        return []
    return [
        "The intervals are about the chosen settings alone: with one split for each trial, nothing is known about what "
        "another search would have chosen (--repeats 2 or more)."
    ]


def _cells(
    group: Group,
    baseline: str,
    deltas: Mapping[str, float],
    confidence: float,
    looks: SequentialDesign | None,
    read: Read | None,
) -> list[Cell]:
    cells = []
    for part in group.parts:
        compared = {
            outcome.name: compare(group, part, outcome, baseline, deltas[outcome.name], confidence, looks, read)
            for outcome in outcomes_of(group, part)
        }
        example = next(record for record in group.finished if part in record.scores)
        if sentence := unlearned(group, part):
            compared = {
                name: results if OUTCOMES[name].is_relative else without_verdicts(results, sentence)
                for name, results in compared.items()
            }
        else:
            scores = with_controls(
                compared[SCORE.name], group, part, baseline, deltas[SCORE.name], confidence, looks, read
            )
            compared[SCORE.name] = with_scope(scores, scope_of(group.finished))
        for method in group.runs:
            cells.append(
                Cell(
                    method=method,
                    task=group.task,
                    size=group.size,
                    part=part,
                    outcomes={outcome: results[method] for outcome, results in compared.items()},
                    examples=example.examples.get("train"),
                    available=example.available.get("train"),
                    majority=example.score(part, "majority"),
                    unlearned=sentence,
                    curves=curves_of(group, method, confidence) if part == "validation" else None,
                )
            )
    return cells


def looks_of(max_seeds: int | None, first: int | None) -> SequentialDesign | None:
    """Return the plan of looks of a study.

    Args:
        max_seeds: The largest number of seeds; None = it is fixed, and there are no looks.
        first: The seeds at the first look; None = a study of an earlier version, which began at five and spent earlier.
    """
    if max_seeds is None:
        return None
    return SequentialDesign(max_seeds, 5, 2.0) if first is None else SequentialDesign(max_seeds, first)


def reader_of(folder: str | Path | None) -> Read | None:
    """Return what reads the outputs of a run in the folder of a study; None without a folder."""
    from ...evaluation.outputs import read_outputs

    if folder is None:
        return None
    known: dict[str, Any] = {}

    def read(run: StudyRecord) -> Mapping[str, Any]:
        if run.id not in known:
            known[run.id] = read_outputs(folder, run.id, run.outputs_checksum)
        outputs: Mapping[str, Any] = known[run.id]
        return outputs

    return read


def _ensembles(
    groups: Sequence[Group], read: Read | None, delta: float, confidence: float
) -> tuple[list[Ensemble], list[str]]:
    """Return the ensembles of all groups, and sentences about those that cannot be made."""
    from .ensembles import ensembles_of

    if read is None:
        return [], []
    made = [ensembles_of(group, read, delta, confidence) for group in groups]
    return [row for rows, _ in made for row in rows], [note for _, notes in made for note in notes]


def _summary(
    cells: Sequence[Cell], baseline: str, confidence: float, deltas: Mapping[str, float], greater_is_better: bool
) -> list[MethodSummary]:
    """Over all tasks and amounts of data: one row for each method and outcome. Needs more than one of them.

    The amounts of data of a task are averaged seed by seed: they are no other tasks.
    """
    from ...statistics.over_tasks import summarize_tasks

    validation = {
        (cell.method, cell.task, cell.size): cell.outcomes
        for cell in cells
        if cell.part == "validation" and not cell.unlearned
    }
    places = list(dict.fromkeys((task, size) for _, task, size in validation))
    if len(places) < 2:
        return []
    rows = []
    for outcome in compared_outcomes():
        differences: dict[str, dict[str, Any]] = {}
        items: dict[str, dict[str, float]] = {}
        collapses: dict[str, Collapses] = {}
        for task in dict.fromkeys(task for task, _ in places):
            sizes = [size for of, size in places if of == task]
            for method in dict.fromkeys(method for method, of, _ in validation if of == task and method != baseline):
                pairs = [
                    (validation[method, task, size][outcome.name], validation[baseline, task, size][outcome.name])
                    for size in sizes
                    if outcome.name in validation.get((method, task, size), {})
                ]
                if not pairs:
                    continue
                differences.setdefault(method, {})[task] = _mean_differences(pairs)
                compared = [of.comparison for of, _ in pairs if of.comparison]
                # The sizes of a task share their test examples, so that errors do not average out.
                errors = [of.items.error for of in compared if of.items]
                items.setdefault(method, {})[task] = float(np.mean(errors)) if errors else 0.0
                for of in compared:
                    if of.collapses:
                        collapses[method] = of.collapses.plus(collapses.get(method))
        question = Question(
            delta=deltas[outcome.name],
            greater_is_better=outcome.is_better_if_greater(greater_is_better),
            confidence=confidence,
            outcome=outcome.phrase or outcome.label,
            baseline=baseline,
        )
        summaries = summarize_tasks(differences, question, item_errors=items, collapses=collapses)
        rows += [MethodSummary(**vars(of), method=method, outcome=outcome.name) for method, of in summaries.items()]
    return rows


def _mean_differences(pairs: Sequence[tuple[Result, Result]]) -> npt.NDArray[np.float64]:
    """Return the difference of each seed, its mean over the amounts of data; seeds that lack one are left out."""
    rows = []
    for seed in pairs[0][0].values:
        both = [(one.values.get(seed), other.values.get(seed)) for one, other in pairs]
        rows.append([a - b for a, b in both if a is not None and b is not None])
    return np.array([np.mean(row) for row in rows if len(row) == len(pairs)], float)


def heatmaps(cells: Sequence[Cell], methods: Sequence[str]) -> list[Heatmap]:
    """Differences of the score over a grid of p and q, where a study has one.

    Args:
        cells: The cells of the analysis.
        methods: The methods of the study.
    """
    grid: dict[str, dict[tuple[float, float], str]] = {}
    for name in methods:
        match = re.fullmatch(r"(\w+):p=([\d.]+),q=([\d.]+)(.*)", name)
        if match:
            grid.setdefault(match[1] + match[4], {})[float(match[2]), float(match[3])] = name
    maps = []
    for method, points in grid.items():
        xs, ys = sorted({x for x, _ in points}), sorted({y for _, y in points})
        if len(xs) < 2 or len(ys) < 2:
            continue
        for task, size in dict.fromkeys((cell.task, cell.size) for cell in cells):
            score = {
                cell.method: cell.outcomes[SCORE.name]
                for cell in cells
                if (cell.task, cell.size, cell.part) == (task, size, "validation")
            }
            rows = [[_difference(score.get(points.get((x, y), ""))) for x in xs] for y in ys]
            maps.append(Heatmap(method, "p", "q", xs, ys, rows, task, size))
    return maps


def _difference(result: Result | None) -> float | None:
    return None if result is None or result.comparison is None else result.comparison.difference


def _title(study: StudyConfiguration, example: StudyRecord | None) -> str:
    tasks = study.tasks or list(study.data) or [example.task if example else ""]
    model = _model_name(example)
    return f"{', '.join(tasks)} with {model}" if model else ", ".join(tasks)


def _model_name(example: StudyRecord | None) -> str:
    """Return the name of the model without its folder."""
    return Path(example.model.name).name if example and example.model else ""


def _method(name: str, records: Sequence[StudyRecord], baseline: str) -> Method:
    mine = [record for record in records if record.method == name]
    return Method(
        name,
        label=name,
        is_baseline=name == baseline,
        runs=len(mine),
        failed=sum(record.has_failed for record in mine),
        settings=next((record.settings for record in mine if record.settings), {}),
        regularizers=next((record.regularizers for record in mine if record.regularizers), []),
    )


def _run(record: StudyRecord) -> Run:
    return Run(
        id=record.id,
        method=record.method,
        task=record.task,
        size=record.size,
        seed=record.seed,
        status=record.status,
        seconds=record.cost.seconds,
        kept_epoch=record.kept.epoch,
        scores=record.scores,
        error=None if record.error is None else record.error.message,
    )


def _plan(study: StudyConfiguration, records: Sequence[StudyRecord]) -> list[str]:
    """Return sentences about the plan of a study, and each deviation from it."""
    from ..plan import Plan, deviations

    if not (written := study.plan):
        return []
    plan = Plan({name: value for name, value in written.items() if name != "hash"})
    listed = deviations(plan, study, records)
    label = OUTCOMES[plan.primary].label
    first = (
        f"Planned before the first run (plan {plan.hash}): the primary outcome is the {label}, and verdicts on all "
        f"others are exploratory. {'Deviations from the plan:' if listed else 'There is no deviation from the plan.'}"
    )
    return [first, *listed]


def _notes(records: Sequence[StudyRecord]) -> list[str]:
    """Return the notes of all runs; notes that only differ in the seed are merged."""
    notes = (note for record in records for note in record.notes)
    return list(dict.fromkeys(re.sub(r",? seed \d+$", "", note) for note in notes))


def _failure(record: StudyRecord) -> Failure:
    error = record.error or RunError("Error", "")
    return Failure(record.method, f"{error.type}: {error.message}", record.task, record.size, record.seed)
