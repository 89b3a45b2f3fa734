"""Calibration of a classifier's probabilities: log loss, Brier score, calibration error, temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from .paired import Floats, Interval, bca_interval

BINS = 15
FOLDS = 5  # of `scaled_probabilities`
PRIOR = 0.5  # standard deviation of log T before the data: T is between 0.4 and 2.7 with a probability of 95 %
Labels = npt.NDArray[np.integer[Any]]


class Reliability(NamedTuple):
    """A reliability table, one entry for each bin of the confidence that has examples.

    Attributes:
        low: Smallest confidence of the bin.
        high: Largest confidence of the bin.
        examples: Number of examples.
        confidence: Their mean confidence.
        accuracy: The share predicted correctly.
    """

    low: list[float]
    high: list[float]
    examples: list[int]
    confidence: list[float]
    accuracy: list[float]


def softmax(logits: npt.ArrayLike, temperature: float = 1.0) -> Floats:
    """Return probabilities of the classes.

    Args:
        logits: One row for each example, one column for each class.
        temperature: The logits are divided by it.
    """
    scaled = np.asarray(logits, float) / temperature
    exponents = np.exp(scaled - scaled.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def log_loss(probabilities: npt.ArrayLike, labels: Labels) -> float:
    """Return the mean of -log p of the true class; a probability of 0 counts as 1e-15.

    Args:
        probabilities: One row for each example, one column for each class.
        labels: The true class of each example.
    """
    of_label = np.asarray(probabilities, float)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(of_label, 1e-15)).mean())


def brier_score(probabilities: npt.ArrayLike, labels: Labels) -> float:
    """Return the mean squared distance from the probabilities to the one-hot label, summed over classes: 0 to 2.

    Args:
        probabilities: One row for each example, one column for each class.
        labels: The true class of each example.
    """
    gaps = np.array(probabilities, float)
    gaps[np.arange(len(labels)), labels] -= 1
    return float((gaps**2).sum(-1).mean())


def calibration_error(
    probabilities: npt.ArrayLike, labels: Labels, bins: int = BINS, equal_mass: bool = False
) -> float:
    """Return the expected calibration error (ECE): mean distance from confidence to accuracy over the bins, 0 to 1.

    Args:
        probabilities: One row for each example, one column for each class.
        labels: The true class of each example.
        bins: Number of bins of the confidence, the largest probability of an example.
        equal_mass: Whether bins have the same number of examples, instead of the same width.
    """
    table = reliability(probabilities, labels, bins, equal_mass)
    gaps = np.abs(np.subtract(table.confidence, table.accuracy))
    return float(np.average(gaps, weights=table.examples))


def debiased_calibration_error(probabilities: npt.ArrayLike, labels: Labels, bins: int = BINS) -> float:
    """Return the expected calibration error without what chance adds to it; may be a little below 0.

    The accuracy of a bin with few examples is far from its confidence by chance alone, so that a perfectly calibrated
    model has an error of several points on a few hundred examples. With E, the mean error of a calibrated model of
    these confidences, it is √(ECE² − E²), and −√(E² − ECE²) below. See docs/statistics.md for its bias.

    Args:
        probabilities: One row for each example, one column for each class.
        labels: The true class of each example.
        bins: Number of bins of the confidence, of equal width.
    """
    table = reliability(probabilities, labels, bins)
    gaps = np.abs(np.subtract(table.confidence, table.accuracy))
    examples = np.array(table.examples)
    error = float(np.average(gaps, weights=examples))
    chance = float(np.average(_mean_gap(examples, np.array(table.confidence)), weights=examples))
    square = error**2 - chance**2
    return math.copysign(math.sqrt(abs(square)), square)


def _mean_gap(examples: npt.NDArray[np.int_], confidence: Floats) -> Floats:
    """Return the mean of |X/n − p| of a binomial X, by de Moivre's formula."""
    n, p = examples, np.clip(confidence, 1e-12, 1 - 1e-12)
    m = np.floor(n * p) + 1
    log_choose = special.gammaln(n + 1) - special.gammaln(m + 1) - special.gammaln(n - m + 1)
    return np.asarray(2 * m / n * np.exp(log_choose + m * np.log(p) + (n - m + 1) * np.log1p(-p)))


