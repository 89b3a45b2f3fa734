"""Judges the confirmation runs: every method against plain fine-tuning, for each outcome."""

from __future__ import annotations

from collections.abc import Iterable

from attendrop.statistics.over_tasks import TaskSummary, summarize_tasks
from attendrop.statistics.paired import make_pairs
from attendrop.statistics.verdict import Comparison, Question, judge_family
from attendrop.study.analysis.outcomes import DELTAS

from .run import RECORDS, read

PLAIN = "plain"
OUTCOMES = ("score", "loss", "scaled_loss", "brier", "ece", "scaled_ece", "other_accuracy")
Cell = tuple[str, str]  # task and size
Rows = list[dict[str, str]]


def confirmation_rows(name: str, stages: Iterable[str] = ("confirm",)) -> Rows:
    """The lines of the runs of some stages."""
    return [row for stage in stages for row in read(RECORDS / f"{stage}-{name}.csv")]


def value(row: dict[str, str], outcome: str) -> float | None:
    """The outcome of a run; None if it failed or has no such outcome."""
    if row["status"] != "finished":
        return None
    text = (row["accuracy"] or row["mcc"] or row["pearson"]) if outcome == "score" else row[outcome]
    return float(text) if text else None


def by_cell(rows: Rows, outcome: str) -> dict[Cell, dict[str, dict[int, float | None]]]:
    """Cell -> method -> seed -> value, of the cells that have this outcome."""
    found: dict[Cell, dict[str, dict[int, float | None]]] = {}
    for row in rows:
        seeds = found.setdefault((row["task"], row["size"]), {}).setdefault(row["method"], {})
        seeds[int(row["seed"])] = value(row, outcome)
    return {
        cell: methods for cell, methods in found.items() if any(v is not None for v in methods.get(PLAIN, {}).values())
    }


def question(outcome: str) -> Question:
    is_better_if_greater = outcome in ("score", "other_accuracy")
    delta = DELTAS["score"] if is_better_if_greater else DELTAS[outcome]
    return Question(delta=delta, greater_is_better=is_better_if_greater, outcome=outcome, baseline=PLAIN)


def in_each_cell(rows: Rows, outcome: str) -> dict[Cell, dict[str, Comparison]]:
    """The comparison of each method in each cell, corrected for the number of methods (Holm)."""
    return {
        cell: judge_family({m: v for m, v in methods.items() if m != PLAIN}, methods[PLAIN], question(outcome))
        for cell, methods in by_cell(rows, outcome).items()
    }


def over_cells(rows: Rows, outcome: str) -> dict[str, TaskSummary]:
    """The summary of each method over all cells."""
    differences: dict[str, dict[str, object]] = {}
    for cell, methods in by_cell(rows, outcome).items():
        for method, seeds in methods.items():
            if method != PLAIN:
                pairs = make_pairs(seeds, methods[PLAIN])
                differences.setdefault(method, {})["/".join(cell)] = pairs.differences
    return summarize_tasks(differences, question(outcome))  # type: ignore[arg-type]
