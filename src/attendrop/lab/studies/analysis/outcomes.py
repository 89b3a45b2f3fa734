"""Outcomes of a study: the compared values of each run, and the comparison of every method with the baseline."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...records import StudyRecord
from ...report.analysis import Result
from ...statistics.paired import Interval, t_interval
from ...statistics.sequential import SequentialDesign
from ...statistics.verdict import Comparison, Question, judge_family
from ...tasks.outcomes import SCORE, Outcome, compared_outcomes

Values = dict[Hashable, float | None]  # seed -> value; None for a run that failed


@dataclass
class Group:
    """The runs of one task with one amount of training data.

    Attributes:
        task: The task.
        size: The amount of training data.
        runs: Method -> seed -> record.
    """

    task: str
    size: str
    runs: dict[str, dict[int, StudyRecord]] = field(default_factory=dict)

    @property
    def records(self) -> list[StudyRecord]:
        return [record for seeds in self.runs.values() for record in seeds.values()]

    @property
    def finished(self) -> list[StudyRecord]:
        return [record for record in self.records if record.is_finished]

    @property
    def parts(self) -> list[str]:
        """The parts of the data that were scored, validation first."""
        return list(dict.fromkeys(part for record in self.finished for part in record.scores))


def group_records(records: Sequence[StudyRecord], methods: Sequence[str]) -> list[Group]:
    """Group records by task and amount of data.

    Args:
        records: The records.
        methods: The methods in the order of the study.
    """
    groups: dict[tuple[str, str], Group] = {}
    for record in records:
        key = (record.task, record.size)
        group = groups.setdefault(key, Group(*key, {method: {} for method in methods}))
        group.runs[record.method][record.seed] = record
    for group in groups.values():
        group.runs = {method: dict(sorted(seeds.items())) for method, seeds in group.runs.items()}
    return list(groups.values())


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
    )
    others = {method: seeds for method, seeds in values.items() if method != baseline}
    resolution = outcome.resolution(metric, example.examples.get(part))
    comparisons = _judge(others, values.get(baseline, {}), question, resolution, looks)
    return {
        method: Result(
            {str(seed): value for seed, value in seeds.items()},
            *_mean(seeds, confidence, outcome.limits_for(metric)),
            None if method == baseline else comparisons[method],
        )
        for method, seeds in values.items()
    }


def _judge(
    methods: dict[str, Values],
    baseline: Values,
    question: Question,
    resolution: float | None,
    looks: SequentialDesign | None,
) -> dict[str, Comparison]:
    """Return the comparison of each method. With looks it is that of the first look at which the method was decided."""
    if looks is None:
        return judge_family(methods, baseline, question, resolution)
    seeds = list(baseline)  # in ascending order
    final: dict[str, Comparison] = {}
    for count in range(min(looks.first, len(seeds)), len(seeds) + 1):
        known = set(seeds[:count])
        seen = {m: {seed: v for seed, v in values.items() if seed in known} for m, values in methods.items()}
        comparisons = judge_family(seen, {seed: baseline[seed] for seed in seeds[:count]}, question, resolution, looks)
        for method, comparison in comparisons.items():
            if method not in final or not is_decided(final[method].verdict):
                final[method] = comparison
    return final


def is_decided(verdict: str) -> bool:
    """Return whether no more seeds are needed."""
    return verdict in ("helps", "hurts", "no difference")


def verdicts_of(
    group: Group, baseline: str, delta: float, confidence: float, looks: SequentialDesign | None = None
) -> dict[str, str]:
    """Return the verdict on the validation score of each method.

    Args:
        group: The runs.
        baseline: The method that the others are compared with.
        delta: The smallest difference that matters.
        confidence: Confidence of the verdicts.
        looks: The plan of looks, if seeds are added until the methods are decided.
    """
    compared = compare(group, "validation", SCORE, baseline, delta, confidence, looks)
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
