"""Labels: how often each occurs, and spellings that differ although one label is meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..catalogue import Task
from ..files import Table
from ..findings import ERROR, NOTE, WARNING, Finding, listed, plural
from ..kinds import kind_of
from ..rows import label_names
from ..values import as_number, as_written, class_name, folded

_LARGE_SHARE = 0.8  # of the rows; a model that always predicts this class looks good
_FEW_ROWS = 5
_SIGNS = (",", ";", "|", "/", "+")  # that may stand between several labels
_PLACEHOLDERS = ("null", "none", "n/a", "na", "#n/a", "?", "-", "unknown")


def examine_labels(task: Task, tables: Mapping[str, Table]) -> list[Finding]:
    """Return findings about unusual names and frequencies of labels."""
    kind = kind_of(task)
    if task.label is None or not kind.has_named_labels:
        return []
    train = tables["train"]
    names = label_names(train, task)
    counts = Counter(kind.reading.flat(names))
    findings = [*_alike(task, train, counts), *_merged(task, train), *_placeholders(task, train, counts)]
    if kind.has_one_class:
        findings += _joined(task, train, counts)
    if not kind.is_per_word:
        findings += _balance(task, train, counts)
        findings += _absent(task, tables, counts)
    if kind.has_several_labels and (empty := sum(not row for row in names)):
        findings.append(
            Finding(NOTE, f"{empty:,} of {plural(len(names), 'row')} of {train.path} have none of the labels")
        )
    return findings


def _alike(task: Task, table: Table, counts: Counter[str]) -> list[Finding]:
    """Return labels that a reader takes for the same one. They would be learned as two classes."""
    groups: dict[str, list[str]] = {}
    for name in sorted(counts):
        groups.setdefault(folded(name), []).append(name)
    findings = []
    for spellings in groups.values():
        if len(spellings) > 1:
            shown = " and ".join(f"{as_written(name)} ({plural(counts[name], _unit(task))})" for name in spellings)
            text = (
                f"the labels {shown} in column {task.label!r} of {table.path} differ only by {_difference(spellings)}"
            )
            findings.append(Finding(ERROR, f"{text}, and would be different classes; write them alike"))
    return findings


def _difference(spellings: Sequence[str]) -> str:
    """Return in what labels differ that are the same to a reader."""
    if as_number(spellings[0]) is not None:
        return "how a number is written"
    if len({"".join(name.split()).casefold() for name in spellings}) == 1:
        return "case or spaces"
    return "invisible characters or Unicode forms of the same letters"


def _unit(task: Task) -> str:
    """Return the unit that has a label."""
    return "word" if kind_of(task).is_per_word else "row"


def _merged(task: Task, table: Table) -> list[Finding]:
    """Return a note on spellings that are one label: spaces around a name, and numbers that JSON has as texts too."""
    if task.label in table.names:
        return []
    spellings: dict[str, dict[str, int]] = {}
    for value in kind_of(task).reading.written(table, task):
        forms = spellings.setdefault(class_name(value), {})
        forms[str(value)] = forms.get(str(value), 0) + 1
    several = {name: forms for name, forms in spellings.items() if len(forms) > 1}
    shown = listed(f"{' and '.join(map(repr, forms))} as {name!r}" for name, forms in several.items())
    return (
        [Finding(NOTE, f"different spellings in column {task.label!r} are read as one label: {shown}")]
        if several
        else []
    )


def _joined(task: Task, table: Table, counts: Counter[str]) -> list[Finding]:
    """Return labels such as `a, b`, of which each part is also a label by itself: texts may have several labels."""
    for sign in _SIGNS:
        joined = [name for name in counts if sign in name and all(part.strip() in counts for part in name.split(sign))]
        if joined:
            rows = plural(sum(counts[name] for name in joined), "row")
            text = f"{rows} of {table.path} may have several labels in column {task.label!r}, such as {joined[0]!r}"
            return [Finding(WARNING, f"{text}; read them with --label-separator '{sign}'")]
    return []


def _placeholders(task: Task, table: Table, counts: Counter[str]) -> list[Finding]:
    placeholders = [
        f"{name!r} ({plural(counts[name], _unit(task))})" for name in counts if name.lower() in _PLACEHOLDERS
    ]
    if not placeholders or kind_of(task).is_per_word:
        return []
    text = f"in column {task.label!r} of {table.path} the label {listed(placeholders)} may stand for a missing value"
    return [Finding(WARNING, text)]


def _balance(task: Task, table: Table, counts: Counter[str]) -> list[Finding]:
    findings = []
    (name, most), rows = counts.most_common(1)[0], len(table)
    if kind_of(task).has_one_class and most >= _LARGE_SHARE * rows:
        text = f"{most / rows:.0%} of the rows of {table.path} have the label {name!r}"
        findings.append(
            Finding(WARNING, f"{text}: look at macro F1 beside the accuracy, and see --class-weights balanced")
        )
    rare = sorted((name for name, count in counts.items() if count < _FEW_ROWS), key=lambda name: counts[name])
    if rare and rows >= 10 * _FEW_ROWS:
        shown = listed(f"{name!r} ({counts[name]})" for name in rare)
        noun = "label has" if len(rare) == 1 else "labels have"
        findings.append(Finding(WARNING, f"{len(rare)} {noun} fewer than {_FEW_ROWS} rows in {table.path}: {shown}"))
    return findings


def _absent(task: Task, tables: Mapping[str, Table], counts: Counter[str]) -> list[Finding]:
    """Return labels of the training data that the validation data do not have."""
    table = tables.get("validation")
    if table is None:
        return []
    present = set(kind_of(task).reading.flat(label_names(table, task)))
    absent = [repr(name) for name in sorted(counts) if name not in present]
    return [Finding(WARNING, f"{table.path} has no row with the label {listed(absent)}")] if absent else []
