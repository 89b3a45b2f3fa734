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
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

Metric = Callable[[Sequence[Any], Sequence[Any]], float]

LOWER_IS_BETTER = frozenset({"rmse", "perplexity"})


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


def _correlation(name: str) -> Metric:
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
    import numpy as np
    from sklearn.metrics import root_mean_squared_error

    if not np.isfinite(predictions).all():
        return math.inf  # the model has diverged
    return float(root_mean_squared_error(references, predictions))


def _entity(name: str) -> Metric:
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
    import numpy as np

    if not np.isfinite(predictions).all():
        return math.inf  # the model has diverged
    with np.errstate(over="ignore"):
        return float(np.exp(-np.mean(predictions, dtype=np.float64)))


METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    "exact_match": _accuracy,  # scikit-learn counts an example as right if all its labels are
    "mcc": _mcc,
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
    "rmse": _rmse,
    "entity_f1": _entity("f1_score"),
    "entity_precision": _entity("precision_score"),
    "entity_recall": _entity("recall_score"),
    "token_accuracy": _token_accuracy,
    "bleu": _bleu,
    "perplexity": _perplexity,
}
