"""Outcomes of a study: what is compared of each run, and the comparison of every method with the baseline."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...statistics.paired import t_interval
from ...statistics.sequential import SequentialDesign
from ...statistics.verdict import Comparison, Question, judge_family

Record = Mapping[str, Any]
Values = dict[Hashable, float | None]  # seed -> value; None for a run that failed

# The smallest differences that matter, unless the user gives others. Cost is in multiples of the baseline's.
DELTAS = {
    "score": 0.01, "loss": 0.02, "brier": 0.01, "ece": 0.01, "scaled_loss": 0.02, "scaled_ece": 0.01, "cost": 0.05,
}  # fmt: skip


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
    runs: dict[str, dict[int, Record]] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        return [record for seeds in self.runs.values() for record in seeds.values()]

    @property
    def finished(self) -> list[Record]:
        return [record for record in self.records if record["status"] == "finished"]

    @property
    def parts(self) -> list[str]:
        """The parts of the data that were scored, validation first."""
        return list(dict.fromkeys(part for record in self.finished for part in record["scores"]))


def group_records(records: Sequence[Record], methods: Sequence[str]) -> list[Group]:
    """Group records by task and amount of data.

    Args:
        records: The records.
        methods: The methods in the order of the study.
    """
    groups: dict[tuple[str, str], Group] = {}
    for record in records:
        key = (record["task"], record["size"])
        group = groups.setdefault(key, Group(*key, {method: {} for method in methods}))
        group.runs[record["method"]][record["seed"]] = record
    for group in groups.values():
        group.runs = {method: dict(sorted(seeds.items())) for method, seeds in group.runs.items()}
    return list(groups.values())


def values_of(group: Group, method: str, part: str, outcome: str) -> Values:
    """The value of each run; None where it failed."""
    values: Values = {}
    for seed, record in group.runs[method].items():
        if record["status"] != "finished":
            values[seed] = None
        elif outcome == "cost":
            values[seed] = record["cost"]["seconds"]
        else:
            values[seed] = record["scores"].get(part, {}).get(record["metric"] if outcome == "score" else outcome)
    return values


def outcomes_of(group: Group, part: str) -> list[str]:
    """The outcomes that the runs have on a part of the data."""
    first = next(record for record in group.finished if part in record["scores"])
    known = [name for name in ("loss", "brier", "ece", "scaled_loss") if name in first["scores"][part]]
    if first["metric"] in known:
        known.remove(first["metric"])
    return ["score", *known, *(["cost"] if part == "validation" else [])]


def compare(
    group: Group,
    part: str,
    outcome: str,
    baseline: str,
    delta: float,
    confidence: float,
    looks: SequentialDesign | None = None,
) -> dict[str, dict[str, Any]]:
    """Compare all methods with the baseline on one outcome.

    Args:
        group: The runs.
        part: The part of the data.
        outcome: a key of `DELTAS`.
        baseline: The method that the others are compared with.
        delta: The smallest difference that matters.
        confidence: Confidence of the intervals.
        looks: The plan of looks, if seeds were added until the methods were decided.

    Returns:
        Method -> its values, their mean and interval, and the comparison.
    """
    values = {method: values_of(group, method, part, outcome) for method in group.runs}
    if outcome == "cost":
        values = _relative(values, baseline)
    example = next(record for record in group.finished if part in record["scores"])
    is_score = outcome == "score"
    question = Question(
        delta=delta,
        greater_is_better=is_score and bool(example["greater_is_better"]),
        confidence=confidence,
        outcome=example["metric"] if is_score else OUTCOME_NAMES[outcome],
        baseline=baseline,
    )
    others = {method: seeds for method, seeds in values.items() if method != baseline}
    examples = example["examples"].get(part)
    resolution = 1 / examples if is_score and example["metric"] == "accuracy" and examples else None
    judged = _judge(others, values[baseline], question, resolution, looks)
    return {
        method: {
            "values": {str(seed): value for seed, value in seeds.items()},
            **_mean(seeds, confidence),
            "comparison": None if method == baseline else judged[method].to_dict(),
        }
        for method, seeds in values.items()
    }


def _judge(
    methods: dict[str, Values],
    baseline: Values,
    question: Question,
    resolution: float | None,
    looks: SequentialDesign | None,
) -> dict[str, Comparison]:
    """The comparison of each method. With looks it is that of the first look at which the method was decided."""
    if looks is None:
        return judge_family(methods, baseline, question, resolution)
    seeds = list(baseline)  # in ascending order
    final: dict[str, Comparison] = {}
    for count in range(min(looks.first, len(seeds)), len(seeds) + 1):
        known = set(seeds[:count])
        seen = {m: {seed: v for seed, v in values.items() if seed in known} for m, values in methods.items()}
        judged = judge_family(seen, {seed: baseline[seed] for seed in seeds[:count]}, question, resolution, looks)
        for method, comparison in judged.items():
            if method not in final or not is_decided(final[method].verdict):
                final[method] = comparison
    return final


def is_decided(verdict: str) -> bool:
    """Whether more seeds are not needed."""
    return verdict in ("helps", "hurts", "no difference")


def verdicts_of(
    group: Group, baseline: str, delta: float, confidence: float, looks: SequentialDesign | None = None
) -> dict[str, str]:
    """The verdict on the validation score of each method.

    Args:
        group: The runs.
        baseline: The method that the others are compared with.
        delta: The smallest difference that matters.
        confidence: Confidence of the verdicts.
        looks: The plan of looks, if seeds are added until the methods are decided.
    """
    compared = compare(group, "validation", "score", baseline, delta, confidence, looks)
    return {m: outcome["comparison"]["verdict"] for m, outcome in compared.items() if outcome["comparison"]}


OUTCOME_NAMES = {
    "loss": "loss",
    "brier": "Brier score",
    "ece": "calibration error",
    "scaled_loss": "loss after temperature scaling",
    "scaled_ece": "calibration error after temperature scaling",
    "cost": "training time",
}


def _relative(values: dict[str, Values], baseline: str) -> dict[str, Values]:
    """Seconds as multiples of the baseline's mean."""
    known = [value for value in values[baseline].values() if value is not None]
    unit = float(np.mean(known)) if known else 1.0
    return {
        method: {seed: None if value is None else value / unit for seed, value in seeds.items()}
        for method, seeds in values.items()
    }


def _mean(values: Values, confidence: float) -> dict[str, Any]:
    known = np.array([value for value in values.values() if value is not None and np.isfinite(value)], float)
    if not len(known):
        return {"mean": None, "interval": None}
    interval = list(t_interval(known, confidence)) if len(known) > 1 else None
    return {"mean": float(known.mean()), "interval": interval}
