"""The generated parts of docs/verdict-first-edition.md and docs/verdict.md: tables, sentences and the figure.

    python -m studies.verdict.page       # writes all of them; the same as `make tables`

Every number on the page comes from docs/results/verdict/*.csv and frozen.yaml. `python -m docs.tables --check` fails if
the page and the files disagree.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from functools import partial
from statistics import mean, median

from docs.tables.markdown import NOT_YET, table

from . import answers
from .judge import against, by_cell, on_tasks, over_cells, over_tasks
from .lines import RECORDS
from .outcomes import NAMES, OUTCOMES
from .parts import OTHER_DATA, PLAIN, UPPER_LINE, WHOLE, confirmation_rows, rows_of, sizes
from .plan import DEFAULTS, PLAN, frozen, matched_plain
from .protocol_gains import Gain, gains
from .recommend import GOALS, MODEL, primary_size
from .show import MODELS, amount, examples, interval, judged, methods_of, seconds, sign

PAIRS = {  # of the same p, q or rate of dropping, trained in the same way
    "AD-DROP by attention": "AD-DROP at random",
    "AD-DROP by integrated gradients": "AD-DROP, first layer",
    "AttendOut": "AttendOut, generator that never learns",
}


def words(name: str) -> str:
    """The verdict on each method for each outcome, in words."""
    size = primary_size()
    if not methods_of(name, size):
        return NOT_YET
    lines = [
        [
            method,
            *(sign(of.verdict) if (of := over_tasks(name, size, outcome).get(method)) else "" for outcome in OUTCOMES),
            seconds(name, size, method),
        ]
        for method in methods_of(name, size)
    ]
    return table(["method", *(NAMES[outcome] for outcome in OUTCOMES), "time"], lines)


def numbers(name: str) -> str:
    """The differences with their intervals."""
    size = primary_size()
    if not methods_of(name, size):
        return NOT_YET
    lines = [
        [method, *(interval(outcome, over_tasks(name, size, outcome).get(method)) for outcome in OUTCOMES)]
        for method in methods_of(name, size)
    ]
    return table(["method", *(NAMES[outcome] for outcome in OUTCOMES)], lines)


def against_matched_plain(name: str) -> str:
    """Every method against plain fine-tuning with matched learning rate and epochs."""
    summaries = {outcome: over_tasks(name, primary_size(), outcome, matched=True) for outcome in GOALS}
    if not summaries["loss"]:
        return NOT_YET
    settings, controls = frozen(), matched_plain()
    lines = []
    for method in sorted(summaries["loss"], key=lambda one: summaries["loss"][one].difference or 0.0):
        own, other = (settings[one]["training"] for one in (method, controls[method]))
        rate, plain_rate = (f"{of['learning_rate']:.1e}" for of in (own, other))
        shown = rate if rate == plain_rate else f"{rate} (plain {plain_rate})"
        cells = [judged(outcome, of.get(method)) for outcome, of in summaries.items()]
        lines.append([method, f"{own['num_train_epochs']:g}", shown, *cells])
    return table(["method", "epochs", "learning rate", *(NAMES[outcome] for outcome in GOALS)], lines)


def what_is_dropped(name: str) -> str:
    """Pairs of settings that differ in what they drop, and in nothing else."""
    lines = []
    for method, other in PAIRS.items():
        summaries = {o: against(name, primary_size(), o, [method], baseline=other) for o in GOALS}
        if summaries["score"]:
            lines.append([method, other, *(judged(o, of.get(method)) for o, of in summaries.items())])
    return table(["method", "against", *(NAMES[o] for o in GOALS)], lines) if lines else NOT_YET


def defaults(name: str) -> str:
    """The candidates for the defaults on the development tasks, each against plain fine-tuning with its epochs."""
    rows = rows_of(DEFAULTS, name)
    lines = []
    for epochs in dict.fromkeys(row["epochs"] for row in rows):
        own = [row for row in rows if row["epochs"] == epochs]
        summaries = {o: over_cells(by_cell(own, o), o, only_these=True) for o in GOALS}
        lines += [
            [method, f"{float(epochs):g}", *(judged(o, of.get(method)) for o, of in summaries.items())]
            for method in summaries["score"]
        ]
    return table(["method", "epochs", *(NAMES[o] for o in GOALS)], lines) if lines else NOT_YET


def of_method(method: str) -> str:
    """The settings of one method, for its card."""
    size = primary_size()
    settings = {name: of["method"] for name, of in frozen().items() if of["method"].partition(":")[0] == method}
    summaries = {outcome: over_tasks(MODEL, size, outcome) for outcome in GOALS}
    matched = over_tasks(MODEL, size, "loss", matched=True)
    lines = [
        [f"`{text}`", *(judged(o, of.get(name)) for o, of in summaries.items()), judged("loss", matched.get(name))]
        for name, text in settings.items()
        if " + " not in text and name in summaries["score"]
    ]
    titles = [*(NAMES[outcome] for outcome in GOALS), "log loss, matched"]
    return table(["setting", *titles], lines) if lines else NOT_YET


def by_size(name: str, outcome: str, matched: bool = False) -> str:
    """An outcome for each amount of training data, of the methods that were measured with several.

    Args:
        name: The name of the model in the files.
        outcome: The outcome.
        matched: Whether each method is compared with plain fine-tuning with matched learning rate and epochs.
    """
    measured = sizes(name)
    if len(measured) < 2:
        return NOT_YET
    lines = []
    for method in methods_of(name, primary_size()):
        of = [over_tasks(name, size, outcome, matched=matched).get(method) for size in measured]
        if sum(figures is not None for figures in of) > 1:
            lines.append([method, *(judged(outcome, figures) for figures in of)])
    return table(["method", *(f"{NAMES[outcome]}, n = {examples(size):,}" for size in measured)], lines)


def by_task(name: str, outcome: str) -> str:
    """The difference on each confirmation task at the primary amount of data."""
    summaries = {
        cell: of for size in (primary_size(), OTHER_DATA) for cell, of in on_tasks(name, size, outcome).items()
    }
    if not summaries:
        return NOT_YET
    lines = []
    for method in methods_of(name, primary_size()):
        cells = [of.get(method) for of in summaries.values()]
        lines.append([method, *(judged(outcome, cell) for cell in cells)])
    return table(["method", *(task for task, _ in summaries)], lines)


def on_whole_sets(name: str, matched: bool) -> str:
    """The differences on whole training sets, task by task.

    Args:
        name: The name of the model in the files.
        matched: Whether each method is compared with plain fine-tuning with matched learning rate and epochs.
    """
    summaries = {
        (NAMES[outcome], task): (outcome, of)
        for outcome in ("score", "loss")
        for (task, _), of in on_tasks(name, WHOLE, outcome, matched=matched).items()
    }
    lines = []
    for method in methods_of(name, WHOLE):
        cells = [judged(outcome, of.get(method)) for outcome, of in summaries.values()]
        if any(cells):
            lines.append([method, f"{frozen()[method]['training']['learning_rate']:.2g}", *cells])
    titles = [f"{outcome}, {task.rpartition('/')[2]}" for outcome, task in summaries]
    return table(["method", "rate", *titles], lines) if lines else NOT_YET


def on_other_data(name: str) -> str:
    """What models that were trained on one source score on it and on another."""
    outcomes = (*GOALS, "other_accuracy")
    lines = [
        [method, *(judged(o, over_tasks(name, OTHER_DATA, o).get(method)) for o in outcomes)]
        for method in methods_of(name, OTHER_DATA)
    ]
    return table(["method", *(NAMES[o] for o in outcomes)], lines) if lines else NOT_YET


def levels(name: str) -> str:
    """What plain fine-tuning has on each task: the mean over seeds."""
    lines = []
    for size in (*sizes(name), OTHER_DATA, WHOLE):
        values = {outcome: by_cell(confirmation_rows(name, size), outcome) for outcome in OUTCOMES}
        for cell in values["score"]:
            known = {
                o: [v for v in of.get(cell, {}).get(PLAIN, {}).values() if v is not None] for o, of in values.items()
            }
            shown = [amount(o, mean(of), signed=False) if of else "" for o, of in known.items()]
            lines.append([cell[0], _n(size), str(len(known["score"])), *shown])
    return table(["task", "n", "seeds", *(NAMES[o] for o in OUTCOMES)], lines) if lines else NOT_YET


def _n(size: str) -> str:
    return "whole" if size == WHOLE else f"{examples(primary_size() if size == OTHER_DATA else size):,}"


def detectable() -> str:
    """The smallest effect that would have been seen on one task, the median over methods and tasks."""
    lines = []
    for name in MODELS:
        for size in sizes(name):
            effects = {
                outcome: [
                    effect
                    for methods in on_tasks(name, size, outcome).values()
                    for of in methods.values()
                    if (effect := of.minimum_detectable_effect) is not None
                ]
                for outcome in OUTCOMES
            }
            shown = [amount(o, median(of), signed=False) if of else "" for o, of in effects.items()]
            lines.append([MODELS[name], _n(size), *shown])
    return table(["model", "n", *(NAMES[o] for o in OUTCOMES)], lines) if lines else NOT_YET


def settings() -> str:
    """The frozen settings."""
    if not frozen():
        return NOT_YET
    lines = []
    for name, of in frozen().items():
        scores = of.get("development", {})
        shown = [f"{scores[key]:.3f}" if key in scores else "not searched" for key in (PLAN["choose_by"], "score")]
        text = "" if not of["method"] else " + ".join(f"`{one}`" for one in of["method"].split(" + "))
        training = of["training"]
        lines.append([name, text, f"{training['learning_rate']:.2g}", f"{training['num_train_epochs']:g}", *shown])
    return table(
        ["method", "setting", "learning rate", "epochs", "development loss, scaled", "development score"], lines
    )


def runs() -> str:
    """How many runs each part has, and how many failed."""
    minutes = {(row["part"], row["model"]): row["minutes"] for row in _minutes()}
    counts = answers.run_counts()
    if not counts:
        return NOT_YET
    lines = [
        [of.part, MODELS[of.model], _made(of), str(of.failed), str(of.seeds), minutes.get((of.part, of.model), "")]
        for of in counts
    ]
    total, failed = sum(of.runs for of in counts), sum(of.failed for of in counts)
    spent = sum(float(value) for value in minutes.values() if value)
    lines.append(["together", "", f"{total:,}", str(failed), "", f"{spent:g}" if spent else ""])
    return table(["part", "model", "runs", "failed", "seeds", "GPU minutes"], lines)


def _made(of: answers.RunCount) -> str:
    return f"{of.runs:,}" if of.runs >= of.planned else f"{of.runs:,} of {of.planned:,}"


def _minutes() -> list[dict[str, str]]:
    """The wall-clock minutes of the GPU, noted by hand: part, model, minutes."""
    file = RECORDS / "minutes.csv"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def upper_line() -> str:
    """The ensemble of five plain models against one plain model."""
    lines = []
    for name in MODELS:
        for size in (*sizes(name), OTHER_DATA, WHOLE):
            summaries = {o: against(name, size, o, [UPPER_LINE]).get(UPPER_LINE) for o in OUTCOMES}
            if summaries["score"] is not None:
                lines.append([MODELS[name], _n(size), *(judged(o, of) for o, of in summaries.items())])
    return table(["model", "n", *(NAMES[o] for o in OUTCOMES)], lines) if lines else NOT_YET


def protocols() -> str:
    """What the papers' protocol and the honest one report."""
    lines = []
    for name in MODELS:
        for task, (nothing, ours, _) in gains(name).items():
            ranges = [
                f"{_points(m)} ({_points(low)} to {_points(high)})"
                for m, low, high in zip(nothing.mean, nothing.low, nothing.high, strict=True)
            ]
            lines.append([task, "nothing (plain under another name)", *ranges])
            lines.append([task, "AD-DROP", *map(_points, ours)])
    titles = ["papers' protocol", "the same, best seed", "what it chose, on untouched examples", "honest protocol"]
    assert len(titles) == len(Gain._fields)
    return table(["task", "method", *titles], lines) if lines else NOT_YET


