"""Guess from their content which columns of a table hold the texts and the labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Columns = Mapping[str, Sequence[Any]]

_LOOKED_AT = 1000
_SAID_OFTEN = re.compile(
    r"label|class|categor|group|topic|type|sentiment|intent|rating|score|target|tag", re.IGNORECASE
)
_MOST_REPEATED, _LONGEST_NAME = 5, 40  # rows of a name, and its letters on average
_FEW_ROWS = 10  # in a table with fewer rows, labels may all be different
BITS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}  # of a column for one label
_IDEOGRAMS = "\u2e80"  # the first letter of the scripts without spaces between words


def looks_like_text(values: Sequence[Any]) -> bool:
    """Return whether most of the first 1,000 values are strings of more than one word."""
    present = [value for value in values[:_LOOKED_AT] if value is not None]
    return sum(isinstance(value, str) and _has_words(value) for value in present) * 2 > len(present)


def _has_words(value: str) -> bool:
    return " " in value.strip() or (len(value) >= 8 and sum(sign >= _IDEOGRAMS for sign in value[:100]) >= 8)


def likely_texts(columns: Columns) -> list[str]:
    """Return the columns that hold texts, those with the longest first; without any, those with the most words."""

    def length(name: str) -> float:
        present = [len(value) for value in columns[name][:_LOOKED_AT] if isinstance(value, str)]
        return sum(present) / max(1, len(present))

    texts = [name for name, values in columns.items() if looks_like_text(values)]
    texts = [name for name in texts if not _are_names(columns[name])] or _most_different(columns)
    return sorted(texts, key=length, reverse=True)


def _are_names(values: Sequence[Any]) -> bool:
    """Return whether short values repeat so often that they are names of classes of several words."""
    present = [str(value) for value in values if value is not None]
    times = len(present) / max(1, len(set(present)))
    longest = _LONGEST_NAME if times < 4 * _MOST_REPEATED else 3 * _LONGEST_NAME
    return len(present) >= _FEW_ROWS and times >= _MOST_REPEATED and sum(map(len, present)) < longest * len(present)


def likely_text(columns: Columns) -> str | None:
    """Return the column with the text; None if several columns have texts of nearly the same length."""
    texts = likely_texts(columns)
    if len(texts) < 2:
        return texts[0] if texts else None
    first, second = (sum(len(str(value)) for value in columns[name][:_LOOKED_AT]) for name in texts[:2])
    return texts[0] if first > 2 * second else None


def _most_different(columns: Columns) -> list[str]:
    """Return the columns of words with the most different values, in a table without longer texts."""
    counts = {name: _distinct(values) for name, values in columns.items() if _are_words(values)}
    return [name for name, count in counts.items() if 2 * count > max(counts.values())]


def _are_words(values: Sequence[Any]) -> bool:
    present = [value for value in values[:_LOOKED_AT] if value not in (None, "")]
    letters = (isinstance(value, str) and 2 * sum(map(str.isalpha, value)) > len(value) for value in present)
    return bool(present) and sum(letters) * 10 >= len(present) * 9


def likely_label(columns: Columns, texts: Collection[str]) -> str | None:
    """Return the column beside the `texts` that is most like a label; None if none is.

    Its values repeat, unlike those of an id or a date; a usual name counts more than few different values.
    """
    counts = {
        name: _distinct(values) for name, values in columns.items() if name not in texts and not _has_objects(values)
    }
    rows = len(next(iter(columns.values()), ()))
    able = [name for name, count in counts.items() if count > 1 and (2 * count <= rows or rows < _FEW_ROWS)]
    bits = [name for name in able if all(str(value).strip() in ("0", "1") for value in columns[name])]
    if len(bits) > 2 and not any("," in name for name in bits) and not any(map(_SAID_OFTEN.search, {*able} - {*bits})):
        return ",".join(bits)
    able = able or [name for name in counts if _has_fractions(columns[name])]
    return min(able, key=lambda name: (not _SAID_OFTEN.search(name), counts[name]), default=None)


def _distinct(values: Sequence[Any]) -> int:
    return len({str(value) for value in values if value not in (None, "")})


def _has_objects(values: Sequence[Any]) -> bool:
    return any(isinstance(value, dict) for value in values[:_LOOKED_AT])


def _has_fractions(values: Sequence[Any]) -> bool:
    return any(re.fullmatch(r"-?[0-9]+\.[0-9]+", str(value).strip()) for value in values[:_LOOKED_AT])


def suggested_names(columns: Columns) -> tuple[str, ...]:
    """Return names for the columns of a table without a header: `text`, `label`, and `column3` for others."""
    texts, text = likely_texts(columns), likely_text(columns)
    order = list(columns)
    names = dict(zip(sorted(texts[:2], key=order.index), ("text", "text_pair"), strict=False))
    if text is not None:
        names = {text: "text"}
    if (label := likely_label(columns, texts)) is not None:
        names[label] = "label"
    return tuple(names.get(name, f"column{number}") for number, name in enumerate(columns, 1))
