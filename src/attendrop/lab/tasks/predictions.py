"""Write predictions as a table, or in the format of the GLUE website."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...utils.files import whole_file
from .catalogue import Task
from .kinds import kind_of
from .values import as_number

if TYPE_CHECKING:
    from datasets import Dataset

# The GLUE website expects label names for these tasks, and class indices for the others.
_SUBMITTED_BY_NAME = ("glue/mnli", "glue/qnli", "glue/rte")


_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


class TableWriter:
    """Write the rows of a CSV or TSV file that a spreadsheet may open, with cells as `cell` returns them.

    Lines end with a line feed. Fields with a carriage return are quoted too, which `csv` does only where lines end with
    one.

    Args:
        file: The file, opened without a translation of line ends.
        delimiter: The sign between the columns.
    """

    def __init__(self, file: Any, delimiter: str = ",") -> None:
        self._file = file
        self._writer = csv.writer(self, delimiter=delimiter, lineterminator="\r\n")

    def row(self, values: Iterable[Any]) -> None:
        """Write a row: the names of the columns, or the cells of an example."""
        self._writer.writerow([cell(value) for value in values])

    def write(self, line: str) -> None:
        """Write a line, which is finished by `csv`."""
        self._file.write(line.removesuffix("\r\n") + "\n")


def cell(value: Any) -> Any:
    """Return the value of a cell.

    A text that a spreadsheet would run as a formula gets a single quotation mark before it.

    This is the advice of OWASP against "CSV injection". Numbers stay as they are.
    """
    text = " ".join(map(str, value)) if isinstance(value, list) else value
    if isinstance(text, str) and text.lstrip(" ").startswith(_FORMULA_SIGNS) and as_number(text) is None:
        return f"'{text}"
    return text


def write_predictions(path: str | Path, split: Dataset, decoded: Sequence[Any], task: Task) -> Path:
    """Write a table with the texts, the labels if the split has them, and a column `prediction`.

    Words and tags are separated by spaces. A text that a spreadsheet would run as a formula, because it begins with
    `=`, `+`, `-` or `@`, gets a single quotation mark before it.

    Args:
        path: The file to write; its suffix, .csv or .tsv, selects the format.
        split: The split that was predicted.
        decoded: One prediction for each example, from `Prepared.decode`.
        task: The task of the split.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise UserError(f"predictions cannot be written to {path}; the file must end in .csv or .tsv.")
    if len(split) != len(decoded):
        raise UserError(f"{path} would get {len(decoded)} predictions for {len(split)} examples.")
    names = [name for name in (*task.text, task.label) if name is not None and name in split.column_names]
    with whole_file(path, is_text=True) as file:
        writer = TableWriter(file, "\t" if path.suffix.lower() == ".tsv" else ",")
        writer.row([*names, "prediction"])
        for example, prediction in zip(split, decoded, strict=True):
            row = [_label_names(task, example[name]) if name == task.label else example[name] for name in names]
            writer.row([*row, as_text(task, prediction)])
    return path


def _label_names(task: Task, value: Any) -> Any:
    """Return the label of an example by name, as in the predictions."""
    return as_text(task, kind_of(task).label_name(task, value))


def as_text(task: Task, prediction: Any) -> Any:
    """Return a list of tags or labels as one text; other predictions as they are.

    Args:
        task: The task of the prediction.
        prediction: One of those that `Prepared.decode` returns.
    """
    if not isinstance(prediction, list):
        return prediction
    return kind_of(task).separator(task).join(prediction)


def write_submission(folder: str | Path, task: Task, decoded: Sequence[Any], split: str = "test") -> Path:
    """Write a file for the GLUE website: `index<TAB>prediction`, with the labels that it expects.

    Args:
        folder: The folder to write to; the website prescribes the name of the file.
        task: A GLUE task.
        decoded: One prediction for each example, from `Prepared.decode`.
        split: The name of the split that was predicted.
    """
    if split not in task.submission:
        accepted = ", ".join(task.submission) or "none"
        raise UserError(
            f"the GLUE website accepts no predictions for {split} of {task.name}; it accepts the splits: {accepted}."
        )
    path = Path(folder) / task.submission[split]
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, is_text=True) as file:
        file.write("index\tprediction\n")
        for index, prediction in enumerate(decoded):
            file.write(f"{index}\t{_submitted(task, prediction)}\n")
    return path


def _submitted(task: Task, prediction: Any) -> str:
    if kind_of(task).has_numbers:
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"
    return prediction if task.name in _SUBMITTED_BY_NAME else str(task.labels.index(prediction))
