"""Linear models with a strength of regularisation that cross-validation chooses: logistic and ridge regression.

    logistic    min_W,b  ½ |W|² + C Σ loss(W x + b, y)       softmax over classes, or one sigmoid for each label
    ridge       min_w,b  Σ (w x + b − y)² + α |w|²           in closed form, with closed-form held-out errors

They are the simple baselines of a run, and the first weights of a head on frozen features. No random numbers are used:
equal inputs give equal weights.

Dense features are centred and divided by one number, their mean deviation, and not each by its own: the solution
depends on the geometry of the features alone. The problem is solved along their principal axes. There the curvature is
nearly diagonal, so that L-BFGS needs few steps with the variables scaled by it, and where there are fewer examples than
features, there are no more axes than examples.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray

STRENGTHS = tuple(10.0**power for power in range(-4, 2))  # C of a logistic regression, on scaled features
USUAL_STRENGTH = 1e-2  # where there are too many classes to choose it
PENALTIES = tuple(10.0**power for power in np.arange(-1, 6.5, 0.5))  # alpha of a ridge regression
FOLDS = 5
CHOSEN_ON = 2_000  # at most so many examples choose the strength
MOST_CLASSES = 500  # with more the strength is not chosen
_CHOICE, _FIT = 6e10, 2e11  # operations that choosing the strength, and the last fit, may take
_TRIED = 60  # steps for each fold, over all strengths that are tried


@dataclass
class Linear:
    """A linear model: outputs are `features @ weight.T + bias`.

    Attributes:
        weight: `[outputs, features]`.
        bias: `[outputs]`.
        strength: The chosen strength of regularisation; C of a logistic, alpha of a ridge regression.
    """

    weight: Array
    bias: Array
    strength: float

    def __call__(self, features: Any) -> Array:
        return np.asarray(features @ self.weight.T) + self.bias


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which products of matrices run in one thread: many small ones wait for threads otherwise."""
    context: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return context


@dataclass
class _Axes:
    """Features along their principal axes, centred.

    Attributes:
        values: `[N, axes]`.
        center: The mean of the features.
        scale: Their divisor.
        basis: The axes, `[features, axes]`; None = they are combinations of the examples.
        combined: The axes as combinations of the examples, `[N, axes]`, if `basis` is None.
        features: The features.
    """

    values: Array
    center: Array
    scale: float
    basis: Array | None
    combined: Array | None
    features: Any

    @classmethod
    def of(cls, features: Any) -> _Axes:
        if not isinstance(features, np.ndarray):
            center = np.asarray(features.mean(0)).ravel()
            products = np.asarray((features @ features.T).todense(), np.float64)
            means = products.mean(0)
            return cls._of_products(products - means - means[:, None] + means.mean(), center, 1.0, features)
        features = features.astype(np.float64)
        center = features.mean(0)
        centred = features - center
        scale = float(centred.std(0).mean()) or 1.0
        centred /= scale
        if len(centred) < centred.shape[1]:
            return cls._of_products(centred @ centred.T, center, scale, features)
        _, basis = np.linalg.eigh(centred.T @ centred)
        return cls(centred @ basis, center, scale, basis, None, features)

    @classmethod
    def _of_products(cls, products: Array, center: Array, scale: float, features: Any) -> _Axes:
        """Return the axes from the products of all pairs of examples."""
        squares, vectors = np.linalg.eigh(products)
        kept = squares > 1e-11 * max(squares.max(initial=0.0), 1e-300)
        sizes, vectors = np.sqrt(squares[kept]), vectors[:, kept]
        return cls(vectors * sizes, center, scale, None, vectors / sizes, features)

    def original(self, weight: Array, bias: Array, strength: float) -> Linear:
        """Return the model of the original features, of one of the values."""
        if self.basis is not None:
            weight = weight @ self.basis.T / self.scale
        else:
            assert self.combined is not None
            shares = weight @ self.combined.T  # of each example in the weights
            shares = (shares - shares.mean(-1, keepdims=True)) / self.scale**2
            weight = np.asarray(shares @ self.features)
        return Linear(weight, bias - weight @ self.center, strength)


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


def stratified(labels: Array | None, rows: int, most: int) -> Array:
    """Choose at most so many examples, with about the share of every class, and at least one of each.

    Args:
        labels: The class of each example; None = the examples have no classes.
        rows: The number of examples.
        most: How many may be chosen.
    """
    if rows <= most:
        return np.arange(rows)
    order = np.random.default_rng(0).permutation(rows)
    if labels is None:
        return np.sort(order[:most])
    order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    spread = order[np.linspace(0, rows - 1, most).astype(int)]
    _, first = np.unique(np.asarray(labels)[order], return_index=True)
    return np.unique(np.concatenate([spread, order[first]]))


def log_losses(logits: Array, labels: Array) -> Array:
    """Return the log loss of each example.

    Args:
        logits: `[N, classes]`.
        labels: The class of each example.
    """
    shifted = logits - logits.max(-1, keepdims=True)
    return np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(labels)), labels]


