"""How well the probabilities of a model fit, and the temperature that makes them fit better."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..records import Calibration, Probabilities, Reliability
from ..statistics.calibration import fit_temperature, reliability, score_interval, softmax
from ..tasks.kinds import Answers
from ..tasks.outcomes import shown_outcomes

LEAST_FOR_TEMPERATURE = 50  # items; with fewer the fit says more about them than about the model


def calibration_of(answers: Answers, temperature: float) -> Calibration:
    """Return how well the probabilities fit, as the model gives them (`raw`) and with the temperature (`scaled`).

    Args:
        answers: The predictions of a model on a split, with the gold answers.
        temperature: The logits are divided by it.
    """
    logits, gold = answers.scored()
    raw, scaled = (_measured(softmax(logits, value), gold) for value in (1.0, temperature))
    return Calibration(temperature, raw, scaled)


def _measured(probabilities: Any, gold: Any) -> Probabilities:
    shown = shown_outcomes(probabilities, gold)
    low, high = score_interval(np.mean, ((probabilities - np.eye(probabilities.shape[1])[gold]) ** 2).sum(-1))
    table = Reliability(**reliability(probabilities, gold)._asdict())
    return Probabilities(shown["ece"], shown["brier"], low, high, table, shown["loss"])


def choose_temperature(answers: Answers) -> tuple[float, str]:
    """Return the temperature with the smallest log loss on validation data, and what was done, as a sentence.

    Args:
        answers: The predictions on the validation data.
    """
    logits, gold = answers.scored()
    if len(gold) < LEAST_FOR_TEMPERATURE:
        return 1.0, f"no temperature is fitted to fewer than {LEAST_FOR_TEMPERATURE} validation answers"
    if (logits.argmax(-1) == gold).all():
        return 1.0, "no temperature is fitted, because every validation answer is right"
    temperature = fit_temperature(logits, gold)
    return (
        temperature,
        f"probabilities are scaled with the temperature {temperature:.3g}, fitted on the validation data",
    )