def reliability(
    probabilities: npt.ArrayLike, labels: Labels, bins: int = BINS, equal_mass: bool = False
) -> Reliability:
    """Return confidence and accuracy by bins of the confidence.

    Args:
        probabilities: One row for each example, one column for each class.
        labels: The true class of each example.
        bins: Number of bins; those without examples are left out.
        equal_mass: Whether bins have the same number of examples, instead of the same width.
    """
    probabilities = np.asarray(probabilities, float)
    confidence, correct = probabilities.max(-1), probabilities.argmax(-1) == labels
    if equal_mass:
        order = np.argsort(confidence, kind="stable")
        members = [part for part in np.array_split(order, bins) if len(part)]
        edges = [(confidence[part[0]], confidence[part[-1]]) for part in members]
    else:
        which = np.minimum((confidence * bins).astype(int), bins - 1)
        used = np.unique(which)
        members = [np.flatnonzero(which == place) for place in used]
        edges = [(place / bins, (place + 1) / bins) for place in used]
    return Reliability(
        low=[float(low) for low, _ in edges],
        high=[float(high) for _, high in edges],
        examples=[len(part) for part in members],
        confidence=[float(confidence[part].mean()) for part in members],
        accuracy=[float(correct[part].mean()) for part in members],
    )


def fit_temperature(logits: npt.ArrayLike, labels: Labels) -> float:
    """Return the temperature between 0.01 and 100 that fits best; above 1 means overconfidence.

    It has the largest posterior density, where log T is normal around 0 before the data (`PRIOR`). Without that, T goes
    to 0 where every prediction is right.

    Args:
        logits: One row for each example, one column for each class.
        labels: The true class of each example.
    """
    from scipy.optimize import minimize_scalar

    logits, rows = np.asarray(logits, float), np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        of_labels = special.log_softmax(logits / np.exp(log_temperature), axis=-1)[rows, labels]
        return float((log_temperature / PRIOR) ** 2 / 2 - of_labels.sum())

    return float(np.exp(minimize_scalar(loss, bounds=np.log([0.01, 100]), method="bounded").x))


def scaled_probabilities(logits: npt.ArrayLike, labels: Labels) -> Floats:
    """Return probabilities after cross-fitted temperature scaling: each fold has the temperature of the others.

    They show which differences in loss or calibration remain after temperature scaling.

    Args:
        logits: One row for each example, one column for each class.
        labels: The true class of each example.
    """
    logits, labels = np.asarray(logits, float), np.asarray(labels)
    probabilities = softmax(logits)
    if len(labels) < FOLDS:
        return probabilities
    fold = np.arange(len(labels)) % FOLDS
    for number in range(FOLDS):
        temperature = fit_temperature(logits[fold != number], labels[fold != number])
        probabilities[fold == number] = softmax(logits[fold == number], temperature)
    return probabilities


def score_interval(
    score: Callable[..., float],
    *columns: npt.ArrayLike,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> Interval:
    """Return the bootstrap interval of a score over the examples of one evaluation.

    It does not cover the variation over seeds.

    Some scores are lower in bootstrap samples than on the examples themselves: a macro F1, because samples lack rare
    classes. So the percentiles are shifted by the difference between the score and its mean over the samples, and the
    interval lies around the score, and it always contains it.

    Args:
        score: Function of the columns, such as `log_loss`.
        columns: Arrays with one entry for each example, such as probabilities and labels. With one column and
            `numpy.mean` as the score, the interval is the BCa interval; otherwise the shifted percentile interval.
        limits: The lowest and the highest value of the score, where the interval ends.
        confidence: How often the interval contains the score on all examples.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    arrays = [np.asarray(column) for column in columns]
    if score is np.mean and len(arrays) == 1 and arrays[0].ndim == 1:
        return bca_interval(arrays[0], confidence, resamples, seed)
    generator, examples = np.random.default_rng(seed), len(arrays[0])
    draws = (generator.integers(0, examples, examples) for _ in range(resamples))
    scores = [score(*(array[drawn] for array in arrays)) for drawn in draws]
    value = score(*arrays)
    low, high = np.quantile(scores, [(1 - confidence) / 2, (1 + confidence) / 2]) + value - np.mean(scores)
    low, high = np.clip([min(low, value), max(high, value)], *limits)
    return float(low), float(high)