# ---- logistic regression ----------------------------------------------------------------------------------------


class _Softmax:
    """The multinomial loss. Targets are one-hot."""

    def prior(self, targets: Array) -> Array:
        """Return the biases without features; a class that does not occur counts as half an example."""
        counts = targets.sum(0, dtype=np.float64)
        return np.asarray(np.log(np.maximum(counts, 0.5) / counts.sum()))

    def fitted(self, targets: Array) -> Array:
        """Return the outputs that are fitted; the others keep their prior."""
        present = np.flatnonzero(targets.any(0))
        return present if len(present) > 1 else present[:0]

    def loss(self, logits: Array, targets: Array) -> tuple[float, Array]:
        """Return the sum of the losses, and its gradient."""
        largest = logits.max(-1, keepdims=True)
        powers = np.exp(logits - largest)
        total = powers.sum(-1, keepdims=True)
        loss = float((np.log(total) + largest).sum(dtype=np.float64) - (logits * targets).sum(dtype=np.float64))
        return loss, powers / total - targets


class _Sigmoids:
    """A loss for each label by itself. Targets are 0 or 1."""

    def prior(self, targets: Array) -> Array:
        """Return the log-odds; a label that is never or always there counts as half an example the other way."""
        counts, rows = targets.sum(0, dtype=np.float64), len(targets)
        return np.asarray(np.log(np.maximum(counts, 0.5) / np.maximum(rows - counts, 0.5)))

    def fitted(self, targets: Array) -> Array:
        """Return the outputs that are fitted; the others keep their prior."""
        return np.flatnonzero(targets.any(0) & ~targets.all(0))

    def loss(self, logits: Array, targets: Array) -> tuple[float, Array]:
        """Return the sum of the losses, and its gradient."""
        powers = np.exp(-np.abs(logits))
        losses = np.maximum(logits, 0) + np.log1p(powers) - logits * targets
        return float(losses.sum(dtype=np.float64)), np.where(logits > 0, 1, powers) / (1 + powers) - targets


