"""Judges the confirmation runs: every method against plain fine-tuning, for each outcome."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from attendrop.lab.statistics.over_tasks import TaskSummary, summarize_tasks
from attendrop.lab.statistics.paired import make_pairs
from attendrop.lab.statistics.verdict import Comparison, Question, judge_family
from attendrop.lab.tasks.outcomes import Outcome

from .outcomes import OUTCOMES
from .parts import PLAIN, UPPER_LINE, Rows, confirmation_rows
from .plan import matched_plain

Cell = tuple[str, str]  # task and size
Values = dict[Cell, dict[str, dict[int, float | None]]]  # cell -> method -> seed -> value


def value(row: dict[str, str], outcome: str) -> float | None:
    """The outcome of a run; None if it failed or has no such outcome. Only a classifier has a log loss."""
    if row["status"] != "finished" or (outcome == "loss" and not row["brier"]):
        return None
    text = (row["accuracy"] or row["mcc"] or row["pearson"]) if outcome == "score" else row[outcome]
    return float(text) if text else None


def by_cell(rows: Rows, outcome: str) -> Values:
    """The values of the cells that have this outcome."""
    values: Values = {}
    for row in rows:
        seeds = values.setdefault((row["task"], row["size"]), {}).setdefault(row["method"], {})
        seeds[int(row["seed"])] = value(row, outcome)
    return {
        cell: methods for cell, methods in values.items() if any(v is not None for v in methods.get(PLAIN, {}).values())
    }


def question(outcome: str | Outcome, baseline: str = PLAIN) -> Question:
    """What is asked about an outcome, by the rules with which this edition was published.

    Args:
        outcome: The outcome, or the name of one of `OUTCOMES`.
        baseline: The method that others are compared with.
    """
    outcome = OUTCOMES[outcome] if isinstance(outcome, str) else outcome
    is_better_if_greater = outcome.is_better_if_greater(True)  # as all metrics of the study
    return Question(outcome.delta, is_better_if_greater, outcome=outcome.name, baseline=baseline, rules="first")


def in_each_cell(values: Values, outcome: str) -> dict[Cell, dict[str, Comparison]]:
    """The comparison of each method in each cell, corrected for the number of methods (Holm)."""
    return {
        cell: judge_family({m: methods[m] for m in _judged(methods)}, methods[PLAIN], question(outcome))
        for cell, methods in values.items()
    }


def _judged(methods: Iterable[str]) -> list[str]:
    return [method for method in methods if method not in (PLAIN, UPPER_LINE)]


def over_cells(
    values: Values,
    outcome: str,
    *,
    only_these: bool = False,
    baseline: str = PLAIN,
    methods: Iterable[str] | None = None,
) -> dict[str, TaskSummary]:
    """The summary of each method over all cells, corrected for the number of methods (Holm).

    Args:
        values: The values of the runs.
        outcome: Which outcome the values are, one of `OUTCOMES`.
        only_these: Whether the question is about these tasks and not about others.
        baseline: The method that the others are compared with.
        methods: The methods; None = all but the upper line.
    """
    differences: dict[str, dict[str, object]] = {}
    for cell, of in values.items():
        for method in _judged(of) if methods is None else methods:
            if method in of and baseline in of:
                pairs = make_pairs(of[method], of[baseline])
                differences.setdefault(method, {})["/".join(cell)] = pairs.differences
    return summarize_tasks(differences, question(outcome, baseline), only_these=only_these)  # type: ignore[arg-type]


def differences_from_matched_plain(rows: Rows, outcome: str) -> Values:
    """The difference of each run from matched plain fine-tuning, and zeros for plain itself."""
    values: Values = {}
    controls = matched_plain()
    for cell, methods in by_cell(rows, outcome).items():
        own = values[cell] = {PLAIN: dict.fromkeys(methods[PLAIN], 0.0)}
        for method in _judged(methods):
            baseline = methods.get(controls.get(method, ""))
            if baseline is not None:
                own[method] = {seed: _difference(v, baseline.get(seed)) for seed, v in methods[method].items()}
    return values


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


@cache
def over_tasks(
    name: str, size: str, outcome: str, only_these: bool = True, matched: bool = False
) -> dict[str, TaskSummary]:
    """The same for one model and amount of training data, from the files of the study.

    Args:
        name: The name of the model in the files.
        size: The amount of training data.
        outcome: One of `OUTCOMES`.
        only_these: Whether the question is about these tasks and not about others.
        matched: Whether each method is compared with plain fine-tuning with matched learning rate and epochs.
    """
    return over_cells(_values(name, size, outcome, matched), outcome, only_these=only_these)


def _values(name: str, size: str, outcome: str, matched: bool) -> Values:
    rows = confirmation_rows(name, size)
    return differences_from_matched_plain(rows, outcome) if matched else by_cell(rows, outcome)


def against(
    name: str, size: str, outcome: str, methods: Iterable[str], baseline: str = PLAIN
) -> dict[str, TaskSummary]:
    """The summary of some methods against any other, over these tasks; corrected for the number of these methods.

    Args:
        name: The name of the model in the files.
        size: The amount of training data.
        outcome: One of `OUTCOMES`.
        methods: The methods.
        baseline: The method that they are compared with.
    """
    values = _values(name, size, outcome, matched=False)
    return over_cells(values, outcome, only_these=True, baseline=baseline, methods=methods)


@cache
def on_tasks(name: str, size: str, outcome: str, matched: bool = False) -> dict[Cell, dict[str, Comparison]]:
    """The comparison of each method on each task, for one model and amount of training data.

    Args:
        name: The name of the model in the files.
        size: The amount of training data.
        outcome: One of `OUTCOMES`.
        matched: Whether each method is compared with plain fine-tuning with matched learning rate and epochs.
    """
    return in_each_cell(_values(name, size, outcome, matched), outcome)
