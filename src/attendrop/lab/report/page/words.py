"""Wording shared by the page, the Markdown and the tables: verdicts, numbers, the headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...statistics.over_tasks import TaskSummary
from ...statistics.verdict import Comparison
from ...tasks.outcomes import OUTCOMES, SCORE, Outcome, compared_outcomes
from ..analysis import Analysis, Cell, Ensemble

Verdicts = Comparison | TaskSummary  # what has a verdict, with figures and a sentence
Setting = tuple[str, str, str]  # task, size and part
PAPER_LABEL = "paper protocol: selected on the development set"

VERDICT_SIGNS = {"helps": "▲", "hurts": "▼", "no difference": "=", "undecided": "?", "too few seeds": "…"}
_TOO_FEW = "Fewer than 5 seeds are too few to estimate run-to-run noise: figures are shown without a verdict."


def protocol_label(analysis: Analysis) -> str:
    """Return the name of the selection protocol."""
    honest = "honest: the examples that give the scores chose neither the settings nor the epoch"
    return PAPER_LABEL if analysis.protocol == "paper" else honest


def verdict_word(outcome: str, verdict: str) -> str:
    """Return the verdict in one or two words; a cost is lower or higher."""
    return OUTCOMES[outcome].verdicts.get(verdict, verdict)


def outcome_name(outcome: str, metric: str) -> str:
    """Return the name of an outcome; the score has the name of its metric."""
    return OUTCOMES[outcome].title(metric)


def number(value: Any, signed: bool = False) -> str:
    """Return a number with three decimals, fewer for large ones, and a minus sign of the width of a plus sign."""
    if not isinstance(value, int | float):
        return "–"
    decimals = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    value = round(value, decimals) + 0.0  # no minus sign in front of a zero
    return f"{value:{'+' if signed and value else ''}.{decimals}f}".replace("-", "−")


def difference(outcome: str, value: Any) -> str:
    """Return a difference from the baseline; that of a relative outcome is a share of the baseline's."""
    if OUTCOMES[outcome].is_relative and isinstance(value, int | float):
        return f"{100 * value:+.0f} %".replace("-", "−")
    return number(value, signed=True)


def mean_value(outcome: str, value: Any) -> str:
    """Return the mean of an outcome; that of a relative one is a multiple of the baseline's."""
    return f"{number(value)} ×" if OUTCOMES[outcome].is_relative and value is not None else number(value)


def interval(outcome: str, bounds: Sequence[Any] | None) -> str:
    """Return an interval of differences, in square brackets."""
    if not bounds or None in bounds:
        return "–"
    return f"[{difference(outcome, bounds[0])}, {difference(outcome, bounds[1])}]"


def remarks(outcome: str, comparison: Verdicts) -> list[str]:
    """Return what belongs to a verdict beside its interval, `widest`: the other intervals, and why it is withheld.

    Args:
        outcome: The name of the outcome.
        comparison: The comparison.
    """
    parts = []
    if comparison.interval and comparison.widest != comparison.interval:
        parts.append(f"over seeds alone {_unbroken(interval(outcome, comparison.interval))}")
    if isinstance(comparison, TaskSummary) and comparison.new_task:
        parts.append(f"on one new task {_unbroken(interval(outcome, comparison.new_task))}")
    if comparison.withheld and (of := comparison.collapses):
        failed = f"{of.method} of {of.of} runs collapsed or learned nothing, and {of.baseline} of the baseline"
        at_most = f"up to {100 * max(of.bound, of.bound_of_baseline):.0f} % of runs may collapse"
        parts.append(f"“{comparison.withheld}” is withheld: {failed if of.method or of.baseline else at_most}")
    return parts


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def shrunk_tasks(analysis: Analysis) -> list[tuple[str, str, str, str]]:
    """Return method, task, difference and interval of the score on each task, shrunk towards the mean of the tasks."""
    labels, name = labels_of(analysis), SCORE.name
    return [
        (labels.get(of.method, of.method), task, difference(name, middle), interval(name, (low, high)))
        for of in analysis.summary
        if of.outcome == name
        for task, (middle, low, high) in of.shrunk.items()
    ]


