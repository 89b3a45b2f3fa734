"""Answers that one can act on: when a classifier should say that it is unsure, and which classes are still possible.

    threshold   answer where the largest probability is at least t, so that the accuracy of the answers is at least a
    set         all classes whose probability is at least c, so that the right one is among them in 1 − α of the cases

Both are chosen on examples that were not trained on. The threshold is that of selective classification with guaranteed
risk (Geifman and El-Yaniv, 2017, arXiv 1705.08500): a binary search over the examples by confidence, with the bound of
Clopper and Pearson for the errors of the answers, whose level is divided by the number of its steps. With a chance of
at least 1 − δ the accuracy on new examples is at least a.

The set is that of split conformal prediction with the score 1 − p of the right class (Sadinle, Lei and Wasserman, 2019,
arXiv 1609.00451), to which the most probable class is always added. Its coverage is at least 1 − α on average over new
examples that are drawn as the others were; not for each class by itself. MAPIE finds the same sets, and needs an
estimator of scikit-learn around the model; this is one quantile of probabilities that we have.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

DELTA = 0.1


class Selection(NamedTuple):
    """A threshold of the probability.

    Attributes:
        threshold: Answers with at least this probability are given.
        answered: The share of the examples that are answered.
        accuracy: The accuracy of their answers.
    """

    threshold: float
    answered: float
    accuracy: float


def choose_confidence(
    confidence: npt.ArrayLike, is_correct: npt.ArrayLike, accuracy: float, delta: float = DELTA
) -> Selection | None:
    """Return the threshold with which most examples are answered with the accuracy; None if there is none.

    Args:
        confidence: The largest probability of each example.
        is_correct: Whether its class is the right one.
        accuracy: The accuracy that the answers must have.
        delta: The chance that it is lower on new examples.
    """
    order = np.argsort(-np.asarray(confidence, float), kind="stable")
    sorted_confidence, correct = np.asarray(confidence, float)[order], np.asarray(is_correct, bool)[order]
    examples, selection = len(order), None
    steps = max(1, math.ceil(math.log2(max(examples, 2))))
    low, high = 1, examples
    for _ in range(steps):
        middle = -(-(low + high) // 2)
        threshold = sorted_confidence[middle - 1]
        count = int((sorted_confidence >= threshold).sum())  # with examples of equal confidence
        errors = int((~correct[:count]).sum())
        most = float(beta.ppf(1 - delta / steps, errors + 1, count - errors)) if errors < count else 1.0
        if most <= 1 - accuracy:
            low, selection = middle, Selection(float(threshold), count / examples, 1 - errors / count)
        else:
            high = middle
    return selection


def least_examples(accuracy: float, examples: int, delta: float = DELTA) -> int:
    """Return how many answers without an error the bound needs.

    Args:
        accuracy: The accuracy that the answers must have.
        examples: The number of examples that the threshold is chosen on.
        delta: The chance that it is lower on new examples.
    """
    steps = max(1, math.ceil(math.log2(max(examples, 2))))
    return math.ceil(math.log(delta / steps) / math.log(accuracy))


def conformal_cut(gold_probability: npt.ArrayLike, coverage: float) -> float | None:
    """Return the probability from which a class belongs to the set; None if there are too few examples.

    Args:
        gold_probability: The probability of the right class of each example.
        coverage: How often the right class must be in the set.
    """
    scores = np.sort(1 - np.asarray(gold_probability, float))
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return None if rank > len(scores) else float(1 - scores[rank - 1])


def prediction_sets(probabilities: npt.ArrayLike, cut: float) -> npt.NDArray[np.bool_]:
    """Return which classes belong to the set of each example, `[examples, classes]`.

    Args:
        probabilities: The probability of each class of each example.
        cut: From `conformal_cut`.
    """
    table = np.asarray(probabilities, float)
    sets = table >= cut - 1e-12
    sets[np.arange(len(table)), table.argmax(-1)] = True
    return sets
