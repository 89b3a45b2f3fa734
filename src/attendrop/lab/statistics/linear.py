"""Linear models with a strength of regularisation that cross-validation chooses: logistic and ridge regression.

They are the simple baselines of a run, and the first weights of a head on frozen features. Everything is computed in
float64, without random numbers: equal inputs give equal weights.

Features are centred and divided by one number, their mean deviation, and not each by its own: the solution depends on
the geometry of the features alone. Where there are fewer examples than features, the problem is solved in the span of
the examples, in which the solution lies.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray

STRENGTHS = tuple(10.0**power for power in range(-4, 2))  # C of a logistic regression, on scaled features
PENALTIES = tuple(10.0**power for power in np.arange(-1, 5.5, 0.5))  # alpha of a ridge regression
FOLDS = 5
CHOSEN_ON = 2_000  # at most so many examples choose the strength
_ITERATIONS = 500


@dataclass
class Linear:
    """A linear model: outputs are `features @ weight.T + bias`.

    Attributes:
        weight: `[outputs, features]`.
        bias: `[outputs]`.
        strength: The chosen strength of regularisation; C of a logistic, alpha of a ridge regression.
        held_out: The outputs for each example, from a model that was not fitted on it; None where there was none.
    """

    weight: Array
    bias: Array
    strength: float
    held_out: Array | None = None

    def __call__(self, features: Any) -> Array:
        return np.asarray(features @ self.weight.T) + self.bias


@dataclass
class _Scaled:
    """Features that are centred, divided by their mean deviation and expressed in the span of the examples."""

    values: Array
    center: Array
    basis: Array  # [features, rank]; columns of the scaled features

    @classmethod
    def of(cls, features: Array) -> _Scaled:
        features = np.asarray(features, np.float64)
        center = features.mean(0)
        centred = features - center
        scale = float(centred.std(0).mean()) or 1.0
        rows, columns = features.shape
        if rows >= columns:
            return cls(centred / scale, center, np.eye(columns) / scale)
        _, _, basis = np.linalg.svd(centred, full_matrices=False)
        return cls(centred @ basis.T / scale, center, basis.T / scale)

    def original(self, weight: Array, bias: Array, strength: float, held_out: Array | None) -> Linear:
        """The model of the original features."""
        weight = weight @ self.basis.T
        return Linear(weight, bias - weight @ self.center, strength, held_out)


def folds_of(labels: Array | None, rows: int, folds: int = FOLDS) -> list[tuple[Array, Array]]:
    """Divide examples into folds, each with about the same share of every class.

    Args:
        labels: The class of each example; None = the examples have no classes.
        rows: The number of examples.
        folds: The number of folds; fewer where there are fewer examples.

    Returns:
        For each fold the examples to fit on and those that are held out.
    """
    folds = min(folds, rows)
    order = np.random.default_rng(0).permutation(rows)
    if labels is not None:
        order = order[np.argsort(np.asarray(labels)[order], kind="stable")]  # neighbours have the same class
    fold = np.empty(rows, int)
    fold[order] = np.arange(rows) % folds
    return [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(folds)]


def log_losses(logits: Array, labels: Array) -> Array:
    """The log loss of each example.

    Args:
        logits: `[N, classes]`.
        labels: The class of each example.
    """
    shifted = logits - logits.max(-1, keepdims=True)
    return np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(labels)), labels]


def fit_logistic(features: Any, labels: Array, classes: int, strengths: Sequence[float] = STRENGTHS) -> Linear:
    """Fit a multinomial logistic regression, whose strength has the smallest log loss on held-out folds.

    A class without an example gets the bias of half an example and no weights.

    Args:
        features: `[N, d]`, dense, or a sparse matrix of SciPy.
        labels: The class of each example.
        classes: The number of classes.
        strengths: The values of C.
    """
    labels = np.asarray(labels, int)
    is_dense = isinstance(features, np.ndarray)
    scaled = _Scaled.of(features) if is_dense else None
    values = scaled.values if scaled is not None else features
    strength, held_out = _choose(values, labels, classes, strengths)
    weight, bias = _logistic(values, labels, classes, strength)
    return scaled.original(weight, bias, strength, held_out) if scaled else Linear(weight, bias, strength, held_out)


def _choose(values: Any, labels: Array, classes: int, strengths: Sequence[float]) -> tuple[float, Array]:
    """The best strength, and the held-out logits that it gives."""
    rows = np.arange(len(labels))
    if len(rows) > CHOSEN_ON:
        rows = np.sort(np.random.default_rng(0).permutation(len(rows))[:CHOSEN_ON])
    divided = folds_of(labels[rows], len(rows))
    best: tuple[float, float, Array] | None = None
    for strength in strengths:
        logits = np.zeros((len(labels), classes))
        for fitted, held in divided if len(divided) > 1 else ():
            weight, bias = _logistic(values[rows[fitted]], labels[rows[fitted]], classes, strength)
            logits[rows[held]] = np.asarray(values[rows[held]] @ weight.T) + bias
        loss = float(log_losses(logits[rows], labels[rows]).mean())
        if best is None or loss < best[0]:
            best = loss, strength, logits
    assert best is not None
    return best[1], best[2]


def _logistic(values: Any, labels: Array, classes: int, strength: float) -> tuple[Array, Array]:
    """Weights and biases for all classes, also for those that no example has."""
    from sklearn.linear_model import LogisticRegression

    counts = np.bincount(labels, minlength=classes)
    weight, bias = np.zeros((classes, values.shape[1])), np.log((counts + 0.5) / (counts.sum() + 0.5 * classes))
    present = np.flatnonzero(counts)
    if len(present) < 2:
        return weight, bias
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged yet
        model = LogisticRegression(C=strength, max_iter=_ITERATIONS).fit(values, labels)
    if len(present) == 2:  # one row, the logit of the second class
        weight[present] = np.concatenate([-model.coef_, model.coef_]) / 2
        bias[present] = np.concatenate([-model.intercept_, model.intercept_]) / 2
    else:
        weight[present], bias[present] = model.coef_, model.intercept_
    absent = np.flatnonzero(counts == 0)
    bias[absent] = bias[present].min() + np.log(0.5)
    return weight, bias


def fit_logistic_labels(features: Any, present: Array, strengths: Sequence[float] = STRENGTHS) -> Linear:
    """Fit one logistic regression for each label, all with the strength that has the smallest loss on held-out folds.

    A label that all examples have, or none, gets the logit of its share and no weights.

    Args:
        features: `[N, d]`, dense, or a sparse matrix of SciPy.
        present: `[N, labels]`, 1 where an example has the label.
        strengths: The values of C.
    """
    is_dense = isinstance(features, np.ndarray)
    scaled = _Scaled.of(features) if is_dense else None
    values = scaled.values if scaled is not None else features
    present = np.asarray(present, int)
    divided = folds_of(present.sum(-1), len(present), 3)
    best: tuple[float, float, Array] | None = None
    for strength in strengths:
        logits = np.zeros(present.shape)
        for fitted, held in divided:
            weight, bias = _labels(values[fitted], present[fitted], strength)
            logits[held] = np.asarray(values[held] @ weight.T) + bias
        loss = float(np.logaddexp(0, np.where(present == 1, -logits, logits)).mean())
        if best is None or loss < best[0]:
            best = loss, strength, logits
    assert best is not None
    weight, bias = _labels(values, present, best[1])
    return scaled.original(weight, bias, *best[1:]) if scaled else Linear(weight, bias, *best[1:])


def _labels(values: Any, present: Array, strength: float) -> tuple[Array, Array]:
    pairs = [_logistic(values, column, 2, strength) for column in present.T]
    return np.stack([w[1] - w[0] for w, _ in pairs]), np.stack([b[1] - b[0] for _, b in pairs])


def fit_ridge(features: Any, targets: Array, penalties: Sequence[float] = PENALTIES) -> Linear:
    """Fit a ridge regression, whose penalty has the smallest squared error when each example is left out.

    Args:
        features: `[N, d]`, dense, or a sparse matrix of SciPy.
        targets: The number of each example.
        penalties: The values of alpha.
    """
    from sklearn.linear_model import Ridge, RidgeCV

    targets = np.asarray(targets, np.float64)
    mean, deviation = targets.mean(), targets.std() or 1.0
    standard = (targets - mean) / deviation
    if not isinstance(features, np.ndarray):
        divided, losses = folds_of(None, len(targets)), []
        for penalty in penalties:
            fits = ((held, Ridge(penalty).fit(features[rows], standard[rows])) for rows, held in divided)
            losses.append(sum(((fit.predict(features[held]) - standard[held]) ** 2).sum() for held, fit in fits))
        penalty = penalties[int(np.argmin(losses))]
        fit = Ridge(penalty).fit(features, standard)
        return Linear(fit.coef_[None] * deviation, np.array([fit.intercept_ * deviation + mean]), penalty)
    scaled = _Scaled.of(features)
    fit = RidgeCV(penalties).fit(scaled.values, standard)
    weight, bias = fit.coef_[None] * deviation, np.array([fit.intercept_ * deviation + mean])
    return scaled.original(weight, bias, float(fit.alpha_), None)
