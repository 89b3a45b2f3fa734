"""Join the rows of a table that has one word in each row to sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..findings import NOTE, Finding
from .table import Source, Table

_SENTENCE = re.compile(r"sent(ence)?s?[ _]?(#|id|idx|index|number|no\.?)?", re.IGNORECASE)
_WORD = re.compile(r"(word|token)s?", re.IGNORECASE)


def sentences_of(source: Source, columns: Mapping[str, Sequence[str]], lines: Sequence[int]) -> Table | None:
    """Return the sentences of a table with a column of words and one that numbers their sentences; None for others.

    The number may stand in every row of a sentence or in its first one. The last column has the tags.

    Args:
        source: The file.
        columns: Its columns.
        lines: The line of each row.
    """
    names = list(columns)
    sentence = next((name for name in names if _SENTENCE.fullmatch(name)), None)
    word = next((name for name in names if _WORD.fullmatch(name)), None)
    if sentence is None or word is None or names[-1] in (sentence, word):
        return None
    if any(" " in value.strip() for value in columns[word]):
        return None
    starts: list[int] = []
    last = ""
    for row, value in enumerate(columns[sentence]):
        if not starts or (value.strip() and value != last):
            starts.append(row)
        last = value if value.strip() else last
    if len(starts) == len(lines):
        return None
    text = (
        f"{source.path} has a word in each row; {sentence!r} divides them into sentences, and their tags are those of"
    )
    source.findings.append(Finding(NOTE, f"{text} the last column, {names[-1]!r}"))
    renamed = {word: "tokens", names[-1]: "tags"}
    spans = list(zip(starts, [*starts[1:], len(lines)], strict=True))
    joined: dict[str, list[Any]] = {
        renamed.get(name, name): [list(values[begin:end]) for begin, end in spans]
        for name, values in columns.items()
        if name != sentence
    }
    return source.table(joined, [lines[begin] for begin, _ in spans], has_word_lines=True)
