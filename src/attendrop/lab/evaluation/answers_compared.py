"""The scores of two models on the same examples: their difference with an interval, and a sentence about it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import tasks
from ..statistics.paired_scores import Difference, difference_of_scores, difference_of_shares
from ..tasks.kinds import Answers


def compare_answers(after: Answers, before: Answers, metric: str) -> Difference:
    """Return the difference of the scores of two models on the same examples, greater = better.

    Args:
        after: The answers of the one.
        before: The answers of the other.
        metric: The name of the score.
    """
    known = tasks.METRICS[metric]
    if known.is_share and before.lengths is None:
        right = [_right(answers) for answers in (after, before)]
        return difference_of_shares(*right)
    (function, one), (_, other) = (known.statistic(*each.for_metrics(each.predicted)) for each in (after, before))
    return difference_of_scores(function, one, other, known.greater_is_better)


def _right(answers: Answers) -> Any:
    """Return which examples are right: all of their labels, where they have several."""
    equal = np.asarray(answers.predicted) == np.asarray(answers.gold)
    return equal.reshape(len(equal), -1).all(1)


def score_sentence(difference: Difference, metric: str, before: float, tolerance: float) -> str:
    """Say what became of a score, and whether it is no worse.

    Args:
        difference: The difference, greater = better.
        metric: The name of the score.
        before: The score of the model before.
        tolerance: The loss that counts as none.
    """
    says = {
        "no worse": f"no worse than {tolerance:g}",
        "worse": "worse",
        "cannot tell": f"{difference.examples:,} examples cannot tell whether it is no worse than {tolerance:g}",
    }[difference.verdict(tolerance)]
    sign = 1 if tasks.METRICS[metric].greater_is_better else -1
    scores = f"{before:.4f} → {before + sign * difference.value:.4f}"
    interval = f"95 % interval {difference.low:+.4f} to {difference.high:+.4f}"
    examples = f"{difference.examples:,} validation examples"
    return f"{metric} on {examples}: {scores}, a gain of {difference.value:+.4f} ({interval}): {says}"
