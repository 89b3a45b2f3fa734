"""What the study recommends, by rules that were written before its confirmation runs.

A method is acceptable for a goal if it helps in the outcome of the goal over the confirmation tasks (after Holm's
correction) and does not hurt the score. Of the acceptable methods the one with the smallest development loss is
recommended, so that no choice rests on the size of a difference on confirmation tasks. A combination, which has no
development loss, is recommended instead if it is acceptable and better than that method in the same outcome. Without an
acceptable method, plain fine-tuning is recommended.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from .judge import against, by_cell, over_cells, over_tasks
from .parts import OTHER_DATA, PLAIN, confirmation_rows, is_complete, rows_of, sizes
from .plan import DEFAULTS, PLAN, development_losses, frozen
from .show import MODELS

GOALS = {  # outcome -> what a user wants
    "score": "more right answers",
    "loss": "probabilities to rely on",
    "scaled_loss": "probabilities, after temperature scaling",
}
MODEL = "minilm"  # on which settings were chosen


class Rule(NamedTuple):
    """A version of the rule that chose what the preset `recommended` set.

    Attributes:
        title: When it was in force.
        must_help: Outcomes; the method must help in one of them at the amount of data on which settings were chosen.
        may_not_hurt: Outcomes in which the method may hurt nowhere.
    """

    title: str
    must_help: tuple[str, ...]
    may_not_hurt: tuple[str, ...]


RULES = (
    Rule("as it was written before the confirmation runs", ("score", "scaled_loss"), ("score", "scaled_loss")),
    Rule("as it was changed when they had been seen", (), tuple(GOALS)),
    Rule("the changed rule without the log loss as a veto", (), ("score", "scaled_loss")),
)


def best_first() -> list[str]:
    """The candidates, the one with the smallest development loss first."""
    losses = candidates()
    return sorted(losses, key=losses.__getitem__)


def primary_size() -> str:
    """The amount of training data of the stage `confirm`, on which settings were chosen too."""
    return str(PLAN["stages"]["confirm"]["sizes"][0])


def verdict(name: str, size: str, outcome: str, method: str) -> str:
    """The verdict on a method over the confirmation tasks.

    Args:
        name: The name of the model in the files.
        size: The amount of training data.
        outcome: The outcome.
        method: The method.
    """
    summary = over_tasks(name, size, outcome).get(method)
    return "not measured" if summary is None else summary.verdict


def recommended_for(name: str, size: str, goal: str) -> str:
    """The method for one goal and amount of training data.

    Args:
        name: The name of the model in the files.
        size: The amount of training data.
        goal: The outcome of the goal.
    """

    def is_acceptable(method: str) -> bool:
        return verdict(name, size, goal, method) == "helps" and verdict(name, size, "score", method) != "hurts"

    best = next(filter(is_acceptable, best_first()), PLAIN)
    combinations = [method for method, of in frozen().items() if "members" in of and is_acceptable(method)]
    better = against(name, size, goal, combinations, baseline=best)
    return next((method for method, of in better.items() if of.verdict == "helps"), best)


def selected_by(rule: Rule) -> str:
    """The method that a version of the rule selects: the one with the smallest development loss that qualifies.

    It was measured with every model and amount of data and in the stage `other-data`. Plain fine-tuning is selected
    where no method qualifies, and is one of the candidates of a rule that asks for no help.

    Args:
        rule: The version.
    """

    def qualifies(method: str) -> bool:
        if method == PLAIN:
            return not rule.must_help
        helps = [verdict(MODEL, primary_size(), outcome, method) == "helps" for outcome in rule.must_help]
        return (any(helps) or not rule.must_help) and all(
            verdict(name, size, outcome, method) not in ("hurts", "not measured")
            for name, size in measured()
            for outcome in rule.may_not_hurt
        )

    return next(filter(qualifies, best_first()), PLAIN)


def measured() -> list[tuple[str, str]]:
    """Models and amounts of data of the complete stages with small training sets, and `OTHER_DATA`."""
    return [(name, size) for name in MODELS for size in (*sizes(name), OTHER_DATA) if confirmation_rows(name, size)]


def candidates() -> dict[str, float]:
    """What may be recommended, plain fine-tuning too: name -> `choose_by` on the development tasks.

    A setting that was not searched is among them if it is in the stage `defaults`, trained as plain fine-tuning was
    chosen to be. Its loss is that of plain fine-tuning, plus the difference from it in that stage.
    """
    outcome, settings = PLAN["choose_by"], frozen()
    losses = development_losses(settings)
    plain = settings[PLAIN]["training"]
    rows = rows_of(DEFAULTS, MODEL) if is_complete(DEFAULTS, MODEL) else []
    matched = [row for row in rows if float(row["epochs"]) == plain["num_train_epochs"]]
    for name, of in over_cells(by_cell(matched, outcome), outcome, only_these=True).items():
        if name in settings and name not in losses and settings[name]["training"] == plain:
            losses[name] = losses[PLAIN] + (of.difference or 0.0)
    return losses


def is_confirmed() -> bool:
    """Whether every frozen setting has all its runs of the stage `confirm`."""
    return PLAIN in frozen() and is_complete("confirm", MODEL)


def boundaries(amounts: list[int]) -> list[int]:
    """Between which numbers of examples the measured amounts are nearest: geometric means, to one digit.

    Args:
        amounts: The measured amounts, small ones first.
    """
    means = [math.sqrt(one * other) for one, other in itertools.pairwise(amounts)]
    return [int(float(f"{mean:.1g}")) for mean in means]