def _points(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


METHODS = sorted({of.get("method", "").partition(":")[0] for of in PLAN["methods"].values()} - {""})
TABLES: dict[str, Callable[[], str]] = {
    "verdict-answer": answers.answer,
    "verdict-recommendation": answers.recommendation,
    "verdict-rules": answers.rules,
    "verdict-majority": answers.majority,
    "verdict-words": lambda: words("minilm"),
    "verdict-numbers": lambda: numbers("minilm"),
    "verdict-words-mpnet": lambda: words("mpnet"),
    "verdict-numbers-mpnet": lambda: numbers("mpnet"),
    "verdict-controls": lambda: against_matched_plain("minilm"),
    "verdict-dropped": lambda: what_is_dropped("minilm"),
    "verdict-defaults": lambda: defaults("minilm"),
    "verdict-sizes-score": lambda: by_size("minilm", "score"),
    "verdict-sizes-loss": lambda: by_size("minilm", "loss"),
    "verdict-sizes-matched-score": lambda: by_size("minilm", "score", matched=True),
    "verdict-sizes-matched-loss": lambda: by_size("minilm", "loss", matched=True),
    "verdict-other-data": lambda: on_other_data("minilm"),
    "verdict-tasks-loss": lambda: by_task("minilm", "loss"),
    "verdict-tasks-score": lambda: by_task("minilm", "score"),
    "verdict-whole": lambda: on_whole_sets("minilm", matched=False),
    "verdict-whole-matched": lambda: on_whole_sets("minilm", matched=True),
    "verdict-levels": lambda: levels("minilm"),
    "verdict-detectable": detectable,
    "verdict-settings": settings,
    "verdict-runs": runs,
    "verdict-ensemble": upper_line,
    "verdict-protocols": protocols,
    **{f"verdict-of-{name}": partial(of_method, name) for name in METHODS},
}


def main() -> int:
    from docs.tables.pages import main as write_tables

    return write_tables([])


if __name__ == "__main__":
    sys.exit(main())
