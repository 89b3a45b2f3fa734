"""The report as Markdown, and its short form for a model card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...tasks.outcomes import OUTCOMES, SCORE, compared_outcomes
from .._markdown import markdown_code, markdown_text
from ..analysis import Analysis, checked_analysis
from .words import (
    PAPER_LABEL,
    SHRUNK_TITLE,
    VERDICT_SIGNS,
    Setting,
    Verdicts,
    amount_of_data,
    cells_of,
    difference,
    ensembles_of,
    explanation,
    facts,
    has_summary,
    headline,
    interval,
    labels_of,
    mean_value,
    other_outcomes,
    outcome_name,
    p_value,
    protocol_label,
    remarks,
    settings_of_cells,
    shrunk_tasks,
    summary_title,
    verdict_word,
)

MARK = "<!-- written by attendrop report -->"


def render_markdown(analysis: Analysis) -> str:
    """Return the report as Markdown: the answer, the verdict tables, the failures, and how it was made.

    Args:
        analysis: The analysis of a study.
    """
    analysis = checked_analysis(analysis)
    parts = [MARK, f"# {markdown_text(analysis.title or 'Comparison')}", f"**{markdown_text(headline(analysis))}**"]
    if others := other_outcomes(analysis):
        parts.append(markdown_text(others))
    if analysis.protocol == "paper":
        parts.append(f"> **{PAPER_LABEL}.** The scores are optimistic: the same examples chose and scored.")
    if analysis.plan:
        parts.append("\n".join(f"> {'- ' * (i > 0)}{markdown_text(text)}" for i, text in enumerate(analysis.plan)))
    parts.append(_bullets(f"{name}: {markdown_text(value)}" for name, value in facts(analysis)))
    if has_summary(analysis):
        on_score = (markdown_text(of.sentence) for of in analysis.summary if OUTCOMES[of.outcome].is_score)
        parts.append(f"## {summary_title(analysis)}\n\n{_summary_table(analysis)}\n\n{_bullets(on_score)}")
    if shrunk := shrunk_tasks(analysis):
        parts.append(f"### {SHRUNK_TITLE}\n\n{_table(('method', 'task', 'difference', 'interval'), shrunk)}")
    parts += [_cell_part(analysis, setting) for setting in settings_of_cells(analysis)]
    if analysis.failures:
        parts.append("## Failed runs\n\n" + _failures(analysis))
    parts.append("## How this was made\n\n" + _origin(analysis))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def card_section(analysis: Analysis) -> str:
    """Return a Markdown section for a model card: the results of the comparison of methods.

    Args:
        analysis: The analysis of a study.
    """
    analysis = checked_analysis(analysis)
    label = f" ({PAPER_LABEL})" if analysis.protocol == "paper" else ""
    parts = [f"## Comparison of methods{label}", markdown_text(headline(analysis))]
    if has_summary(analysis):
        parts.append(_summary_table(analysis))
    else:
        parts += [_verdict_table(analysis, setting) for setting in settings_of_cells(analysis)[:1]]
    parts.append(
        f"Differences are paired by seed, against {markdown_code(analysis.baseline)}; intervals have a confidence "
        f"of {100 * analysis.confidence:.0f} %, p values are adjusted for the number of methods (Holm)."
    )
    if analysis.scored:
        parts.append(f"Scored: {markdown_text(analysis.scored)}.")
    if analysis.failures:
        parts.append(f"{len(analysis.failures)} runs failed; they are counted, not left out.")
    return "\n\n".join(parts) + "\n"


def _cell_part(analysis: Analysis, setting: Setting) -> str:
    cells = cells_of(analysis, setting)
    amount = amount_of_data(next(iter(cells.values())))
    title = markdown_text(f"{setting[0]}, {amount}, scored on {setting[2]}")
    sentences = []
    for cell in cells.values():
        score = cell.outcomes.get(SCORE.name)
        if score and score.comparison and (sentence := explanation(score.comparison)):
            sentences.append(markdown_text(sentence))
    sentences += [markdown_text(of.sentence) for of in ensembles_of(analysis, setting).values()]
    return f"## {title}\n\n{_verdict_table(analysis, setting)}\n\n{_bullets(sentences)}"


def _verdict_table(analysis: Analysis, setting: Setting) -> str:
    rows = []
    for name, cell in cells_of(analysis, setting).items():
        for outcome in compared_outcomes():
            if result := cell.outcomes.get(outcome.name):
                comparison = result.comparison
                values = _comparison(outcome.name, comparison) if comparison else ("baseline", "", "", "", "")
                mean = mean_value(outcome.name, result.mean)
                rows.append((labels_of(analysis)[name], outcome.title(analysis.metric), mean, *values))
    return _table(("method", "outcome", "mean", "verdict", "difference", "interval", "Holm p", "also"), rows)


def _summary_table(analysis: Analysis) -> str:
    rows = []
    for entry in analysis.summary:
        label = labels_of(analysis).get(entry.method, entry.method)
        rows.append((label, outcome_name(entry.outcome, analysis.metric), *_comparison(entry.outcome, entry)))
    return _table(("method", "outcome", "verdict", "difference", "interval", "p", "also"), rows)


def _comparison(outcome: str, comparison: Verdicts) -> tuple[str, str, str, str, str]:
    verdict = comparison.verdict
    return (
        f"{VERDICT_SIGNS.get(verdict, '')} {verdict_word(outcome, verdict)}".strip(),
        difference(outcome, comparison.difference),
        interval(outcome, comparison.widest),
        p_value(comparison.p_adjusted),
        "; ".join(remarks(outcome, comparison)),
    )


def _failures(analysis: Analysis) -> str:
    rows = [
        (labels_of(analysis).get(of.method, of.method), of.task, "" if of.seed is None else of.seed, of.message)
        for of in analysis.failures
    ]
    return _table(("method", "task", "seed", "what happened"), rows)


def _origin(analysis: Analysis) -> str:
    lines = [f"command: {markdown_code(analysis.command)}"] if analysis.command else []
    lines.append(f"protocol: {protocol_label(analysis)}")
    lines += [f"{name}: {markdown_text(version)}" for name, version in analysis.versions.items()]
    lines += [markdown_text(note) for note in analysis.notes]
    if analysis.created:
        lines.append(f"created: {markdown_text(analysis.created)}")
    return _bullets(lines)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> str:
    """Return a table, without a last column that is empty."""
    if rows and not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(markdown_text(value) for value in row)} |" for row in rows]
    return "\n".join(lines)