SHRUNK_TITLE = "Each task, shrunk towards the mean of all"


def p_value(value: Any) -> str:
    """Return a p value with three decimals, or `< 0.001`."""
    if not isinstance(value, int | float):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def labels_of(analysis: Analysis) -> dict[str, str]:
    """Return the label of each method by its name."""
    return {method.name: method.label for method in analysis.methods}


def settings_of_cells(analysis: Analysis) -> list[Setting]:
    """Return the combinations of task, size and part that the cells have, the most important first."""
    settings = dict.fromkeys(_setting(cell) for cell in analysis.cells)
    tasks = list(dict.fromkeys(task for task, _, _ in settings))
    return sorted(settings, key=lambda key: (tasks.index(key[0]), key[1] != "all", key[2] != "validation"))


def _setting(entry: Cell | Ensemble) -> Setting:
    return entry.task, entry.size, entry.part


def cells_of(analysis: Analysis, setting: Setting) -> dict[str, Cell]:
    """Return the cells of one combination by method."""
    return {cell.method: cell for cell in analysis.cells if _setting(cell) == setting}


def amount_of_data(cell: Cell) -> str:
    """Return how many examples were trained on: "all training data", or "120 of 4,500 training examples"."""
    size = [cell.size] if cell.size != "all" else []
    if cell.examples is not None and cell.available is not None:
        size.append(f"{cell.examples:,} of {cell.available:,} training examples")
    return ", ".join(size) or "all training data"


def ensembles_of(analysis: Analysis, setting: Setting) -> dict[str, Ensemble]:
    """Return the ensembles of the seeds of one combination by method."""
    return {ensemble.method: ensemble for ensemble in analysis.ensembles if _setting(ensemble) == setting}


def seeds_of(analysis: Analysis) -> int:
    """Return the largest number of seeds that a method has finished in a cell."""
    values = [result.values for cell in analysis.cells for result in cell.outcomes.values()]
    return max((sum(value is not None for value in of.values()) for of in values), default=0)


def has_summary(analysis: Analysis) -> bool:
    """Return whether there are verdicts over several tasks or amounts of data."""
    return bool(analysis.summary)


def summary_title(analysis: Analysis) -> str:
    """Return the title of the verdicts over several tasks or amounts of data."""
    tasks, sizes = ({getattr(cell, axis) for cell in analysis.cells} for axis in ("task", "size"))
    parts = [f"{len(tasks)} tasks"] if len(tasks) > 1 else []
    parts += [f"{len(sizes)} amounts of data"] if len(sizes) > 1 else []
    return f"Over all {' and '.join(parts)}"


def results_of(analysis: Analysis, outcome: str = SCORE.name) -> dict[str, Verdicts]:
    """Return the comparison that answers the reader's question for each method: over all tasks, or on the only one."""
    if has_summary(analysis):
        return {entry.method: entry for entry in analysis.summary if entry.outcome == outcome}
    settings = settings_of_cells(analysis)
    cells = cells_of(analysis, settings[0]) if settings else {}
    return {name: of for name in cells if (of := _comparison(cells, name, outcome))}


def _comparison(cells: Mapping[str, Cell], method: str, outcome: str) -> Comparison | None:
    """Return the comparison of a method in the cells of one combination; None without one."""
    result = cells[method].outcomes.get(outcome) if method in cells else None
    return result.comparison if result else None


def headline(analysis: Analysis) -> str:
    """Return the answer in one or two sentences: which methods help, hurt, or are undecided.

    Args:
        analysis: A checked analysis.
    """
    labels, results = labels_of(analysis), results_of(analysis)
    cells = [cell for cell in analysis.cells if cell.part == "validation"]
    if cells and all(cell.unlearned for cell in cells):
        return cells[0].unlearned
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(result.verdict, []).append(name)
    if set(groups) == {"too few seeds"}:
        seeds = seeds_of(analysis)
        return f"No verdict: {seeds} {'seed is' if seeds == 1 else 'seeds are'} too few to estimate run-to-run noise."
    parts = []
    for verdict, (one, many) in _PHRASES.items():
        if names := groups.get(verdict):
            size = ""
            if len(names) <= MOST_NAMED and verdict in ("helps", "hurts"):
                sizes = _listed([number(results[name].difference, signed=True) for name in names])
                size = f" ({sizes})"
            parts.append(f"{_named(labels, names)} {one if len(names) == 1 else many}{size}")
    return f"{'; '.join(parts)}." if parts else "There is no comparison with the baseline yet."


