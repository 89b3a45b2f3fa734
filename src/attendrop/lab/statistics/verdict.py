"""The verdict on a method: helps, hurts, no difference, undecided, or too few seeds; with a sentence that says why.

It follows from the widest interval of the mean difference (`rules.py`), corrected for the number of methods and, while
seeds are being added, for the number of looks; and it is withheld where too many runs may collapse. The exact
sign-flip test is shown beside it and does not affect the verdict: with five seeds its p is at least 1/16, so that no
verdict would ever be possible, and with six to eight seeds it has much less power.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scipy import special

from ...utils.dataclass_json import to_json
from .paired import (
    Interval,
    Pairs,
    Values,
    holm,
    make_pairs,
    minimum_detectable_effect,
    probability_of_improvement,
    seeds_for_equivalence,
    seeds_to_detect,
    sign_flip_test,
)
from .rules import (
    MOST_COLLAPSED,
    Collapses,
    Estimate,
    Items,
    bound_confidence,
    collapsed_seeds,
    count_collapses,
    estimate_of,
)
from .sentences import explain, explain_early_stop, explain_too_few
from .sequential import SequentialDesign

Rules = Literal["first", "second"]
Collapsed = Mapping[
    str, Collection[Hashable]
]  # method -> seeds of the runs that collapsed; the baseline's are among them
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
        can_collapse: Whether a collapsed run has a bad value of this outcome; not so for the cost.
        rules: Those of the "first" edition judge by Student's t over seeds alone, for pages that were published so.
    """

    delta: float
    greater_is_better: bool = True
    confidence: float = 0.95
    outcome: str = "score"
    baseline: str = "the baseline"
    can_collapse: bool = True
    rules: Rules = "second"

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
        interval: Confidence interval of the difference, for other seeds with these test examples. None with fewer than
            two pairs.
        p: Two-sided p that belongs to the widest interval. None with fewer than two pairs.
        p_adjusted: The same after the correction for the number of methods and looks. None with fewer than five pairs.
        p_sign_flip: P of the exact sign-flip test. None without a pair.
        p_equivalence: P of the test that the true difference is within ±delta, corrected in the same way.
        probability_of_improvement: Probability that the method beats the baseline on a new seed.
        probability_interval: Its interval.
        minimum_detectable_effect: The true difference that this number of seeds detects with a power of 80 %.
        pairs: Number of seeds in which both runs gave a value.
        failed: Number of seeds left out because a run failed.
        unpaired: Number of seeds left out because only one of the two has run.
        population: The interval for other seeds and other test examples. None if predictions are not known.
        items: The noise of the test examples, and of the selection of settings. None if predictions are not known.
        collapses: Collapsed runs of method and baseline. None for an outcome that no collapse changes.
        does_not_hurt: Whether the method is shown not to be worse by delta: the whole widest interval is better than
            -delta, and the share of runs that collapse is bounded. None without an interval.
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
    population: Interval | None = field(default=None, kw_only=True)
    items: Items | None = field(default=None, kw_only=True)
    collapses: Collapses | None = field(default=None, kw_only=True)
    does_not_hurt: bool | None = field(default=None, kw_only=True)

    @property
    def widest(self) -> Interval | None:
        """The interval that the verdict follows from."""
        return self.interval if self.population is None else self.population


