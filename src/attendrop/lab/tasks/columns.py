"""Find the text and label columns of a user's file, and the kind of task.

Unambiguous columns are chosen and noted. Otherwise the error asks for --text, --text-pair, --label or --kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import UserError
from ...utils.shell import quoted
from .files import Table
from .files.content import BITS, likely_label, likely_text, likely_texts
from .findings import NOTE, Finding, listed, shortened
from .values import FEW_CLASSES, as_number, is_missing

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
    ("sentence_a", "sentence_b"),
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

# Further names of the context of a multiple choice, and of the columns of its endings: ending0, choice_a, Option 1.
CONTEXT_NAMES = ("context", "question", "prompt", "premise", "startphrase", *TEXT_NAMES)
_CHOICE_NAME = re.compile(r"(ending|choice|option|answer)s?[ _.]?([0-9]+|[a-z])", re.IGNORECASE)


def _header(table: Table) -> str:
    return f"{table.path} has the columns {listed(map(shortened, table.columns), 30)}"


def _named(column: str) -> str:
    """Return a column in a note. The first line of a file may be data, and its names whole texts."""
    return f"column {shortened(column)!r}"


def _one_column(table: Table) -> str:
    """Return the error for a file without a label column; its header may be several names that were not split."""
    (name,) = table.columns
    may_be_several = table.has_header and re.search(r"\w[^\w]+\w", name)
    hint = "; if it holds several columns, name the delimiter with --separator" if may_be_several else ""
    if table.form == "xlsx":
        hint = "; if this is a title, remove the rows above the names of the columns"
    return f"{table.path} has one column, {shortened(name)!r}, and the label must be in another one{hint}."


def find_columns(
    table: Table, text: str | None, text_pair: str | None, label: str | None, is_pair_label: bool = False
) -> tuple[tuple[str, ...], str, list[str]]:
    """Find the text columns and the label column.

    Args:
        table: The training file.
        text: The column that the user named as the text, or None to guess it.
        text_pair: The column that the user named as the second text, or None.
        label: The column that the user named as the label, or None to guess it.
        is_pair_label: Whether the model learns to write `text_pair`.

    Returns:
        One or two text columns, the label column (the target column for a translation), and a note for each guess.
    """
    _check_names(table, text, text_pair, label)
    if len(table.columns) == 1 and not table.has_word_lines:
        raise UserError(_one_column(table))
    if is_pair_label:
        text_pair, label = None, text_pair
    notes = []
    if text is None and label is None and (guess := _guess_of_two(table)):
        text, label = guess
        notes += [f"using {_named(text)} as the text", f"using {_named(label)} as the label"]
    if label is None:
        label = _guess_label(table, [name for name in (text, text_pair) if name is not None])
        notes.append(f"using {_named(label)} as the label")
    if text is not None:
        return (text,) if text_pair is None else (text, text_pair), label, notes
    texts = _guess_texts(table, label)
    if len(texts) == 1:
        notes.append(f"using {_named(texts[0])} as the text")
    else:
        notes.append(f"using columns {shortened(texts[0])!r} and {shortened(texts[1])!r} as the two texts")
    return texts, label, notes


def find_text(table: Table, text: str | None) -> tuple[str, list[str]]:
    """Find the text column of a file for masked language modelling, which needs no labels: its name, and a note."""
    _check_names(table, text, None, None)
    if text is not None:
        return text, []
    names = _with_usual_name(table, TEXT_NAMES, list(table.columns)) or likely_texts(table.columns)
    names = list(table.columns) if len(table.columns) == 1 else names
    if len(names) != 1:
        raise UserError(f"{_header(table)}, and it is not clear which of them is the text; name it with --text.")
    return names[0], [f"using {_named(names[0])} as the text"] if len(table.columns) > 1 else []


def split_lists(table: Table) -> Table:
    """Give each answer of a multiple choice its own column: a list in `choices` becomes choices_0, choices_1, …."""
    columns: dict[str, list[Any]] = {}
    for name, values in table.columns.items():
        lengths = {len(value) if isinstance(value, list) else 0 for value in values}
        if len(lengths) == 1 and (count := lengths.pop()) > 1:
            columns |= {f"{name}_{i}": [value[i] for value in values] for i in range(count)}
        elif any(isinstance(value, list) for value in values):
            raise UserError(
                f"column {name!r} of {table.path} has lists of different lengths; all need the same number."
            )
        else:
            columns[name] = values
    return replace(table, columns=columns)


def label_sets(table: Table) -> list[str]:
    """Return the columns that `with_label_set` has added."""
    return [name for name in table.columns if "," in name and all(part in table.columns for part in name.split(","))]


def with_label_set(table: Table, label: str | None) -> Table:
    """Return the table with a column of lists if the label names several columns with 0 and 1: `anger,joy`.

    Args:
        table: The file.
        label: The name of the label column, or names with commas between them.
    """
    names = (label or "").split(",")
    if label is None or label in table.columns or len(names) < 2 or not all(name in table.columns for name in names):
        return table
    if all(is_missing(value) for name in names for value in table.columns[name]):
        return table  # a file to predict
    for name in names:
        row = next((row for row, value in enumerate(table.columns[name]) if _as_bit(value) is None), None)
        if row is not None:
            value = table.columns[name][row]
            raise UserError(
                f"{table.location(row)} has {value!r:.80} in column {name!r}; each column of --label {label} must have "
                "1 where an example has the label, and 0 elsewhere."
            )
    rows = zip(*([_as_bit(value) for value in table.columns[name]] for name in names), strict=True)
    sets = [[name for name, bit in zip(names, row, strict=True) if bit] for row in rows]
    return replace(table, columns={**table.columns, label: sets})


def _as_bit(value: Any) -> bool | None:
    """Return whether a cell has a label: 1 or true; None if it says neither."""
    return BITS.get(str(value).strip().lower())


_THREE_DECIMALS = re.compile(r"[-+]?[0-9]{1,3},[0-9]{3}")


def with_decimal_points(table: Table, has_numbers: bool | None) -> Table:
    """Return the table with decimal points in the columns of numbers that have decimal commas.

    In a regression these are numbers, and in a table with semicolons if nothing else is said.

    Args:
        table: The file.
        has_numbers: Whether the labels are numbers; None = it is not known yet.
    """
    if not (table.separator == ";" if has_numbers is None else has_numbers):
        return table
    columns = dict(table.columns)
    for name, values in table.columns.items():
        commas = {value for value in values if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip())}
        has_points = any(isinstance(value, str) and "." in value for value in values)
        may_be_thousands = all(_THREE_DECIMALS.fullmatch(value.strip()) for value in commas)
        if not commas or has_points or may_be_thousands:
            continue
        points = [value.replace(",", ".") if isinstance(value, str) and value in commas else value for value in values]
        if all(is_missing(value) or as_number(value) is not None for value in points):
            columns[name] = points
    changed = [name for name in columns if columns[name] is not table.columns[name]]
    if not changed:
        return table
    text = f"numbers with a decimal comma are read in {listed(map(repr, changed))} of {table.path}"
    return replace(table, columns=columns, findings=[*table.findings, Finding(NOTE, text)])


def find_choices(
    table: Table, text: str | None, choices: Sequence[str], label: str | None
) -> tuple[tuple[str, ...], str, list[str]]:
    """Find the columns of a multiple choice.

    Args:
        table: The training file, after `split_lists`.
        text: The column that the user named as the context, or None to guess it.
        choices: The columns that the user named as the answers; none to guess them.
        label: The column that the user named as the label, or None to guess it.

    Returns:
        The context and the answers, the label column, and a note for each guess.
    """
    _check_names(table, text, None, label)
    notes = []
    answers = [name for given in choices for name in _answers_named(table, given)]
    if not choices:
        answers = [name for name in table.columns if name != label and _CHOICE_NAME.fullmatch(name)]
        notes.append(f"using columns {', '.join(map(repr, answers))} as the answers to choose from")
    if len(answers) < 2:
        raise UserError(
            f"{_header(table)}, and a multiple choice needs at least two answers; name them with --choices."
        )
    if label is None:
        label = _guess_label(table, [*answers, *([text] if text else [])])
        notes.append(f"using {_named(label)} as the label")
    if text is None:
        free = [name for name in table.columns if name not in (*answers, label)]
        candidates = _with_usual_name(table, CONTEXT_NAMES, free) or (free if len(free) == 1 else [])
        if len(candidates) != 1:
            raise UserError(f"{_header(table)}, and it is not clear which of them is the context; name it with --text.")
        text = candidates[0]
        notes.append(f"using {_named(text)} as the context")
    named = [text, *answers, label]
    if len(set(named)) < len(named):
        raise UserError(f"--text, --choices and --label name a column twice; {_header(table)}.")
    return (text, *answers), label, notes


def _answers_named(table: Table, given: str) -> list[str]:
    """Return the columns that one value of --choices names: itself, or those of a column of lists."""
    if given in table.columns:
        return [given]
    parts = [name for name in table.columns if re.fullmatch(re.escape(given) + "_[0-9]+", name)]
    if not parts:
        raise UserError(f"--choices is {given!r}, but {_header(table)}.")
    return parts


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
    """Return text and label of a file of two columns without a usual label name; None if unclear."""
    names = list(table.columns)
    if len(names) != 2 or any(name.lower() in LABEL_NAMES for name in names):
        return None
    texts = [name for name in names if name.lower() in TEXT_NAMES]
    texts = texts or likely_texts(table.columns)
    if len(texts) != 1:
        return None
    return texts[0], names[1 - names.index(texts[0])]


def _guess_label(table: Table, texts: Sequence[str]) -> str:
    """Return the label column, which is none of the `texts` that are already known."""
    free = [name for name in table.columns if name not in texts]
    candidates = [table.label] if table.label in free else _with_usual_name(table, LABEL_NAMES, free)
    if len(candidates) == 1 or (candidates and candidates[0].lower() == "label"):
        return candidates[0]
    if not candidates and texts and len(free) == 1:
        return free[0]
    if candidates:
        raise UserError(
            f"{_header(table)}, and {' and '.join(candidates)} could each be the label; name it with --label."
        )
    if table.has_word_lines and len(table.columns) == 1:
        raise UserError(f"{table.path} has words without tags; if a sign divides them, name it, as in --separator '_'.")
    raise UserError(f"{_header(table)}, and none is clearly {_missing_columns(table, texts)}.")


def _missing_columns(table: Table, texts: Sequence[str]) -> str:
    """Return the missing columns, their flags, and the candidates."""
    if not texts and _has_choices(table.columns):
        return "the label; use --kind multiple_choice if they are answers to choose from, or name it with --label"
    has_text = bool(texts) or len(_with_usual_name(table, TEXT_NAMES, table.columns)) == 1
    label = likely_label(table.columns, {*texts, *likely_texts(table.columns)})
    flags = "" if label is None else f" --label {quoted(label)}"
    if not has_text:
        flags = _text_flags(table.columns) + flags
    perhaps = f", perhaps{flags}" if flags else ""
    if has_text:
        return f"the label; name it with --label{perhaps}"
    return f"the text or the label; name them with --text and --label{perhaps}"


def _guess_texts(table: Table, label: str) -> tuple[str, ...]:
    """Return the one or two text columns of a table whose label is known."""
    free = [name for name in table.columns if name != label]
    pairs = [pair for names in PAIR_NAMES if len(pair := tuple(_with_usual_name(table, names, free))) == 2]
    singles = [name for name in _with_usual_name(table, TEXT_NAMES, free) if not any(name in pair for pair in pairs)]
    singles = [name for name in singles if len(free) == 1 or not _is_mostly_empty(table.columns[name])]
    if len(pairs) == 1 and not singles:
        return pairs[0]
    if len(singles) == 1 and not pairs:
        return (singles[0],)
    if len(free) == 1:
        return (free[0],)
    hint = "name it with --text (and --text-pair)"
    if _has_choices(free):
        hint = "use --kind multiple_choice if they are answers to choose from, or name it with --text (and --text-pair)"
    if flags := _text_flags({name: table.columns[name] for name in free}):
        hint = f"{hint}, perhaps{flags}"
    raise UserError(f"{_header(table)}, and it is not clear which of them is the text; {hint}.")


def _is_mostly_empty(values: Sequence[Any]) -> bool:
    return 2 * sum(map(is_missing, values)) > len(values)


def _text_flags(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return the flags for the column with the longest texts, or for two columns with texts of similar lengths."""
    texts = likely_texts(columns)[:2]
    if (text := likely_text(columns)) is not None:
        texts = [text]
    in_order = [name for name in columns if name in texts]
    return "".join(f" {flag} {quoted(name)}" for flag, name in zip(("--text", "--text-pair"), in_order, strict=False))


