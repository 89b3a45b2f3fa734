"""One summary of several tasks: would the method help on another task of this kind?

The mean over tasks of the mean difference, each task with the same weight. Its standard error comes from a
hierarchical bootstrap, which draws tasks and then seeds within each task, and its interval from Student's t with one
degree of freedom fewer than tasks: percentiles of the bootstrap are too narrow for a handful of tasks.

The means of the tasks differ because the tasks do, and because of the noise of their seeds and test examples. Drawing
both tasks and seeds would count this noise twice (the intervals then cover 99 to 100 %), so the means are first shrunk
towards their common mean by as much as the noise explains. The estimate of each task is shrunk by its own noise
(empirical Bayes), and the interval for one new task has the variance of the means of the tasks too. With fewer than
five tasks only seeds are drawn: the summary then says nothing about other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from .paired import Floats, Interval, holm
from .rules import Collapses
from .sentences import explain_over_tasks
from .verdict import FEWEST_PAIRS, Question, Verdict, plain_fields, verdict_of

FEWEST_TASKS = 5  # that say anything about others
_FEWEST_IN_FIRST = 3  # by the rules of the first edition


@dataclass(frozen=True)
class TaskFigures:
    """The figures of a summary over tasks, before the verdict.

    Attributes:
        tasks: Number of tasks.
        left_out: Number of tasks that are left out because they have fewer than five pairs.
        difference: Mean over tasks of method minus baseline. None without a task, like the figures below.
        interval: Its confidence interval.
        p: Two-sided p.
        p_adjusted: The same after the correction for the number of methods.
        new_task: The interval of the difference on one new task, with as many seeds. None with fewer than five tasks.
        shrunk: Task -> its difference and the limits of its interval, all shrunk towards the mean of the tasks. Empty
            with fewer than five tasks.
        collapses: Collapsed runs of method and baseline on all tasks. None for an outcome that no collapse changes.
    """

    tasks: int
    left_out: int
    difference: float | None
    interval: Interval | None
    p: float | None
    p_adjusted: float | None
    new_task: Interval | None = field(default=None, kw_only=True)
    shrunk: dict[str, tuple[float, float, float]] = field(default_factory=dict, kw_only=True)
    collapses: Collapses | None = field(default=None, kw_only=True)

    @property
    def widest(self) -> Interval | None:
        """The interval that the verdict follows from."""
        return self.interval


@dataclass(frozen=True)
class TaskSummary(TaskFigures):
    """The result of a method over all tasks: the figures and the verdict.

    Attributes:
        verdict: "helps", "hurts", "no difference" (beyond delta), "undecided" or "too few seeds".
        sentence: The verdict and its reasons in words.
        withheld: The verdict that the interval alone would give, where too many runs may collapse.
    """

    verdict: Verdict
    sentence: str
    withheld: Verdict | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; the interval is a list."""
        return plain_fields(self)


def summarize_tasks(
    methods: Mapping[str, Mapping[str, Floats]],
    question: Question,
    draws: int = 4000,
    seed: int = 0,
    only_these: bool = False,
    item_errors: Mapping[str, Mapping[str, float]] | None = None,
    collapses: Mapping[str, Collapses] | None = None,
) -> dict[str, TaskSummary]:
    """Judge several methods over all tasks; the error rate holds for all methods together (Holm).

    Args:
        methods: Name of the method -> task -> paired differences (`make_pairs(...).differences`). Tasks with fewer than
            five pairs are left out.
        question: The question: delta, direction, confidence, and words for the sentences.
        draws: Number of bootstrap samples.
        seed: Seed of the bootstrap.
        only_these: Whether the question is about other seeds on these tasks, and not about other tasks; with fewer
            than five tasks it always is.
        item_errors: Method -> task -> the standard error of the difference that its test examples add.
        collapses: Method -> its collapsed runs on all tasks together.
    """
    used = {
        name: {task: np.asarray(of, float) for task, of in tasks.items() if len(of) >= FEWEST_PAIRS}
        for name, tasks in methods.items()
    }
    errors = item_errors or {}
    fewest = _FEWEST_IN_FIRST if question.rules == "first" else FEWEST_TASKS
    estimates = {
        name: _estimate(tasks, errors.get(name, {}), draws, seed, only_these or len(tasks) < fewest)
        for name, tasks in used.items()
        if tasks
    }
    p = holm([of.tail(0.0) * 2 for of in estimates.values()])
    equivalence = holm([of.tail_within(question.delta) for of in estimates.values()])
    adjusted = dict(zip(estimates, zip(p, equivalence, strict=True), strict=True))
    summaries = {}
    verdict: Verdict
    for name, tasks in methods.items():
        left_out = len(tasks) - len(used[name])
        figures, verdict = TaskFigures(0, left_out, None, None, None, None), "too few seeds"
        if estimate := estimates.get(name):
            figures = TaskFigures(
                tasks=len(used[name]),
                left_out=left_out,
                difference=estimate.mean,
                interval=estimate.interval(question.confidence),
                p=2 * estimate.tail(0.0),
                p_adjusted=adjusted[name][0],
                new_task=estimate.new_task(question.confidence),
                shrunk=estimate.shrunk(question.confidence),
                collapses=(collapses or {}).get(name),
            )
            verdict = verdict_of(estimate.mean, *adjusted[name], question)
        withheld = verdict if figures.collapses and figures.collapses.withholds(verdict) else None
        verdict = "undecided" if withheld else verdict
        sentence = explain_over_tasks(name, question, figures, verdict, len(estimates), fewest, withheld)
        summaries[name] = TaskSummary(**vars(figures), verdict=verdict, sentence=sentence, withheld=withheld)
    return summaries


