"""Where each example was in the user's files, and the columns that the task does not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .files import Table

if TYPE_CHECKING:
    from datasets import Dataset

    from .catalogue import Task

ROW = "attendrop:row"  # the column of a split with the number of each example among the rows of all files


@dataclass(frozen=True)
class Origin:
    """The files that splits were made of.

    Attributes:
        starts: The number of the first row of each file.
        names: The columns of each file, in its order.
        tables: The files without the texts of the task, which are in the splits.
    """

    starts: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]
    tables: tuple[Table, ...]

    def columns(self, split: Dataset, known: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return all columns of the file of a split, in the order of the file.

        Args:
            split: A part of one of the files.
            known: The columns of the task.
        """
        file, numbers = self._located(split)
        table = self.tables[file]
        columns = {
            name: known[name] if name in known else [table.columns[name][number] for number in numbers]
            for name in self.names[file]
            if name in known or name in table.columns
        }
        return {**columns, **known}

    def places(self, split: Dataset) -> tuple[str, list[int]]:
        """Return where each example of a split was in its file: "line" or "row", and the numbers."""
        file, numbers = self._located(split)
        table = self.tables[file]
        return "row" if table.lines is None else "line", [table.number(number) for number in numbers]

    def _located(self, split: Dataset) -> tuple[int, list[int]]:
        rows = split[ROW][:]
        file = max(number for number, start in enumerate(self.starts) if not rows or start <= rows[0])
        return file, [row - self.starts[file] for row in rows]


def make_origin(task: Task, tables: Sequence[Table]) -> Origin:
    """Return the origin of the splits that are made of the tables, in this order."""
    starts, names, kept = [0], list[tuple[str, ...]](), list[Table]()
    for table in tables:
        starts.append(starts[-1] + len(table))
        names.append(tuple(table.columns))
        others = {name: values for name, values in table.columns.items() if name not in task.text}
        kept.append(replace(table, columns=others, findings=[], dropped={}))
    return Origin(tuple(starts[:-1]), tuple(names), tuple(kept))


def without_rows(split: Dataset) -> Dataset:
    """Return a split without the numbers of its rows."""
    return split.remove_columns(ROW) if ROW in split.column_names else split
