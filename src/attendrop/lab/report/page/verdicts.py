"""The verdict tables of the page, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from ...statistics.over_tasks import TaskSummary
from ...statistics.verdict import Comparison
from ...tasks.outcomes import OUTCOMES, SCORE, compared_outcomes
from ..analysis import Analysis, Ensemble
from .words import (
    SHRUNK_TITLE,
    VERDICT_SIGNS,
    Verdicts,
    amount_of_data,
    cells_of,
    difference,
    ensembles_of,
    explanation,
    has_summary,
    interval,
    labels_of,
    mean_value,
    number,
    outcome_name,
    p_value,
    remarks,
    settings_of_cells,
    shrunk_tasks,
    summary_title,
    verdict_word,
)

# The width and height of a drawn interval, in the units of its own coordinate system.
_WIDTH, _HEIGHT = 200, 26
Entry = tuple[float | None, Verdicts | None]  # mean of an outcome, and its comparison
Entries = Mapping[str, Mapping[str, Entry]]  # method -> outcome -> entry
_SYMMETRIC = 20  # seeds, from which on error rates hold where differences are skewed
_MANY = 12  # rows of a table, from which on it scrolls


def verdict_blocks(analysis: Analysis) -> str:
    """Return all verdict tables: over the tasks, where there are several, and for each task, size and part.

    The scripts of the page show one of the latter at a time; without scripts all are shown.

    Args:
        analysis: A checked analysis.
    """
    blocks = [_summary_block(analysis)] if has_summary(analysis) else []
    for task, size, part in settings_of_cells(analysis):
        cells = cells_of(analysis, (task, size, part))
        results = {
            name: {outcome: (of.mean, of.comparison) for outcome, of in cell.outcomes.items()}
            for name, cell in cells.items()
        }
        amount = amount_of_data(next(iter(cells.values())))
        title = f"{task}, {amount if size == 'all' else f'data size {amount}'}, scored on {part}"
        keys = f'data-task="{escape(task)}" data-size="{escape(size)}" data-part="{escape(part)}"'
        ensembles = ensembles_of(analysis, (task, size, part))
        blocks.append(_block(analysis, title, results, f'class="cell-block" {keys}', ensembles))
    return "".join(blocks) or '<p class="empty">No run has finished: there is nothing to compare yet.</p>'


def _summary_block(analysis: Analysis) -> str:
    results: dict[str, dict[str, Entry]] = {analysis.baseline: {}}
    for entry in analysis.summary:
        results.setdefault(entry.method, {})[entry.outcome] = None, entry
    return _block(analysis, summary_title(analysis), results, 'class="summary-block"', more=_shrunk(analysis))


def _shrunk(analysis: Analysis) -> str:
    """Return the score on each task, shrunk towards the mean, in a collapsed section; empty for few tasks."""
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in shrunk_tasks(analysis))
    head = "".join(f'<th scope="col">{title}</th>' for title in ("Method", "Task", "Difference", "Interval"))
    table = f'<table class="data"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<details><summary>{SHRUNK_TITLE}</summary>{table}</details>" if rows else ""


def _block(
    analysis: Analysis,
    title: str,
    results: Entries,
    attributes: str,
    ensembles: Mapping[str, Ensemble] | None = None,
    more: str = "",
) -> str:
    outcomes = [of.name for of in compared_outcomes() if any(of.name in result for result in results.values())]
    labels, baseline, metric = labels_of(analysis), analysis.baseline, analysis.metric
    domain = _domain(analysis, results)
    head = "".join(f'<th scope="col">{escape(outcome_name(outcome, metric))}</th>' for outcome in outcomes)
    rows = []
    for name in sorted((name for name, result in results.items() if result), key=lambda name: name != baseline):
        cells = "".join(
            _cell(analysis, outcome, results[name].get(outcome), labels[name], domain) for outcome in outcomes
        )
        mark = ' class="baseline"' if name == baseline else ""
        hint = "baseline" if name == baseline else name if name != labels[name] else ""
        shown = f'{escape(labels[name])}<span class="hint">{escape(hint).replace(",", ",<wbr>")}</span>'
        rows.append(f'<tr{mark}><th scope="row">{shown}</th>{cells}</tr>')
        if ensembles and name in ensembles:
            rows.append(_ensemble_row(analysis, ensembles[name], labels[name], outcomes))
    table = (
        f'<table class="verdicts"><thead><tr><th scope="col">Method</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    if len(rows) > _MANY:
        table = f'<div class="scroll tall" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div>'
    sentences = "".join(_sentences(analysis, results, outcomes, ensembles or {}))
    return f"<section {attributes}><h3>{escape(title)}</h3>{table}{_key(analysis, results)}{sentences}{more}</section>"


def _ensemble_row(analysis: Analysis, ensemble: Ensemble, label: str, outcomes: list[str]) -> str:
    """Return the ensemble of a method's seeds: its values, and the gain of its score over the mean of the seeds."""
    cells = []
    for outcome in outcomes:
        value, of_ensemble = ensemble.outcomes.get(outcome), OUTCOMES[outcome].of_ensemble
        shown = of_ensemble.format(seeds=ensemble.seeds) if of_ensemble else mean_value(outcome, value)
        if OUTCOMES[outcome].is_score:
            gain = f"{number(ensemble.gain, True)} {interval(outcome, ensemble.interval)}"
            shown = f'{shown}<span class="ci">{gain.removesuffix(" –")} against the mean</span>'
        cells.append(f'<td data-label="{escape(outcome_name(outcome, analysis.metric))}">{shown}</td>')
    of_method = f'<span class="unseen"> of {escape(label)}</span>'
    head = f'ensemble of {ensemble.seeds} seeds{of_method}<span class="hint">not part of the tests</span>'
    return f'<tr class="ensemble"><th scope="row">{head}</th>{"".join(cells)}</tr>'


