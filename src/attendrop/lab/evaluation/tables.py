"""Predictions as columns beside those of their examples, written as CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .. import tasks
from ..tasks.predictions import cell
from .answers import CLASSES, Answers, probabilities

FORMATS = ("csv", "tsv", "jsonl", "parquet")
Columns = dict[str, list[Any]]


def prediction_columns(
    task: tasks.Task,
    values: Any,
    *,
    temperature: float = 1.0,
    decimals: int = 4,
    word_starts: Sequence[Sequence[int]] | None = None,
    taken: Sequence[str] = (),
) -> Columns:
    """The columns that a prediction adds to an example: `prediction`, and `probability_<class>` for each class.

    In tagging they are lists with one entry for each word, and `probability` is that of the predicted tag. A word that
    the model has not seen, because it was cut off, has the tag `O` (or `_`) and None.

    Args:
        task: The task.
        values: From `Prepared.values`.
        temperature: The logits are divided by it.
        decimals: Numbers of a regression are rounded to so many decimals.
        word_starts: Those of `Prepared`, in tagging.
        taken: Names of columns that are not used again; `_2` is added to a name that is one of them.
    """
    columns: Columns = {}
    if task.kind == "translation":
        columns["prediction"] = list(values)
    elif task.kind == "regression":
        columns["prediction"] = np.round(np.asarray(values, float), decimals).tolist()
    elif task.kind == "tokens":
        assert word_starts is not None
        columns = _tag_columns(task, probabilities(task, values, temperature), word_starts)
    else:
        chances = probabilities(task, values, temperature)
        columns["prediction"] = _names(task, values)
        rounded = np.round(chances, 4).T.tolist()
        columns |= {f"probability_{label}": part for label, part in zip(task.labels, rounded, strict=True)}
    return {_free(name, taken): column for name, column in columns.items()}


def _names(task: tasks.Task, values: Any) -> list[Any]:
    if task.kind == "multilabel":
        labels = np.array(task.labels, dtype=object)
        return [labels[row].tolist() for row in values > 0]
    chosen = [task.labels[index] for index in values.argmax(-1)]
    return [int(name) if name.isdigit() else name for name in chosen] if task.kind == "choice" else chosen


def _tag_columns(task: tasks.Task, chances: np.ndarray, word_starts: Sequence[Sequence[int]]) -> Columns:
    lengths = [len(starts) for starts in word_starts]
    positions = np.fromiter((start for starts in word_starts for start in starts), int, sum(lengths))
    unseen = "O" if "O" in task.labels else "_"
    tags = np.array(task.labels, dtype=object)[chances.argmax(-1)]
    tags[positions < 0] = unseen
    rounded = np.round(chances, 4).astype(object)
    rounded[positions < 0] = None
    columns = {"prediction": tags, "probability": rounded[np.arange(len(rounded)), chances.argmax(-1)]}
    columns |= {f"probability_{label}": rounded[:, place] for place, label in enumerate(task.labels)}
    ends = np.cumsum(lengths)[:-1]
    return {name: [part.tolist() for part in np.split(values, ends)] for name, values in columns.items()}


def _free(name: str, taken: Sequence[str]) -> str:
    """A name that no column has yet."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def labels_as_names(task: tasks.Task, split: Any) -> list[Any]:
    """The labels of a split by name: a name, a number, or a list of names."""
    values = split[task.label][:]
    if task.kind in ("classification", "choice"):
        return [task.labels[value] for value in values]
    if task.kind in ("tokens", "multilabel"):
        return [[task.labels[index] for index in value] for value in values]
    return list(values)


def split_columns(task: tasks.Task, split: Any) -> Columns:
    """The columns of a split of the task, with labels by name."""
    columns = {name: list(split[name]) for name in task.text if name in split.column_names}
    if task.label is not None and task.label in split.column_names:
        columns[task.label] = labels_as_names(task, split)
    return columns


def error_columns(answers: Answers, split: Any, word_starts: Any, temperature: float, decimals: int) -> Columns:
    """The examples of a split with their predictions and losses, the largest loss first."""
    task = answers.task
    columns = split_columns(task, split)
    columns |= prediction_columns(
        task, answers.values, temperature=temperature, decimals=decimals, word_starts=word_starts, taken=tuple(columns)
    )
    losses = answers.losses()
    order = np.argsort(-losses, kind="stable")
    columns[_free("loss", tuple(columns))] = np.round(losses.astype(float), 4).tolist()
    if task.kind in CLASSES and task.kind != "tokens":
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
        pyarrow.parquet.write_table(_arrow_table(columns), path)
        return
    with nullcontext(sys.stdout) if path is None else Path(path).open("w", encoding="utf-8", newline="") as file:
        if form == "jsonl":
            names = list(columns)
            for row in zip(*columns.values(), strict=True):
                file.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str) + "\n")
        else:
            _write_delimited(file, columns, task, "\t" if form == "tsv" else ",")


def _write_delimited(file: TextIO, columns: Mapping[str, Sequence[Any]], task: tasks.Task, delimiter: str) -> None:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    if task.kind != "tokens":
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