def other_outcomes(analysis: Analysis) -> str:
    """Sentences that say which methods change the outcomes besides the score; empty if none does.

    Where a method is undecided over all tasks, and its verdicts on the single tasks agree, they say that too.

    Args:
        analysis: A checked analysis.
    """
    labels = labels_of(analysis)
    changed: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # verb and methods -> what they change
    for verdict in ("helps", "hurts"):
        for outcome in _in_headline():
            results = results_of(analysis, outcome.name)
            names = tuple(labels.get(method, method) for method, of in results.items() if of.verdict == verdict)
            if 0 < len(names) <= MOST_NAMED:
                changed.setdefault((outcome.verbs[verdict], names), []).append(f"the {outcome.label}")
    sentences = [
        f"{_listed(names)} {verb}{'s' if len(names) == 1 else ''} {_listed(outcomes)}."
        for (verb, names), outcomes in changed.items()
    ]
    return " ".join([*sentences, *_on_each_task(analysis)])


def _on_each_task(analysis: Analysis) -> list[str]:
    """Return one sentence on methods that are undecided over all tasks but have the same verdict on each, or none."""
    if not has_summary(analysis):
        return []
    labels = labels_of(analysis)
    tasks = [cells_of(analysis, setting) for setting in settings_of_cells(analysis) if setting[2] == "validation"]
    parts = []
    for outcome in (SCORE, *_in_headline()):
        undecided = [name for name, of in results_of(analysis, outcome.name).items() if of.verdict == "undecided"]
        comparisons = {name: [_comparison(cells, name, outcome.name) for cells in tasks] for name in undecided}
        verdicts = {name: {of and of.verdict for of in on_tasks} for name, on_tasks in comparisons.items()}
        for verdict, verb in outcome.verbs.items():
            if names := [name for name in undecided if verdicts[name] == {verdict}]:
                what = outcome.title(analysis.metric)
                parts.append(f"{_named(labels, names)} {verb}{'s' if len(names) == 1 else ''} the {what}")
    return [f"On each task by itself, {'; '.join(parts)}."] if parts else []


def _in_headline() -> list[Outcome]:
    return [outcome for outcome in compared_outcomes() if outcome.is_in_headline]


def _named(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the labels of methods, or their number if there are too many for a sentence."""
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


def explanation(comparison: Verdicts) -> str:
    """Return the sentence of a comparison; where there are too few seeds, also why that prevents a verdict."""
    return comparison.sentence or (_TOO_FEW if comparison.verdict == "too few seeds" else "")


def _count_of_runs(shown: int, searched: int) -> str:
    if not searched:
        return f"{shown}" if shown else ""
    return f"{shown + searched}: {searched} of trials, {shown} of the chosen settings"


def facts(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the facts of the study, as names and values."""
    runs = analysis.runs
    failed = sum(run.status == "failed" for run in runs) or len(analysis.failures)
    tasks = list(dict.fromkeys(cell.task for cell in analysis.cells))
    sizes = list(dict.fromkeys(cell.size for cell in analysis.cells))
    labels = labels_of(analysis)
    items = [
        ("Model", analysis.model),
        ("Task" if len(tasks) == 1 else "Tasks", ", ".join(tasks)),
        ("Training data", ", ".join(sizes) if sizes != ["all"] else ""),
        ("Baseline", labels[analysis.baseline]),
        ("Seeds", str(seeds_of(analysis))),
        ("Scored", analysis.scored),
        ("Runs", _count_of_runs(len(runs), analysis.searched) + (f", {failed} failed" if failed and runs else "")),
    ]
    return [(name, value) for name, value in items if value]
