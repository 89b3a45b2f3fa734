"""The rows of a user's file: unusable rows, and the labels of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .catalogue import Task
from .files import Problem, Table
from .findings import WARNING, Finding, plural
from .kinds import kind_of
from .modalities import modality_of
from .values import has_no_text


def row_problems(table: Table, task: Task, with_labels: bool) -> dict[int, Problem]:
    """Return the unusable rows: row -> problem.

    Args:
        table: The file.
        task: The task, which names the columns.
        with_labels: Whether each row must have a label.
    """
    problems: dict[int, Problem] = {}
    modality, reading = modality_of(task), kind_of(task).reading
    gaps = _gaps(table, task)
    for column in task.text:
        modality.check_column(table, task, column)
        for row, value in enumerate(table.columns[column]):
            if row in gaps.get(column, ()):
                continue
            if row not in problems and (problem := modality.problem(task, column, value)) is not None:
                problems[row] = problem
    if with_labels and task.label is not None:
        reading.check_label_column(table, task)
        for row in range(len(table)):
            if row not in problems and (problem := reading.problem_of_label(table, task, row)) is not None:
                problems[row] = problem
    return problems


def _gaps(table: Table, task: Task) -> dict[str, set[int]]:
    """Return the rows of a pair of texts that lack one of them, by column: a ticket without a subject can be used."""
    kind = kind_of(task)
    if len(task.text) != 2 or kind.is_generated or kind.has_endings:
        return {}
    empty = {name: {row for row, value in enumerate(table.columns[name]) if has_no_text(value)} for name in task.text}
    first, second = task.text
    return {first: empty[first] - empty[second], second: empty[second] - empty[first]}


def filled(table: Table, task: Task) -> tuple[Table, list[Finding]]:
    """Return the table with an empty text in the place of a missing one of a pair, and a warning for each column."""
    columns, findings = dict(table.columns), []
    for name, rows in _gaps(table, task).items():
        if rows:
            columns[name] = ["" if row in rows else value for row, value in enumerate(columns[name])]
            verb = "has" if len(rows) == 1 else "have"
            text = f"{plural(len(rows), 'row')} of {table.path} {verb} no text in column {name!r}"
            where = f"first: {table.place(min(rows))}"
            findings.append(Finding(WARNING, f"{text} ({where}), and the other text is used alone"))
    return replace(table, columns=columns), findings


def label_names(table: Table, task: Task) -> list[Any]:
    """Return the name of the label of each row; a list of names for tags and for several labels."""
    return kind_of(task).reading.label_names(table, task)
