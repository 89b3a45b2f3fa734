"""The values of text and label columns: unusable rows, and the labels of the others."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from contextlib import suppress
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from ...errors import UserError
from .catalogue import Task
from .files import Problem, Table

FEW_CLASSES = 20  # the most different whole numbers that are taken as classes
_EXACT = 2**53  # whole numbers below it are exact as floats
_MOST_DIGITS = 4000  # of a whole number that Python reads from a text


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty."""
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
    """Return the name of a class: a text as it is written, without spaces around it; a number 3.0 is `3`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return str(value).strip()


def folded(name: str) -> str:
    """Return a key that is equal for names of classes that a reader would take for the same one.

    Spaces, invisible characters and the case of letters do not count, nor the Unicode form of a letter, nor how a
    number is written: `007` and `7.0` are 7.
    """
    if as_number(name) is not None:
        with suppress(InvalidOperation):  # an exponent beyond all limits
            return f"number {Decimal(name.strip()).normalize(Context(prec=len(name)))}"
    signs = unicodedata.normalize("NFKC", name)
    return "".join(c for c in signs if not (c.isspace() or is_invisible(c))).casefold()


def is_invisible(sign: str) -> bool:
    """Return whether a character has no width of its own, such as a zero-width space or a variation selector."""
    return unicodedata.category(sign) == "Cf" or "\ufe00" <= sign <= "\ufe0f"


def as_written(name: str) -> str:
    """Return the name of a class in quotation marks, with escapes if it has characters that may look like others."""
    looks_plain = name == unicodedata.normalize("NFC", name) and name.isprintable()
    return repr(name) if looks_plain and unicodedata.normalize("NFKC", name) == name else ascii(name)


# ---- rows that cannot be used ---------------------------------------------------------------------------------------


def missing(what: str, column: str) -> Problem:
    """Return why a row cannot be used that lacks a value."""
    return Problem(f"has no {what} in column {column!r}", "fill it in or remove the row")


def has_no_text(value: Any) -> bool:
    """Return whether the cell of a text is empty. The word "nan" is a text."""
    return not value.strip() if isinstance(value, str) else is_missing(value)


def problem_of_text(column: str, value: Any) -> Problem | None:
    """Return why a row cannot be used whose text is this value."""
    if has_no_text(value):
        return missing("text", column)
    if isinstance(value, str):
        return None
    return Problem(f"has {value!r} in column {column!r}, which is not text", "write it as text", f"text {column}")


def problem_of_words(column: str, value: Any) -> Problem | None:
    """Return why a row cannot be used whose words are this value."""
    words = words_of(value)
    if not words:
        return missing("words", column)
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        text = f"has {value!r:.80} in column {column!r}, which is not a list of words"
        return Problem(text, "each example needs a list of words", f"words {column}")
    return None


def has_labels(table: Table, column: str, labels: Sequence[str]) -> bool:
    """Return whether any row has a label.

    A test file may have no label column, an empty one, or -1 in all rows as in GLUE.
    """
    minus_one_is_missing = "-1" not in labels
    return not all(
        is_missing(value) or (minus_one_is_missing and class_name(value) == "-1")
        for value in table.columns.get(column, [])
    )


# ---- the values of rows without a problem ---------------------------------------------------------------------------


def words_of(value: Any) -> Any:
    """Return the words or tags of a sentence: a list, or a string that is split at white space."""
    return value.split() if isinstance(value, str) else value


def declared_name(names: Sequence[str], value: Any) -> str | None:
    """Return the declared name of a numeric label; None without one."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def split_labels(value: Any, task: Task) -> list[Any]:
    """Return the labels of one example, stripped; an empty text has none."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(task.label_separator) if name.strip()]
    return list(value)


def sorted_names(names: Collection[str]) -> tuple[str, ...]:
    """Sort label names by value if all are whole numbers, otherwise alphabetically."""
    numeric = all(re.fullmatch(r"-?[0-9]+", name) and len(name) <= _MOST_DIGITS for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numeric else None))


def check_classes(table: Table, column: str, names: Sequence[str]) -> None:
    """Refuse labels that cannot be learned: none, a single class, or an identifier of each row."""
    classes = len(set(names))
    if not classes:
        raise UserError(f"{table.path} has no label at all in column {column!r}.")
    if classes == 1:
        raise UserError(f"{table.path} has one class only: every label in column {column!r} is {names[0]!r}.")
    if classes > FEW_CLASSES and 2 * classes > len(names):
        raise UserError(
            f"column {column!r} of {table.path} has {classes:,} different values in {len(names):,} rows, which looks "
            "like an id and not a label; name the label with --label, or use --kind regression."
        )


def choice_names(table: Table, column: str, names: set[str], count: int) -> tuple[tuple[str, ...], str]:
    """Return the names of the answers of a multiple choice in the label column, in order, and a note.

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
                alike = next((label for label in labels if folded(label) == folded(name)), None)
                hint = "" if alike is None else f"; if {as_written(alike)} is meant, write it so"
                shown = repr(name) if alike is None else as_written(name)
                raise UserError(
                    f"{table.location(row)} has the label {shown}, which the training data do not have ({known}){hint}."
                )
    return [index[names] if isinstance(names, str) else [index[name] for name in names] for names in rows]