def _cell(analysis: Analysis, outcome: str, entry: Entry | None, label: str, domain: tuple[float, float]) -> str:
    name = escape(outcome_name(outcome, analysis.metric))
    if entry is None:
        return f'<td data-label="{name}"><span class="none">–</span></td>'
    mean, comparison = entry
    shown = f'<span class="mean">{mean_value(outcome, mean)}</span>' if mean is not None else ""
    if not comparison:
        return f'<td data-label="{name}">{shown or "–"}</td>'
    verdict = comparison.verdict
    css = verdict.replace(" ", "-")
    adjusted = comparison.p_adjusted
    p = f"Holm p {p_value(adjusted)}" if adjusted is not None else f"p {p_value(comparison.p)}"
    if comparison.p is None and adjusted is None:
        p = ""
    others = "".join(f' <span class="ci also">{escape(text)}</span>' for text in remarks(outcome, comparison))
    forest = _forest(analysis, comparison, label, domain) if OUTCOMES[outcome].is_score else ""
    return (
        f'<td data-label="{name}" data-outcome="{outcome}"><span class="chip {css}"><span aria-hidden="true">'
        f"{VERDICT_SIGNS[verdict]}</span> {verdict_word(outcome, verdict)}</span>{forest}"
        f'<span class="numbers"><span class="diff">{difference(outcome, comparison.difference)}</span> '
        f'<span class="ci">{interval(outcome, comparison.widest)}</span> <span class="p">{p}</span>{others} {shown}'
        "</span></td>"
    )


def _domain(analysis: Analysis, results: Entries) -> tuple[float, float]:
    """Return the range of score differences that the drawn intervals of one table share."""
    comparisons = [result[SCORE.name][1] for result in results.values() if SCORE.name in result]
    bounds = [bound for of in comparisons if of for bound in of.widest or () if bound is not None]
    delta = analysis.delta.get(SCORE.name) or 0.0
    limit = max([abs(bound) for bound in bounds] + [1.5 * delta], default=0.0) or 1.0
    return -1.08 * limit, 1.08 * limit


def _forest(analysis: Analysis, comparison: Verdicts, label: str, domain: tuple[float, float]) -> str:
    """Draw the difference, the interval of the verdict and that over seeds; the band in the middle is ±δ."""
    bounds, middle, of_seeds = comparison.widest, comparison.difference, comparison.interval
    if not bounds or not of_seeds or None in bounds or middle is None:
        return ""

    def x(value: float) -> str:
        return f"{_WIDTH * (value - domain[0]) / (domain[1] - domain[0]):.1f}"

    delta, y = analysis.delta.get(SCORE.name) or 0.0, _HEIGHT / 2
    width = float(x(delta)) - float(x(-delta))
    band = f'<rect x="{x(-delta)}" y="3" width="{width:.1f}" height="{_HEIGHT - 6}" class="band"/>'
    about = f"{label}: difference {number(middle, True)}, interval {interval(SCORE.name, bounds)}"
    return (
        f'<svg class="forest" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(about)}">{band}'
        f'<line x1="{x(0)}" x2="{x(0)}" y1="0" y2="{_HEIGHT}" class="zero"/>'
        f'<line x1="{x(bounds[0])}" x2="{x(bounds[1])}" y1="{y}" y2="{y}" class="whisker"/>'
        f'<line x1="{x(of_seeds[0])}" x2="{x(of_seeds[1])}" y1="{y}" y2="{y}" class="whisker of-seeds"/>'
        f'<circle cx="{x(middle)}" cy="{y}" r="4.5" class="middle"/></svg>'
    )


