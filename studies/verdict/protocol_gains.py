"""What the papers' protocol and an honest one report, computed from the same runs (see `protocols`).

papers    for each run the epoch with the best score on the development set; of all settings the one with the best mean
          over seeds; its score on the same development set, minus that of plain fine-tuning, whose epoch is chosen in
          the same way. "Best seed" reports the best run of each instead of the mean
honest    the same choices on 100 other examples, and the scores of what was chosen on an untouched test set; plain
          fine-tuning may choose too

The method "nothing" is plain fine-tuning under another name: its 8 "settings" are groups of other seeds. Whatever it
gains is the work of selection. It is computed for many ways to draw the groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .parts import rows_of
from .protocols import METHOD_SEEDS, PART, PLAIN_SEEDS, SETS, SETTINGS, TASKS

DRAWS = 2000
GROUP = 5  # seeds of a setting of the method "nothing", as in many papers

Scores = dict[str, npt.NDArray[np.float64]]  # set -> [settings, seeds, epochs]


class Gain(NamedTuple):
    """What protocols report, in points.

    Attributes:
        papers: The gain over plain that the papers' protocol reports.
        best_seed: The same for the best run instead of the mean over seeds.
        untouched: The gain of what the papers' protocol chose, on the test set.
        honest: The gain that the honest protocol reports.
    """

    papers: float
    best_seed: float
    untouched: float
    honest: float


class Nothing(NamedTuple):
    """The gain of a method that does nothing.

    Attributes:
        mean: The mean of many draws.
        low: What 95 % of the draws exceed.
        high: What 5 % of the draws exceed.
    """

    mean: Gain
    low: Gain
    high: Gain


def scores_of(rows: list[dict[str, str]]) -> Scores:
    """The scores of the runs of one setting: set -> [1, seeds, epochs]."""
    finished = sorted((row for row in rows if row["status"] == "finished"), key=lambda row: int(row["seed"]))
    return {name: np.array([[[float(v) for v in row[name].split()] for row in finished]]) for name in SETS}


def chosen(scores: Scores, by: str) -> tuple[int, npt.NDArray[np.int64]]:
    """The setting with the best mean of the best epochs, and the epoch of each of its runs; the first of equals.

    Args:
        scores: The scores of all settings.
        by: The set on which is chosen.
    """
    setting = int(scores[by].max(-1).mean(-1).argmax())
    return setting, scores[by][setting].argmax(-1)


def reported(scores: Scores, by: str, on: str) -> npt.NDArray[np.float64]:
    """The score of each run of the chosen setting at its chosen epoch.

    Args:
        scores: The scores of all settings.
        by: The set on which is chosen.
        on: The set on which is reported.
    """
    setting, epochs = chosen(scores, by)
    return scores[on][setting][np.arange(len(epochs)), epochs]


def gain_of(method: Scores, plain: Scores) -> Gain:
    """What each protocol reports about a method.

    Args:
        method: The scores of its settings.
        plain: The scores of plain fine-tuning, which has one setting.
    """

    def gain(by: str, on: str) -> float:
        return float(100 * (reported(method, by, on).mean() - reported(plain, by, on).mean()))

    best_seed = float(100 * (method["dev"].max() - plain["dev"].max()))
    return Gain(gain("dev", "dev"), best_seed, gain("dev", "test"), gain("choose", "test"))


def gain_of_nothing(plain: Scores, draws: int = DRAWS, seed: int = 0) -> Nothing:
    """What each protocol reports about a method that does nothing.

    Args:
        plain: The scores of many seeds of plain fine-tuning.
        draws: The number of ways to draw groups of seeds.
        seed: The seed of the draws.
    """
    generator, settings = np.random.default_rng(seed), len(SETTINGS)
    gains = []
    for _ in range(draws):
        order = generator.permutation(plain["dev"].shape[1])
        groups = order[: settings * GROUP].reshape(settings, GROUP)
        rest = order[settings * GROUP : settings * GROUP + GROUP][None]
        gains.append(gain_of(*({name: of[0][who] for name, of in plain.items()} for who in (groups, rest))))
    values = np.array(gains)
    return Nothing(Gain(*values.mean(0)), *(Gain(*np.quantile(values, share, axis=0)) for share in (0.05, 0.95)))


def gains(name: str) -> dict[str, tuple[Nothing, Gain, int]]:
    """For each task: the gain of nothing, the gain of AD-DROP, and the number of runs that failed.

    Args:
        name: The name of the model in the files.
    """
    by_task = {}
    rows = rows_of(PART, name)
    for task in TASKS:
        here = [row for row in rows if row["task"] == task]
        plain = scores_of([row for row in here if row["method"] == "plain"])
        by_setting = [scores_of([row for row in here if row["setting"] == setting]) for setting in SETTINGS]
        if plain["dev"].shape[1] < PLAIN_SEEDS // 2 or any(of["dev"].shape[1] < METHOD_SEEDS for of in by_setting):
            continue
        method = {part: np.concatenate([of[part] for of in by_setting]) for part in SETS}
        same_seeds = {part: of[:, :METHOD_SEEDS] for part, of in plain.items()}
        failed = sum(row["status"] != "finished" for row in here)
        by_task[task] = gain_of_nothing(plain), gain_of(method, same_seeds), failed
    return by_task
