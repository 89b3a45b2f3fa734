"""What the page, the Markdown and the tables say in the same words: verdicts, numbers, the headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PAPER_LABEL = "paper protocol: selected on the development set"

OUTCOME_NAMES = {
    "loss": "loss",
    "ece": "calibration error",
    "brier": "Brier score",
    "scaled_loss": "loss after temperature scaling",
    "cost": "cost",
}
VERDICT_SIGNS = {"helps": "▲", "hurts": "▼", "no difference": "=", "undecided": "?", "too few seeds": "…"}
_COST_WORDS = {"helps": "cheaper", "hurts": "costs more"}
_TOO_FEW = "Fewer than 5 seeds show too little of the chance in a run: the figures are here, a verdict is not."


def protocol_label(analysis: Mapping[str, Any]) -> str:
    """How settings and epochs were chosen, in words."""
    honest = "honest: the examples that give the scores chose neither the settings nor the epoch"
    return PAPER_LABEL if analysis["protocol"] == "paper" else honest


def verdict_word(outcome: str, verdict: str) -> str:
    """The verdict in one or two words; a cost is not helped or hurt, it is lower or higher."""
    return _COST_WORDS.get(verdict, verdict) if outcome == "cost" else verdict


def outcome_name(outcome: str, metric: str) -> str:
    """The name of an outcome; the score has the name of its metric."""
    return metric.replace("_", " ") if outcome == "score" else OUTCOME_NAMES.get(outcome, outcome)


def number(value: Any, signed: bool = False) -> str:
    """A number with three decimals, fewer for large ones, and a minus sign of the width of a plus sign."""
    if not isinstance(value, int | float):
        return "–"
    decimals = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    value = round(value, decimals) + 0.0  # no minus sign in front of a zero
    return f"{value:{'+' if signed and value else ''}.{decimals}f}".replace("-", "−")


def difference(outcome: str, value: Any) -> str:
    """A difference from the baseline; that of a cost is a share of the baseline's."""
    if outcome == "cost" and isinstance(value, int | float):
        return f"{100 * value:+.0f} %".replace("-", "−")
    return number(value, signed=True)


def mean_value(outcome: str, value: Any) -> str:
    """The mean of an outcome; a cost is a multiple of the baseline's."""
    return f"{number(value)} ×" if outcome == "cost" and value is not None else number(value)


def interval(outcome: str, bounds: Sequence[Any] | None) -> str:
    """An interval of differences, in square brackets."""
    if not bounds or None in bounds:
        return "–"
    return f"[{difference(outcome, bounds[0])}, {difference(outcome, bounds[1])}]"


def p_value(value: Any) -> str:
    """A p value with three decimals, or that it is smaller than they can show."""
    if not isinstance(value, int | float):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def labels_of(analysis: Mapping[str, Any]) -> dict[str, str]:
    """The label of each method by its name."""
    return {method["name"]: method["label"] for method in analysis["methods"]}