def _key(analysis: Analysis, results: Entries) -> str:
    comparisons = [comparison for result in results.values() for _, comparison in result.values()]
    holm = any(comparison and comparison.p_adjusted is not None for comparison in comparisons)
    parts = [
        f"Differences are paired by seed, against {labels_of(analysis)[analysis.baseline]}. Brackets show the "
        f"{100 * analysis.confidence:.0f} % interval{'; Holm p corrects for the number of methods' if holm else ''}."
    ]
    if any(isinstance(of, Comparison) and of.population for of in comparisons):
        parts.append(
            "It contains the noise of the seeds and of the test examples, and the verdict follows from it; the thick "
            "line is over seeds alone, with the same examples."
        )
    if any(isinstance(of, TaskSummary) and of.new_task for of in comparisons):
        parts.append("It is that of the mean over tasks; on one new task, differences vary more.")
    if not analysis.sequential and any(isinstance(of, Comparison) and of.pairs < _SYMMETRIC for of in comparisons):
        parts.append(f"With fewer than {_SYMMETRIC} seeds, error rates hold where the differences are about symmetric.")
    if limits := _too_small(analysis, results):
        parts.append(limits)
    if analysis.sequential:
        parts.append(
            "Seeds were added until the comparisons were decided; the error rates are corrected for repeated looks."
        )
    return f'<p class="key">{escape(" ".join(parts))}</p>'


def _too_small(analysis: Analysis, results: Entries) -> str:
    """Return the sentence about the differences that are too small to matter, of each outcome in the table."""
    compared = dict.fromkeys(name for result in results.values() for name, (_, of) in result.items() if of)
    names: dict[float, list[str]] = {}
    for name in compared:
        if delta := analysis.delta.get(name):
            title = outcome_name(name, analysis.metric)
            names.setdefault(delta, []).append(f"{title} (the shaded band)" if OUTCOMES[name].is_score else title)
    listed = "; ".join(f"±{number(delta)} in {', '.join(of)}" for delta, of in names.items())
    return f"Too small to matter are differences up to {listed}." if listed else ""


def _sentences(
    analysis: Analysis,
    results: Entries,
    outcomes: list[str],
    ensembles: Mapping[str, Ensemble],
) -> Iterator[str]:
    """Yield the verdicts as sentences: those on the score are visible, the others are in a collapsed section."""
    on_score: list[str] = []
    others: list[str] = []
    for result in results.values():
        for outcome in outcomes:
            _, comparison = result.get(outcome, (None, None))
            if comparison and (sentence := explanation(comparison)):
                line = f"<li>{escape(sentence)}{_power(outcome, comparison)}</li>"
                (on_score if OUTCOMES[outcome].is_score else others).append(line)
    others += [f"<li>{escape(ensemble.sentence)}</li>" for ensemble in ensembles.values()]
    if len(on_score) > _MANY:
        on_score, others = [], on_score + others
    if on_score:
        yield f'<ul class="sentences">{"".join(on_score)}</ul>'
    if others:
        yield (
            f"<details><summary>{'The other' if on_score else 'All'} outcomes in words</summary>"
            f'<ul class="sentences">{"".join(others)}</ul></details>'
        )


def _power(outcome: str, comparison: Verdicts) -> str:
    """Return the power of the comparison: its smallest detectable effect and probability of improvement."""
    if not isinstance(comparison, Comparison):
        return ""
    parts = []
    if (probability := comparison.probability_of_improvement) is not None:
        parts.append(f"Probability of improvement {probability:.2f}")
    if (effect := comparison.minimum_detectable_effect) is not None:
        parts.append(f"smallest detectable effect {difference(outcome, effect).lstrip('+')}")
    return f' <span class="power">{escape("; ".join(parts))}.</span>' if parts else ""
