"""How much the score of tuned settings varies because another search would have chosen other ones.

Each trial is scored on the same splits: score = mean + trial + split + noise. What the means of trials and splits leave
is the noise. What the trials may be worth is drawn from their scores, shrunk by as much as the noise explains, and
searches are drawn among them. Each chooses its best trial, and the standard deviation of what these are worth is the
noise of selection. Together with the noise of the final seeds it gives an interval for tuning as a whole, not for the
setting that one search happened to choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .rules import Items

SELECTION = "the selection of settings"
_WORLDS, _SEARCHES = 100, 100  # what the trials may be worth, and searches among them


def noise_of_selection(
    scores: Sequence[Sequence[float]], greater_is_better: bool = True, seed: int = 0
) -> Items | None:
    """Return the noise of selecting the best trial; None where it cannot be known, with one split.

    Args:
        scores: The score of each finished trial on each split.
        greater_is_better: Whether a larger score is better.
        seed: Seed of the searches that are drawn again.
    """
    if not scores or len(scores[0]) < 2:
        return None
    values = np.array(scores, float) * (1 if greater_is_better else -1)
    trials, splits = values.shape
    if trials < 2:
        return Items(0.0, 1, SELECTION)
    means = values.mean(1)
    rest = values - means[:, None] - values.mean(0) + values.mean()
    degrees = (trials - 1) * (splits - 1)
    noise = float((rest**2).sum()) / degrees / splits  # variance of the mean of a trial
    between = float(means.var(ddof=1))
    kept = max(0.0, 1 - noise / between) if between else 0.0
    generator, shrunk = np.random.default_rng(seed), means.mean() + kept * (means - means.mean())
    worth = shrunk + math.sqrt(kept * noise) * generator.normal(size=(_WORLDS, 1, trials))
    chosen = (worth + math.sqrt(noise) * generator.normal(size=(_WORLDS, _SEARCHES, trials))).argmax(-1)
    of_chosen = np.take_along_axis(worth[:, 0], chosen, -1)
    return Items(math.sqrt(float(of_chosen.var(1).mean())), degrees, SELECTION)
