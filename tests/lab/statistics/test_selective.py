"""Thresholds of the probability, and prediction sets, against slow versions and on simulated data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from attendrop.lab.statistics.selective import choose_confidence, conformal_cut, least_examples, prediction_sets

ARENA = Path(__file__).parents[4] / "shared" / "data" / "arena"


def simulated(draw: np.random.Generator, examples: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a calibrated model, and right classes that are drawn from them."""
    logits = 2 * draw.normal(size=(examples, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    gold = (probabilities.cumsum(-1) > draw.random((examples, 1))).argmax(-1)
    return probabilities, gold


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])
def test_sets_are_those_of_the_definition(coverage: float) -> None:
    known, gold = simulated(np.random.default_rng(1), 200)
    new, _ = simulated(np.random.default_rng(2), 20)
    cut = conformal_cut(known[np.arange(200), gold], coverage)
    assert cut is not None
    sets = prediction_sets(new, cut)
    for row, of_classes in enumerate(new):
        for label, probability in enumerate(of_classes):
            # as if it were the right one: its score is not among the α (n + 1) largest ones
            scores = [*(1 - known[np.arange(200), gold]), 1 - probability]
            rank = sum(score < 1 - probability for score in scores)
            is_possible = rank < math.ceil(201 * coverage) or probability == of_classes.max()
            assert sets[row, label] == is_possible


def test_coverage_holds_on_average() -> None:
    draw, coverages = np.random.default_rng(0), []
    for _ in range(200):
        known, gold = simulated(draw, 60)
        new, right = simulated(draw, 200)
        cut = conformal_cut(known[np.arange(60), gold], 0.9)
        assert cut is not None
        coverages.append(prediction_sets(new, cut)[np.arange(200), right].mean())
    assert 0.895 < np.mean(coverages) < 0.935


@pytest.mark.parametrize(("examples", "has_cut"), [(8, False), (9, True)])
def test_too_few_examples_have_no_cut(examples: int, has_cut: bool) -> None:
    assert (conformal_cut(np.full(examples, 0.5), 0.9) is not None) is has_cut


def test_answers_have_the_accuracy_in_nine_of_ten_cases() -> None:
    draw, missed = np.random.default_rng(0), 0
    for _ in range(200):
        known, gold = simulated(draw, 300)
        new, right = simulated(draw, 20_000)
        chosen = choose_confidence(known.max(-1), known.argmax(-1) == gold, 0.85)
        if chosen is not None:
            is_answered = new.max(-1) >= chosen.threshold
            missed += (new.argmax(-1) == right)[is_answered].mean() < 0.85
    assert missed <= 20


def test_threshold_has_the_bound_of_the_binomial() -> None:
    known, gold = simulated(np.random.default_rng(3), 500)
    right = known.argmax(-1) == gold
    chosen = choose_confidence(known.max(-1), right, 0.8)
    assert chosen is not None
    is_answered = known.max(-1) >= chosen.threshold
    count, errors = int(is_answered.sum()), int((~right[is_answered]).sum())
    assert (chosen.answered, chosen.accuracy) == (count / 500, 1 - errors / count)
    assert binom.cdf(errors, count, 0.2) <= 0.1 / 9  # so few errors would be rare if one of five were wrong
    assert choose_confidence(known.max(-1), right, 0.999) is None


def test_examples_of_equal_confidence_stay_together() -> None:
    confidence = np.repeat([0.9, 0.6], 200)
    right = np.r_[np.ones(200, bool), np.zeros(200, bool)]
    assert choose_confidence(confidence, right, 0.9) == (0.9, 0.5, 1.0)


def test_fewest_examples_that_the_bound_needs() -> None:
    least = least_examples(0.9, 100)
    assert binom.cdf(0, least, 0.1) <= 0.1 / 7 < binom.cdf(0, least - 1, 0.1)


@pytest.mark.slow
@pytest.mark.skipif(not ARENA.is_dir(), reason="needs the real data")
def test_coverage_on_twelve_real_sets() -> None:
    """With TF-IDF instead of an encoder; `studies/selective.py` has the features of one."""
    import pandas as pd
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from studies.selective import measure

    for folder in sorted(path for path in ARENA.iterdir() if path.is_dir()):
        train, test = (pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "test"))
        for part in (train, test):
            part["text"] += " " + part.get("text_pair", pd.Series("", part.index)).fillna("")
        model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=2000))
        model.fit(train["text"][:1500], train["label"][:1500])
        known = test["label"].isin(model.classes_)
        logits = np.log(model.predict_proba(test["text"][known]))
        gold = np.searchsorted(model.classes_, test["label"][known])
        measured = [measure(logits, gold, np.random.default_rng(seed)) for seed in range(40)]
        assert np.mean([one["coverage"] for one in measured]) > 0.89, folder.name
