"""Predictions as columns beside those of their examples, written as CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.files import whole_file
from .. import tasks
from ..tasks.kinds import Answers
from ..tasks.origin import ROW
from ..tasks.predictions import cell

FORMATS = ("csv", "tsv", "jsonl", "parquet")
Columns = dict[str, list[Any]]


def prediction_columns(
    task: tasks.Task,
    values: Any,
    *,
    temperature: float = 1.0,
    decimals: int = 4,
    threshold: Any = 0.5,
    word_starts: Sequence[Sequence[int]] | None = None,
    taken: Sequence[str] = (),
) -> Columns:
    """Return the columns that a prediction adds to an example: `prediction`, and `probability_<class>` for each class.

    In tagging they are lists with one entry for each word.

    Args:
        task: The task.
        values: From `Prepared.values`.
        temperature: The logits are divided by it.
        decimals: Numbers of a regression are rounded to so many decimals.
        threshold: The probability above which a label is predicted, for several labels.
        word_starts: Those of `Prepared`, in tagging.
        taken: Names of columns that are not used again; `_2` is added to a name that is one of them.
    """
    answers = tasks.kind_of(task).answers(task, values, threshold=threshold)
    columns = answers.columns(temperature, decimals, word_starts)
    return {_free(name, taken): column for name, column in columns.items()}


def _free(name: str, taken: Sequence[str]) -> str:
    """Return a name that no column has yet."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def labels_as_names(task: tasks.Task, split: Any) -> list[Any]:
    """Return the labels of a split by name: a name, a number, or a list of names."""
    kind = tasks.kind_of(task)
    return [kind.label_name(task, value) for value in split[task.label][:]]


def split_columns(task: tasks.Task, split: Any, origin: Any = None) -> Columns:
    """Return the columns of a split of the task, with labels by name.

    Args:
        task: The task.
        split: The split as it was loaded.
        origin: That of the data; the columns are then all columns of the user's file.
    """
    columns = {name: list(split[name]) for name in task.text if name in split.column_names}
    if task.label is not None and task.label in split.column_names:
        columns[task.label] = labels_as_names(task, split)
    return columns if origin is None or ROW not in split.column_names else origin.columns(split, columns)


def error_columns(
    answers: Answers, split: Any, word_starts: Any, temperature: float, decimals: int, origin: Any = None
) -> Columns:
    """Return the examples of a split with their lines, predictions and losses, the largest loss first."""
    task = answers.task
    columns = split_columns(task, split, origin)
    if origin is not None and ROW in split.column_names:
        place, numbers = origin.places(split)
        columns = {_free(place, tuple(columns)): numbers, **columns}
    columns |= prediction_columns(
        task, answers.values, temperature=temperature, decimals=decimals, threshold=answers.threshold,
        word_starts=word_starts, taken=tuple(columns),
    )  # fmt: skip
    losses = answers.losses(temperature)
    order = np.argsort(-losses, kind="stable")
    columns[_free("loss", tuple(columns))] = np.round(losses.astype(float), 4).tolist()
    if answers.marks_right:
        columns[_free("right", tuple(columns))] = (answers.predicted == answers.gold).tolist()
    return {name: [values[row] for row in order] for name, values in columns.items()}


def write_table(path: str | Path | None, columns: Mapping[str, Sequence[Any]], task: tasks.Task, form: str) -> None:
    """Write columns with one entry for each example.

    A CSV or TSV file of a tagging task has one line for each word, with the number of its sentence before it. In these
    formats, cells that a spreadsheet would run as a formula get a quotation mark before them.

    Args:
        path: The file; None = the standard output.
        columns: Name of a column -> its values.
        task: The task of the examples.
        form: One of `FORMATS`.
    """
    if form == "parquet":
        import pyarrow.parquet

        assert path is not None
        with whole_file(path) as file:
            pyarrow.parquet.write_table(_arrow_table(columns), file)
        return
    with nullcontext(sys.stdout) if path is None else whole_file(path, is_text=True) as file:
        if form == "jsonl":
            names = list(columns)
            for row in zip(*columns.values(), strict=True):
                file.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str) + "\n")
        else:
            _write_delimited(file, columns, task, "\t" if form == "tsv" else ",")


def _write_delimited(file: Any, columns: Mapping[str, Sequence[Any]], task: tasks.Task, delimiter: str) -> None:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    if not tasks.kind_of(task).is_per_word:
        joined = {name: [tasks.as_text(task, v) for v in values] for name, values in columns.items()}
        writer.writerow(joined)
        writer.writerows([cell(value) for value in row] for row in zip(*joined.values(), strict=True))
        return
    writer.writerow([_free("sentence_number", tuple(columns)), *columns])
    words = columns[task.text[0]]
    for number, row in enumerate(zip(*columns.values(), strict=True), 1):
        count = len(words[number - 1])
        spread = [v if isinstance(v, list) and len(v) == count else [tasks.as_text(task, v)] * count for v in row]
        writer.writerows([number, *map(cell, parts)] for parts in zip(*spread, strict=True))


def _arrow_table(columns: Mapping[str, Sequence[Any]]) -> Any:
    import pyarrow

    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array(list(values))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):  # values of several types
            arrays[name] = pyarrow.array([None if value is None else str(value) for value in values])
    return pyarrow.table(arrays)


def write_evaluation(folder: Path, evaluation: Mapping[str, Any], labels: Sequence[str], suffix: str = "") -> None:
    """Write the tables and pictures of an evaluation: classes, confusion matrix and reliability diagram.

    Args:
        folder: The folder to write to.
        evaluation: From `scores.evaluate`.
        labels: The names of the classes.
        suffix: Added to the names of the files, such as `_test`.
    """
    from ..report.evaluation import SHOWN_CLASSES, plot_confusion, plot_reliability

    if "classes" in evaluation:
        with whole_file(folder / f"classes{suffix}.csv", is_text=True) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(evaluation["classes"][0])
            for row in evaluation["classes"]:
                writer.writerow([round(v, 4) if isinstance(v, float) else cell(v) for v in row.values()])
        plot_reliability(evaluation["calibration"], folder / f"reliability{suffix}.png")
    if "confusion" in evaluation:
        with whole_file(folder / f"confusion{suffix}.csv", is_text=True) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["right answer", *map(cell, labels)])
            for label, counts in zip(labels, evaluation["confusion"], strict=True):
                writer.writerow([cell(label), *counts])
        if len(labels) <= SHOWN_CLASSES:
            plot_confusion(evaluation["confusion"], labels, folder / f"confusion{suffix}.png")
