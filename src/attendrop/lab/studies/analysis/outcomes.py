"""Outcomes of a study: the compared values of each run, and the comparison of every method with the baseline."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ...report.analysis import Result
from ...statistics.paired import Interval, t_interval
from ...statistics.sequential import SequentialDesign
from ...statistics.verdict import Question, judge_family, judge_looks
from ...tasks.outcomes import SCORE, Outcome, compared_outcomes
from .groups import Group, Read
from .items import items_of_group
from .learned import collapsed_runs

Values = dict[Hashable, float | None]  # seed -> value; None for a run that failed


def values_of(group: Group, method: str, part: str, outcome: Outcome) -> Values:
    """Return the value of each run; None where it failed."""
    runs = group.runs[method].items()
    return {seed: outcome.read(record, part) if record.is_finished else None for seed, record in runs}


def outcomes_of(group: Group, part: str) -> list[Outcome]:
    """Return the outcomes of the runs on a part of the data: the score, and others unless they are the metric."""
    metric = group.finished[0].metric
    known = [of for of in compared_outcomes() if any(of.read(run, part) is not None for run in group.finished)]
    return [SCORE, *(outcome for outcome in known if not outcome.is_score and outcome.name != metric)]


def compare(
    group: Group,
    part: str,
    outcome: Outcome,
    baseline: str,
    delta: float,
    confidence: float,
    looks: SequentialDesign | None = None,
    read: Read | None = None,
) -> dict[str, Result]:
    """Compare all methods with the baseline on one outcome.

    Args:
        group: The runs.
        part: The part of the data.
        outcome: The outcome.
        baseline: The baseline.
        delta: The smallest difference that matters.
        confidence: Confidence of the intervals.
        looks: The plan of looks, if seeds were added until the methods were decided.
        read: Reads the outputs of a run; None = only predictions in records are known.

    Returns:
        Method -> its result.
    """
    values = {method: values_of(group, method, part, outcome) for method in group.runs}
    if outcome.is_relative:
        values = _relative(values, baseline)
    example = next(record for record in group.finished if part in record.scores)
    metric = str(example.metric)
    question = Question(
        delta=delta,
        greater_is_better=outcome.is_better_if_greater(example.greater_is_better),
        confidence=confidence,
        outcome=outcome.name_in_sentences(metric),
        baseline=baseline,
        can_collapse=not outcome.is_relative,
    )
    others = {method: seeds for method, seeds in values.items() if method != baseline}
    resolution = outcome.resolution(metric, example.examples.get(part))
    items = items_of_group(group, part, outcome, baseline, read)
    known = (others, values.get(baseline, {}), question, resolution)
    collapsed = collapsed_runs(group, part, baseline)
    if looks is None:
        comparisons = judge_family(*known, items=items, collapsed=collapsed)
    else:
        comparisons = judge_looks(*known, looks, items, collapsed)
    return {
        method: Result(
            {str(seed): value for seed, value in seeds.items()},
            *_mean(seeds, confidence, outcome.limits_for(metric)),
            None if method == baseline else comparisons[method],
        )
        for method, seeds in values.items()
    }


def verdicts_of(
    group: Group,
    baseline: str,
    delta: float,
    confidence: float,
    looks: SequentialDesign | None = None,
    read: Read | None = None,
) -> dict[str, str]:
    """Return the verdict on the validation score of each method.

    Args:
        group: The runs.
        baseline: The method that the others are compared with.
        delta: The smallest difference that matters.
        confidence: Confidence of the verdicts.
        looks: The plan of looks, if seeds are added until the methods are decided.
        read: Reads the outputs of a run.
    """
    compared = compare(group, "validation", SCORE, baseline, delta, confidence, looks, read)
    return {method: of.comparison.verdict for method, of in compared.items() if of.comparison}


def _relative(values: dict[str, Values], baseline: str) -> dict[str, Values]:
    """Return seconds as multiples of the baseline's mean."""
    known = [value for value in values.get(baseline, {}).values() if value is not None]
    unit = float(np.mean(known)) if known else 1.0
    return {
        method: {seed: None if value is None else value / unit for seed, value in seeds.items()}
        for method, seeds in values.items()
    }


def _mean(values: Values, confidence: float, limits: Interval) -> tuple[float | None, Interval | None]:
    """Return the mean of the values that are known, and its interval, which ends at the limits of the values."""
    known = np.array([value for value in values.values() if value is not None and np.isfinite(value)], float)
    if not len(known):
        return None, None
    if len(known) < 2:
        return float(known.mean()), None
    low, high = np.clip(t_interval(known, confidence), *limits)
    return float(known.mean()), (float(low), float(high))
