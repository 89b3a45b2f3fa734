"""The results of the verdict study in sentences, and what it recommends."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..records import NOT_YET, table
from .judge import HIGHER_IS_BETTER, MEMBERS, PLAIN, STAGES, on_tasks, over_tasks, question, sizes
from .lines import RECORDS, read
from .plan import TUNE, controls, frozen
from .recommend import GOALS, MODEL, best_first, boundaries, is_confirmed, preset, primary_size, recommended_for
from .show import MODELS, NAMES, OURS, amount, examples, interval, listed, methods_of


class RunCount(NamedTuple):
    """How many runs a part of the study has.

    Attributes:
        part: The part: a stage of the plan, ensembles of a stage, or an experiment of its own.
        model: The name of the model in the files.
        runs: The number of runs.
        failed: The number of lines without a result.
        seeds: The number of seeds.
    """

    part: str
    model: str
    runs: int
    failed: int
    seeds: int


def run_counts() -> list[RunCount]:
    """The parts of the study that were run. An ensemble is several runs."""
    counts = []
    for model in MODELS:
        for part in (TUNE, *STAGES, *(f"ensemble-{stage}" for stage in STAGES), "protocols", "attendout"):
            rows = read(RECORDS / f"{part}-{model}.csv")
            failed = sum(row["status"] != "finished" for row in rows)
            runs = len(rows) * (MEMBERS if part.startswith("ensemble-") else 1)
            counts.append(RunCount(part, model, runs, failed, len({row["seed"] for row in rows})))
    return [count for count in counts if count.runs]


def recommendation() -> str:
    """The decision table."""
    found = [size for size in sizes(MODEL) if methods_of(MODEL, size)]
    if not is_confirmed():
        return NOT_YET
    amounts = [examples(size) for size in found]
    limits = boundaries(amounts)
    lines = []
    ranges = ["any number"]
    if limits:
        between = [f"{low:,} to {high:,}" for low, high in itertools.pairwise(limits)]
        ranges = [f"up to {limits[0]:,}", *between, f"more than {limits[-1]:,}"]
    for where, size, n in zip(ranges, found, amounts, strict=True):
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
    """The result in a few sentences."""
    size = primary_size()
    methods = methods_of(MODEL, size)
    if not is_confirmed():
        return (
            "Not all confirmation runs have been made yet. Parts below that have no numbers say so; the rest of the "
            "page is the plan.\n"
        )
    tasks = on_tasks(MODEL, size, "score")
    seeds = min(c.pairs for of in tasks.values() for c in of.values())
    text = (
        f"{len(methods)} methods and settings were compared with plain fine-tuning of {MODELS[MODEL]} on {len(tasks)} "
        f"confirmation tasks with\n{examples(size):,} training examples and at least {seeds} paired seeds each:\n\n"
    )
    for outcome in ("score", "loss", "scaled_loss"):
        verdicts = {m: of.verdict for m, of in over_tasks(MODEL, size, outcome).items() if m in methods}
        groups = {v: [m for m in methods if verdicts.get(m) == v] for v in ("helps", "hurts", "no difference")}
        undecided = len(methods) - sum(map(len, groups.values()))
        delta = amount(outcome, question(outcome).delta, signed=False)
        text += (
            f"- **{NAMES[outcome]}**: better with {listed(groups['helps'])}; worse with {listed(groups['hurts'])}; "
            f"no difference\n  beyond {delta} with {listed(groups['no difference'])}; undecided: {undecided}.\n"
        )
    return text + _about_other_tasks(methods, size)


def _about_other_tasks(methods: list[str], size: str) -> str:
    """What can be said about other tasks, if the tasks are a sample too."""
    parts = []
    for outcome in ("score", "loss"):
        verdicts = {m: of.verdict for m, of in over_tasks(MODEL, size, outcome, only_these=False).items()}
        better, worse = ([m for m in methods if verdicts.get(m) == v] for v in ("helps", "hurts"))
        parts.append(f"{NAMES[outcome]} better with {listed(better)}, worse with {listed(worse)}")
    return f"- **other tasks**, if the tasks count as a sample too: {'; '.join(parts)}.\n"


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
        found = {outcome: _helps_on_most(name, size, outcome) for outcome in ("loss", "score")}
        sentences = []
        for outcome, helping in found.items():
            change = "raise" if outcome in HIGHER_IS_BETTER else "lower"
            sentences.append(f"{change} the {NAMES[outcome]}: {listed(helping)}")
        text += (
            f"- {MODELS[name]}, on a majority of the tasks, p < 0.05 after Holm's correction: {'; '.join(sentences)}.\n"
        )
    return text or NOT_YET


def _helps_on_most(name: str, size: str, outcome: str) -> list[str]:
    tasks = on_tasks(name, size, outcome)
    sign = 1 if outcome in HIGHER_IS_BETTER else -1
    found = []
    for method in filter(is_ours, methods_of(name, size)):
        figures = [of[method] for of in tasks.values() if method in of]
        better = [
            f for f in figures if f.p_adjusted is not None and f.p_adjusted < 0.05 and sign * (f.difference or 0) > 0
        ]
        if 2 * len(better) > len(tasks):
            found.append(f"{method} ({len(better)} of {len(tasks)})")
    return found


def chosen_preset() -> str:
    """What `--preset recommended` sets."""
    found = preset()
    if found is None:
        return NOT_YET
    methods = " ".join(f"`--method {one}`" for one in found.method) or "no method"
    return (
        f"`--preset recommended` sets {methods}, {found.epochs:g} epochs and a learning rate of {found.rate:g} for a "
        "model of width 768\n(inversely proportional to the width).\n"
    )


def expectations() -> str:
    """The README's summary: what to expect."""
    if not is_confirmed():
        return ""
    size, outcomes = primary_size(), ("score", "scaled_loss")
    methods = [method for method in methods_of(MODEL, size) if method not in controls()]
    rows = sum(of.runs for of in run_counts())
    of = {outcome: over_tasks(MODEL, size, outcome) for outcome in outcomes}
    helped = {outcome: [m for m in methods if of[outcome][m].verdict == "helps"] for outcome in outcomes}
    hurt = [m for m in methods if of["score"][m].verdict == "hurts"]
    best = [m for m in best_first() if m in helped["scaled_loss"]][:1]
    text = (
        f"In a study of {rows:,} runs ([the verdict](docs/verdict.md)), {len(methods)} methods and settings were "
        f"compared with plain\nfine-tuning of {MODELS[MODEL]} on {examples(size):,} training examples, on tasks that "
        f"no choice had seen.\n{len(helped['score'])} of them raise the score, {len(hurt)} lower it, and "
        f"{len(helped['scaled_loss'])} lower the log loss (measured after temperature\nscaling, because otherwise it "
        "mostly shows the number of epochs).\n"
    )
    for method in best:
        text += (
            f"Of those that lower the log loss, {method} did best on the development tasks: log loss "
            f"{interval('scaled_loss', of['scaled_loss'][method])}, score {interval('score', of['score'][method])} "
            "points.\n"
        )
    return text
