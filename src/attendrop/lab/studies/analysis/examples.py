"""Single predictions: the agreement of seeds, and the examples on which methods disagree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...report.analysis import Agreement, Disagreement
from .outcomes import Group
from .scope import scores_same_examples

MOST = 20  # disagreements of each task that are shown


def predictions_of(group: Group, method: str) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.int_]] | None:
    """Return predicted classes `[seeds, examples]` and true classes `[examples]`; None for other kinds of models."""
    if not scores_same_examples(group.finished):
        return None
    runs = [r.predictions.get("validation") for r in group.runs[method].values() if r.is_finished]
    known = [run for run in runs if run]
    if not known or len({len(run.gold) for run in known}) > 1:
        return None
    return np.array([run.predicted for run in known]), np.array(known[0].gold)


def agreement_of(group: Group, method: str) -> Agreement | None:
    """Return the mean share of equal predictions of two seeds, and the share of correct seeds for each example."""
    known = predictions_of(group, method)
    if known is None or len(known[0]) < 2:
        return None
    predicted, gold = known
    seeds = len(predicted)
    counts = np.stack([(predicted == label).sum(0) for label in range(int(max(predicted.max(), gold.max())) + 1)])
    pairs = (counts * (counts - 1)).sum(0) / (seeds * (seeds - 1))
    correct = (predicted == gold).mean(0)
    return Agreement(method, group.task, float(pairs.mean()), group.size, correct.round(3).tolist())


def disagreements_of(group: Group) -> list[Disagreement]:
    """Return the examples on which the share of correct seeds differs most between methods."""
    texts = next((r.texts for r in group.finished if r.texts), None)
    known = {method: of for method in group.runs if (of := predictions_of(group, method)) is not None}
    if texts is None or len(known) < 2 or len({len(gold) for _, gold in known.values()}) > 1:
        return []
    gold, labels = next(iter(known.values()))[1], group.finished[0].labels
    correct = {method: (predicted == gold).mean(0) for method, (predicted, _) in known.items()}
    shares = np.stack(list(correct.values()))
    spread = shares.max(0) - shares.min(0)
    order = [int(i) for i in np.argsort(-spread, kind="stable")[:MOST] if spread[i] > 0 and i < len(texts)]
    return [
        Disagreement(
            task=group.task,
            example=i,
            right={method: round(float(share[i]), 3) for method, share in correct.items()},
            size=group.size,
            text=texts[i],
            gold=labels[int(gold[i])],
        )
        for i in order
    ]
