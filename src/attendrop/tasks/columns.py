"""Find the text and label columns of a user's file, and check that a model can learn from their values.

An obvious choice is made and noted. Where the choice is not obvious, the error asks for --text, --text-pair, --label or
--kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..errors import UserError
from .files import Table, plural

TEXT_NAMES = (
    "text",
    "sentence",
    "review",
    "content",
    "document",
    "comment",
    "tweet",
    "message",
    "body",
    "tokens",
    "words",
)
PAIR_NAMES = (
    ("text", "text_pair"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)
LABEL_NAMES = (
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

FILE_KINDS = ("classification", "regression", "tokens", "translation", "mlm")
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


def _looks_like_text(values: Sequence[Any]) -> bool:
    """Whether most of the first 1,000 values are strings of more than one word."""
    present = [value for value in values[:1000] if value is not None]
    return sum(isinstance(value, str) and " " in value.strip() for value in present) * 2 > len(present)


def _header(table: Table) -> str:
    return f"{table.path} has the columns {', '.join(table.columns)}"


def find_columns(
    table: Table, text: str | None, text_pair: str | None, label: str | None, kind: str | None
) -> tuple[tuple[str, ...], str, list[str]]:
    """Find the text columns and the label column.

    Args:
        table: The training file.
        text: The column that the user named as the text, or None to guess it.
        text_pair: The column that the user named as the second text, or None.
        label: The column that the user named as the label, or None to guess it.
        kind: The kind of task that the user asked for, or None.

    Returns:
        One or two text columns, the label column (the target column for a translation), and a note for each guess.
    """
    _check_names(table, text, text_pair, label)
    if kind == "translation" and label is None:
        text_pair, label = None, text_pair
    notes = []
    if text is None and label is None and (guess := _guess_of_two(table)):
        text, label = guess
        notes += [f"using column {text!r} as the text", f"using column {label!r} as the label"]
    if label is None:
        label = _guess_label(table, [name for name in (text, text_pair) if name is not None])
        notes.append(f"using column {label!r} as the label")
    if text is not None:
        return (text,) if text_pair is None else (text, text_pair), label, notes
    texts = _guess_texts(table, label)
    if len(texts) == 1:
        notes.append(f"using column {texts[0]!r} as the text")
    else:
        notes.append(f"using columns {texts[0]!r} and {texts[1]!r} as the two texts")
    return texts, label, notes


def find_text(table: Table, text: str | None) -> tuple[str, list[str]]:
    """Find the text column of a file for masked language modelling, which needs no labels: its name, and a note."""
    _check_names(table, text, None, None)
    if text is not None:
        return text, []
    names = _with_usual_name(table, TEXT_NAMES, list(table.columns)) or [
        name for name, values in table.columns.items() if _looks_like_text(values)
    ]
    names = list(table.columns) if len(table.columns) == 1 else names
    if len(names) != 1:
        raise UserError(f"{_header(table)}, and it is not clear which of them is the text; name it with --text.")
    return names[0], [f"using column {names[0]!r} as the text"] if len(table.columns) > 1 else []


def _check_names(table: Table, text: str | None, text_pair: str | None, label: str | None) -> None:
    """Check the column names that the user gave."""
    for flag, name in (("--text", text), ("--text-pair", text_pair), ("--label", label)):
        if name is not None and name not in table.columns:
            raise UserError(f"{flag} is {name!r}, but {_header(table)}.")
    named = [name for name in (text, text_pair, label) if name is not None]
    if len(set(named)) < len(named):
        raise UserError(f"--text, --text-pair and --label name the same column {named[-1]!r}; {_header(table)}.")
    if text is None and text_pair is not None:
        raise UserError(f"--text-pair is {text_pair!r}, so --text must name the first text; {_header(table)}.")


def _guess_of_two(table: Table) -> tuple[str, str] | None:
    """Text and label of a file of two columns, neither of which has the usual name of a label; None if unclear."""
    names = list(table.columns)
    if len(names) != 2 or any(name.lower() in LABEL_NAMES for name in names):
        return None
    texts = [name for name in names if name.lower() in TEXT_NAMES]
    texts = texts or [name for name in names if _looks_like_text(table.columns[name])]
    if len(texts) != 1:
        return None
    return texts[0], names[1 - names.index(texts[0])]


def _guess_label(table: Table, texts: Sequence[str]) -> str:
    """The label column, which is none of the `texts` that are already known."""
    free = [name for name in table.columns if name not in texts]
    candidates = _with_usual_name(table, LABEL_NAMES, free)
    if len(candidates) == 1 or (candidates and candidates[0].lower() == "label"):
        return candidates[0]
    if not candidates and texts and len(free) == 1:
        return free[0]
    reason = f"{' and '.join(candidates)} could each be the label" if candidates else "none is clearly the label"
    raise UserError(f"{_header(table)}, and {reason}; name it with --label.")


def _guess_texts(table: Table, label: str) -> tuple[str, ...]:
    """The one or two text columns of a table whose label is known."""
    free = [name for name in table.columns if name != label]
    pairs = [pair for names in PAIR_NAMES if len(pair := tuple(_with_usual_name(table, names, free))) == 2]
    singles = [name for name in _with_usual_name(table, TEXT_NAMES, free) if not any(name in pair for pair in pairs)]
    if len(pairs) == 1 and not singles:
        return pairs[0]
    if len(singles) == 1 and not pairs:
        return (singles[0],)
    if len(free) == 1:
        return (free[0],)
    raise UserError(
        f"{_header(table)}, and it is not clear which of them is the text; name it with --text (and --text-pair)."
    )


def _with_usual_name(table: Table, names: Iterable[str], free: Collection[str]) -> list[str]:
    """The `free` columns that have one of the `names`, in upper or lower case, in the order of `names`."""
    by_lower = {name.lower(): name for name in table.columns}
    return [by_lower[name] for name in names if by_lower.get(name) in free]


def find_kind(table: Table, label: str, kind: str | None) -> str:
    """Return the kind of task: `kind` if the user named one, otherwise a guess from the values of the label column."""
    if kind is not None:
        if kind not in FILE_KINDS:
            raise UserError(f"--kind is {kind!r}; for your own files it must be one of {', '.join(FILE_KINDS)}.")
        return kind
    values = [value for value in table.columns[label] if not is_missing(value)]
    if any(isinstance(value, list) for value in values):
        return "tokens"
    if any(isinstance(value, dict) for value in values):
        raise UserError(f"column {label!r} of {table.path} holds objects; name another column with --label.")
    return "classification" if label in table.names else _kind_of_values(table, label, values)


def _kind_of_values(table: Table, label: str, values: list[Any]) -> str:
    """Decimal numbers are a regression; names, or a few whole numbers, are classes; anything else is unclear."""
    numbers = [as_number(value) for value in values]
    has_decimals = any(number is not None and not number.is_integer() for number in numbers)
    if None in numbers and has_decimals:
        row = table.columns[label].index(values[numbers.index(None)])
        raise UserError(
            f"{table.location(row)} has the label {table.columns[label][row]!r} among numbers in column {label!r}; a "
            "regression needs numbers (use --kind classification if these are class names)."
        )
    if None in numbers:
        return "classification"
    if has_decimals:
        return "regression"
    distinct = len(set(numbers))
    holds = f"the label column {label!r} of {table.path} holds {distinct:,} different whole numbers"
    choose = "choose --kind classification or --kind regression"
    if any(isinstance(value, float) or (isinstance(value, str) and "." in value) for value in values):
        raise UserError(f"{holds}, written as decimals; {choose}.")
    if distinct > FEW_CLASSES:
        raise UserError(f"{holds}; {choose}.")
    return "classification"


def _missing_value(table: Table, rows: list[int], what: str, column: str) -> UserError:
    count = f" ({len(rows):,} such rows in total)" if len(rows) > 1 else ""
    return UserError(
        f"{table.location(rows[0])} has no {what} in column {column!r}{count}; fill it in or remove the row."
    )


def checked_texts(table: Table, column: str) -> list[str]:
    """Return the texts of a column, none of which may be empty."""
    values = table.columns[column]
    for row, value in enumerate(values):
        if not (isinstance(value, str) or is_missing(value)):
            raise UserError(
                f"column {column!r} does not hold text: {table.location(row)} has {value!r}; name another with --text."
            )
    empty = [row for row, value in enumerate(values) if not isinstance(value, str) or not value.strip()]
    if empty:
        raise _missing_value(table, empty, "text", column)
    return values


def checked_sentences(table: Table, column: str) -> list[list[str]]:
    """Return the words of each example. A string is split at white space."""
    sentences = []
    for row, value in enumerate(table.columns[column]):
        words = value.split() if isinstance(value, str) else value
        if not words:
            raise UserError(f"{table.location(row)} has no words in column {column!r}; fill it in or remove the row.")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise UserError(f"column {column!r} must hold lists of words; {table.location(row)} has {value!r}.")
        sentences.append(words)
    return sentences


def _label_values(table: Table, column: str) -> list[Any]:
    """The labels, none of which may be missing. The number of a declared label is replaced by its name."""
    values = table.columns[column]
    names = table.names.get(column)
    if names:
        values = [_declared_name(names, value) for value in values]
    missing = [row for row, value in enumerate(values) if is_missing(value)]
    if missing:
        raise _missing_value(table, missing, "label", column)
    return values


def _declared_name(names: Sequence[str], value: Any) -> str | None:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def has_labels(table: Table, column: str, labels: Sequence[str]) -> bool:
    """Whether any row has a label. A test file may have no label column, an empty one, or -1 in all rows as in GLUE."""
    minus_one_is_missing = "-1" not in labels
    return not all(
        is_missing(value) or (minus_one_is_missing and _class_name(value) == "-1")
        for value in table.columns.get(column, [])
    )


def checked_numbers(table: Table, column: str) -> list[float]:
    """Return the labels of a regression, all of which must be finite numbers."""
    numbers = []
    for row, value in enumerate(_label_values(table, column)):
        number = as_number(value)
        if number is None:
            raise UserError(
                f"{table.location(row)} has the label {value!r} in column {column!r}; a regression needs numbers."
            )
        numbers.append(number)
    return numbers


def _class_name(value: Any) -> str:
    """The name of a class. `3`, `3.0`, `"3"` and `"03"` are the same class."""
    number = as_number(value)
    if number is not None and number.is_integer():
        return str(int(number))
    return str(value).strip()


def class_names(table: Table, column: str) -> list[str]:
    """Return the class name of each row."""
    values = _label_values(table, column)
    for row, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise UserError(
                f"{table.location(row)} has the label {value!r} in column {column!r}; it must be one class."
            )
    return [_class_name(value) for value in values]


def tag_names(table: Table, column: str, sentences: list[list[str]]) -> list[list[str]]:
    """Return the tags of each sentence, one for each word. A string is split at white space."""
    declared = table.names.get(column)
    rows = []
    for row, (value, words) in enumerate(zip(table.columns[column], sentences, strict=True)):
        tags = value.split() if isinstance(value, str) else value
        if not isinstance(tags, list):
            raise UserError(f"column {column!r} must hold a list of tags; {table.location(row)} has {value!r}.")
        if len(tags) != len(words):
            counts = f"{plural(len(words), 'word')} and {plural(len(tags), 'tag')}"
            raise UserError(f"{table.location(row)} has {counts}; each word needs one tag.")
        if declared:
            tags = [_declared_name(declared, tag) for tag in tags]
        for tag in tags:
            if is_missing(tag) or isinstance(tag, (list, dict)):
                raise UserError(
                    f"{table.location(row)} has the tag {tag!r} in column {column!r}; each word needs one tag."
                )
        rows.append([_class_name(tag) for tag in tags])
    return rows


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """Sort label names by value if all are whole numbers, otherwise alphabetically."""
    numeric = all(re.fullmatch(r"-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if numeric else None))


def check_classes(table: Table, column: str, names: Sequence[str]) -> None:
    """Refuse labels that cannot be learned: a single class, or an identifier of each row."""
    classes = len(set(names))
    if classes == 1:
        raise UserError(f"{table.path} has one class only: every label in column {column!r} is {names[0]!r}.")
    if classes > MOST_CLASSES or (classes > FEW_CLASSES and 2 * classes > len(names)):
        raise UserError(
            f"column {column!r} of {table.path} has {classes:,} different values in {len(names):,} rows, which looks "
            "like an id and not a label; name the label with --label, or use --kind regression."
        )


def to_indices(table: Table, rows: Sequence[Any], labels: Sequence[str], accept_indices: bool = False) -> list[Any]:
    """Replace label names by their indices.

    Args:
        table: The file of the labels, for error messages.
        rows: A label name, or a list of tag names, for each row.
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
