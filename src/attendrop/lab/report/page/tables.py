"""The CSV tables of a report: one row for each run, and one for each comparison with the baseline."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...tasks.predictions import TableWriter
from ..analysis import Analysis

RUN_COLUMNS = ("id", "method", "task", "size", "seed", "status", "seconds", "part", "score", "value", "error")
COMPARISON_COLUMNS = (
    "method", "task", "size", "part", "outcome", "pairs", "mean", "baseline_mean", "difference", "low", "high", "p",
    "p_adjusted", "probability_of_improvement", "verdict", "minimum_detectable_effect", "seeds_needed", "protocol",
    "sentence", "low_with_examples", "high_with_examples",
)  # fmt: skip


def runs_csv(analysis: Analysis) -> str:
    """Return a long table of the runs: one row for each score of each run, and one for a run without scores.

    Args:
        analysis: A checked analysis.
    """
    rows = []
    for run in analysis.runs:
        for part, score, value in _scores(run.scores) or [("", "", "")]:
            rows.append([*(getattr(run, name) for name in RUN_COLUMNS[:7]), part, score, value, run.error])
    return _csv(RUN_COLUMNS, rows)


def _scores(scores: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Part, name and value of each score. The scores of a run are in one dictionary, or in one for each part."""
    rows: list[tuple[str, str, Any]] = []
    for name, value in scores.items():
        if isinstance(value, Mapping):
            rows += [(name, score, number) for score, number in value.items()]
        else:
            rows.append(("validation", name, value))
    return rows


def comparisons_csv(analysis: Analysis) -> str:
    """Return one row for each outcome of each method on each task, size and part, with its comparison to the baseline.

    Args:
        analysis: A checked analysis.
    """
    baselines = {
        (cell.task, cell.size, cell.part): cell.outcomes for cell in analysis.cells if cell.method == analysis.baseline
    }
    rows = []
    for cell in analysis.cells:
        baseline = baselines.get((cell.task, cell.size, cell.part), {})
        for outcome, result in cell.outcomes.items():
            if result.comparison:
                low, high = result.comparison.interval or (None, None)
                wide = result.comparison.population or (None, None)
                known = {
                    **vars(cell), **vars(result.comparison), "outcome": outcome, "mean": result.mean, "low": low,
                    "high": high, "low_with_examples": wide[0], "high_with_examples": wide[1],
                    "baseline_mean": baseline[outcome].mean if outcome in baseline else None,
                    "protocol": analysis.protocol,
                }  # fmt: skip
                rows.append([known.get(column) for column in COMPARISON_COLUMNS])
    return _csv(COMPARISON_COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = TableWriter(text)
    for row in (columns, *rows):
        writer.row(row)
    return text.getvalue()
