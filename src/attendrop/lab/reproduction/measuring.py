"""Numbers of an entry: from the records of its runs, and from the trained models that were kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..records import StudyRecord
from ..tasks import find_task
from ..tasks.outcomes import SCORE
from .kept import NO_SCORES, measure_pruning, measure_robustness_of
from .planning import PlannedRun, Setup

_GATE = re.compile(r"attendout/drop_probability_layer_(\d+)")


class Measured(NamedTuple):
    """One number of one run.

    Attributes:
        row: The row or line.
        column: The column or panel.
        x: Its place on a line; None in a table.
        unit: What runs of other rows share with it, such as the seed.
        protocol: How the scored epoch was chosen.
        value: The number.
        step: The step in which it moves, such as 1/277 for an accuracy on 277 examples; 0 if it moves in none.
    """

    row: str
    column: str
    x: float | None
    unit: str
    protocol: str
    value: float
    step: float = 0.0


Ended = Sequence[tuple[PlannedRun, StudyRecord]]


def measured(setup: Setup, runs: Ended, models: Path) -> list[Measured]:
    """Return all numbers of an entry.

    Args:
        setup: The entry and the user's choices.
        runs: The runs that have ended, with their records.
        models: The folder of the models that were kept.
    """
    measures: Mapping[str, Callable[[Setup, Ended, Path], Iterator[Measured]]] = {
        "score": _scores,
        "deviation": _scores,
        "also": _scores,
        "cost": _costs,
        "curves": _curves,
        "gates": _gates,
        "robustness": measure_of_models(measure_robustness_of),
        "pruning": measure_of_models(measure_pruning),
    }
    return list(measures[setup.entry.measure](setup, runs, models))


def short(task: str) -> str:
    """Return the name of a task as columns have it."""
    return find_task(task).name.removeprefix("glue/")


def column_of(kind: str, task: str, setup: Setup) -> str:
    """Return the name of a column: with the task, if there are several."""
    return kind if len(setup.tasks) == 1 else f"{kind}, {short(task)}"


def amount_of(size: str) -> float:
    """Return an amount of training data as a number: a share, or the examples of each class."""
    return 1.0 if size == "all" else float(size.partition("=")[2])


def _scores(setup: Setup, runs: Ended, models: Path) -> Iterator[Measured]:
    for run, record in runs:
        x = amount_of(run.spec.size) if len(setup.sizes) > 1 else None
        column = short(run.task)
        row = run.row
        if setup.entry.over_layers and run.layer is not None:
            x = float(run.layer)
            row = "one layer"
        score = record.score("validation")
        if score is not None:
            yield Measured(row, column, x, run.unit, run.protocol, score, step_of(record))
        for other in setup.entry.also_of(run.task, setup.scale):
            also = record.score(other, find_task(other).metrics[0])
            if also is not None:
                place = f"{column} to {short(other)}", x, run.unit, run.protocol
                yield Measured(row, *place, also, step_of(record, find_task(other).metrics[0], other))


def step_of(record: StudyRecord, metric: str | None = None, part: str = "validation") -> float:
    """Return the step in which a score of a run moves; 0 if it moves in none.

    Args:
        record: The record of the run.
        metric: The metric; None = that of the task.
        part: The part of the data.
    """
    return SCORE.resolution(metric or str(record.metric), record.examples.get(part)) or 0.0


def _costs(setup: Setup, runs: Ended, models: Path) -> Iterator[Measured]:
    """Multiples of the baseline with the same seed."""
    places = {(run.row, run.task, run.unit): record for run, record in runs}
    for run, record in runs:
        base = places.get((setup.entry.baseline, run.task, run.unit))
        for name, value in _cost(record).items():
            of_base = None if base is None else _cost(base).get(name)
            if value and of_base:
                yield Measured(run.row, column_of(name, run.task, setup), None, run.unit, run.protocol, value / of_base)


def _cost(record: StudyRecord) -> dict[str, float]:
    """Return the seconds of a step, and the most memory that was allocated on the GPU."""
    cost = record.cost
    values = {"time": (cost.seconds or 0.0) / cost.steps if cost.steps else 0.0}
    return values if cost.peak_memory_mib is None else {**values, "memory": float(cost.peak_memory_mib)}


def _curves(setup: Setup, runs: Ended, models: Path) -> Iterator[Measured]:
    for run, record in runs:
        names = {"train_loss": "training loss", "loss": "development loss", str(record.metric): "development score"}
        for point in record.curves:
            for name, kind in names.items():
                if (value := point.get(name)) is not None:
                    column = column_of(kind, run.task, setup)
                    yield Measured(
                        run.row, column, round(float(point["epoch"]), 4), run.unit, run.protocol, float(value)
                    )


def _gates(setup: Setup, runs: Ended, models: Path) -> Iterator[Measured]:
    for run, record in runs:
        for name, points in record.method_metrics.items():
            if match := _GATE.fullmatch(name):
                column = column_of(f"layer {match[1]}", run.task, setup)
                for step, value in points:
                    yield Measured(run.row, column, float(step), run.unit, run.protocol, float(value))


def last_gates(record: StudyRecord) -> dict[int, float]:
    """Return P(drop) of each layer in the last round of a run; empty if it had no generator."""
    logged = ((_GATE.fullmatch(name), points) for name, points in record.method_metrics.items())
    return {int(match[1]): float(points[-1][1]) for match, points in logged if match and points}


def measure_of_models(
    measure: Callable[[PlannedRun, StudyRecord, Path, dict[int, float]], Mapping[tuple[str, str, float | None], float]],
) -> Callable[[Setup, Ended, Path], Iterator[Measured]]:
    """Return a measure of the models that were kept.

    Args:
        measure: Returns the numbers of one model: (what is added to the row, column, x) -> value.
    """

    def of_all(setup: Setup, runs: Ended, models: Path) -> Iterator[Measured]:
        for run, record in runs:
            for (suffix, kind, x), value in measure(run, record, models / run.spec.id, last_gates(record)).items():
                column = column_of(kind, run.task, setup)
                step = 0.0 if kind in NO_SCORES else step_of(record)
                yield Measured(run.row + suffix, column, x, run.unit, run.protocol, value, step)

    return of_all
