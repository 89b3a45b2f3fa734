"""Simulated ensembles: how often does the interval of the gain contain the mean gain of other seeds?

`python tests/scripts/simulate_ensembles.py` prints the table and writes it to studies/results/ensembles.csv. The
examples of a case are fixed. A member knows each example up to noise of its own, and members differ in quality.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attendrop.lab.statistics.ensembles import judge_gain
from attendrop.lab.statistics.verdict import Question

RESULTS = Path(__file__).parents[2] / "studies" / "results" / "ensembles.csv"
SEEDS = (5, 10, 20)
CONFIDENCE = 0.95
Array = np.ndarray[Any, np.dtype[Any]]


class Row(NamedTuple):
    """One line of the table. `error` is the standard error of the simulation. `width` is the mean width of the interval
    in standard deviations of the gain; 3.92 would do if these were known."""

    case: str
    seeds: int
    studies: int
    gain: float
    covered: float
    error: float
    width: float


class Case(NamedTuple):
    """How members answer: the number of examples, the noise of a member, the share of members that learn nothing."""

    score: Callable[[Array, Array], Array]
    examples: int
    noise: float = 1.0
    collapsed: float = 0.0

    def members(self, generator: np.random.Generator, truth: Array, shape: tuple[int, ...]) -> Array:
        """What members answer: shape × examples."""
        quality = 1 + generator.normal(0, 0.2, (*shape, 1))
        quality = np.where(generator.random((*shape, 1)) < self.collapsed, 0.0, quality)
        return quality * truth + self.noise * generator.normal(size=(*shape, self.examples))


def accuracy(answers: Array, truth: Array) -> Array:
    """Answers and truth are margins; an answer is right where its probability of the right class is above 1/2."""
    return (answers > 0.5).mean(-1)


def correlation(answers: Array, truth: Array) -> Array:
    centred, right = answers - answers.mean(-1, keepdims=True), truth - truth.mean()
    return (centred * right).sum(-1) / np.sqrt((centred**2).sum(-1) * (right**2).sum())


CASES = {
    "accuracy, 300 examples": Case(accuracy, 300),
    "accuracy, 300 examples, little noise": Case(accuracy, 300, noise=0.4),
    "accuracy, 2,000 examples": Case(accuracy, 2000),
    "correlation, 300 examples": Case(correlation, 300),
    "accuracy, 2,000 examples, one run in ten collapses": Case(accuracy, 2000, collapsed=0.1),
}


def simulate(name: str, seeds: int, studies: int, seed: int = 0) -> Row:
    """Simulate studies of one case.

    Args:
        name: One of `CASES`.
        seeds: The number of members of the ensemble.
        studies: The number of studies.
        seed: The seed of the simulation.
    """
    case = CASES[name]
    generator = np.random.default_rng([seed, seeds, *name.encode()])
    truth = np.random.default_rng(1).normal(0.8, 1.2, case.examples)

    def answers(count: int) -> Array:
        margins = case.members(generator, truth, (count, seeds))
        return 1 / (1 + np.exp(-2 * margins)) if case.score is accuracy else margins

    gains, intervals = [], []
    for study in answers(studies):
        members, total = case.score(study, truth), study.sum(0)
        whole = float(case.score(total / seeds, truth))
        without = case.score((total - study) / (seeds - 1), truth)
        resolution = 1 / case.examples if case.score is accuracy else 0.0
        judged = judge_gain(whole, without.tolist(), members.tolist(), Question(0.01), resolution)
        assert judged.interval is not None
        gains.append(judged.gain)
        intervals.append(judged.interval)
    for _ in range(10):  # the true mean needs more studies than the coverage
        more = answers(studies)
        gains += (case.score(more.mean(1), truth) - case.score(more, truth).mean(-1)).tolist()
    mean, (low, high) = float(np.mean(gains)), np.transpose(intervals)
    covered = float(np.mean((low <= mean) & (mean <= high)))
    error = math.sqrt(max(covered * (1 - covered), CONFIDENCE * (1 - CONFIDENCE)) / studies)
    return Row(name, seeds, studies, mean, covered, error, float(np.mean(high - low) / np.std(gains)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help="number of studies for each line")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in CASES:
        for seeds in SEEDS:
            rows.append(simulate(name, seeds, options.studies))
            print(rows[-1], flush=True)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows([f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in rows)


if __name__ == "__main__":
    main()
