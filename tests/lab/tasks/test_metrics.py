"""Metrics: values computed by hand, values of the libraries, and undefined values."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from attendrop.lab.tasks import METRICS, TASKS

GOLD = [1, 1, 1, 0, 0, 1, 0, 0]
PREDICTED = [1, 1, 0, 0, 0, 1, 1, 0]  # 3 true and 1 false positive, 1 false and 3 true negatives
TAGS = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]]
TAGGED = [["B-PER", "O", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]]  # one of three entities is too short


@pytest.mark.parametrize(
    ("name", "predicted", "gold", "value"),
    [
        ("accuracy", PREDICTED, GOLD, 6 / 8),
        ("f1", [1, 0, 0, 0], [1, 1, 1, 0], 0.5),  # of label 1: precision 1, recall 1/3
        ("macro_f1", [1, 0, 0, 0], [1, 1, 1, 0], 0.5),  # of label 0: precision 1/3, recall 1
        ("macro_f1", [2, 1, 0, 0], [2, 1, 1, 0], (1 + 2 / 3 + 2 / 3) / 3),
        ("mcc", PREDICTED, GOLD, (3 * 3 - 1 * 1) / math.sqrt(4 * 4 * 4 * 4)),
        ("pearson", [1.0, 2.0, 4.0], [1.0, 2.0, 3.0], 3 / math.sqrt(14 / 3 * 2)),
        ("spearman", [1.0, 2.0, 40.0, 3.0], [1.0, 2.0, 3.0, 4.0], 1 - 6 * 2 / (4 * 15)),
        ("rmse", [1.0, 4.0], [2.0, 2.0], math.sqrt((1 + 4) / 2)),
        ("entity_precision", TAGGED, TAGS, 2 / 3),
        ("entity_recall", [["O", "O", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]], TAGS, 2 / 3),
        ("entity_precision", [["O", "O", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]], TAGS, 1.0),
        ("entity_f1", [["O", "O", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]], TAGS, 0.8),
        ("entity_f1", [["I-LOC"]], [["B-LOC"]], 1.0),  # as conlleval counts
        ("token_accuracy", TAGGED, TAGS, 6 / 7),  # of words, not of sentences
        ("bleu", ["the cat sat on the mat today"], ["the cat sat on the mat today"], 100.0),
        # 3/4 · 2/3 · 1/2 of the n-grams, and the fourth order halved for having none: (3/4 · 2/3 · 1/2 · 1/2)^¼
        ("bleu", ["a b c x"], ["a b c d"], 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25),
    ],
)
def test_a_metric_is_what_its_definition_says(name: str, predicted: Any, gold: Any, value: float) -> None:
    assert METRICS[name](predicted, gold) == pytest.approx(value, abs=1e-9)


def test_metrics_match_a_direct_call_of_their_library() -> None:
    generator = np.random.default_rng(0)
    gold, predicted = generator.integers(0, 2, 200), generator.integers(0, 2, 200)
    x, y = generator.normal(size=200), generator.normal(size=200)
    assert METRICS["accuracy"](predicted, gold) == sklearn.metrics.accuracy_score(gold, predicted)
    assert METRICS["f1"](predicted, gold) == sklearn.metrics.f1_score(gold, predicted)
    assert METRICS["macro_f1"](predicted, gold) == sklearn.metrics.f1_score(gold, predicted, average="macro")
    assert METRICS["mcc"](predicted, gold) == sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert METRICS["pearson"](x, y) == scipy.stats.pearsonr(x, y).statistic
    assert METRICS["spearman"](x, y) == scipy.stats.spearmanr(x, y).statistic
    assert METRICS["entity_f1"](TAGGED, TAGS) == seqeval.metrics.f1_score(TAGS, TAGGED)
    assert METRICS["bleu"](["so it is"], ["so it was"]) == sacrebleu.corpus_bleu(["so it is"], [["so it was"]]).score


@pytest.mark.parametrize(
    ("name", "predicted", "gold"),
    [
        ("pearson", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        ("spearman", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        ("pearson", [math.nan, 1.0, 2.0], [1.0, 2.0, 3.0]),
        ("spearman", [math.inf, math.nan, 2.0], [1.0, 2.0, 3.0]),
        ("pearson", [1.0], [2.0]),
        ("mcc", [1, 1, 1], [1, 0, 1]),
        ("mcc", [1, 1], [1, 1]),
        ("f1", [0, 0], [0, 0]),
        ("macro_f1", [2, 2], [0, 1]),
        ("entity_f1", [["O", "O"]], [["O", "O"]]),
        ("entity_precision", [["O", "O"]], [["B-PER", "O"]]),
        ("entity_recall", [["B-PER", "O"]], [["O", "O"]]),
    ],
)
def test_an_undefined_value_is_zero_without_a_warning(name: str, predicted: Any, gold: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METRICS[name](predicted, gold) == 0.0


def test_rmse_of_a_diverged_model_is_infinite() -> None:
    assert METRICS["rmse"]([math.nan, 1.0], [1.0, 1.0]) == math.inf


def test_every_task_has_the_metrics_of_its_papers() -> None:
    assert {task.name: task.metrics for task in TASKS.values() if task.name.startswith("glue/")} == {
        "glue/cola": ("mcc",),
        "glue/sst2": ("accuracy",),
        "glue/mrpc": ("accuracy", "f1"),
        "glue/stsb": ("pearson", "spearman"),
        "glue/qqp": ("accuracy", "f1"),
        "glue/mnli": ("accuracy",),
        "glue/qnli": ("accuracy",),
        "glue/rte": ("accuracy",),
        "glue/wnli": ("accuracy",),
    }
    assert TASKS["conll2003"].metrics[0] == "entity_f1"
    assert TASKS["ptb"].metrics == ("token_accuracy",)
    assert {TASKS[name].metrics for name in ("imdb", "swag", "hans", "paws-x/en")} == {("accuracy",)}
    assert {TASKS[name].metrics for name in ("wmt16/en-ro", "wmt16/tr-en", "multi30k/en-de")} == {("bleu",)}
    assert all(name in METRICS for task in TASKS.values() for name in task.metrics)


EXAMPLES: dict[str, tuple[Any, Any]] = {
    "classes": (np.array(PREDICTED), np.array(GOLD)),
    "labels": (np.array([[1, 0], [1, 1], [0, 0]]), np.array([[1, 0], [0, 1], [0, 1]])),
    "numbers": (np.array([1.0, 2.5, 2.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0])),
    "tags": (TAGGED, TAGS),
    "texts": (["a b c d e", "b a"], ["a b c d f", "a b"]),
    "log-likelihoods": (np.array([-1.0, -2.0, -0.5]), np.array([3, 1, 2])),
}


@pytest.mark.parametrize(("name", "kind"), [(m.name, kind) for m in METRICS.values() for kind in m.takes])
def test_statistic_of_a_bootstrap_sample_is_the_metric_of_its_examples(name: str, kind: str) -> None:
    predicted, gold = EXAMPLES[kind]
    function, columns = METRICS[name].statistic(predicted, gold)
    draws = np.random.default_rng(0)
    for _ in range(20):
        rows = draws.integers(0, len(gold), len(gold))
        sample = [of[rows] if isinstance(of, np.ndarray) else [of[row] for row in rows] for of in (predicted, gold)]
        assert function(*(column[rows] for column in columns)) == pytest.approx(METRICS[name](*sample), abs=1e-9)
