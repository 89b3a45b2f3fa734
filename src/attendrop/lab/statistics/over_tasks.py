"""One summary of several tasks: would the method help on another task of this kind?

The mean over tasks of the mean difference, each task with the same weight. Its standard error comes from a
hierarchical bootstrap, which draws tasks and then seeds within each task, and its interval from Student's t with one
degree of freedom fewer than tasks: percentiles of the bootstrap are too narrow for a handful of tasks.

The means of the tasks differ because the tasks do, and because of the noise of their seeds. Drawing both tasks and
seeds would count this noise twice (the intervals then cover 99 to 100 %), so the means are first shrunk towards their
common mean by as much as the noise explains. With fewer than three tasks only seeds are drawn: the summary then does
not generalise to other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from .paired import Floats, Interval, holm
from .sentences import explain_over_tasks
from .verdict import FEWEST_PAIRS, Question, Verdict, plain_fields, verdict_of

FEWEST_TASKS = 3


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
    """

    tasks: int
    left_out: int
    difference: float | None
    interval: Interval | None
    p: float | None
    p_adjusted: float | None


@dataclass(frozen=True)
class TaskSummary(TaskFigures):
    """The result of a method over all tasks: the figures and the verdict.

    Attributes:
        verdict: "helps", "hurts", "no difference" (beyond delta), "undecided" or "too few seeds".
        sentence: The verdict and its reasons in words.
    """

    verdict: Verdict
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; the interval is a list."""
        return plain_fields(self)


def summarize_tasks(
    methods: Mapping[str, Mapping[str, Floats]],
    question: Question,
    draws: int = 4000,
    seed: int = 0,
    only_these: bool = False,
) -> dict[str, TaskSummary]:
    """Judge several methods over all tasks; the error rate holds for all methods together (Holm).

    Args:
        methods: Name of the method -> task -> paired differences (`make_pairs(...).differences`). Tasks with fewer than
            five pairs are left out.
        question: The question: delta, direction, confidence, and words for the sentences.
        draws: Number of bootstrap samples.
        seed: Seed of the bootstrap.
        only_these: Whether the question is about other seeds on these tasks, and not about other tasks; with fewer
            than three tasks it always is.
    """
    used = {
        name: [np.asarray(of, float) for of in tasks.values() if len(of) >= FEWEST_PAIRS]
        for name, tasks in methods.items()
    }
    left_out = {name: len(tasks) - len(used[name]) for name, tasks in methods.items()}
    estimates = {name: _estimate(tasks, draws, seed, only_these) for name, tasks in used.items() if tasks}
    p = holm([of.tail(0.0) * 2 for of in estimates.values()])
    equivalence = holm([of.tail_within(question.delta) for of in estimates.values()])
    adjusted = dict(zip(estimates, zip(p, equivalence, strict=True), strict=True))
    summaries = {}
    for name in methods:
        figures = TaskFigures(0, left_out[name], None, None, None, None)
        verdict: Verdict = "too few seeds"
        if name in estimates:
            estimate = estimates[name]
            figures = TaskFigures(
                tasks=len(used[name]),
                left_out=left_out[name],
                difference=estimate.mean,
                interval=estimate.interval(question.confidence),
                p=2 * estimate.tail(0.0),
                p_adjusted=adjusted[name][0],
            )
            verdict = verdict_of(estimate.mean, *adjusted[name], question)
        is_about_these = only_these or figures.tasks < FEWEST_TASKS
        sentence = explain_over_tasks(name, question, figures, verdict, len(estimates), is_about_these)
        summaries[name] = TaskSummary(**vars(figures), verdict=verdict, sentence=sentence)
    return summaries


@dataclass(frozen=True)
class _Estimate:
    """A mean with its standard error, whose ratio to the error has a t distribution."""

    mean: float
    error: float
    degrees: float

    def interval(self, confidence: float) -> Interval:
        reach = float(special.stdtrit(self.degrees, (1 + confidence) / 2)) * self.error
        return self.mean - reach, self.mean + reach

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


def _estimate(tasks: list[Floats], draws: int, seed: int, only_these: bool) -> _Estimate:
    count = len(tasks)
    mean = float(np.mean([of.mean() for of in tasks]))
    if only_these or count < FEWEST_TASKS:
        parts = np.array([of.var(ddof=1) / len(of) for of in tasks])
        degrees = np.array([len(of) - 1 for of in tasks])
        total = float(parts.sum())  # degrees of freedom by Welch and Satterthwaite
        return _Estimate(mean, math.sqrt(total) / count, total**2 / float((parts**2 / degrees).sum()) if total else 1.0)
    return _Estimate(mean, float(hierarchical_bootstrap(tasks, draws, seed).std()), count - 1)


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
