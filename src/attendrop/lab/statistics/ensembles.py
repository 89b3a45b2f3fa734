"""The gain of an ensemble over its members, with an interval over seeds by the jackknife.

There is one ensemble of all seeds, so its gain is a single number. The jackknife leaves out one seed after the other:
the change of the gain estimates its variance over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .paired import Floats, Interval, equivalence_test, t_interval, t_test
from .verdict import FEWEST_PAIRS, Question, Verdict, verdict_of


@dataclass(frozen=True)
class Gain:
    """The gain of an ensemble.

    Attributes:
        gain: Score of the ensemble minus the mean score of its members.
        interval: Confidence interval of the gain over seeds, for fixed examples. None with fewer than five
            seeds.
        verdict: "helps", "hurts", "no difference" (beyond delta), "undecided" or "too few seeds".
    """

    gain: float
    interval: Interval | None
    verdict: Verdict


def judge_gain(
    whole: float,
    without: Sequence[float],
    members: Sequence[float],
    question: Question,
    resolution: float = 0.0,
) -> Gain:
    """Judge the gain of an ensemble. The verdict is not corrected for the number of methods or looks.

    Args:
        whole: The score of the ensemble of all members.
        without: For each member, the score of the ensemble of all others.
        members: The score of each member.
        question: The question: delta, direction and confidence.
        resolution: The step in which the scores move.
    """
    gain = whole - float(np.mean(members))
    if len(members) < FEWEST_PAIRS:
        return Gain(gain, None, "too few seeds")
    values = jackknife_values(whole, without, members)
    verdict = verdict_of(
        gain, t_test(values, resolution=resolution), equivalence_test(values, question.delta, resolution), question
    )
    return Gain(gain, t_interval(values, question.confidence, resolution), verdict)


def jackknife_values(whole: float, without: Sequence[float], members: Sequence[float]) -> Floats:
    """Return one value for each member, whose mean is the gain and whose standard error is that of the jackknife.

    They are Tukey's pseudo-values, moved so that their mean is the gain itself: the usual jackknife would correct its
    mean to that of an infinite ensemble.

    Args:
        whole: The score of the ensemble of all members.
        without: For each member, the score of the ensemble of all others.
        members: The score of each member.
    """
    scores, n = np.asarray(members, float), len(members)
    others = (scores.sum() - scores) / (n - 1)
    pseudo = -(n - 1) * (np.asarray(without, float) - others)
    return pseudo - pseudo.mean() + (whole - scores.mean())
