"""Calibration of a classifier's probabilities: log loss, Brier score, calibration error, temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .paired import Floats, Interval, bca_interval

BINS = 15
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
    """Return the temperature between 0.01 and 100 with the smallest log loss; above 1 means overconfidence.

    Args:
        logits: One row for each example, one column for each class.
        labels: The true class of each example.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits, rows = np.asarray(logits, float), np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return float(-log_softmax(logits / np.exp(log_temperature), axis=-1)[rows, labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log([0.01, 100]), method="bounded").x))


def scaled_probabilities(logits: npt.ArrayLike, labels: Labels) -> Floats:
    """Return probabilities after cross-fitted temperature scaling: each half uses the temperature of the other.

    They show which differences in loss or calibration remain after temperature scaling.

    Args:
        logits: One row for each example, one column for each class.
        labels: The true class of each example.
    """
    logits, labels = np.asarray(logits, float), np.asarray(labels)
    probabilities = softmax(logits)
    halves = (slice(0, None, 2), slice(1, None, 2))
    for half, other in (halves, halves[::-1]):
        if len(labels) > 1:
            probabilities[half] = softmax(logits[half], fit_temperature(logits[other], labels[other]))
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
    interval lies around the score.

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
    percentiles = np.quantile(scores, [(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = np.clip(percentiles + score(*arrays) - np.mean(scores), *limits)
    return float(low), float(high)