def _has_choices(free: Iterable[str]) -> bool:
    """Return whether several columns are called like the answers of a multiple choice."""
    return sum(_CHOICE_NAME.fullmatch(name) is not None for name in free) > 1


def _with_usual_name(table: Table, names: Iterable[str], free: Collection[str]) -> list[str]:
    """Return the `free` columns that have one of the `names`, in upper or lower case, in the order of `names`."""
    by_lower = {name.lower(): name for name in table.columns}
    return [by_lower[name] for name in names if by_lower.get(name) in free]


def guess_kind(table: Table, texts: Sequence[str], label: str, label_separator: str | None) -> str:
    """Guess the kind of task from the values of the label column.

    Args:
        table: The training file.
        texts: The text columns.
        label: The label column.
        label_separator: The user's delimiter between the labels of one example, or None.
    """
    if label_separator is not None:
        return "multilabel"
    values = [value for value in table.columns[label] if not is_missing(value)]
    if any(isinstance(value, list) for value in values):
        return "token_classification" if _are_tags(table.columns[texts[0]], table.columns[label]) else "multilabel"
    if any(isinstance(value, dict) for value in values):
        raise UserError(f"column {label!r} of {table.path} holds objects; name another column with --label.")
    return "classification" if label in table.names else _kind_of_values(table, label, values)


def _are_tags(texts: Sequence[Any], labels: Sequence[Any]) -> bool:
    """Return whether lists of labels are one tag for each word, and not the labels of a whole text."""
    if any(isinstance(text, list) for text in texts):
        return True
    pairs = [(t, v) for t, v in zip(texts, labels, strict=True) if isinstance(t, str) and isinstance(v, list)]
    return all(len(text.split()) == len(tags) for text, tags in pairs)


_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")


def _refuse_decimal_commas(table: Table, label: str, values: list[Any]) -> None:
    """Raise if labels have decimal commas, which would make them class names."""
    written = [value for value in values if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip())]
    if not written or any(as_number(value) is None for value in values if value not in written):
        return
    row = table.columns[label].index(written[0])
    raise UserError(
        f"the label column {label!r} of {table.path} holds {len(written):,} numbers with a decimal comma, such as "
        f"{written[0]!r} in {table.place(row)}; use --kind regression to read them as numbers, or --kind "
        "classification if they are names."
    )


def _kind_of_values(table: Table, label: str, values: list[Any]) -> str:
    """Decimal numbers are a regression; names, or a few whole numbers, are classes; anything else is unclear."""
    _refuse_decimal_commas(table, label, values)
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
