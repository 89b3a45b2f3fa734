"""Linear models against scikit-learn and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from attendrop.lab.statistics.linear import MOST_CLASSES, fit_logistic, fit_logistic_labels, fit_ridge, stratified


def examples(rows: int, columns: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    return draw.normal(size=(classes, columns))[labels] * 0.5 + draw.normal(size=(rows, columns)) + 0.3, labels


def scaled(features: np.ndarray) -> np.ndarray:
    centred = features - features.mean(0)
    return np.asarray(centred / centred.std(0).mean())


@pytest.mark.parametrize(("rows", "columns", "classes"), [(90, 8, 3), (30, 50, 3), (60, 6, 2)])
def test_a_logistic_regression_equals_that_of_scikit_learn(rows: int, columns: int, classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = examples(rows, columns, classes)
    mine = fit_logistic(features, labels, classes, (0.1,))(features)
    stock = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit(scaled(features), labels)
    powers = np.exp(mine - mine.max(-1, keepdims=True))
    if classes == 2:  # scikit-learn has one vector of weights there, which is penalised twice as much as our two
        assert (mine.argmax(-1) == stock.predict(scaled(features))).mean() > 0.95
    else:
        assert np.abs(powers / powers.sum(-1, keepdims=True) - stock.predict_proba(scaled(features))).max() < 1e-4


def test_a_sparse_matrix_gives_the_same_as_its_dense_values() -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = examples(40, 60, 3)
    mine = fit_logistic(csr_matrix(features), labels, 3, (0.1,))(features)
    stock = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit(features, labels)
    powers = np.exp(mine - mine.max(-1, keepdims=True))
    assert np.abs(powers / powers.sum(-1, keepdims=True) - stock.predict_proba(features)).max() < 1e-4


def test_labels_equal_one_regression_each_and_constant_ones_get_their_log_odds() -> None:
    from sklearn.linear_model import LogisticRegression

    features, classes = examples(60, 5, 3)
    present = np.eye(3)[classes].astype(int)
    present = np.concatenate([present, np.zeros((60, 1), int), np.ones((60, 1), int)], 1)
    fitted = fit_logistic_labels(features, present, (0.1,))
    for label in range(3):
        stock = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit(scaled(features), present[:, label])
        assert np.abs(fitted(features)[:, label] - stock.decision_function(scaled(features))).max() < 1e-4
    assert not fitted.weight[3:].any()
    assert fitted.bias[3:] == pytest.approx([np.log(0.5 / 60), np.log(60 / 0.5)])


@pytest.mark.parametrize(("rows", "columns"), [(50, 6), (20, 40)])
def test_a_ridge_regression_equals_its_closed_form_and_leaves_each_example_out(rows: int, columns: int) -> None:
    features, _ = examples(rows, columns, 2)
    targets = features[:, 0] * 3 + np.random.default_rng(1).normal(size=rows) + 7
    penalties = (0.1, 3.0, 100.0)
    fitted = fit_ridge(features, targets, penalties)

    def literal(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
        mean = x.mean(0)
        weight = np.linalg.solve((x - mean).T @ (x - mean) + penalty * np.eye(columns), (x - mean).T @ (y - y.mean()))
        return weight, float(y.mean() - mean @ weight)

    x, errors = scaled(features), []
    for penalty in penalties:
        error = 0.0
        for row in range(rows):
            rest = np.arange(rows) != row
            weight, bias = literal(x[rest], targets[rest], penalty)
            error += (x[row] @ weight + bias - targets[row]) ** 2
        errors.append(error)
    best = penalties[int(np.argmin(errors))]
    assert fitted.strength == best
    weight, bias = literal(x, targets, best)
    assert np.abs(fitted(features)[:, 0] - (x @ weight + bias)).max() < 1e-8


def test_unusual_labels_have_a_working_default() -> None:
    features, labels = examples(30, 4, 3)
    alone = np.where(np.arange(30) == 0, 3, labels)  # a class with one example, and one without any
    fitted = fit_logistic(features, alone, 5)
    assert np.isfinite(fitted(features)).all()
    assert (fitted(features).argmax(-1) != 4).all()
    assert np.isfinite(fit_logistic(features, np.zeros(30, int), 2)(features)).all()  # one class alone
    assert np.isfinite(fit_logistic(np.zeros((30, 4)), labels, 3)(features)).all()  # nothing in the features
    same = csr_matrix(np.ones((30, 4)))  # all texts are equal
    assert np.isfinite(fit_logistic(same, labels, 3)(same)).all()
    assert np.isfinite(fit_ridge(features, np.ones(30))(features)).all()
    many = MOST_CLASSES + 10
    assert np.isfinite(fit_logistic(*examples(many, 4, many), many).weight).all()


def test_equal_inputs_give_equal_weights_and_samples_have_all_classes() -> None:
    features, labels = examples(80, 10, 4)
    assert np.array_equal(fit_logistic(features, labels, 4).weight, fit_logistic(features, labels, 4).weight)
    chosen = stratified(np.array([0] * 99 + [1]), 100, 10)
    assert 99 in chosen
