"""Linear models of each kind of task: how they are fitted to features, and how a head starts from one.

A head that is the fitted solution itself answers its training examples so surely that little gradient is left for the
encoder. So a classifier starts from it with smaller weights: the logits of the training examples then have a root mean
square of at most `START`, and the classes are still in the same order (docs/your-own-data.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ...statistics.linear import Linear, fit_logistic, fit_logistic_labels, fit_ridge

Array = np.ndarray
START = 0.5  # root mean square of the centred logits with which training starts
WORD_STRENGTHS = tuple(10.0**power for power in range(-1, 4))  # C for sparse features whose rows have the length 1
WORD_PENALTIES = tuple(10.0**power for power in np.arange(-3, 2.5, 0.5))


class LinearHead:
    """One class for each example, by a multinomial logistic regression."""

    fitted_by = "logistic regression"

    def targets(self, labels: Any) -> Array:
        """Return encoded labels as an array.

        Args:
            labels: The column `labels` of an encoded split.
        """
        return np.asarray(labels, int)

    def groups(self, targets: Array) -> Array | None:
        """Return the class of each example, of which samples have the same share; None = there are no classes."""
        return targets

    def fit(self, features: Any, targets: Array, outputs: int) -> Linear:
        """Fit the model.

        Args:
            features: `[N, d]`, dense, or a sparse matrix of words.
            targets: The gold answer of each row.
            outputs: The number of outputs.
        """
        return fit_logistic(features, targets, outputs, **_strengths(features))

    def start(self, model: Linear, features: Array) -> Linear:
        """Return the model with smaller weights, from which a head starts to learn.

        Args:
            model: The fitted model.
            features: Those of the training examples.
        """
        logits = model(features)
        factor = _factor(logits - logits.mean(-1, keepdims=True))
        return dataclasses.replace(model, weight=model.weight * factor, bias=model.bias * factor)


class LabelHead(LinearHead):
    """Any number of labels for each example, by a logistic regression for each."""

    def targets(self, labels: Any) -> Array:
        return np.asarray(labels, np.float32).astype(int)

    def groups(self, targets: Array) -> Array | None:
        return None

    def fit(self, features: Any, targets: Array, outputs: int) -> Linear:
        return fit_logistic_labels(features, targets, **_strengths(features))

    def start(self, model: Linear, features: Array) -> Linear:
        """Keep the mean of the logits, because most labels are rare: it says how rare."""
        mean = model(features).mean(0)
        factor = _factor(model(features) - mean)
        return dataclasses.replace(model, weight=model.weight * factor, bias=mean + (model.bias - mean) * factor)


class NumberHead(LinearHead):
    """A number for each example, by a ridge regression. Its residuals leave gradients enough."""

    fitted_by = "ridge regression"

    def targets(self, labels: Any) -> Array:
        return np.asarray(labels, np.float64).reshape(-1)

    def groups(self, targets: Array) -> Array | None:
        return None

    def fit(self, features: Any, targets: Array, outputs: int) -> Linear:
        is_words = not isinstance(features, np.ndarray)
        return fit_ridge(features, targets, **({"penalties": WORD_PENALTIES} if is_words else {}))

    def start(self, model: Linear, features: Array) -> Linear:
        return model


def _strengths(features: Any) -> dict[str, Any]:
    return {} if isinstance(features, np.ndarray) else {"strengths": WORD_STRENGTHS}


def _factor(centred: Array) -> float:
    size = float(np.sqrt(np.square(centred).mean()))
    return START / size if size > START else 1.0
