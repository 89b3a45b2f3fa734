"""Tags of words that break the scheme of the others: B_LOC among B-LOC, an I-PER that continues nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from ..catalogue import Task
from ..files import Table
from ..findings import ERROR, WARNING, Finding, listed, plural
from ..kinds import kind_of
from ..rows import label_names

_ENTITY_TAG = re.compile(r"[BIESLU]-\S+")


def examine_tags(task: Task, tables: Mapping[str, Table]) -> list[Finding]:
    """Return tags that are not of the form of the others, and entities that begin in the middle."""
    findings: list[Finding] = []
    for table in tables.values() if kind_of(task).is_per_word else ():
        if task.label is None or task.label not in table.columns:
            continue
        rows = label_names(table, task)
        if _are_entities(rows):
            findings += _malformed(table, rows)
            findings += _continuations(table, rows)
    return findings


def _are_entities(rows: list[list[str]]) -> bool:
    """Whether most tags besides O are written B-…, I-… and so on."""
    counts = Counter(tag for tags in rows for tag in tags if tag != "O")
    matching = sum(count for tag, count in counts.items() if _ENTITY_TAG.fullmatch(tag))
    return matching * 2 > counts.total()


def _malformed(table: Table, rows: list[list[str]]) -> list[Finding]:
    places = [
        f"{table.place(row, word)} has {tag!r}"
        for row, tags in enumerate(rows)
        for word, tag in enumerate(tags)
        if tag != "O" and not _ENTITY_TAG.fullmatch(tag)
    ]
    if not places:
        return []
    verb = "is" if len(places) == 1 else "are"
    text = f"{plural(len(places), 'tag')} of {table.path} {verb} not written as O, B-… or I-…: {listed(places, 3)}"
    return [Finding(ERROR, f"{text}; write them as the others")]


def _broken(tags: list[str]) -> Iterator[int]:
    """The words whose tag continues an entity of another type."""
    previous = "O"
    for word, tag in enumerate(tags):
        if tag[:2] in ("I-", "E-", "L-") and previous != "O" and previous[2:] != tag[2:]:
            yield word
        previous = tag


def _continuations(table: Table, rows: list[list[str]]) -> list[Finding]:
    broken = [(row, word) for row, tags in enumerate(rows) for word in _broken(tags)]
    if not broken:
        return []
    row, word = broken[0]
    text = f"{plural(len(broken), 'tag')} of {table.path} continue an entity of another type"
    where = f"first: {rows[row][word]!r} after {rows[row][word - 1]!r} in {table.place(row, word)}"
    return [Finding(WARNING, f"{text} ({where})")]
