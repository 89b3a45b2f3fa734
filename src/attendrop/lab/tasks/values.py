"""The values of text and label columns: which rows cannot be used, and the labels of the others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import UserError
from .catalogue import Task
from .files import Problem, Table
from .findings import plural
from .modalities import modality_of

FEW_CLASSES = 20  # up to so many different whole numbers are classes without asking
MOST_CLASSES = 1000


def is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_number(value: Any) -> float | None:
    """Return a number, or a string that spells one, as a finite float; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None  # float() accepts 1_000 and the digits of every script
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def class_name(value: Any) -> str:
    """The name of a class. `3`, `3.0`, `"3"` and `"03"` are the same class."""
    number = as_number(value)
    if number is not None and number.is_integer():
        return str(int(number))
    return str(value).strip()


def folded(name: str) -> str:
    """The name of a class without its spaces and the case of its letters."""
    return "".join(name.split()).casefold()


# ---- rows that cannot be used ---------------------------------------------------------------------------------------


def row_problems(table: Table, task: Task, with_labels: bool) -> dict[int, Problem]:
    """Find the rows that cannot be used: row -> why.

    Args:
        table: The file.
        task: The task, which names the columns.
        with_labels: Whether each row must have a label.
    """
    problems: dict[int, Problem] = {}
    modality = modality_of(task)
    for column in task.text:
        modality.check_column(table, task, column)
        for row, value in enumerate(table.columns[column]):
            if row not in problems and (problem := modality.problem(task, column, value)) is not None:
                problems[row] = problem
    if with_labels and task.label is not None:
        _check_label_column(table, task)
        for row in range(len(table)):
            if row not in problems and (problem := _problem_of_label(table, task, row)) is not None:
                problems[row] = problem
    return problems


def _check_label_column(table: Table, task: Task) -> None:
    values = table.columns[str(task.label)]
    is_text = any(isinstance(value, str) for value in values)
    if task.kind == "multilabel" and is_text and task.label_separator is None:
        first = next(value for value in values if isinstance(value, str))
        raise UserError(
            f"column {task.label!r} of {table.path} holds texts, such as {first!r}, and no lists; name the sign "
            "between the labels with --label-separator."
        )


def _missing(what: str, column: str) -> Problem:
    return Problem(f"has no {what} in column {column!r}", "fill it in or remove the row")


def problem_of_text(column: str, value: Any) -> Problem | None:
    """Why a row cannot be used whose text is this value."""
    if isinstance(value, str):
        return None if value.strip() else _missing("text", column)
    if is_missing(value):
        return _missing("text", column)
    return Problem(f"has {value!r} in column {column!r}, which is not text", "write it as text", f"text {column}")


def problem_of_words(column: str, value: Any) -> Problem | None:
    """Why a row cannot be used whose words are this value."""
    words = words_of(value)
    if not words:
        return _missing("words", column)
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        text = f"has {value!r:.80} in column {column!r}, which is not a list of words"
        return Problem(text, "each example needs a list of words", f"words {column}")
    return None


def _problem_of_label(table: Table, task: Task, row: int) -> Problem | None:
    column = str(task.label)
    value = table.columns[column][row]
    if task.kind == "tokens":
        return _problem_of_tags(table, column, value, words_of(table.columns[task.text[0]][row]))
    if task.kind == "multilabel":
        return _problem_of_set(column, value)
    if column in table.names:
        value = _declared_name(table.names[column], value)
    if is_missing(value):
        return _missing("label", column)
    text = f"has the label {value!r:.80} in column {column!r}"
    if task.kind == "regression":
        is_number = as_number(value) is not None
        return None if is_number else Problem(text, "a regression needs numbers, with a decimal point", "number")
    is_several = isinstance(value, (list, dict))
    return Problem(text, "it must be one class", "one class") if is_several else None


def _problem_of_set(column: str, value: Any) -> Problem | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _missing("list of labels", column)
    is_list = isinstance(value, list) and not any(is_missing(name) or isinstance(name, (list, dict)) for name in value)
    if is_list or isinstance(value, str):
        return None
    return Problem(f"has {value!r:.80} in column {column!r}", "it must be a list of labels", f"set {column}")


def _problem_of_tags(table: Table, column: str, value: Any, words: Any) -> Problem | None:
    advice = "each word needs one tag"
    tags = words_of(value)
    if not isinstance(tags, list):
        return Problem(
            f"has {value!r:.80} in column {column!r}", f"it must be a list of tags; {advice}", f"tags {column}"
        )
    if len(tags) != len(words):
        return Problem(f"has {plural(len(words), 'word')} and {plural(len(tags), 'tag')}", advice, "number of tags")
    if declared := table.names.get(column):
        tags = [_declared_name(declared, tag) for tag in tags]
    for tag in tags:
        if is_missing(tag) or isinstance(tag, (list, dict)):
            return Problem(f"has the tag {tag!r} in column {column!r}", advice, f"tag {column}")
    return None


