"""Figures of one evaluation: the confusion matrix and the reliability diagram; and its tables in a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import one_line
from ..records import BaselineScores, Calibration, IntervalScore, Scores, SplitEvaluation, flat_scores
from ..records.evaluation import Probabilities
from ._markdown import markdown_text
from .style import BLUE, VERMILION, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_CLASSES = 40  # a confusion matrix with more would not be readable
_LONGEST = 24  # letters of a label in a figure
_CARD_CLASSES = 20  # classes in the table of a card


def plot_confusion(counts: Sequence[Sequence[int]], labels: Sequence[str], path: str | Path | None = None) -> Figure:
    """Draw a confusion matrix: colours show shares of each row, numbers are counts.

    Args:
        counts: One row for each true class, one column for each predicted class.
        labels: The names of the classes.
        path: The image file to write; None = none.
    """
    import numpy as np
    from matplotlib.figure import Figure

    table = np.asarray(counts)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    names = [_short(label) for label in labels]
    side = max(3.4, 0.45 * len(labels) + 1.8) + 0.06 * max(map(len, names))  # inches; room for long names
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    is_wide = max(map(len, names)) * len(names) > 40
    axes.set_xticks(range(len(names)), names, rotation=90 if is_wide else 0, parse_math=False)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(xlabel="predicted", ylabel="right answer", title="Confusion matrix")
    for row, column in np.argwhere(table > 0):
        colour = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{table[row, column]:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the row")
    return saved(figure, path)


def _short(label: str) -> str:
    text = one_line(" ".join(str(label).split()))
    half = _LONGEST // 2  # names often differ at their end
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[1 - half :]}"


def plot_reliability(calibration: Calibration, path: str | Path | None = None) -> Figure:
    """Draw a reliability diagram: accuracy and number of examples by confidence bin.

    Args:
        calibration: That of an evaluation.
        path: The image file to write; None = none.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="perfectly calibrated")
    lines = [(calibration.raw, "before temperature scaling", BLUE, "o")]
    if calibration.temperature != 1:
        lines.append((calibration.scaled, f"temperature {calibration.temperature:.3g}", VERMILION, "s"))
    for part, name, colour, marker in lines:
        table = part.reliability
        label = f"{name}, ECE {part.ece:.3f}"
        axes.plot(table.confidence, table.accuracy, color=colour, marker=marker, markersize=5, label=label)
        middles = [(low + high) / 2 for low, high in zip(table.low, table.high, strict=True)]
        widths = [high - low for low, high in zip(table.low, table.high, strict=True)]
        below.bar(middles, table.examples, widths, color=colour, alpha=0.5)
    axes.set(ylabel="accuracy", title="Reliability of the probabilities", xlim=(0, 1), ylim=(-0.03, 1.03))
    axes.legend(frameon=False, fontsize=9)
    below.set(xlabel="confidence", ylabel="answers")
    for panel in (axes, below):
        panel.grid(alpha=0.3)
    return saved(figure, path)


def score_rows(scores: Scores, evaluation: Mapping[str, SplitEvaluation]) -> list[tuple[str, str, str, str]]:
    """Return every score of a run: its name, its value, its 95 % interval, and the score of the most frequent answer.

    Args:
        scores: Part of the data -> metric -> value.
        evaluation: Part of the data -> its evaluation.
    """
    rows = []
    for part in dict.fromkeys([*scores, *evaluation]):
        evaluated = evaluation.get(part)
        of_part, intervals = scores.get(part, {}), evaluated.scores if evaluated else {}
        for metric, value in of_part.items():
            rows.append((f"{part}/{metric}", _number(value), *_beside(intervals.get(metric))))
        for metric, score in intervals.items():
            if metric not in of_part:
                rows.append((f"{part}/{metric}", _number(score.value), *_beside(score)))
        if evaluated is not None and evaluated.calibration is not None:
            rows += _calibration_rows(part, evaluated.calibration.raw)
            if evaluated.calibration.temperature != 1:
                rows += _calibration_rows(f"{part}/scaled", evaluated.calibration.scaled, has_loss=True)
    return rows


