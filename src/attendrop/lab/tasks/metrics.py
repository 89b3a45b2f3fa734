"""Metrics, each computed by the standard library for it.

    accuracy · f1 (of label 1) · macro_f1 · mcc       scikit-learn
    micro_f1 · exact_match                            scikit-learn, over the labels of all examples; for multilabel
    pearson · spearman                                SciPy
    rmse (lower is better)                            scikit-learn
    entity_f1 · entity_precision · entity_recall      seqeval in its default mode, which counts as conlleval does
    token_accuracy                                    scikit-learn, over all words
    bleu                                              sacrebleu, detokenised, from 0 to 100
    perplexity (lower is better)                      e to the mean negative log-likelihood of the masked tokens; ours

All but the last two are at most 1.

An undefined value (the correlation with constant predictions, the F1 of a class that occurs neither in the predictions
nor in the references) is 0.0, without a warning, because it is common in the first epoch.

A new metric is one entry of `METRICS`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

Function = Callable[[Any, Any], float]
Statistic = Callable[..., float]
Counted = Callable[[Any, Any], tuple[Statistic, list[np.ndarray]]]


_SHARE = (0.0, 1.0)  # the limits of most metrics


@dataclass(frozen=True)
class Metric:
    """A metric: its function, the predictions that it takes, and its bootstrap interval.

    Attributes:
        name: Its name in tasks, records and files.
        function: Computes it from predictions and references, which have one entry for each example.
        takes: The predictions that it takes: "classes", "labels" (0 or 1 for each), "numbers", "tags", "texts" or
            "log-likelihoods".
        greater_is_better: Whether a larger value is better.
        label: Its name in sentences and on pages; None = `name` with spaces.
        hub_name: Its name on the Hugging Face Hub; None = `name`.
        counted: Returns an equal, faster function, and the columns with one row for each example that it takes; None =
            the bootstrap calls `function`.
        is_share: Whether it is the share of correct examples, which moves in steps of 1/n.
        limits: The lowest and the highest value that it can have, where its intervals end.
    """

    name: str
    function: Function
    takes: tuple[str, ...]
    greater_is_better: bool = True
    label: str | None = None
    hub_name: str | None = None
    counted: Counted | None = None
    is_share: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)

    def __call__(self, predictions: Any, references: Any) -> float:
        return self.function(predictions, references)

    def statistic(self, predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
        """Return the metric as a function of columns with one row for each example, for the bootstrap.

        Args:
            predictions: The predictions, as `function` takes them.
            references: The references.
        """
        if self.counted is not None:
            return self.counted(predictions, references)

        def score(rows: np.ndarray) -> float:
            return self.function(_rows(predictions, rows), _rows(references, rows))

        return score, [np.arange(len(references))]


def _rows(column: Any, rows: np.ndarray) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


def metric_label(name: str) -> str:
    """Return the name of a metric in sentences and on pages."""
    metric = METRICS.get(name)
    return (metric and metric.label) or name.replace("_", " ")


def limits_of(name: str) -> tuple[float, float]:
    """Return the lowest and the highest value of a metric."""
    return METRICS[name].limits if name in METRICS else (-math.inf, math.inf)


def is_share(name: str) -> bool:
    """Return whether a metric moves in steps of one example."""
    return name in METRICS and METRICS[name].is_share


def f1_of(true_positives: Any, predicted: Any, support: Any) -> Any:
    """F1 from counts."""
    return 2 * true_positives / np.maximum(predicted + support, 1)


# ---- the functions -----------------------------------------------------------------------------------------------


def _accuracy(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(references, predictions))


def _f1(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(references, predictions, zero_division=0.0))


def _macro_f1(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(references, predictions, average="macro", zero_division=0.0))


def _micro_f1(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(references, predictions, average="micro", zero_division=0.0))


def _mcc(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(matthews_corrcoef(references, predictions))


def _correlation(name: str) -> Function:
    def metric(predictions: Sequence[Any], references: Sequence[Any]) -> float:
        from scipy import stats

        if len(references) < 2:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = float(getattr(stats, name)(predictions, references).statistic)
        return value if math.isfinite(value) else 0.0

    return metric


def _rmse(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    from sklearn.metrics import root_mean_squared_error

    if not np.isfinite(predictions).all():
        return math.inf  # the model has diverged
    return float(root_mean_squared_error(references, predictions))


def _entity(name: str) -> Function:
    def metric(predictions: Sequence[Any], references: Sequence[Any]) -> float:
        from seqeval import metrics

        return float(getattr(metrics, name)(list(references), list(predictions), zero_division=0))

    return metric


def _token_accuracy(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    return _accuracy(list(chain.from_iterable(predictions)), list(chain.from_iterable(references)))


def _bleu(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    import sacrebleu

    return float(sacrebleu.corpus_bleu(list(predictions), [list(references)]).score)


def _perplexity(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Of the log-likelihoods of all labels, instead of predictions."""
    if not np.isfinite(predictions).all():
        return math.inf  # the model has diverged
    with np.errstate(over="ignore"):
        return float(np.exp(-np.mean(predictions, dtype=np.float64)))


# ---- the same from counts, for the bootstrap ---------------------------------------------------------------------