def has_labels(table: Table, column: str, labels: Sequence[str]) -> bool:
    """Whether any row has a label. A test file may have no label column, an empty one, or -1 in all rows as in GLUE."""
    minus_one_is_missing = "-1" not in labels
    return not all(
        is_missing(value) or (minus_one_is_missing and class_name(value) == "-1")
        for value in table.columns.get(column, [])
    )


# ---- the values of rows without a problem ---------------------------------------------------------------------------


def words_of(value: Any) -> Any:
    """The words or tags of a sentence: a list, or a string that is split at white space."""
    return value.split() if isinstance(value, str) else value


def _declared_name(names: Sequence[str], value: Any) -> str | None:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def label_names(table: Table, task: Task) -> list[Any]:
    """The name of the label of each row; a list of names for tags and for several labels."""
    column = str(task.label)
    declared = table.names.get(column)

    def name_of(value: Any) -> str:
        return class_name(_declared_name(declared, value) if declared else value)

    read: dict[str, Callable[[Any], Any]] = {
        "tokens": lambda value: [name_of(tag) for tag in words_of(value)],
        "multilabel": lambda value: list(dict.fromkeys(name_of(name) for name in split_labels(value, task))),
    }
    return [read.get(task.kind, name_of)(value) for value in table.columns[column]]


def split_labels(value: Any, task: Task) -> list[Any]:
    """The labels of one example, without the spaces around them in a text; an empty text has none."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(task.label_separator) if name.strip()]
    return list(value)


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """Sort label names by value if all are whole numbers, otherwise alphabetically."""
    numeric = all(re.fullmatch(r"-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if numeric else None))


def check_classes(table: Table, column: str, names: Sequence[str]) -> None:
    """Refuse labels that cannot be learned: none, a single class, or an identifier of each row."""
    classes = len(set(names))
    if not classes:
        raise UserError(f"{table.path} has no label at all in column {column!r}.")
    if classes == 1:
        raise UserError(f"{table.path} has one class only: every label in column {column!r} is {names[0]!r}.")
    if classes > MOST_CLASSES or (classes > FEW_CLASSES and 2 * classes > len(names)):
        raise UserError(
            f"column {column!r} of {table.path} has {classes:,} different values in {len(names):,} rows, which looks "
            "like an id and not a label; name the label with --label, or use --kind regression."
        )


def choice_names(table: Table, column: str, names: set[str], count: int) -> tuple[tuple[str, ...], str]:
    """What the answers of a multiple choice are called in the label column: their names, in order, and a note.

    They are counted from 0 or from 1, or called A, B, C and so on, in upper or lower case.
    """
    from_zero, from_one = [tuple(map(str, range(first, first + count))) for first in (0, 1)]
    letters = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count])
    for known, how in (
        (from_one if "0" not in names and str(count) in names else from_zero, "counted from"),
        (letters, "called"),
        (tuple(letter.lower() for letter in letters), "called"),
    ):
        if names <= set(known):
            return known, f"the answers are {how} {known[0]} to {known[-1]} in column {column!r}"
    wrong = sorted(names - set(from_zero) - set(from_one) - set(letters))
    raise UserError(
        f"column {column!r} of {table.path} has the label {(wrong or sorted(names))[0]!r}; a multiple choice of "
        f"{count} answers needs numbers from 0 to {count - 1}, from 1 to {count}, or the letters A to {letters[-1]}."
    )


def to_indices(table: Table, rows: Sequence[Any], labels: Sequence[str], accept_indices: bool = False) -> list[Any]:
    """Replace label names by their indices.

    Args:
        table: The file of the labels, for error messages.
        rows: A label name, or a list of names, for each row.
        labels: All label names, in order.
        accept_indices: Whether a label may also be given by its index.
    """
    index = {name: i for i, name in enumerate(labels)}
    if accept_indices:
        index = {**{str(i): i for i in range(len(labels))}, **index}
    for row, names in enumerate(rows):
        for name in [names] if isinstance(names, str) else names:
            if name not in index:
                known = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
                raise UserError(
                    f"{table.location(row)} has the label {name!r}, which the training data do not have ({known})."
                )
    return [index[names] if isinstance(names, str) else [index[name] for name in names] for names in rows]
