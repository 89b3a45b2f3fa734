"""The outcomes of the study: those of the library, with the names of its pages."""

from __future__ import annotations

from dataclasses import replace

from attendrop.lab.tasks.outcomes import OUTCOMES as COMPARED
from attendrop.lab.tasks.outcomes import SCORE

OUTCOMES = {
    outcome.name: outcome
    for outcome in (
        SCORE,
        replace(COMPARED["loss"], label="log loss"),
        replace(COMPARED["scaled_loss"], label="log loss, scaled"),
        COMPARED["brier"],
        COMPARED["ece"],
        replace(COMPARED["scaled_ece"], label="calibration error, scaled"),
        replace(SCORE, name="other_accuracy", label="accuracy on other data"),
    )
}
NAMES = {name: outcome.label for name, outcome in OUTCOMES.items()}
