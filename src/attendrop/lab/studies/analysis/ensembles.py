"""The ensemble of all seeds of a method: the mean of their predictions, scored as one model.

It is reported beside the mean of the seeds and is not part of the tests: all other figures are
about one model, and an ensemble costs as many forward passes as it has members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...evaluation.outputs import Outputs
from ...records import StudyRecord
from ...report.analysis import Ensemble
from ...statistics.ensembles import judge_gain
from ...statistics.verdict import Question
from ...tasks.kinds import KINDS, Members
from ...tasks.metrics import METRICS
from ...tasks.outcomes import OUTCOMES, SCORE
from .outcomes import Group
from .scope import scores_same_examples

Array = npt.NDArray[Any]
Read = Callable[[StudyRecord], Mapping[str, Outputs]]  # a run -> outputs of its model, by part


def evidence(outputs: Outputs, place: int = 0) -> Array:
    """Return the contribution of one member: probabilities, a vote for the class of each word, or numbers.

    Args:
        outputs: The outputs of the member.
        place: Its number among the members; ties are broken in favour of earlier ones.
    """
    return _members(outputs).evidence(outputs, outputs.values.astype(float), place)


def score_of(mean: Array, outputs: Outputs, metric: str) -> float:
    """Return the metric of an ensemble.

    Args:
        mean: The mean evidence of its members.
        outputs: The outputs and references of one of them.
        metric: The name of the metric.
    """
    return METRICS[metric](*_members(outputs).predicted(mean, outputs))


def other_outcomes(mean: Array, outputs: Outputs) -> dict[str, float]:
    """Loss of an ensemble, and its calibration if it is a classifier; nothing for votes, which are no probabilities.

    Args:
        mean: The mean evidence of its members.
        outputs: The outputs and references of one of them.
    """
    return _members(outputs).outcomes(mean, outputs.gold)


def _members(outputs: Outputs) -> Members:
    members = KINDS[outputs.kind].members
    assert members is not None
    return members


def ensembles_of(group: Group, read: Read, delta: float, confidence: float) -> tuple[list[Ensemble], list[str]]:
    """Return the ensemble of each method on each part, and sentences about those that cannot be made.

    Args:
        group: The runs.
        read: Reads the outputs of the models.
        delta: The smallest difference of the score that matters.
        confidence: Confidence of the interval of the gain.
    """
    where = group.task if group.size == "all" else f"{group.task}, {group.size}"
    if not scores_same_examples(group.finished):
        return [], [f"there are no ensembles of the seeds on {where}: each seed is scored on other examples"]
    rows: list[Ensemble] = []
    missing: list[str] = []
    for method, seeds in group.runs.items():
        finished = [record for record in seeds.values() if record.is_finished]
        if len(finished) < 2:
            continue
        answers = [read(record) for record in finished]
        if not all(answers):
            missing.append(method)
            continue
        for part in answers[0]:
            scores = [score for record in finished if (score := _score_of_model(record, part)) is not None]
            members = [of[part] for of in answers if part in of]
            if len(members) == len(scores) == len(finished):
                question = Question(delta, finished[0].greater_is_better, confidence)
                place = (method, group.task, group.size, part)
                rows.append(_ensemble(place, members, scores, str(finished[0].metric), question))
    notes = [
        f"there is no ensemble of the seeds of {', '.join(missing)} on {where}: predictions of these runs are not "
        "stored, or were changed (runs of an earlier version, a kind of task whose predictions cannot be averaged, or "
        "a copy of another run's predictions)"
    ]
    return rows, notes if missing else []


def _score_of_model(record: StudyRecord, part: str) -> float | None:
    """Return the score of the model whose outputs are stored, which may not be the score of the run."""
    if part == "validation" and record.score_epochs > 1 and record.curves:
        return record.curves[-1].get(str(record.metric))
    return SCORE.read(record, part)


def _ensemble(
    place: tuple[str, str, str, str],
    members: Sequence[Outputs],
    scores: Sequence[float],
    metric: str,
    question: Question,
) -> Ensemble:
    """Return the ensemble of one method, task, size and part."""
    total = np.sum([evidence(member, number) for number, member in enumerate(members)], axis=0)
    n, example = len(members), members[0]
    whole = score_of(total / n, example, metric)
    without = [
        score_of((total - evidence(member, number)) / (n - 1), example, metric) for number, member in enumerate(members)
    ]
    resolution = SCORE.resolution(metric, len(example.gold)) or 0.0
    gain = judge_gain(whole, without, scores, question, resolution)
    made = Ensemble(
        *place,
        seeds=n,
        sentence="",
        outcomes={SCORE.name: whole, **other_outcomes(total / n, example)},
        mean=float(np.mean(scores)),
        gain=gain.gain,
        interval=gain.interval,
        verdict=gain.verdict if math.isfinite(gain.gain) else "undecided",
    )
    made.sentence = _sentence(made, metric, question.confidence)
    return made


def _sentence(made: Ensemble, metric: str, confidence: float) -> str:
    """Return a sentence with the scores, gain and cost of the ensemble."""
    names = {name: OUTCOMES[name].short or OUTCOMES[name].title(metric) for name in made.outcomes}
    figures = ", ".join(f"{names[name]} {value:.4f}" for name, value in made.outcomes.items())
    verdict = {
        "helps": "better than one model",
        "hurts": "worse than one model",
        "no difference": "no different from one model, beyond what matters",
        "undecided": "whether this is more than noise is undecided",
        "too few seeds": "fewer than 5 seeds give no verdict on that",
    }[made.verdict]
    cost = OUTCOMES["cost"].of_ensemble.format(seeds=made.seeds)
    interval = ""
    if made.interval is not None:
        low, high = made.interval
        interval = f", {100 * confidence:g} % interval {low:+.4f} to {high:+.4f} by the jackknife over seeds"
    return (
        f"Ensemble of the {made.seeds} seeds of {made.method}: {figures}; against the mean of the seeds "
        f"{made.gain:+.4f} {names[SCORE.name]}{interval}: {verdict}. It costs {cost}."
    )
