"""The verdict on a method: helps, hurts, no difference, undecided, or too few seeds; with a sentence that says why.

It is based on the interval of the mean difference and the corresponding t tests, corrected for the number of
methods and, while seeds are being added, for the number of looks. The exact sign-flip test is shown beside it and does
not affect the verdict: with five seeds its p is at least 1/16, so that no verdict would ever be possible, and with six
to eight seeds it has much less power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from .paired import (
    Interval,
    Pairs,
    Values,
    deviation_of,
    equivalence_test,
    holm,
    make_pairs,
    minimum_detectable_effect,
    probability_of_improvement,
    seeds_for_equivalence,
    seeds_to_detect,
    sign_flip_test,
    t_interval,
    t_test,
)
from .sentences import explain, explain_too_few
from .sequential import SequentialDesign

Verdict = Literal["helps", "hurts", "no difference", "undecided", "too few seeds"]

FEWEST_PAIRS = 5


@dataclass(frozen=True)
class Question:
    """The question that is tested for all methods of a family.

    Attributes:
        delta: The smallest difference that matters; 0 = every difference matters.
        greater_is_better: Whether a larger value is better.
        confidence: Confidence of the intervals; 1 - confidence is the error rate of the verdicts.
        outcome: The name of the values in the sentence.
        baseline: Name of the baseline, for the sentence.
    """

    delta: float
    greater_is_better: bool = True
    confidence: float = 0.95
    outcome: str = "score"
    baseline: str = "the baseline"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delta) and self.delta >= 0):
            raise ValueError(f"delta is {self.delta}; it must be a number from 0 on.")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; it must be at least 0.5 and below 1.")

    @property
    def alpha(self) -> float:
        return 1 - self.confidence


@dataclass(frozen=True)
class Figures:
    """The figures of a comparison, before the verdict.

    Attributes:
        difference: Mean of method minus baseline. None without a pair.
        interval: Confidence interval of the difference. None with fewer than two pairs.
        p: Two-sided p of the t test. None with fewer than two pairs.
        p_adjusted: The same after the correction for the number of methods and looks. None with fewer than five pairs.
        p_sign_flip: P of the exact sign-flip test. None without a pair.
        p_equivalence: P of the test that the true difference is within ±delta, corrected in the same way.
        probability_of_improvement: Probability that the method beats the baseline on a new seed.
        probability_interval: Its interval.
        minimum_detectable_effect: The true difference that this number of seeds detects with a power of 80 %.
        pairs: Number of seeds in which both runs gave a value.
        failed: Number of seeds left out because a run failed.
        unpaired: Number of seeds left out because only one of the two has run.
    """

    difference: float | None
    interval: Interval | None
    p: float | None
    p_adjusted: float | None
    p_sign_flip: float | None
    p_equivalence: float | None
    probability_of_improvement: float | None
    probability_interval: Interval | None
    minimum_detectable_effect: float | None
    pairs: int
    failed: int
    unpaired: int


@dataclass(frozen=True)
class Comparison(Figures):
    """The result of comparing a method with the baseline: the figures and the verdict.

    Attributes:
        verdict: "helps", "hurts", "no difference" (beyond delta), "undecided" or "too few seeds".
        sentence: The verdict and its reasons in words.
        seeds_needed: Approximate number of further seeds that would settle it. None if it is decided, or no realistic
            number would.
    """

    verdict: Verdict
    sentence: str
    seeds_needed: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; intervals are lists."""
        return plain_fields(self)


