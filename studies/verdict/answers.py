"""The results of the verdict study in sentences, and what it recommends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from attendrop.lab.statistics.over_tasks import FEWEST_TASKS, TaskSummary
from attendrop.lab.tasks.findings import plural
from docs.tables.markdown import NOT_YET, table

from .judge import on_tasks, over_tasks, question
from .outcomes import NAMES
from .parts import ENSEMBLES, MEMBERS, OTHER_DATA, PLAIN, STAGES, planned, rows_of, sizes
from .plan import DEFAULTS, TUNE, frozen
from .recommend import (
    GOALS,
    MODEL,
    RULES,
    boundaries,
    is_confirmed,
    measured,
    primary_size,
    recommended_for,
    selected_by,
)
from .show import MODELS, OURS, amount, examples, interval, listed, methods_of, named, paragraph


class RunCount(NamedTuple):
    """How many runs a part of the study has.

    Attributes:
        part: The part: a stage of the plan, ensembles of a stage, or an experiment of its own.
        model: The name of the model in the files.
        runs: The number of runs.
        failed: The number of lines without a result.
        seeds: The number of seeds.
        planned: The number of runs that it should have; 0 if the plan does not say.
    """

    part: str
    model: str
    runs: int
    failed: int
    seeds: int
    planned: int


def run_counts() -> list[RunCount]:
    """The parts of the study that were run. An ensemble is several runs."""
    counts = []
    for model in MODELS:
        for part in (TUNE, DEFAULTS, *STAGES, *ENSEMBLES, "protocols", "attendout"):
            rows = rows_of(part, model)
            if not rows:
                continue
            each = MEMBERS if part in ENSEMBLES else 1  # runs of a line
            failed = sum(row["status"] != "finished" for row in rows)
            wanted = len(planned(part, model)) if part in (*STAGES, *ENSEMBLES) else 0
            seeds = len({row["seed"] for row in rows})
            counts.append(RunCount(part, model, each * len(rows), failed, seeds, each * wanted))
    return counts


def recommendation() -> str:
    """The decision table."""
    known_sizes = [size for size in sizes(MODEL) if methods_of(MODEL, size)]
    if not is_confirmed():
        return NOT_YET
    amounts = [examples(size) for size in known_sizes]
    limits = boundaries(amounts)
    lines = []
    ranges = ["any number"]
    if limits:
        between = [f"{low:,} to {high:,}" for low, high in itertools.pairwise(limits)]
        ranges = [f"up to {limits[0]:,}", *between, f"more than {limits[-1]:,}"]
    for where, size, n in zip(ranges, known_sizes, amounts, strict=True):
        lines.append([f"{where} (measured: {n:,})", *(_advice(size, goal) for goal in GOALS)])
    return table(["training examples", *GOALS.values()], lines)


def _advice(size: str, goal: str) -> str:
    method = recommended_for(MODEL, size, goal)
    if method == PLAIN:
        return "plain fine-tuning"
    gain = over_tasks(MODEL, size, goal)[method]
    setting = " + ".join(f"`{one}`" for one in frozen()[method]["method"].split(" + "))
    return f"{setting}: {NAMES[goal]} {interval(goal, gain)}"


def answer() -> str:
    """The result in a few sentences, for each model."""
    if not is_confirmed():
        return (
            "Not all confirmation runs have been made yet. Parts below that have no numbers say so; the rest of the "
            "page is the plan.\n"
        )
    size = primary_size()
    answers = [_answer_of(name, size) for name in MODELS if methods_of(name, size)]
    return "\n".join(filter(None, [in_every_part(), *answers]))


def _tasks_and_seeds(name: str, size: str) -> tuple[int, int]:
    """How many tasks there are, and how many paired seeds a comparison has at least."""
    tasks = on_tasks(name, size, "score").values()
    return len(tasks), min(comparison.pairs for of in tasks for comparison in of.values())


def _answer_of(name: str, size: str) -> str:
    methods = methods_of(name, size)
    tasks, seeds = _tasks_and_seeds(name, size)
    text = paragraph(
        f"{len(methods)} methods and settings were compared with plain fine-tuning of {MODELS[name]} on {tasks} "
        f"confirmation tasks with {examples(size):,} training examples and at least {seeds} paired seeds each:"
    )
    text += "\n"
    text += _groups("score", "score", over_tasks(name, size, "score"))
    text += _groups("scaled_loss", "log loss after temperature scaling", over_tasks(name, size, "scaled_loss"))
    matched = over_tasks(name, size, "loss", matched=True)
    text += _groups("loss", "log loss, against plain fine-tuning with matched learning rate and epochs", matched)
    return text + _about_other_tasks(name, methods, size)


def _groups(outcome: str, title: str, summaries: Mapping[str, TaskSummary]) -> str:
    """Which methods help and hurt, and how many make no difference or are undecided."""
    groups = {v: [m for m, of in summaries.items() if of.verdict == v] for v in ("helps", "hurts", "undecided")}
    same = len(summaries) - sum(map(len, groups.values()))
    delta = amount(outcome, question(outcome).delta, signed=False)
    shown = [
        f"{named(groups[verdict])} {verdict if len(groups[verdict]) == 1 else verdict.removesuffix('s')}"
        for verdict in ("helps", "hurts")
    ]
    if same:
        shown.append(f"{same} {'makes' if same == 1 else 'make'} no difference beyond {delta}")
    if undecided := len(groups["undecided"]):
        shown.append(f"{undecided} {'is' if undecided == 1 else 'are'} undecided")
    return paragraph(f"- **{title}**: {'; '.join(shown)}.")


def _about_other_tasks(name: str, methods: list[str], size: str) -> str:
    """What can be said about other tasks, if the tasks are a sample too."""
    summaries = {outcome: over_tasks(name, size, outcome, only_these=False) for outcome in ("score", "loss")}
    shown = [
        f"{NAMES[outcome]}: {named([m for m in methods if m in of and of[m].verdict == verdict])} {verdict}"
        for outcome, of in summaries.items()
        for verdict in ("helps", "hurts")
    ]
    if _tasks_and_seeds(name, size)[0] < FEWEST_TASKS or all(": none " in one for one in shown):
        shown = ["nothing can be said from so few"]
    return paragraph(f"- **other tasks**, if the tasks count as a sample too: {'; '.join(shown)}.")


def is_ours(method: str) -> bool:
    """Whether a method, or a part of a combination, is from the two papers of this library."""
    settings_of = frozen().get(method, {}).get("method", "")
    return any(one.partition(":")[0] in OURS for one in settings_of.split(" + "))


def majority() -> str:
    """Which methods of ours help on a majority of the confirmation tasks, each judged by itself."""
    size, text = primary_size(), ""
    for name in MODELS:
        if not methods_of(name, size):
            continue
        for outcome in ("loss", "score"):
            change = "raise" if question(outcome).greater_is_better else "lower"
            better, better_than_matched = (_helps_on_most(name, size, outcome, matched) for matched in (False, True))
            text += paragraph(
                f"- {MODELS[name]}, {change} the {NAMES[outcome]} on a majority of the tasks, p < 0.05 after Holm's "
                f"correction: {listed(better)}. Against plain fine-tuning with matched learning rate and epochs: "
                f"{listed(better_than_matched)}."
            )
    return text or NOT_YET


def _helps_on_most(name: str, size: str, outcome: str, matched: bool) -> list[str]:
    tasks = on_tasks(name, size, outcome, matched)
    sign = 1 if question(outcome).greater_is_better else -1
    names = []
    for method in filter(is_ours, methods_of(name, size)):
        figures = [of[method] for of in tasks.values() if method in of]
        better = [
            f for f in figures if f.p_adjusted is not None and f.p_adjusted < 0.05 and sign * (f.difference or 0) > 0
        ]
        if 2 * len(better) > len(tasks):
            names.append(f"*{method}* ({len(better)} of {len(tasks)})")
    return names


def in_every_part() -> str:
    """Which methods lower the log loss with every model and in every part of the study with small training sets."""
    parts = measured()
    if len(parts) < 2:
        return ""
    common = set.intersection(*(set(over_tasks(*part, "loss", matched=True)) for part in parts))
    lower = [_lower_the_loss_matched(*part) for part in parts]
    common_methods = [method for method in lower[0] if all(method in of_part for of_part in lower)]
    number = len(common) - len(common_methods)
    was, does = ("was", "does") if number == 1 else ("were", "do")
    others = f"; {plural(number, 'other')} that {was} compared in all of them {does} not"
    return paragraph(
        f"**In all {len(parts)} parts of the study with small training sets** ({_parts()}), {named(common_methods)} "
        f"{'lowers' if len(common_methods) < 2 else 'lower'} the log loss of plain fine-tuning with matched learning "
        f"rate and epochs without hurting the score{others if common_methods and number else ''}."
    )


def rules() -> str:
    """What each version of the rule of the preset selects."""
    if not is_confirmed():
        return NOT_YET
    rows = []
    for rule in RULES:
        helps = " or ".join(NAMES[outcome] for outcome in rule.must_help)
        rows.append([rule.title, helps, ", ".join(NAMES[outcome] for outcome in rule.may_not_hurt), selected_by(rule)])
    return table(["rule", "must help in", "may hurt nowhere in", "selects"], rows)


def _parts() -> str:
    """The parts with small training sets, for a sentence: model and amount of data of each."""
    return "; ".join(
        f"{MODELS[name]}, {'Rotten Tomatoes' if size == OTHER_DATA else f'{examples(size):,} examples'}"
        for name, size in measured()
    )


def _lower_the_loss_matched(name: str, size: str) -> list[str]:
    """Those that lower the log loss of matched plain fine-tuning, and do not hurt the score."""
    score, matched = over_tasks(name, size, "score"), over_tasks(name, size, "loss", matched=True)
    better = [method for method, of in matched.items() if of.verdict == "helps" and score[method].verdict != "hurts"]
    return sorted(better, key=lambda method: matched[method].difference or 0.0)
