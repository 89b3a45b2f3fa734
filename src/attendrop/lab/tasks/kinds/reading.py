"""Read the user's files: the columns of a task, its labels, and the rows that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ....errors import UserError
from .. import columns
from ..catalogue import Task
from ..files import Problem, Table
from ..values import check_classes, class_name, declared_name, is_missing, missing, sorted_names


@dataclass(frozen=True)
class Request:
    """The flags of the user about the columns."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    kind: str | None = None
    choices: Sequence[str] = ()
    label_separator: str | None = None


# The columns of the texts, that of the label (None if there is none), and a note for each guess.
Found = tuple[tuple[str, ...], str | None, list[str]]


class Reading:
    """How files are read whose rows have one class each, and one or two texts. Other kinds override what differs."""

    has_plain_texts: ClassVar[bool] = False  # whether a .txt file has one text on each line
    has_one_text: ClassVar[bool] = False  # whether a second text is refused
    label_feature: ClassVar[str] = "int64"  # the type of a label, or of each of several

    # ---- the columns -----------------------------------------------------------------------------------------------

    def table(self, table: Table) -> Table:
        """Return the file with the columns that the task needs."""
        return table

    def check_request(self, request: Request) -> None:
        """Refuse flags that are for other kinds."""
        if request.choices:
            raise UserError(
                f"choices is {list(request.choices)!r}; it is for the kind multiple_choice, so use --kind "
                "multiple_choice too."
            )

    def find_columns(self, table: Table, request: Request) -> Found:
        """Find the columns of the texts and of the label."""
        return columns.find_columns(table, request.text, request.text_pair, request.label)

    def task(self, kind: str, name: str, columns: Found, request: Request) -> Task:
        """Return the task of a file, without its labels.

        Args:
            kind: The name of the kind.
            name: The name of the file.
            columns: What `find_columns` found.
            request: The flags of the user about the columns.
        """
        texts, label, _ = columns
        if self.has_one_text and len(texts) > 1:
            raise UserError(f"--text-pair is {texts[1]!r}, but a task of kind {kind} has one text.")
        if request.label_separator is not None:
            raise UserError(
                f"label_separator is {request.label_separator!r}, and kind is {kind!r}; it is for the kind multilabel."
            )
        return Task(name=name, kind=kind, text=texts, label=label, max_length=256)

    # ---- the labels ------------------------------------------------------------------------------------------------

    def check_label_column(self, table: Table, task: Task) -> None:
        """Refuse a label column that cannot be read at all."""

    def problem_of_label(self, table: Table, task: Task, row: int) -> Problem | None:
        """Return why a row cannot be used because of its label."""
        column = str(task.label)
        value = table.columns[column][row]
        if column in table.names:
            value = declared_name(table.names[column], value)
        if is_missing(value):
            return missing("label", column)
        return self.problem_of_value(f"has the label {value!r:.80} in column {column!r}", value)

    def problem_of_value(self, text: str, value: Any) -> Problem | None:
        """Return why a row cannot be used whose label is this value, which is not missing."""
        is_several = isinstance(value, (list, dict))
        return Problem(text, "it must be one class", "one class") if is_several else None

    def label_names(self, table: Table, task: Task) -> list[Any]:
        """Return the name of the label of each row; a list of names for tags and for several labels."""
        column = str(task.label)
        declared = table.names.get(column)

        def name_of(value: Any) -> str:
            return class_name(declared_name(declared, value) if declared else value)

        return [self.names_in(value, name_of, task) for value in table.columns[column]]

    def names_in(self, value: Any, name_of: Callable[[Any], str], task: Task) -> Any:
        """Return the name of a label, or the list of names, in a cell."""
        return name_of(value)

    def labels(self, table: Table, task: Task) -> tuple[tuple[str, ...], list[str]]:
        """Return the names of the labels of a training file, in order, and a note where they are not obvious."""
        if task.label is None:
            return (), []
        names = self.flat(self.label_names(table, task))
        check_classes(table, task.label, names)
        return sorted_names(set(names)), []

    def written(self, table: Table, task: Task) -> Any:
        """Every label as it is written in the file."""
        return table.columns[str(task.label)]

    def flat(self, labels: Sequence[Any]) -> list[Any]:
        """Return all labels of all rows in one list."""
        return list(labels)

    def label_keys(self, table: Table, task: Task) -> list[Any]:
        """Return what makes the label of a row the same as that of another one."""
        return [str(name) for name in self.label_names(table, task)]
