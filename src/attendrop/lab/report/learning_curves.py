"""Figures of losses and scores during training, of one run or of several runs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .style import BLACK, GREEN, SKY, line_style, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 10  # a training loss is averaged over a tenth of its values, which leaves the shape of the curve


@dataclass(frozen=True)
class Marks:
    """Marks in the figure of one run.

    Attributes:
        kept: The epoch whose model was kept; None = no mark.
        method_epochs: The epochs, from 0, in which a method with cross-tuning acted.
        baseline: The score of always giving the most frequent answer; None = no line.
    """

    kept: float | None = None
    method_epochs: Sequence[int] = ()
    baseline: float | None = None


def plot_history(
    history: Sequence[Mapping[str, Any]], path: str | Path | None, metric: str, marks: Marks | None = None
) -> Figure:
    """Draw the training loss, the development loss and the development score of one run.

    Args:
        history: The Trainer's `state.log_history`.
        path: The image file to write; None = none.
        metric: The name of the score, with or without `eval_`.
        marks: Further marks in the figure; None = no marks.

    Example:
        ```python
        plot_history(trainer.state.log_history, "curves.png", "accuracy")
        ```
    """
    return _plot({"": history}, path, metric, None, marks or Marks())


def plot_histories(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | Path | None,
    metric: str,
    smoothing: int | None = None,
) -> Figure:
    """Draw several runs in one figure: training loss, development loss and development score, one line for each run.

    The training loss is smoothed by a moving average, with the logged values as a thin line behind it. Where a method
    trained a second network (the defender of AttendOut), the score of that network is a dashed line.

    Args:
        histories: Name of a run -> its `log_history`.
        path: The image file to write; None = none.
        metric: The name of the score, with or without `eval_`.
        smoothing: The number of logged losses that are averaged; None = a tenth of them. 1 = no smoothing.

    Example:
        ```python
        plot_histories({"plain": plain.state.log_history, "AD-DROP": addrop.state.log_history}, "runs.png", "accuracy")
        ```
    """
    return _plot(histories, path, metric, smoothing, Marks())


def _plot(
    histories: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path | None, metric: str, smoothing: int | None,
    marks: Marks,
) -> Figure:  # fmt: skip
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    training, development, score = figure.subplots(1, 3, sharex=True)
    metric = metric.removeprefix("eval_")
    for number, (name, history) in enumerate(histories.items()):
        style = line_style(number)
        _draw_training(training, _series(history, "loss"), style["color"], smoothing)
        development.plot(*_series(history, "eval_loss"), **style)
        score.plot(*_series(history, f"eval_{metric}"), **style, label=name or None)
        defender = _series(history, f"eval_defender_{metric}")
        if defender[0]:
            score.plot(
                *defender, **{**style, "markerfacecolor": "white"}, linestyle="--", label=f"{name} defender".strip()
            )
    training.set(xlabel="epoch", ylabel="loss", title="Training loss")
    development.set(xlabel="epoch", ylabel="loss", title="Development loss")
    score.set(xlabel="epoch", ylabel=metric, title="Development score")
    for axes in (training, development, score):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    _draw_marks((training, development, score), marks)
    _add_legend(figure, score)
    return saved(figure, path)


def _draw_marks(panels: Sequence[Any], marks: Marks) -> None:
    """Mark the kept epoch and the epochs of the method in all panels, and the baseline in the last, labelled one."""
    for axes in panels:
        is_last = axes is panels[-1]
        for number, epoch in enumerate(marks.method_epochs):
            label = "epochs of the method" if is_last and not number else None
            axes.axvspan(epoch, epoch + 1, color=SKY, alpha=0.2, linewidth=0, label=label)
        if marks.kept is not None:
            label = f"kept: epoch {marks.kept:.4g}" if is_last else None
            axes.axvline(marks.kept, color=GREEN, linestyle=":", linewidth=1.5, label=label)
    if marks.baseline is not None:
        panels[-1].axhline(
            marks.baseline, color=BLACK, linestyle="--", linewidth=1, label="always the most frequent answer"
        )


def _draw_training(axes: Any, series: tuple[list[float], list[float]], color: str, smoothing: int | None) -> None:
    epochs, losses = series
    window = max(1, len(losses) // _POINTS) if smoothing is None else smoothing
    if window > 1:
        axes.plot(epochs, losses, color=color, alpha=0.25, linewidth=0.8)
    axes.plot(epochs, smoothed(losses, window), color=color)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Return the moving average of `values`, centred, over fewer values at both ends.

    Args:
        values: The values, in order.
        window: The number of values that are averaged; an even number counts one more.
    """
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _add_legend(figure: Any, axes: Any) -> None:
    """One legend for all panels, above them. A single run without a name needs none."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6), frameon=False, fontsize=9)


def _series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Return the epochs and values of one key."""
    points: dict[float, float] = {}
    for entry in history:
        if key in entry and "epoch" in entry:
            # The first value of an epoch counts: at the end of a run the best model is evaluated again.
            points.setdefault(float(entry["epoch"]), float(entry[key]))
    return list(points), list(points.values())
