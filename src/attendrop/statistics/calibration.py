"""Calibration of classifiers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities from logits, over the last dimension."""
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def brier_score(probabilities: NDArray[np.floating], gold: NDArray[np.integer]) -> float:
    """Mean squared distance between the probabilities and the right class."""
    truth = np.eye(probabilities.shape[-1])[gold]
    return float(((probabilities - truth) ** 2).sum(-1).mean())


def expected_calibration_error(probabilities: NDArray[np.floating], gold: NDArray[np.integer], bins: int = 15) -> float:
    """Mean distance between confidence and accuracy, over bins of equal width."""
    confidence, is_right = probabilities.max(-1), probabilities.argmax(-1) == gold
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(sum(abs((is_right - confidence)[which == b].sum()) for b in range(bins)) / len(gold))
