"""Predictions as columns beside those of their examples, written as CSV, TSV, JSON lines, Parquet or Excel."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.files import whole_file
from .. import tasks
from ..records import ClassScores, SplitEvaluation
from ..tasks.files.binary import write_xlsx
from ..tasks.kinds import Answers
from ..tasks.origin import ROW
from ..tasks.predictions import TableWriter

FORMATS = ("csv", "tsv", "jsonl", "parquet", "xlsx")
BINARY_FORMATS = ("parquet", "xlsx")
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
    return {free_name(name, taken): column for name, column in columns.items()}


def free_name(name: str, taken: Sequence[str]) -> str:
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
        columns = {free_name(place, tuple(columns)): numbers, **columns}
    columns |= prediction_columns(
        task, answers.values, temperature=temperature, decimals=decimals, threshold=answers.threshold,
        word_starts=word_starts, taken=tuple(columns),
    )  # fmt: skip
    losses = answers.losses(temperature)
    order = np.argsort(-losses, kind="stable")
    columns[free_name("loss", tuple(columns))] = np.round(losses.astype(float), 4).tolist()
    if answers.marks_correct:
        columns[free_name("right", tuple(columns))] = (answers.predicted == answers.gold).tolist()
    return {name: [values[row] for row in order] for name, values in columns.items()}


def write_table(
    path: str | Path | None,
    columns: Mapping[str, Sequence[Any]],
    task: tasks.Task,
    form: str,
    separator: str | None = None,
    encoding: str = "utf-8",
) -> None:
    """Write columns with one entry for each example.

    A CSV, TSV or Excel file of a tagging task has one line for each word, with the number of its sentence before it. In
    CSV and TSV, cells that a spreadsheet would run as a formula get a quotation mark before them.

    Args:
        path: The file; None = the standard output.
        columns: Name of a column -> its values.
        task: The task of the examples.
        form: One of `FORMATS`.
        separator: The sign between the columns of a CSV or TSV file; None = a comma or a tab.
        encoding: The encoding of a CSV or TSV file.
    """
    if form in BINARY_FORMATS:
        assert path is not None
        with whole_file(path) as file:
            if form == "xlsx":
                write_xlsx(file, _rows(columns, task))
            else:
                import pyarrow.parquet

                pyarrow.parquet.write_table(_arrow_table(columns), file)
        return
    with nullcontext(sys.stdout) if path is None else _text_file(path, encoding) as file:
        if form == "jsonl":
            names = list(columns)
            for row in zip(*columns.values(), strict=True):
                file.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str) + "\n")
        else:
            writer = TableWriter(file, separator or ("\t" if form == "tsv" else ","))
            for cells in _rows(columns, task):
                writer.row(cells)


@contextmanager
def _text_file(path: str | Path, encoding: str) -> Iterator[Any]:
    """Yield a text file that appears whole."""
    if encoding == "utf-8":
        with whole_file(path, is_text=True) as file:
            yield file
        return
    with whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding, "backslashreplace", newline="")
        yield text
        text.detach()  # flushes it, and leaves the file open


def _rows(columns: Mapping[str, Sequence[Any]], task: tasks.Task) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table: the names of the columns, then a row for each example, or for each of its words."""
    if not tasks.kind_of(task).is_per_word:
        yield list(columns)
        for row in zip(*columns.values(), strict=True):
            yield [tasks.as_text(task, value) for value in row]
        return
    yield [free_name("sentence_number", tuple(columns)), *columns]
    words = columns[task.text[0]]
    for number, row in enumerate(zip(*columns.values(), strict=True), 1):
        count = len(words[number - 1])
        spread = [v if isinstance(v, list) and len(v) == count else [tasks.as_text(task, v)] * count for v in row]
        for parts in zip(*spread, strict=True):
            yield [number, *parts]


def _arrow_table(columns: Mapping[str, Sequence[Any]]) -> Any:
    import pyarrow

    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array(list(values))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):  # values of several types
            arrays[name] = pyarrow.array([None if value is None else str(value) for value in values])
    return pyarrow.table(arrays)


def write_evaluation(folder: Path, evaluation: SplitEvaluation, labels: Sequence[str], suffix: str = "") -> None:
    """Write the tables and pictures of an evaluation: classes, confusion matrix and reliability diagram.

    Args:
        folder: The folder to write to.
        evaluation: From `scores.evaluate`.
        labels: The names of the classes.
        suffix: Added to the names of the files, such as `_test`.
    """
    from ..report.evaluation import SHOWN_CLASSES, plot_confusion, plot_reliability

    if evaluation.calibration is not None:
        with whole_file(folder / f"classes{suffix}.csv", is_text=True) as file:
            writer = TableWriter(file)
            writer.row(field.name for field in fields(ClassScores))
            for row in evaluation.classes:
                writer.row(round(v, 4) if isinstance(v, float) else v for v in vars(row).values())
        plot_reliability(evaluation.calibration, folder / f"reliability{suffix}.png")
    if evaluation.confusion:
        with whole_file(folder / f"confusion{suffix}.csv", is_text=True) as file:
            writer = TableWriter(file)
            writer.row(["right answer", *labels])
            for label, counts in zip(labels, evaluation.confusion, strict=True):
                writer.row([label, *counts])
        if len(labels) <= SHOWN_CLASSES:
            plot_confusion(evaluation.confusion, labels, folder / f"confusion{suffix}.png")