def settings_of_cells(analysis: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The combinations of task, size and part that the cells have, the most important first."""
    found = dict.fromkeys((str(cell["task"]), str(cell["size"]), str(cell["part"])) for cell in analysis["cells"])
    tasks = list(dict.fromkeys(task for task, _, _ in found))
    return sorted(found, key=lambda key: (tasks.index(key[0]), key[1] != "all", key[2] != "validation"))


def cells_of(
    analysis: Mapping[str, Any], setting: tuple[str, str, str], entries: str = "cells"
) -> dict[str, dict[str, Any]]:
    """The cells of one combination by method; with "ensembles" as `entries`, the ensembles of its seeds."""
    return {
        cell["method"]: cell
        for cell in analysis[entries]
        if (str(cell["task"]), str(cell["size"]), str(cell["part"])) == setting
    }


def seeds_of(analysis: Mapping[str, Any]) -> int:
    """The largest number of seeds that a method has finished in a cell."""
    values = [outcome["values"] for cell in analysis["cells"] for outcome in cell["outcomes"].values()]
    return max((sum(value is not None for value in of.values()) for of in values), default=0)


def has_summary(analysis: Mapping[str, Any]) -> bool:
    """Whether there are verdicts over several tasks or amounts of data."""
    return bool(analysis["summary"])


def summary_title(analysis: Mapping[str, Any]) -> str:
    """What the verdicts over several tasks or amounts of data are about."""
    tasks, sizes = ({cell[axis] for cell in analysis["cells"]} for axis in ("task", "size"))
    parts = [f"{len(tasks)} tasks"] if len(tasks) > 1 else []
    parts += [f"{len(sizes)} amounts of data"] if len(sizes) > 1 else []
    return f"Over all {' and '.join(parts)}"


def results_of(analysis: Mapping[str, Any], outcome: str = "score") -> dict[str, Mapping[str, Any]]:
    """The comparison that answers the reader's question for each method: over all tasks, or on the only one."""
    if has_summary(analysis):
        return {entry["method"]: entry for entry in analysis["summary"] if entry["outcome"] == outcome}
    settings = settings_of_cells(analysis)
    cells = cells_of(analysis, settings[0]) if settings else {}
    results = {name: cell["outcomes"].get(outcome, {}).get("comparison") for name, cell in cells.items()}
    return {name: result for name, result in results.items() if result}


def headline(analysis: Mapping[str, Any]) -> str:
    """The answer in one or two sentences: which methods help, which hurt, and about which nothing can be said.

    Args:
        analysis: A checked analysis.
    """
    labels, results = labels_of(analysis), results_of(analysis)
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(result["verdict"], []).append(name)
    if set(groups) == {"too few seeds"}:
        seeds = seeds_of(analysis)
        return f"No verdict: {seeds} {'seed is' if seeds == 1 else 'seeds are'} too few to tell a method from chance."
    parts = []
    for verdict, (one, many) in _PHRASES.items():
        if names := groups.get(verdict):
            size = ""
            if len(names) <= MOST_NAMED and verdict in ("helps", "hurts"):
                sizes = _listed([number(results[name].get("difference"), signed=True) for name in names])
                size = f" ({sizes})"
            parts.append(f"{_named(labels, names)} {one if len(names) == 1 else many}{size}")
    return f"{'; '.join(parts)}." if parts else "There is no comparison with the baseline yet."


def other_outcomes(analysis: Mapping[str, Any]) -> str:
    """Sentences that say which methods change the loss and the calibration error; empty if none does.

    Where a method is undecided over all tasks, and its verdicts on the single tasks agree, they say that too.

    Args:
        analysis: A checked analysis.
    """
    labels = labels_of(analysis)
    changed: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # verb and methods -> what they change
    for verdict, verb in (("helps", "lower"), ("hurts", "raise")):
        for outcome, what in (("loss", "the loss"), ("ece", "the calibration error")):
            results = results_of(analysis, outcome)
            names = tuple(
                labels.get(method, method) for method, result in results.items() if result["verdict"] == verdict
            )
            if 0 < len(names) <= MOST_NAMED:
                changed.setdefault((verb, names), []).append(what)
    sentences = [
        f"{_listed(names)} {verb}{'s' if len(names) == 1 else ''} {_listed(outcomes)}."
        for (verb, names), outcomes in changed.items()
    ]
    return " ".join([*sentences, *_on_each_task(analysis)])


def _on_each_task(analysis: Mapping[str, Any]) -> list[str]:
    """What is undecided about other tasks, and the same on each task by itself; one sentence or none."""
    if not has_summary(analysis):
        return []
    labels, score = labels_of(analysis), outcome_name("score", analysis["metric"] or "score")
    tasks = [cells_of(analysis, setting) for setting in settings_of_cells(analysis) if setting[2] == "validation"]
    parts = []
    for outcome, what, verbs in (
        ("score", score, {"helps": "improve", "hurts": "worsen"}),
        ("loss", "loss", {"helps": "lower", "hurts": "raise"}),
        ("ece", "calibration error", {"helps": "lower", "hurts": "raise"}),
    ):
        undecided = [name for name, of in results_of(analysis, outcome).items() if of["verdict"] == "undecided"]
        verdicts = {name: {_verdict(cells, name, outcome) for cells in tasks} for name in undecided}
        for verdict, verb in verbs.items():
            if names := [name for name in undecided if verdicts[name] == {verdict}]:
                parts.append(f"{_named(labels, names)} {verb}{'s' if len(names) == 1 else ''} the {what}")
    return [f"On each task by itself, {'; '.join(parts)}."] if parts else []


def _verdict(cells: Mapping[str, Mapping[str, Any]], method: str, outcome: str) -> str | None:
    """The verdict on a method in the cells of one task; None without one."""
    comparison = cells[method]["outcomes"].get(outcome, {}).get("comparison") if method in cells else None
    return comparison["verdict"] if comparison else None


def _named(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """The labels of methods, or how many they are if there are more than a sentence can hold."""
    if len(names) > MOST_NAMED:
        return f"{len(names)} methods"
    return _listed([labels.get(name, name) for name in names])


MOST_NAMED = 4  # more methods with the same verdict are counted, not named
_PHRASES = {
    "helps": ("helps", "help"),
    "hurts": ("hurts", "hurt"),
    "no difference": ("makes no difference", "make no difference"),
    "undecided": ("is undecided", "are undecided"),
    "too few seeds": ("has too few seeds for a verdict", "have too few seeds for a verdict"),
}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def explanation(comparison: Mapping[str, Any]) -> str:
    """The sentence of a comparison; where there are too few seeds, also why that prevents a verdict."""
    sentence = str(comparison.get("sentence") or "")
    if comparison["verdict"] == "too few seeds" and not sentence:
        return _TOO_FEW
    return sentence


def facts(analysis: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the study consists of, as names and values."""
    runs = analysis["runs"]
    failed = sum(run["status"] == "failed" for run in runs) or len(analysis["failures"])
    tasks = list(dict.fromkeys(str(cell["task"]) for cell in analysis["cells"]))
    sizes = list(dict.fromkeys(str(cell["size"]) for cell in analysis["cells"]))
    labels = labels_of(analysis)
    found = [
        ("Model", str(analysis["model"])),
        ("Task" if len(tasks) == 1 else "Tasks", ", ".join(tasks)),
        ("Training data", ", ".join(sizes) if sizes != ["all"] else ""),
        ("Baseline", labels[analysis["baseline"]]),
        ("Seeds", str(seeds_of(analysis))),
        ("Runs", f"{len(runs)}" + (f", {failed} failed" if failed else "") if runs else ""),
    ]
    return [(name, value) for name, value in found if value]