def _share_of_correct(predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
    correct = np.asarray(predictions) == np.asarray(references)
    return np.mean, [(correct.all(-1) if correct.ndim == 2 else correct).astype(float)]


def _of_confusion(score: Callable[[np.ndarray], float]) -> Counted:
    """`score` of the confusion matrix, whose rows are the true classes."""

    def counted(predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
        size = 1 + int(max(np.max(predictions), np.max(references), 1))
        cells = np.asarray(references) * size + np.asarray(predictions)
        return lambda rows: score(np.bincount(rows, minlength=size * size).reshape(size, size)), [cells]

    return counted


def _f1_of_confusion(counts: np.ndarray) -> float:
    return float(f1_of(counts[1, 1], counts[:, 1].sum(), counts[1].sum()))


def _macro_f1_of_confusion(counts: np.ndarray) -> float:
    predicted, support = counts.sum(0), counts.sum(1)
    return float(f1_of(np.diag(counts), predicted, support)[predicted + support > 0].mean())


def _mcc_of_confusion(counts: np.ndarray) -> float:
    true_positives, predicted, support, total = np.diag(counts), counts.sum(0), counts.sum(1), counts.sum()
    covariance = true_positives.sum() * total - float(predicted @ support)
    spread = (float(total) ** 2 - float(predicted @ predicted)) * (float(total) ** 2 - float(support @ support))
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def _of_labels(axis: int | tuple[int, int]) -> Counted:
    """F1 of labels: that of all together if they are counted together, otherwise the mean of theirs."""

    def counted(predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
        columns = np.stack([predictions & references, predictions, references], 1).astype(float)  # [N, 3, labels]
        return lambda rows: float(np.mean(f1_of(*rows.sum(axis)))), [columns]

    return counted


def _macro_f1_counted(predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
    counted = _of_labels(0) if np.ndim(references) == 2 else _of_confusion(_macro_f1_of_confusion)
    return counted(predictions, references)


def _of_sentences(count: Callable[[Any, Any], tuple[int, int, int]], score: Statistic = f1_of) -> Counted:
    """`score` of true positives, predictions and support, which `count` counts in each sentence."""

    def counted(predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
        columns = np.array([count(*pair) for pair in zip(predictions, references, strict=True)], float)
        return lambda rows: float(score(*rows.sum(0))), [columns]

    return counted


def _words(predicted: Any, gold: Any) -> tuple[int, int, int]:
    return sum(a == b for a, b in zip(predicted, gold, strict=True)), len(predicted), len(gold)


def _entities(predicted: Any, gold: Any) -> tuple[int, int, int]:
    from seqeval.metrics.sequence_labeling import get_entities

    predictions, references = set(get_entities(predicted)), set(get_entities(gold))
    return len(predictions & references), len(predictions), len(references)


def _bleu_counted(predictions: Any, references: Any) -> tuple[Statistic, list[np.ndarray]]:
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True)
    parts = [bleu.sentence_score(text, [reference]) for text, reference in zip(predictions, references, strict=True)]
    table = np.array([[*part.counts, *part.totals, part.sys_len, part.ref_len] for part in parts], float)
    order = (table.shape[1] - 2) // 2

    def score(rows: np.ndarray) -> float:
        sums = rows.sum(0).astype(int).tolist()
        counts, totals = sums[:order], sums[order : 2 * order]
        return float(BLEU.compute_bleu(counts, totals, *sums[2 * order :], smooth_method="exp").score)

    return score, [table]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _accuracy, ("classes",), counted=_share_of_correct, is_share=True, limits=_SHARE),
        Metric("f1", _f1, ("classes",), counted=_of_confusion(_f1_of_confusion), limits=_SHARE),
        Metric("macro_f1", _macro_f1, ("classes", "labels"), hub_name="f1", counted=_macro_f1_counted, limits=_SHARE),
        Metric("micro_f1", _micro_f1, ("labels",), hub_name="f1", counted=_of_labels((0, 2)), limits=_SHARE),
        # scikit-learn counts an example as correct if all its labels are
        Metric("exact_match", _accuracy, ("labels",), counted=_share_of_correct, limits=_SHARE),
        Metric("mcc", _mcc, ("classes",), hub_name="matthews_correlation", counted=_of_confusion(_mcc_of_confusion),
               limits=(-1.0, 1.0)),
        Metric("pearson", _correlation("pearsonr"), ("numbers",), hub_name="pearsonr", limits=(-1.0, 1.0)),
        Metric("spearman", _correlation("spearmanr"), ("numbers",), hub_name="spearmanr", limits=(-1.0, 1.0)),
        Metric("rmse", _rmse, ("numbers",), greater_is_better=False, limits=(0.0, math.inf)),
        Metric(
            "entity_f1", _entity("f1_score"), ("tags",), hub_name="f1", counted=_of_sentences(_entities), limits=_SHARE
        ),
        Metric(
            "entity_precision", _entity("precision_score"), ("tags",), hub_name="precision",
            counted=_of_sentences(_entities, lambda true_positives, predicted, _: true_positives / max(predicted, 1)),
            limits=_SHARE,
        ),
        Metric(
            "entity_recall", _entity("recall_score"), ("tags",), hub_name="recall",
            counted=_of_sentences(_entities, lambda true_positives, _, support: true_positives / max(support, 1)),
            limits=_SHARE,
        ),
        Metric(
            "token_accuracy", _token_accuracy, ("tags",), hub_name="accuracy", counted=_of_sentences(_words),
            limits=_SHARE,
        ),
        Metric("bleu", _bleu, ("texts",), hub_name="sacrebleu", counted=_bleu_counted, limits=(0.0, 100.0)),
        Metric("perplexity", _perplexity, ("log-likelihoods",), greater_is_better=False, limits=(1.0, math.inf)),
    )
}  # fmt: skip
