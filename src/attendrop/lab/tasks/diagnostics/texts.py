"""Texts, images or sounds that occur twice: in one file, with different labels, or in training and in evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ..catalogue import Task
from ..files import Table
from ..findings import ERROR, WARNING, Finding, plural
from ..kinds import kind_of
from ..modalities import modality_of
from ..values import folded

_MOST_SHARED = 0.5  # of the rows of a validation file; with more of them its scores say nothing
_PLACEHOLDERS = ("nan", "null", "none", "n/a", "na", "#n/a", "?")


def examine_texts(task: Task, tables: Mapping[str, Table]) -> list[Finding]:
    """Return findings about unusual texts of all files."""
    findings: list[Finding] = []
    keys = {name: text_keys(task, table) for name, table in tables.items()}
    for name, table in tables.items():
        findings += _placeholders(task, table)
        if name == "train":
            findings += _repeated(task, table, keys[name])
    for name, table in tables.items():
        if name != "train":
            # Texts to learn masked words from, and a test file that is only predicted, may be those of training.
            stops = name == "validation" and not kind_of(task).is_masked
            findings += _shared(table, keys[name], tables["train"], keys["train"], _MOST_SHARED if stops else 1.0)
    return findings


def text_keys(task: Task, table: Table) -> list[Hashable]:
    """Return what makes a row the same as another one: its texts, or the content of its file."""
    columns = [table.columns[name] for name in task.text if name in table.columns]
    return list(zip(*(modality_of(task).keys(task, values) for values in columns), strict=True))


def _label_keys(task: Task, table: Table) -> list[Any]:
    if task.label is None or task.label not in table.columns:
        return [None] * len(table)
    return kind_of(task).reading.label_keys(table, task)


def _repeated(task: Task, table: Table, keys: list[Hashable]) -> list[Finding]:
    """Return rows that repeat an earlier row, and texts that have different labels."""
    first: dict[Hashable, int] = {}
    labels = _label_keys(task, table)
    repeats: list[tuple[int, int]] = []
    conflicts: dict[Hashable, tuple[int, int]] = {}
    for row, key in enumerate(keys):
        earlier = first.setdefault(key, row)
        if earlier == row:
            continue
        if _is_same(labels[row], labels[earlier]):
            repeats.append((row, earlier))
        else:
            conflicts.setdefault(key, (row, earlier))
    findings = []
    if repeats:
        row, earlier = repeats[0]
        where = f"first: {table.place(row)} repeats {table.place(earlier)}"
        verb = "repeats" if len(repeats) == 1 else "repeat"
        text = f"{plural(len(repeats), 'row')} of {table.path} {verb} an earlier row ({where})"
        findings.append(Finding(WARNING, text))
    if conflicts:
        row, earlier = next(iter(conflicts.values()))
        where = " and ".join(f"{table.place(r)}{_shown(task, labels[r])}" for r in (earlier, row))
        verb = "has" if len(conflicts) == 1 else "have"
        examples = plural(len(conflicts), modality_of(task).noun)
        text = f"{examples} of {table.path} {verb} different labels in different rows"
        findings.append(Finding(WARNING, f"{text} (first: {where})"))
    return findings


def _is_same(label: Any, other: Any) -> bool:
    """Return whether two rows have the same label; spellings that differ by case or spaces are a separate error."""
    return bool(folded(label) == folded(other) if isinstance(label, str) else label == other)


def _shown(task: Task, label: Any) -> str:
    """Return a label after the place of its row; the tags of a sentence are too long to be shown."""
    if kind_of(task).is_per_word:
        return ""
    return f" has {sorted(label)!r}" if isinstance(label, frozenset) else f" has {label!r}"


def _shared(table: Table, keys: list[Hashable], train: Table, train_keys: list[Hashable], most: float) -> list[Finding]:
    """Return rows that are also in the training data: an error if their share is above `most`."""
    known = {key: row for row, key in reversed(list(enumerate(train_keys)))}
    shared = [row for row, key in enumerate(keys) if key in known]
    if not shared:
        return []
    where = f"first: {table.place(shared[0])} is {train.place(known[keys[shared[0]]])} of {train.path}"
    verb = "is" if len(shared) == 1 else "are"
    text = f"{len(shared):,} of {plural(len(keys), 'row')} of {table.path} {verb} also in the training data ({where})"
    if len(shared) > most * len(keys):
        return [Finding(ERROR, f"{text}, so that its scores would say nothing; give other data")]
    return [Finding(WARNING, f"{text}; scores on them are too good")]


def _placeholders(task: Task, table: Table) -> list[Finding]:
    findings = []
    for column in () if kind_of(task).is_per_word else task.text:
        values = table.columns.get(column, [])
        rows = [row for row, value in enumerate(values) if value.strip().lower() in _PLACEHOLDERS]
        if rows:
            shown = f"such as {values[rows[0]]!r} in {table.place(rows[0])}"
            text = f"{plural(len(rows), 'text')} in column {column!r} of {table.path} may stand for a missing value"
            findings.append(Finding(WARNING, f"{text}, {shown}"))
    return findings
