"""Writes predictions, as a table or as the GLUE site wants them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .catalogue import Task

if TYPE_CHECKING:
    from datasets import Dataset

# The tasks whose answers the GLUE site wants by name; it wants the number of the class for the others.
_NAMED = ("glue/mnli", "glue/qnli", "glue/rte")


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def write_predictions(path: str | Path, part: Dataset, decoded: Sequence[Any], task: Task) -> Path:
    """A CSV or TSV file, by its suffix: the texts, the label where the part has one, and `prediction`.

    Words and tags are separated by spaces.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise UserError(f"predictions cannot be written to {path}; the file must end in .csv or .tsv.")
    _check_count(len(part), decoded, path)
    names = [name for name in (*task.text, task.label) if name is not None and name in part.column_names]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow([*names, "prediction"])
        for example, answer in zip(part, decoded, strict=True):
            row = [_cell(_named(task, example[name]) if name == task.label else example[name]) for name in names]
            writer.writerow([*row, _cell(answer)])
    return path


def _named(task: Task, value: Any) -> Any:
    """The label as `decode` writes it."""
    if task.kind == "classification":
        return task.labels[value]
    return [task.labels[tag] for tag in value] if task.kind == "tokens" else value


def write_submission(folder: str | Path, task: Task, decoded: Sequence[Any], part: str = "test") -> Path:
    """GLUE's file of a part, `index<TAB>prediction`, with the labels that the site expects."""
    if part not in task.submission:
        files = ", ".join(task.submission) or "none"
        raise UserError(f"GLUE's site takes no predictions of {part} of {task.name}; the parts it takes: {files}.")
    path = Path(folder) / task.submission[part]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("index\tprediction\n")
        for index, answer in enumerate(decoded):
            file.write(f"{index}\t{_submitted(task, answer)}\n")
    return path


def _submitted(task: Task, answer: Any) -> str:
    if task.kind == "regression":
        return f"{min(max(float(answer), 0.0), 5.0):.3f}"
    return answer if task.name in _NAMED else str(task.labels.index(answer))


def _check_count(rows: int, decoded: Sequence[Any], path: Path) -> None:
    if rows != len(decoded):
        raise UserError(f"{path} would get {len(decoded)} predictions for {rows} examples.")