def plain_fields(figures: Any) -> dict[str, Any]:
    """Return the fields of a dataclass of figures, for JSON: tuples become lists.

    Args:
        figures: The dataclass.
    """
    values = {field.name: getattr(figures, field.name) for field in fields(figures)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def judge(
    values: Values,
    baseline: Values,
    *,
    delta: float,
    greater_is_better: bool = True,
    confidence: float = 0.95,
    resolution: float | None = None,
    name: str = "the method",
    outcome: str = "score",
    baseline_name: str = "the baseline",
) -> Comparison:
    """Judge one method against the baseline.

    Args:
        values: Seed -> value of the method. None or a value that is not finite stands for a failed run.
        baseline: The same for the baseline.
        delta: The smallest difference that matters; 0 = every difference does.
        greater_is_better: Whether a larger value is better.
        confidence: Confidence of the interval; 1 - confidence is the error rate of the verdict.
        resolution: The step in which the values move, such as 1/277 for an accuracy on 277 examples. None = inferred
            from the values.
        name: Name of the method, for the sentence.
        outcome: The name of the values in the sentence.
        baseline_name: Name of the baseline, for the sentence.
    """
    question = Question(delta, greater_is_better, confidence, outcome, baseline_name)
    return judge_family({name: values}, baseline, question, resolution)[name]


def judge_family(
    methods: Mapping[str, Values],
    baseline: Values,
    question: Question,
    resolution: float | None = None,
    design: SequentialDesign | None = None,
) -> dict[str, Comparison]:
    """Judge several methods against the same baseline; the error rate holds for all of them together.

    Args:
        methods: Name of the method -> seed -> value. None or a value that is not finite stands for a failed run.
        baseline: Seed -> value of the baseline.
        question: The question: delta, direction, confidence, and words for the sentences.
        resolution: The step in which the values move. None = inferred from the values of each pair of methods.
        design: The schedule of looks of a sequential study. P values are then corrected for the
            looks and by Bonferroni for the methods, instead of by Holm, and the intervals hold for all looks and
            methods together. A verdict other than "undecided" is final: keep it, also if more seeds are run.
    """
    pairs = {name: make_pairs(values, baseline, resolution) for name, values in methods.items()}
    fewest = FEWEST_PAIRS if design is None else max(FEWEST_PAIRS, design.first)
    tested = {name: of for name, of in pairs.items() if len(of) >= fewest}
    raw = [t_test(of.differences, resolution=of.resolution) for of in tested.values()]
    equivalence = [equivalence_test(of.differences, question.delta, of.resolution) for of in tested.values()]
    if design is None:
        count = len(tested)
        adjusted, equivalence = holm(raw), holm(equivalence)
    else:
        count = len(methods)
        sizes = [len(of) for of in tested.values()]
        adjusted = [min(1.0, count * design.repeated_p(p, n)) for p, n in zip(raw, sizes, strict=True)]
        equivalence = [
            min(1.0, count * design.repeated_p(min(1.0, 2 * p), n) / 2) for p, n in zip(equivalence, sizes, strict=True)
        ]
    corrected = dict(zip(tested, zip(adjusted, equivalence, strict=True), strict=True))
    return {
        name: _judge_pairs(name, of, question, corrected[name], count, design)
        if name in corrected
        else _without_verdict(name, of, question, fewest)
        for name, of in pairs.items()
    }


def _figures(
    pairs: Pairs,
    question: Question,
    level: float,
    power_level: float,
    corrected: tuple[float, float] | tuple[None, None],
) -> Figures:
    """Return the figures of the pairs, with an interval of confidence 1 - `level` and the effect at `power_level`."""
    differences, resolution, n = pairs.differences, pairs.resolution, len(pairs)
    sign = 1 if question.greater_is_better else -1
    improvement = probability_of_improvement(sign * differences, question.confidence) if n else (None, None)
    return Figures(
        difference=float(differences.mean()) if n else None,
        interval=t_interval(differences, 1 - level, resolution) if n > 1 else None,
        p=t_test(differences, resolution=resolution) if n > 1 else None,
        p_adjusted=corrected[0],
        p_sign_flip=sign_flip_test(differences) if n else None,
        p_equivalence=corrected[1],
        probability_of_improvement=improvement[0],
        probability_interval=improvement[1],
        minimum_detectable_effect=(
            minimum_detectable_effect(deviation_of(differences, resolution), n, alpha=power_level) if n > 1 else None
        ),
        pairs=n,
        failed=pairs.failed,
        unpaired=pairs.unpaired,
    )


def _without_verdict(name: str, pairs: Pairs, question: Question, fewest: int) -> Comparison:
    figures = _figures(pairs, question, question.alpha, question.alpha, (None, None))
    return Comparison(
        **vars(figures),
        verdict="too few seeds",
        sentence=explain_too_few(name, question, figures, fewest),
        seeds_needed=fewest - len(pairs),
    )


def _judge_pairs(
    name: str,
    pairs: Pairs,
    question: Question,
    corrected: tuple[float, float],
    methods: int,
    design: SequentialDesign | None,
) -> Comparison:
    n, alpha = len(pairs), question.alpha
    level = alpha if design is None else design.level(n, alpha / methods)
    figures = _figures(pairs, question, level, alpha / methods if design is None else level, corrected)
    verdict = verdict_of(float(pairs.differences.mean()), *corrected, question)
    needed = None
    if verdict == "undecided":
        needed = _more_seeds(figures, deviation_of(pairs.differences, pairs.resolution), question, alpha / methods)
    sentence = explain(name, question, figures, verdict, needed, methods, design)
    return Comparison(**vars(figures), verdict=verdict, sentence=sentence, seeds_needed=needed)


def verdict_of(difference: float, p: float, p_equivalence: float, question: Question) -> Verdict:
    """Return the verdict from p values that are corrected already.

    Args:
        difference: Mean of method minus baseline.
        p: Two-sided p of the test for a difference.
        p_equivalence: P of the test that the true difference is within ±delta. At most half the error rate is needed,
            so that "no difference" means that the whole interval is within ±delta.
        question: The question.
    """
    if question.delta and p_equivalence <= question.alpha / 2:
        return "no difference"
    if p <= question.alpha:
        return "helps" if (difference > 0) is question.greater_is_better else "hurts"
    return "undecided"


def _more_seeds(figures: Figures, deviation: float, question: Question, alpha: float) -> int | None:
    """Return the number of further seeds that would show the observed difference, or equivalence within delta."""
    assert figures.difference is not None
    if abs(figures.difference) >= question.delta:
        needed = seeds_to_detect(figures.difference, deviation, alpha=alpha)
    else:
        needed = seeds_for_equivalence(question.delta, deviation, alpha=alpha)
    return None if needed is None else max(1, needed - figures.pairs)