def _calibration_rows(part: str, of: Probabilities, has_loss: bool = False) -> list[tuple[str, str, str, str]]:
    join = "_" if has_loss else "/"
    rows = [(f"{part}{join}brier", _number(of.brier), f"{of.brier_low:.3f} to {of.brier_high:.3f}", "")]
    rows.append((f"{part}{join}ece", _number(of.ece), "", ""))
    return [(f"{part}_loss", _number(of.loss), "", ""), *rows] if has_loss and of.loss is not None else rows


def scaling_sentence(evaluation: Mapping[str, SplitEvaluation]) -> str:
    """Explain the scores that begin with `scaled`; empty if there are none.

    Args:
        evaluation: Part of the data -> its evaluation.
    """
    temperatures = (of.calibration.temperature for of in evaluation.values() if of.calibration is not None)
    temperature = next((value for value in temperatures if value != 1), None)
    if temperature is None:
        return ""
    return (
        "Loss, Brier score and ECE are those of the model itself; those that begin with scaled are after temperature "
        f"scaling ({temperature:.3g}), as all probabilities and losses in files are: of predict, and in errors.csv."
    )


def baseline_rows(baselines: BaselineScores) -> list[tuple[str, str]]:
    """Return the validation scores of model and simple baselines after a row of titles; empty if there are none.

    Args:
        baselines: Those of a record.
    """
    if len(baselines.scores) < 2:
        return []
    rows = [(baselines.names[name], _number(value)) for name, value in baselines.scores.items()]
    return [("model", baselines.metric), *rows]


def baselines_in_card(baselines: BaselineScores) -> str:
    """Return the table of the simple baselines of a model card, in Markdown.

    Args:
        baselines: Those of a record.
    """
    if not (rows := baseline_rows(baselines)):
        return ""
    titles, *others = rows
    lines = "".join(f"| {markdown_text(name)} | {value} |\n" for name, value in others)
    return f"\nSimple baselines on the validation data:\n\n| {titles[0]} | {titles[1]} |\n|---|---|\n{lines}"


def _beside(score: IntervalScore | None) -> tuple[str, str]:
    if score is None:
        return "", ""
    baseline = "" if score.baseline is None else _number(score.baseline)
    return f"{score.low:.3f} to {score.high:.3f}", baseline


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def scores_in_card(scores: Scores, evaluation: Mapping[str, SplitEvaluation]) -> str:
    """Return the tables of scores and classes of a model card, in Markdown.

    Args:
        scores: Part of the data -> metric -> value.
        evaluation: Part of the data -> its evaluation; empty = none was made.
    """
    if not evaluation:
        rows = "".join(f"| {markdown_text(name)} | {_number(value)} |\n" for name, value in flat_scores(scores).items())
        return f"| score | value |\n|---|---|\n{rows}"
    text = "| score | value | 95 % interval | most frequent answer |\n|---|---|---|---|\n"
    text += "".join(f"| {markdown_text(row[0])} | {' | '.join(row[1:])} |\n" for row in score_rows(scores, evaluation))
    answers = [f"{part}: {of_part.baseline}" for part, of_part in evaluation.items() if of_part.baseline]
    text += "\nIntervals are over the examples (bootstrap); they do not cover variation over seeds."
    if sentence := scaling_sentence(evaluation):
        text += f" {sentence}"
    if answers:
        text += f" The last column is the score of always answering the same ({markdown_text('; '.join(answers))})."
    text += "\n"
    for of_part in evaluation.values():
        text += "".join(f"\n**Warning:** {markdown_text(warning)}.\n" for warning in of_part.warnings)
    classes = evaluation["validation"].classes if "validation" in evaluation else []
    if classes:
        text += "\n| class | precision | recall | F1 | examples | predicted |\n|---|---|---|---|---|---|\n"
        for row in classes[:_CARD_CLASSES]:
            numbers = (*(f"{score:.3f}" for score in (row.precision, row.recall, row.f1)), row.examples, row.predicted)
            text += f"| {markdown_text(row.label)} | {' | '.join(map(str, numbers))} |\n"
        if len(classes) > _CARD_CLASSES:
            text += f"\n{len(classes) - _CARD_CLASSES} more classes are in `classes.csv`.\n"
    return text
