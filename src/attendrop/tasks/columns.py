"""Which column of a user's file is which, and whether its texts and labels can be learned from.

What is plain is guessed, and noted; what is not is asked for with --text, --text-pair, --label and --kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from .files import Table, plural

TEXTS = ("text", "sentence", "review", "content", "document", "comment", "tweet", "message", "body", "tokens", "words")
PAIRS = (
    ("text", "text_pair"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)
LABELS = (
    "label",
    "labels",
    "target",
    "class",
    "category",
    "sentiment",
    "score",
    "rating",
    "tags",
    "ner_tags",
    "pos_tags",
)

OWN_KINDS = ("classification", "regression", "tokens", "translation")
FEW = 20  # as many whole numbers at most are taken for classes without asking
MOST_CLASSES = 1000


def is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_number(value: Any) -> float | None:
    """The finite number that a value is or spells, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    # float() reads 1_000 and digits of every script
    spelt = not isinstance(value, str) or (value.isascii() and "_" not in value)
    return number if math.isfinite(number) and spelt else None


def _looks_like_text(values: Sequence[Any]) -> bool:
    present = [value for value in values[:1000] if value is not None]
    if present and all(isinstance(value, list) for value in present):
        return False
    return bool(present) and sum(isinstance(value, str) and " " in value.strip() for value in present) * 2 > len(
        present
    )


def find_columns(
    table: Table, text: str | None, text_pair: str | None, label: str | None, kind: str | None
) -> tuple[tuple[str, ...], str, list[str]]:
    """The columns of the text, the column of the label (of the target, for a translation), and what was guessed."""
    names = list(table.columns)
    has = f"{table.path} has the columns {', '.join(names)}"
    for flag, name in (("--text", text), ("--text-pair", text_pair), ("--label", label)):
        if name is not None and name not in names:
            raise UserError(f"{flag} is {name!r}, but {has}.")
    chosen = [name for name in (text, text_pair, label) if name is not None]
    if len(set(chosen)) < len(chosen):
        raise UserError(f"--text, --text-pair and --label name the same column {chosen[-1]!r}; {has}.")
    if text is None and text_pair is not None:
        raise UserError(f"--text-pair is {text_pair!r}, so --text must name the first text; {has}.")
    if kind == "translation" and text_pair is not None and label is None:
        text_pair, label = None, text_pair
    by_lower = {name.lower(): name for name in names}
    notes = []

    free = [name for name in names if name not in chosen]
    if label is None and text is None and len(free) == 2 and not any(name.lower() in LABELS for name in free):
        texts = [name for name in free if name.lower() in TEXTS]
        texts = texts or [name for name in free if _looks_like_text(table.columns[name])]
        if len(texts) == 1:
            text, label = texts[0], next(name for name in free if name != texts[0])
            notes += [f"took {text!r} for the text", f"took {label!r} for the label"]
    if label is None:
        found = [by_lower[name] for name in LABELS if by_lower.get(name) in free]
        if found and (len(found) == 1 or found[0].lower() == "label"):
            label = found[0]
        elif not found and text is not None and len(free) == 1:
            label = free[0]
        else:
            why = f"{' and '.join(found)} could each be the label" if found else "none of them is plainly the label"
            raise UserError(f"{has}, and {why}; name it with --label.")
        notes.append(f"took {label!r} for the label")
    if text is None:
        free = [name for name in names if name != label]
        pairs = [(by_lower[a], by_lower[b]) for a, b in PAIRS if by_lower.get(a) in free and by_lower.get(b) in free]
        singles = [by_lower[name] for name in TEXTS if by_lower.get(name) in free]
        singles = [name for name in singles if not any(name in pair for pair in pairs)]
        if len(pairs) == 1 and not singles:
            text, text_pair = pairs[0]
            notes.append(f"took {text!r} and {text_pair!r} for the two texts")
        elif (len(singles) == 1 and not pairs) or len(free) == 1:
            text = singles[0] if singles else free[0]
            notes.append(f"took {text!r} for the text")
        else:
            raise UserError(
                f"{has}, and it is not plain which of them is the text; name it with --text (and --text-pair)."
            )
    return (text,) if text_pair is None else (text, text_pair), label, notes


def find_kind(table: Table, texts: tuple[str, ...], label: str, kind: str | None) -> str:
    """What the label asks for: `kind` where the user says so, a guess where it is plain."""
    if kind is not None:
        if kind not in OWN_KINDS:
            raise UserError(f"--kind is {kind!r}; for your own files it must be one of {', '.join(OWN_KINDS)}.")
        return kind
    values = [value for value in table.columns[label] if not is_missing(value)]
    if any(isinstance(value, list) for value in values):
        return "tokens"
    if any(isinstance(value, dict) for value in values):
        raise UserError(f"column {label!r} of {table.path} holds objects; name another column with --label.")
    if label in table.names:
        return "classification"
    numbers = [as_number(value) for value in values]
    decimals = any(number is not None and not number.is_integer() for number in numbers)
    if None in numbers:
        if decimals:
            row = table.columns[label].index(values[numbers.index(None)])
            raise UserError(
                f"{table.where(row)} has the label {table.columns[label][row]!r} among numbers in column {label!r}; a "
                "regression needs numbers (say --kind classification if these are names)."
            )
        return "classification"
    asked = "say --kind classification or --kind regression"
    holds = f"the label column {label!r} of {table.path} holds"
    if decimals:
        return "regression"
    distinct = len(set(numbers))
    if any(isinstance(value, float) or (isinstance(value, str) and "." in value) for value in values):
        raise UserError(f"{holds} {distinct} different whole numbers, written as decimals; {asked}.")
    if distinct > FEW:
        raise UserError(f"{holds} {distinct:,} different whole numbers; {asked}.")
    return "classification"


