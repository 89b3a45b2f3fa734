"""The verdicts on the score as a table for a paper: LaTeX (booktabs) or Markdown."""

from __future__ import annotations

from typing import Any

from ...statistics.verdict import Comparison
from ...tasks.outcomes import SCORE
from .._markdown import markdown_text
from ..analysis import Analysis, Cell, checked_analysis
from .words import cells_of, interval, labels_of, mean_value, p_value, settings_of_cells, verdict_word
from .words import difference as difference_of

LATEX_MARK, MARKDOWN_MARK = "% written by attendrop report", "<!-- table by attendrop report -->"
_TITLES = ("Task", "Method", "Mean", "Difference", "Interval", "p", "Seeds", "Verdict")
_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "<": "$<$", ">": "$>$", 
    "×": r"$\times$", "±": r"$\pm$",
}  # fmt: skip


def latex_table(analysis: Analysis) -> str:
    """Return the verdicts on the score as a LaTeX table, for the package booktabs.

    Args:
        analysis: The analysis of a study.
    """
    analysis = checked_analysis(analysis)
    rows = _rows(analysis)
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    breaks = [i for i in range(1, len(rows)) if rows[i][0]]
    for place in reversed(breaks):
        lines.insert(place, r"\midrule")
    return "\n".join(
        [
            LATEX_MARK, r"\begin{table}", r"\centering", rf"\caption{{{_latex(_caption(analysis))}}}",
            r"\begin{tabular}{ll" + "r" * 5 + "l}", r"\toprule", " & ".join(_TITLES) + r" \\", r"\midrule", *lines,
            r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ]
    )  # fmt: skip


def markdown_results(analysis: Analysis) -> str:
    """Return the same table as Markdown.

    Args:
        analysis: The analysis of a study.
    """
    analysis = checked_analysis(analysis)
    lines = ["| " + " | ".join(map(markdown_text, row)) + " |" for row in _rows(analysis)]
    head = ["| " + " | ".join(_TITLES) + " |", "|" + " --- |" * len(_TITLES)]
    return "\n".join([MARKDOWN_MARK, *head, *lines, "", markdown_text(_caption(analysis)), ""])


def _rows(analysis: Analysis) -> list[list[str]]:
    labels, rows = labels_of(analysis), []
    for setting in settings_of_cells(analysis):
        place = ", ".join(part for part in setting if part not in ("all", "validation"))
        for name, cell in cells_of(analysis, setting).items():
            if (result := cell.outcomes.get(SCORE.name)) is None:
                continue
            comparison = result.comparison
            seeds = sum(value is not None for value in result.values.values())
            row: list[Any] = [place, labels[name], mean_value(SCORE.name, result.mean)]
            if comparison is None:
                row += ["", "", "", seeds, "baseline"]
            else:
                row += [
                    difference_of(SCORE.name, comparison.difference), interval(SCORE.name, comparison.widest),
                    p_value(comparison.p_adjusted), comparison.pairs, verdict_word(SCORE.name, comparison.verdict),
                ]  # fmt: skip
            rows.append([str(value) for value in row])
            place = ""
    return rows


def _caption(analysis: Analysis) -> str:
    delta = analysis.delta.get(SCORE.name)
    threshold = f"; differences within ±{delta:g} do not matter" if delta else ""
    widest = any(of.population for cell in analysis.cells if (of := _score_of(cell)))
    over = "intervals over seeds and test examples" if widest else "intervals over seeds"
    scored = f"; scored: {analysis.scored}" if analysis.scored else ""
    plan = f" {analysis.plan[0]}" + "".join(f" {text}." for text in analysis.plan[1:]) if analysis.plan else ""
    return (
        f"{SCORE.title(analysis.metric).capitalize()} of {analysis.title}. Differences are paired by seed, "
        f"against {labels_of(analysis)[analysis.baseline]}; {100 * analysis.confidence:g} % {over}, p adjusted for "
        f"the number of methods{threshold}{scored}.{plan}"
    )


def _score_of(cell: Cell) -> Comparison | None:
    return result.comparison if (result := cell.outcomes.get(SCORE.name)) else None


def _latex(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