@dataclass(frozen=True)
class Comparison(Figures):
    """The result of comparing a method with the baseline: the figures and the verdict.

    Attributes:
        verdict: "helps", "hurts", "no difference" (beyond delta), "undecided" or "too few seeds".
        sentence: The verdict and its reasons in words.
        seeds_needed: Approximate number of further seeds that would settle it. None if it is decided, or no realistic
            number would.
        withheld: The verdict that the interval alone would give, where too many runs may collapse.
        decided_after: In a study that runs until it is decided, the number of pairs at the first look with a verdict.
    """

    verdict: Verdict
    sentence: str
    seeds_needed: int | None
    withheld: Verdict | None = field(default=None, kw_only=True)
    decided_after: int | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; intervals are lists."""
        return plain_fields(self)


def plain_fields(figures: Any) -> dict[str, Any]:
    """Return the fields of a dataclass of figures, for JSON: tuples become lists.

    Args:
        figures: The dataclass.
    """
    values: dict[str, Any] = to_json(figures)
    return values


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
    items: Mapping[str, Items | None] | None = None,
    collapsed: Collapsed | None = None,
) -> dict[str, Comparison]:
    """Judge several methods against the same baseline; the error rate holds for all of them together.

    Args:
        methods: Name of the method -> seed -> value. None or a value that is not finite stands for a failed run.
        baseline: Seed -> value of the baseline.
        question: The question: delta, direction, confidence, and words for the sentences.
        resolution: The step in which the values move. None = inferred from the values of each pair of methods.
        design: The schedule of looks of a sequential study. P values are then corrected for the
            looks and by Bonferroni for the methods, instead of by Holm, and the intervals hold for all looks and
            methods together. A verdict other than "undecided" is final, see `judge_looks`.
        items: Method -> the noise of the test examples in its difference, from `items_of`.
        collapsed: Method, or baseline -> the seeds of its collapsed runs. None = found in the values.
    """
    second = question.rules == "second"
    pairs = {name: make_pairs(values, baseline, resolution) for name, values in methods.items()}
    collapses = {
        name: _collapses(values, baseline, name, question, pairs[name].resolution, collapsed, design)
        if second and question.can_collapse
        else None
        for name, values in methods.items()
    }
    estimates = {
        name: estimate_of(of, (items or {}).get(name), is_corrected=second, always=design is not None)
        for name, of in pairs.items()
        if len(of) > 1
    }
    fewest = FEWEST_PAIRS if design is None else max(FEWEST_PAIRS, design.first)
    tested = [name for name, of in pairs.items() if len(of) >= fewest]
    raw = [estimates[name].p() for name in tested]
    equivalence = [estimates[name].p_within(question.delta) for name in tested]
    if design is None:
        count = len(tested)
        adjusted, equivalence = holm(raw), holm(equivalence)
    else:
        count = len(methods)
        sizes = [len(pairs[name]) for name in tested]
        adjusted = [min(1.0, count * design.repeated_p(p, n)) for p, n in zip(raw, sizes, strict=True)]
        equivalence = [
            min(1.0, count * design.repeated_p(min(1.0, 2 * p), n) / 2) for p, n in zip(equivalence, sizes, strict=True)
        ]
    corrected = dict(zip(tested, zip(adjusted, equivalence, strict=True), strict=True))
    return {
        name: _judge_pairs(name, of, estimates[name], collapses[name], question, corrected[name], count, design)
        if name in corrected
        else _without_verdict(name, of, estimates.get(name), collapses[name], question, fewest)
        for name, of in pairs.items()
    }


def judge_looks(
    methods: Mapping[str, Values],
    baseline: Values,
    question: Question,
    resolution: float | None,
    design: SequentialDesign,
    items: Mapping[str, Items | None] | None = None,
    collapsed: Collapsed | None = None,
) -> dict[str, Comparison]:
    """Judge a study in which seeds were added until it was decided.

    The verdict is that of the first look that had one, and the figures are of all seeds, with the interval of the last
    look. All looks' intervals hold together, so that this one stays valid.

    Args:
        methods: Name of the method -> seed -> value, as for `judge_family`.
        baseline: Seed -> value of the baseline, in the order in which the seeds ran.
        question: What is asked.
        resolution: The step in which the values move.
        design: The schedule of looks.
        items: Method -> the noise of the test examples in its difference.
        collapsed: Method, or baseline -> the seeds of its collapsed runs.
    """
    seeds = list(baseline)
    first: dict[str, Comparison] = {}
    judged: dict[str, Comparison] = {}
    for count in range(min(design.first, len(seeds)), len(seeds) + 1):
        of_baseline = {seed: baseline[seed] for seed in seeds[:count]}
        seen = {m: {s: v for s, v in values.items() if s in of_baseline} for m, values in methods.items()}
        judged = judge_family(seen, of_baseline, question, resolution, design, items, collapsed)
        for name, comparison in judged.items():
            if is_decided(comparison.verdict):
                first.setdefault(name, comparison)
    return {name: _with_first(name, of, first.get(name), question) for name, of in judged.items()}


def _with_first(name: str, last: Comparison, first: Comparison | None, question: Question) -> Comparison:
    """Return the figures of the last look with the verdict of the first one that had any.

    Not so if all seeds together say something else: another verdict, another direction, or too many collapsed runs.
    """
    if first is None:
        return last
    verdict = last.verdict if is_decided(last.verdict) else first.verdict
    has_turned = (last.difference or 0.0) * (first.difference or 0.0) < 0 and verdict != "no difference"
    if has_turned or (last.collapses and last.collapses.withholds(verdict)):
        return last
    sentence = explain_early_stop(name, question, last, verdict, first.pairs)
    return replace(
        last, verdict=verdict, sentence=sentence, seeds_needed=None, withheld=None, decided_after=first.pairs
    )


def is_decided(verdict: str) -> bool:
    """Return whether no more seeds are needed."""
    return verdict in ("helps", "hurts", "no difference")


def _collapses(
    values: Values,
    baseline: Values,
    name: str,
    question: Question,
    resolution: float,
    collapsed: Collapsed | None,
    design: SequentialDesign | None,
) -> Collapses:
    if collapsed is None:
        greater = question.greater_is_better
        of_method, of_baseline = (collapsed_seeds(of, baseline, greater, resolution) for of in (values, baseline))
    else:
        of_method, of_baseline = (set(collapsed.get(of, ())) for of in (name, question.baseline))
    confidence = bound_confidence(None if design is None else design.max_seeds)
    return count_collapses(values, baseline, of_method, of_baseline, confidence)


def _figures(
    pairs: Pairs,
    estimate: Estimate | None,
    collapses: Collapses | None,
    question: Question,
    level: float,
    power_level: float,
    corrected: tuple[float, float] | tuple[None, None],
) -> Figures:
    """Return the figures of the pairs, with an interval of confidence 1 - `level` and the effect at `power_level`."""
    differences, n = pairs.differences, len(pairs)
    sign = 1 if question.greater_is_better else -1
    improvement = probability_of_improvement(sign * differences, question.confidence) if n else (None, None)
    bounds = None if estimate is None else estimate.interval(level)
    return Figures(
        difference=float(differences.mean()) if n else None,
        interval=None if estimate is None else estimate.over_seeds(level),
        p=None if estimate is None else estimate.p(),
        p_adjusted=corrected[0],
        p_sign_flip=sign_flip_test(differences) if n else None,
        p_equivalence=corrected[1],
        probability_of_improvement=improvement[0],
        probability_interval=improvement[1],
        minimum_detectable_effect=None if estimate is None else _detectable(estimate, n, power_level),
        pairs=n,
        failed=pairs.failed,
        unpaired=pairs.unpaired,
        population=None if estimate is None or estimate.items is None else bounds,
        items=None if estimate is None else estimate.items,
        collapses=collapses,
        does_not_hurt=None if bounds is None else _is_harmless(bounds, collapses, question),
    )


def _is_harmless(interval: Interval, collapses: Collapses | None, question: Question) -> bool:
    worst = interval[0] if question.greater_is_better else -interval[1]
    return worst > -question.delta and (collapses is None or collapses.bound <= MOST_COLLAPSED)


def _detectable(estimate: Estimate, pairs: int, level: float) -> float:
    """Return the true difference that is found with a power of 80 %, by seeds and test examples together."""
    error = math.hypot(estimate.error, estimate.items.error if estimate.items else 0.0)
    return minimum_detectable_effect(error * math.sqrt(pairs), pairs, alpha=level)


def _without_verdict(
    name: str, pairs: Pairs, estimate: Estimate | None, collapses: Collapses | None, question: Question, fewest: int
) -> Comparison:
    figures = _figures(pairs, estimate, collapses, question, question.alpha, question.alpha, (None, None))
    return Comparison(
        **vars(figures),
        verdict="too few seeds",
        sentence=explain_too_few(name, question, figures, fewest),
        seeds_needed=fewest - len(pairs),
    )


def _judge_pairs(
    name: str,
    pairs: Pairs,
    estimate: Estimate,
    collapses: Collapses | None,
    question: Question,
    corrected: tuple[float, float],
    methods: int,
    design: SequentialDesign | None,
) -> Comparison:
    n, alpha = len(pairs), question.alpha
    level = alpha if design is None else design.level(n, alpha / methods)
    power_level = alpha / methods if design is None else level
    figures = _figures(pairs, estimate, collapses, question, level, power_level, corrected)
    verdict, needed = verdict_of(estimate.mean, *corrected, question), None
    withheld = verdict if collapses and collapses.withholds(verdict) else None
    if withheld and collapses:
        verdict, needed = "undecided", collapses.more_seeds()
    elif verdict == "undecided":
        needed = _more_seeds(estimate, collapses, n, question, alpha / methods)
    sentence = explain(name, question, figures, verdict, needed, methods, design, withheld)
    return Comparison(**vars(figures), verdict=verdict, sentence=sentence, seeds_needed=needed, withheld=withheld)


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


def _more_seeds(
    estimate: Estimate, collapses: Collapses | None, pairs: int, question: Question, alpha: float
) -> int | None:
    """Return the number of further seeds that would show the observed difference, or equivalence within delta.

    More seeds do not make the noise of the test examples smaller, so they must show what it leaves.
    """
    reach, shows_difference = estimate.item_reach(alpha), abs(estimate.mean) >= question.delta
    distance = abs(estimate.mean) if shows_difference else question.delta
    more = 0 if shows_difference or collapses is None else collapses.more_seeds()
    if distance <= reach or more is None:
        return None
    low, high = estimate.over_seeds(alpha)  # skewed differences need as many seeds as a larger deviation would
    toward = estimate.mean - low if estimate.mean > 0 else high - estimate.mean
    wide = toward if shows_difference else max(estimate.mean - low, high - estimate.mean)
    deviation = wide * math.sqrt(pairs) / -float(special.stdtrit(pairs - 1, alpha / 2))
    distance = math.sqrt(distance**2 - reach**2)
    needed = (seeds_to_detect if shows_difference else seeds_for_equivalence)(distance, deviation, alpha=alpha)
    return None if needed is None else max(1, needed - pairs, more)