def _lacking(table: Table, rows: list[int], what: str, column: str) -> str:
    more = f" ({len(rows):,} such rows in all)" if len(rows) > 1 else ""
    return f"{table.where(rows[0])} has no {what} in column {column!r}{more}; fill it in or remove the row."


def checked_texts(table: Table, column: str) -> list[str]:
    values = table.columns[column]
    for row, value in enumerate(values):
        if not (isinstance(value, str) or is_missing(value)):
            raise UserError(
                f"column {column!r} is no text: {table.where(row)} has {value!r}; name another with --text."
            )
    empty = [row for row, value in enumerate(values) if not isinstance(value, str) or not value.strip()]
    if empty:
        raise UserError(_lacking(table, empty, "text", column))
    return values


def checked_sentences(table: Table, column: str) -> list[list[str]]:
    """The words of each example; a string is split at white space."""
    found = []
    for row, value in enumerate(table.columns[column]):
        words = value.split() if isinstance(value, str) else value
        if not words:
            raise UserError(f"{table.where(row)} has no words in column {column!r}; fill it in or remove the row.")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise UserError(f"column {column!r} must hold lists of words; {table.where(row)} has {value!r}.")
        found.append(words)
    return found


def _present(table: Table, column: str) -> list[Any]:
    """The labels, with a declared label's number replaced by its name. None of them may be missing."""
    values = table.columns[column]
    names = table.names.get(column)
    if names:
        values = [names[v] if isinstance(v, int) and 0 <= v < len(names) else None for v in values]
    missing = [row for row, value in enumerate(values) if is_missing(value)]
    if missing:
        raise UserError(_lacking(table, missing, "label", column))
    return values


def has_labels(table: Table, column: str, labels: Sequence[str]) -> bool:
    """Whether there is a label at all: a test file may leave the column out, or empty, or at -1 as GLUE does."""
    hidden = "-1" not in labels
    return not all(is_missing(v) or (hidden and _name_of(v) == "-1") for v in table.columns.get(column, []))


def checked_numbers(table: Table, column: str) -> list[float]:
    found = []
    for row, value in enumerate(_present(table, column)):
        number = as_number(value)
        if number is None:
            raise UserError(
                f"{table.where(row)} has the label {value!r} in column {column!r}; a regression needs numbers."
            )
        found.append(number)
    return found


def _name_of(value: Any) -> str:
    """`3`, `3.0`, `"3"` and `"03"` are the class 3; everything else is called what it is."""
    number = as_number(value)
    if number is not None and number.is_integer():
        return str(int(number))
    return str(value).strip()


def class_names(table: Table, column: str) -> list[str]:
    values = _present(table, column)
    for row, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise UserError(f"{table.where(row)} has the label {value!r} in column {column!r}; it must be one class.")
    return [_name_of(value) for value in values]


def tag_names(table: Table, column: str, sentences: list[list[str]]) -> list[list[str]]:
    """The tags of each example, one for each word; a string is split at white space."""
    declared = table.names.get(column)
    found = []
    for row, (value, words) in enumerate(zip(table.columns[column], sentences, strict=True)):
        tags = value.split() if isinstance(value, str) else value
        if not isinstance(tags, list):
            raise UserError(f"column {column!r} must hold a list of tags; {table.where(row)} has {value!r}.")
        if len(tags) != len(words):
            raise UserError(
                f"{table.where(row)} has {plural(len(words), 'word')} and {plural(len(tags), 'tag')}, not as many."
            )
        if declared:
            tags = [declared[tag] if isinstance(tag, int) and 0 <= tag < len(declared) else None for tag in tags]
        for tag in tags:
            if is_missing(tag) or isinstance(tag, (list, dict)):
                raise UserError(
                    f"{table.where(row)} has the tag {tag!r} in column {column!r}; each word needs one tag."
                )
        found.append([_name_of(tag) for tag in tags])
    return found


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """In the order of the alphabet, or of size where all are whole numbers."""
    numeric = all(re.fullmatch(r"-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if numeric else None))


def check_classes(table: Table, column: str, names: Sequence[str]) -> None:
    """Refuses what cannot be learned: one class, or an id for a label."""
    classes = len(set(names))
    if classes == 1:
        raise UserError(f"{table.path} has one class only: every label in column {column!r} is {names[0]!r}.")
    if classes > MOST_CLASSES or (classes > FEW and 2 * classes > len(names)):
        raise UserError(
            f"column {column!r} of {table.path} has {classes:,} different values in {len(names):,} rows, which looks "
            "like an id and not a label; name the label with --label, or use --kind regression."
        )


def to_indices(table: Table, found: Sequence[Any], labels: Sequence[str], numbered: bool = False) -> list[Any]:
    """Names (or lists of them) to their places in `labels`; with `numbered` a name may be given by its place."""
    places = {name: place for place, name in enumerate(labels)}
    if numbered:
        places = {**{str(place): place for place in range(len(labels))}, **places}
    for row, names in enumerate(found):
        for name in [names] if isinstance(names, str) else names:
            if name not in places:
                known = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
                raise UserError(f"{table.where(row)} has the label {name!r}, which training does not have ({known}).")
    return [places[names] if isinstance(names, str) else [places[name] for name in names] for names in found]