def _solve(
    loss: Any, values: Any, targets: Array, strength: float, start: Array | None, steps: int, tolerance: float
) -> Array:
    """Return weights and, in the last column, biases of all outputs, `[outputs, axes + 1]`."""
    from scipy.optimize import minimize

    rows, axes = values.shape
    solution = np.zeros((targets.shape[1], axes + 1))
    solution[:, -1] = loss.prior(targets)
    fitted = loss.fitted(targets)
    if not len(fitted) or not axes:
        return solution
    mine = np.ascontiguousarray(targets[:, fitted])
    penalty = 1 / (strength * rows)
    shares = mine.mean(0, dtype=np.float64)
    curvature = np.maximum(shares * (1 - shares), 1e-3)[:, None]
    squares = values.power(2).mean(0) if not isinstance(values, np.ndarray) else np.square(values).mean(0)
    factors = np.ones((len(fitted), axes + 1))
    factors[:, :-1] = 1 / np.sqrt(curvature * np.asarray(squares, np.float64).reshape(1, -1) + penalty)
    factors[:, -1:] = 1 / np.sqrt(curvature)
    dtype = values.dtype

    def objective(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(factors.shape) * factors
        logits = np.asarray(values @ weights[:, :-1].T.astype(dtype)) + weights[:, -1].astype(dtype)
        value, slopes = loss.loss(logits, mine)
        gradient = np.empty_like(weights)
        gradient[:, :-1] = np.asarray(values.T @ slopes).T / rows + penalty * weights[:, :-1]
        gradient[:, -1] = slopes.mean(0, dtype=np.float64)
        value = value / rows + penalty / 2 * float(np.vdot(weights[:, :-1], weights[:, :-1]))
        return value, (gradient * factors).ravel()

    first = solution[fitted] if start is None else start[fitted]
    options = {"maxiter": steps, "maxcor": 10, "ftol": tolerance**2, "gtol": tolerance}
    minimum = minimize(objective, (first / factors).ravel(), jac=True, method="L-BFGS-B", options=options)
    solution[fitted] = minimum.x.reshape(factors.shape) * factors
    if isinstance(loss, _Softmax) and len(fitted) < len(solution):  # an absent class is below all others
        absent = np.setdiff1d(np.arange(len(solution)), fitted)
        solution[absent, -1] = solution[fitted, -1].min() + np.log(0.5)
    return solution


def _choose(loss: Any, values: Array, targets: Array, groups: Array, strengths: Sequence[float]) -> float:
    """Return the strength with the smallest loss on held-out folds. From the weakest on, until the loss rises."""
    rows, outputs = targets.shape
    if outputs > MOST_CLASSES or rows < 2:
        return USUAL_STRENGTH if USUAL_STRENGTH in strengths else strengths[len(strengths) // 2]
    divided = folds_of(groups, rows)
    cost = 4 * rows * values.shape[1] * outputs * _TRIED
    divided = divided[: max(1, min(len(divided), int(_CHOICE / max(cost, 1))))]
    values, targets = values.astype(np.float32), targets.astype(np.float32)
    starts: list[Array | None] = [None] * len(divided)
    best, least = strengths[0], float("inf")
    for strength in strengths:
        total = 0.0
        for number, (fit, held) in enumerate(divided):
            fitted = _solve(loss, values[fit], targets[fit], strength, starts[number], _TRIED // 2, 2e-3)
            starts[number] = fitted
            total += loss.loss(values[held] @ fitted[:, :-1].T + fitted[:, -1], targets[held])[0]
        if total > least:
            break
        best, least = strength, total
    return best


def _fit(loss: Any, features: Any, targets: Array, groups: Array, strengths: Sequence[float]) -> Linear:
    rows, outputs = targets.shape
    if not isinstance(features, np.ndarray):
        features = features.tocsr()
    with one_thread():
        few = stratified(groups, rows, CHOSEN_ON)
        is_sparse = not isinstance(features, np.ndarray) and rows > len(few)
        axes = _Axes.of(features[few] if is_sparse else features)
        mine = axes.values if is_sparse else axes.values[few]
        strength = _choose(loss, mine, targets[few], groups[few], strengths)
        values = features if is_sparse else axes.values
        steps = int(min(300, max(30, _FIT / max(4 * rows * values.shape[1] * outputs, 1))))
        solution = _solve(loss, values, targets.astype(np.float64), strength, None, steps, 1e-6)
        weight, bias = solution[:, :-1], solution[:, -1]
        return Linear(weight, bias, strength) if is_sparse else axes.original(weight, bias, strength)


def fit_logistic(features: Any, labels: Array, classes: int, strengths: Sequence[float] = STRENGTHS) -> Linear:
    """Fit a multinomial logistic regression, whose strength has the smallest log loss on held-out folds.

    A class without an example gets a bias below all others and no weights. With more than `MOST_CLASSES` classes the
    strength is not chosen.

    Args:
        features: `[N, d]`, dense, or a sparse matrix of SciPy.
        labels: The class of each example.
        classes: The number of classes.
        strengths: The values of C, in ascending order.
    """
    labels = np.asarray(labels, int)
    targets = np.zeros((len(labels), classes), np.float32)
    targets[np.arange(len(labels)), labels] = 1
    return _fit(_Softmax(), features, targets, labels, strengths)


def fit_logistic_labels(features: Any, present: Array, strengths: Sequence[float] = STRENGTHS) -> Linear:
    """Fit one logistic regression for each label, all with the strength that has the smallest loss on held-out folds.

    A label that all examples have, or none, gets the log-odds of its share and no weights.

    Args:
        features: `[N, d]`, dense, or a sparse matrix of SciPy.
        present: `[N, labels]`, 1 where an example has the label.
        strengths: The values of C, in ascending order.
    """
    present = np.asarray(present, np.float32)
    rarity = np.where(present > 0, present.sum(0), np.inf)
    rarest = np.where(present.any(-1), rarity.argmin(-1), -1) if present.shape[1] else np.zeros(len(present), int)
    return _fit(_Sigmoids(), features, present, rarest, strengths)


# ---- ridge regression -------------------------------------------------------------------------------------------


def fit_ridge(features: Any, targets: Array, penalties: Sequence[float] = PENALTIES) -> Linear:
    """Fit a ridge regression, whose penalty has the smallest squared error when each example is left out.

    Args:
        features: `[N, d]`, dense, or a sparse matrix of SciPy.
        targets: The number of each example.
        penalties: The values of alpha.
    """
    targets = np.asarray(targets, np.float64)
    if not isinstance(features, np.ndarray):
        features = features.tocsr()
    with one_thread():
        few = stratified(None, len(targets), CHOSEN_ON)
        is_sparse = not isinstance(features, np.ndarray) and len(targets) > len(few)
        axes = _Axes.of(features[few] if is_sparse else features)
        weights, errors = _ridges(axes.values, targets[few] if is_sparse else targets, penalties)
        best = int(np.argmin(errors))
        if is_sparse:
            from sklearn.linear_model import Ridge

            fit = Ridge(penalties[best]).fit(features, targets)
            return Linear(fit.coef_[None], np.array([fit.intercept_]), penalties[best])
        return axes.original(weights[best][None], np.array([targets.mean()]), penalties[best])


def _ridges(values: Array, targets: Array, penalties: Sequence[float]) -> tuple[list[Array], list[float]]:
    """Return the weights with each penalty, and the mean squared error of each example when it is left out.

    The columns of `values` are orthogonal and centred, so that each weight is computed by itself.
    """
    residuals = targets - targets.mean()
    squares, products = np.square(values).sum(0), values.T @ residuals
    weights, errors = [], []
    for penalty in penalties:
        weight = products / (squares + penalty)
        leverage = np.square(values) @ (1 / (squares + penalty)) + 1 / len(targets)
        left = (residuals - values @ weight) / np.maximum(1 - leverage, 1e-6)
        weights.append(weight)
        errors.append(float(np.square(left).mean()))
    return weights, errors