@dataclass(frozen=True)
class _Estimate:
    """A mean with its standard error, whose ratio to the error has a t distribution.

    Attributes:
        mean: The mean.
        error: Its standard error.
        degrees: Degrees of freedom.
        tasks: Task -> its mean, and the variance of that; empty = the question is about these tasks.
        pairs: Task -> its seeds.
    """

    mean: float
    error: float
    degrees: float
    tasks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    pairs: Mapping[str, int] = field(default_factory=dict)

    def interval(self, confidence: float) -> Interval:
        return self._around(self.mean, self.error, confidence)

    def new_task(self, confidence: float) -> Interval | None:
        """Return the interval of the difference on one new task with as many seeds.

        The measured means of the tasks and of the new one are alike, so that their variance needs no separation into
        tasks and noise, which goes wrong for few tasks. The interval of the true difference is no wider.
        """
        if len(self.tasks) < FEWEST_TASKS:
            return None
        means, noise = np.array([*self.tasks.values()]).T
        variance = max(float(means.var(ddof=1)), float(noise.mean()))
        return self._around(self.mean, math.sqrt(variance * (1 + 1 / len(means))), confidence)

    def shrunk(self, confidence: float) -> dict[str, tuple[float, float, float]]:
        """Return the estimate of each task with its interval, shrunk towards the mean (Morris 1983)."""
        if len(self.tasks) < FEWEST_TASKS:
            return {}
        means, noise = np.array([*self.tasks.values()]).T
        count, between = len(means), max(0.0, float(means.var(ddof=1)) - float(noise.mean()))
        estimates = {}
        for task, (mean, variance) in self.tasks.items():
            pull = (count - 3) / (count - 1) * (variance / (variance + between) if variance else 0.0)
            middle = mean + pull * (self.mean - mean)
            unsure = 2 / (count - 3) * pull**2 * (mean - self.mean) ** 2  # of the pull
            error = math.sqrt((1 - pull) * variance + (pull * self.error) ** 2 + unsure)
            estimates[task] = middle, *self._around(middle, error, confidence, min(self.degrees, self.pairs[task] - 1))
        return estimates

    def _around(self, middle: float, error: float, confidence: float, degrees: float | None = None) -> Interval:
        reach = float(special.stdtrit(degrees or self.degrees, (1 + confidence) / 2)) * error
        return middle - reach, middle + reach

    def tail(self, against: float) -> float:
        """One-sided p of the distance from `against`."""
        return self._beyond(abs(self.mean - against))

    def tail_within(self, delta: float) -> float:
        """P of the test that the true mean is within ±delta."""
        return self._beyond(delta - abs(self.mean))

    def _beyond(self, distance: float) -> float:
        if self.error <= 1e-12 * abs(distance):
            return 0.5 - 0.5 * float(np.sign(distance))
        return float(special.stdtr(self.degrees, -distance / self.error))


def _estimate(
    tasks: Mapping[str, Floats], item_errors: Mapping[str, float], draws: int, seed: int, only_these: bool
) -> _Estimate:
    count, means = len(tasks), np.array([of.mean() for of in tasks.values()])
    of_seeds = np.array([of.var(ddof=1) / len(of) for of in tasks.values()])
    noise = of_seeds + np.array([item_errors.get(task, 0.0) ** 2 for task in tasks])
    mean, total = float(means.mean()), float(noise.sum())
    if only_these:
        degrees = np.array([len(of) - 1 for of in tasks.values()])  # by Welch and Satterthwaite
        parts = float((of_seeds**2 / degrees).sum())
        return _Estimate(mean, math.sqrt(total) / count, total**2 / parts if parts else 1.0)
    error = float(hierarchical_bootstrap([*tasks.values()], draws, seed).std())
    if item_errors:
        error = max(error, math.sqrt(total) / count)
    known = dict(zip(tasks, zip(means.tolist(), noise.tolist(), strict=True), strict=True))
    return _Estimate(mean, error, count - 1, known, {task: len(of) for task, of in tasks.items()})


def hierarchical_bootstrap(tasks: list[Floats], draws: int = 4000, seed: int = 0) -> Floats:
    """Return bootstrap samples of the mean over tasks: tasks are drawn, and then seeds within each drawn task.

    Args:
        tasks: The paired differences of each task, at least two of at least two.
        draws: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    generator, count = np.random.default_rng(seed), len(tasks)
    means = np.array([of.mean() for of in tasks])
    between, noise = float(means.var(ddof=1)), float(np.mean([of.var(ddof=1) / len(of) for of in tasks]))
    shrinkage = math.sqrt(max(0.0, 1 - noise / between)) if between else 0.0
    # A sample of n values deviates √((n-1)/n) times as much as the values that it stands for: at both levels.
    effects = means.mean() + math.sqrt(count / (count - 1)) * shrinkage * (means - means.mean())
    drawn = generator.integers(0, count, (draws, count))
    samples = effects[drawn]
    for place, differences in enumerate(tasks):
        here, n = drawn == place, len(differences)
        seeds = generator.integers(0, n, (int(here.sum()), n))
        samples[here] += math.sqrt(n / (n - 1)) * (differences[seeds].mean(-1) - means[place])
    return np.asarray(samples.mean(-1))
