"""How many seeds a decision takes, by what is scored: from the scores of all epochs in `protocols`.

    python -m studies.verdict.seeds

The deviation of the paired differences between AD-DROP and plain fine-tuning with the same seed is pooled over the 8
settings, 9 seeds each. "All" are the 1,367 or 2,508 examples that `protocols` scored: the development set, those to
choose with and the test set. None of them was trained on. (`--score-on rest` scores what was not drawn of the pool,
too, which `protocols` did not.)
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attendrop.lab.statistics.paired import seeds_for_equivalence
from docs.tables.markdown import table

from .parts import rows_of
from .protocol_gains import Scores, scores_of
from .protocols import METHOD_SEEDS, PART, SETTINGS, TASKS, TO_CHOOSE

LAST = 3  # epochs whose mean is the score
DELTA = 0.01
DRAWS = 2000  # of the bootstrap
TEST = {"glue/rte": 990, "glue/mrpc": 2000}  # examples of the test set


class Row(NamedTuple):
    """One way to score.

    Attributes:
        task: The task.
        scored: The set, "dev" or "all".
        epochs: The number of last epochs.
        difference: The mean difference of all settings, in points.
        deviation: The deviation of the paired differences, in points.
        times: How many times fewer seeds than with the last epoch on the development set.
        interval: Its 95 % interval, by a bootstrap over the seeds.
        seeds: The seeds that show a difference of 0 to be within ±1 point, with a power of 80 %.
    """

    task: str
    scored: str
    epochs: int
    difference: float
    deviation: float
    times: float
    interval: tuple[float, float]
    seeds: int | None


def score_of(scores: Scores, task: str, scored: str, epochs: int) -> npt.NDArray[np.float64]:
    """The score of each seed.

    Args:
        scores: The scores of the runs of one setting.
        task: The task.
        scored: "dev", or "all" examples.
        epochs: The number of last epochs whose mean is the score.
    """
    counts = {"dev": TASKS[task]} | ({"choose": TO_CHOOSE, "test": TEST[task]} if scored == "all" else {})
    by_epoch = sum(count * scores[name][0] for name, count in counts.items()) / sum(counts.values())
    return np.asarray(by_epoch[:METHOD_SEEDS, -epochs:].mean(-1))


def rows(name: str = "minilm") -> list[Row]:
    """All ways to score, on each task.

    Args:
        name: The name of the model in the files.
    """
    made = []
    for task in TASKS:
        here = [row for row in rows_of(PART, name) if row["task"] == task]
        of = {s: scores_of([row for row in here if row["setting"] == s]) for s in ("", *SETTINGS)}
        usual = np.empty(0)
        drawn = np.random.default_rng(0).integers(METHOD_SEEDS, size=(DRAWS, METHOD_SEEDS))
        for scored, epochs in product(("dev", "all"), (1, LAST)):
            plain = score_of(of[""], task, scored, epochs)
            differences = np.array([score_of(of[s], task, scored, epochs) - plain for s in SETTINGS])
            variance = float(differences.var(-1, ddof=1).mean())
            again = np.append(differences[:, drawn].var(-1, ddof=1).mean(0), variance)  # the last one is no draw
            usual = usual if len(usual) else again
            low, high = (float(value) for value in np.quantile((usual / again)[:-1], (0.025, 0.975)))
            made.append(
                Row(
                    task, scored, epochs, 100 * float(differences.mean()), 100 * variance**0.5,
                    float((usual / again)[-1]), (low, high), seeds_for_equivalence(DELTA, variance**0.5),
                )
            )  # fmt: skip
    return made


def markdown() -> str:
    """The rows as a table in Markdown."""
    words = {"dev": "development set", "all": "all that was not trained on"}
    lines = [
        [
            of.task, words[of.scored], "last" if of.epochs == 1 else f"mean of the last {of.epochs}",
            f"{of.difference:+.2f}".replace("-", "−"), f"{of.deviation:.2f}", 
            f"{of.times:.1f} × [{of.interval[0]:.1f}, {of.interval[1]:.1f}]" if of.times != 1 else "", str(of.seeds),
        ]
        for of in rows()
    ]  # fmt: skip
    return table(["task", "scored on", "epochs", "difference", "deviation", "fewer seeds", "seeds for ±1 point"], lines)


if __name__ == "__main__":
    print(markdown())
