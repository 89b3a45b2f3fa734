"""Compares every contender with both plains over the confirmation tasks, and applies the rules of the plan."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import NamedTuple

from attendrop.lab.statistics.over_tasks import FEWEST_TASKS, TaskSummary, summarize_tasks
from attendrop.lab.statistics.paired import make_pairs, minimum_detectable_effect
from attendrop.lab.statistics.verdict import Question

from ..verdict.lines import read
from .plan import CONFIRM, PLAIN, PLAN, Setting, chosen, control_of, current_hash, frozen, has_grid

BEST, MATCHED = "best plain", "matched plain"
HIGHER = ("score",)
TIME = 2.0  # as many times the time of matched plain at most, for the preset and the moonshot
POINT = 0.01  # of the moonshot


class Lines:
    """The confirmation lines of one model that belong to this plan.

    Args:
        folder: The folder of the results.
        model: The name of the model.
    """

    def __init__(self, folder: Path, model: str) -> None:
        rows = read(folder / f"{CONFIRM}-{model}.csv")
        self.rows = [row for row in rows if row["plan"] == current_hash()]
        self.others = len(rows) - len(self.rows)

    def sizes(self) -> list[str]:
        """The amounts of data that have lines, in the order of the plan."""
        known = {row["size"] for row in self.rows}
        return [f"n={size}" for size in PLAN["stages"][CONFIRM]["sizes"] if f"n={size}" in known]

    def values(self, size: str, outcome: str, apart: bool = False) -> dict[str, dict[str, dict[int, float | None]]]:
        """Task -> contender -> seed -> value; None for a failed run."""
        by_task: dict[str, dict[str, dict[int, float | None]]] = {}
        for row in self.rows:
            if row["size"] == size and (row["task"] in PLAN["tasks"]["apart"]) == apart:
                text = row[outcome] if row["status"] == "finished" else ""
                by_task.setdefault(row["task"], {}).setdefault(row["method"], {})[int(row["seed"])] = (
                    float(text) if text else None
                )
        return by_task

    def over_tasks(self, size: str, outcome: str, plain: str) -> dict[str, TaskSummary]:
        """The summary of every contender against one of the plains, for a new task, after Holm over the contenders."""
        settings, values = chosen(), self.values(size, outcome)
        differences: dict[str, dict[str, object]] = {}
        for name, setting in settings.items():
            baseline = baseline_of(setting, plain)
            if name in (PLAIN, baseline):
                continue
            for task, of in values.items():
                if name in of and baseline in of:
                    differences.setdefault(name, {})[task] = make_pairs(of[name], of[baseline]).differences
        return summarize_tasks(differences, question(outcome, plain))  # type: ignore[arg-type]

    def time_ratio(self, name: str, size: str) -> float | None:
        """The time of a contender against its matched plain: the median over tasks of the ratio of medians."""
        values, control, ratios = self.values(size, "seconds"), baseline_of(chosen()[name], MATCHED), []
        for of in values.values():
            both = [[v for v in of.get(one, {}).values() if v] for one in (name, control)]
            if all(both):
                ratios.append(statistics.median(both[0]) / statistics.median(both[1]))
        return statistics.median(ratios) if ratios else None

    def smallest_effect(self, name: str, size: str, outcome: str = "score") -> float | None:
        """The smallest true difference on a new task that these tasks would have detected with a power of 80 %."""
        summary = self.over_tasks(size, outcome, MATCHED).get(name)
        if summary is None or summary.interval is None or summary.tasks < FEWEST_TASKS:
            return None
        from scipy import special

        reach = (summary.interval[1] - summary.interval[0]) / 2
        error = reach / float(special.stdtrit(summary.tasks - 1, (1 + PLAN["confidence"]) / 2))
        return minimum_detectable_effect(error * math.sqrt(summary.tasks), summary.tasks)


def baseline_of(setting: Setting, plain: str) -> str:
    """The name of one of the plains for a contender; features of the untrained model have no rate to match."""
    return PLAIN if plain == BEST or not has_grid(setting.name) else control_of(setting)


def question(outcome: str, plain: str) -> Question:
    """What is asked about an outcome."""
    delta = PLAN["outcomes"]["delta"].get(outcome, 0.0)
    return Question(delta, outcome in HIGHER, confidence=PLAN["confidence"], outcome=outcome, baseline=plain)


def word(lines: Lines, name: str, size: str, outcome: str = "score") -> str:
    """The word of the plan for a contender: against both plains, for a new task."""
    verdicts = {plain: lines.over_tasks(size, outcome, plain).get(name) for plain in (BEST, MATCHED)}
    if baseline_of(chosen()[name], MATCHED) == PLAIN:
        verdicts[MATCHED] = verdicts[BEST]  # they are one
    known = [None if summary is None else summary.verdict for summary in verdicts.values()]
    if None in known:
        return "not measured"
    if "hurts" in known:
        return "hurts"
    if all(verdict == known[0] for verdict in known) and known[0] in ("helps", "no difference"):
        return str(known[0])
    return "undecided"


class Ruling(NamedTuple):
    """What the rules select.

    Attributes:
        preset: The contender of `--preset recommended`.
        defaults: Methods whose searched fields become the defaults.
        moonshot: Contenders that reach it.
        is_final: Whether all planned amounts of data and models were measured for every contender.
    """

    preset: str
    defaults: list[str]
    moonshot: list[str]
    is_final: bool


def ruling(folder: Path) -> Ruling:
    """Apply the rules of the plan to the lines."""
    parts = {model: Lines(folder, model) for model in PLAN["models"]}
    first = f"n={PLAN['stages'][CONFIRM]['sizes'][0]}"
    cells = [(model, size) for model, lines in parts.items() for size in lines.sizes()]
    names = [name for name in chosen() if name != PLAIN]
    lines, helps, selected, moonshot, is_final = parts["minilm"], [], [], [], True
    for name in names:
        words = {cell: [word(parts[cell[0]], name, cell[1], of) for of in ("score", "tenth_loss")] for cell in cells}
        wanted = len(PLAN["stages"][CONFIRM]["sizes"]) + len(PLAN["models"]) - 1
        is_final &= len(cells) == wanted and not any("not measured" in of for of in words.values())
        if words.get(("minilm", first), [""])[0] != "helps":
            continue
        helps.append(name)
        ratio = lines.time_ratio(name, first)
        is_short = ratio is not None and ratio <= TIME
        if is_short and not any("hurts" in of for of in words.values()):
            selected.append(name)
        gain = lines.over_tasks(first, "score", BEST)[name]
        if (
            is_short
            and gain.difference is not None
            and gain.difference >= POINT
            and gain.interval
            and gain.interval[0] > 0
        ):
            moonshot.append(name)
    scores = {name: of["development_score"] for name, of in frozen().get("settings", {}).items()}
    # A combination has no score of its own on the development tasks: it comes after all that have one.
    preset = max(selected, key=lambda name: (scores[name] is not None, scores[name] or 0.0), default=PLAIN)
    return Ruling(preset, [name for name in ("AD-DROP", "AttendOut") if name in helps], moonshot, is_final)
