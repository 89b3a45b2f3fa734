"""The rows of a user's file: unusable rows, and the labels of the others."""

from __future__ import annotations

from typing import Any

from .catalogue import Task
from .files import Problem, Table
from .kinds import kind_of
from .modalities import modality_of


def row_problems(table: Table, task: Task, with_labels: bool) -> dict[int, Problem]:
    """Return the unusable rows: row -> problem.

    Args:
        table: The file.
        task: The task, which names the columns.
        with_labels: Whether each row must have a label.
    """
    problems: dict[int, Problem] = {}
    modality, reading = modality_of(task), kind_of(task).reading
    for column in task.text:
        modality.check_column(table, task, column)
        for row, value in enumerate(table.columns[column]):
            if row not in problems and (problem := modality.problem(task, column, value)) is not None:
                problems[row] = problem
    if with_labels and task.label is not None:
        reading.check_label_column(table, task)
        for row in range(len(table)):
            if row not in problems and (problem := reading.problem_of_label(table, task, row)) is not None:
                problems[row] = problem
    return problems


def label_names(table: Table, task: Task) -> list[Any]:
    """Return the name of the label of each row; a list of names for tags and for several labels."""
    return kind_of(task).reading.label_names(table, task)
