"""Figures of loss and scores during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def plot_history(history: Sequence[Mapping[str, Any]], path: str | Path, metric: str) -> Path:
    """Draw the losses of one run on the left and its development score on the right.

    Args:
        history: The Trainer's `state.log_history`.
        path: The image file to write.
        metric: The name of the score, with or without `eval_`.

    Example:
        ```python
        plot_history(trainer.state.log_history, "curves.png", "accuracy")
        ```
    """
    return plot_histories({"": history}, path, metric)


def plot_histories(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, metric: str) -> Path:
    """Draw several runs in one figure, in the same way as `plot_history`.

    Args:
        histories: Name of a run -> its `log_history`.
        path: The image file to write.
        metric: The name of the score, with or without `eval_`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    metric = metric.removeprefix("eval_")
    for number, (name, history) in enumerate(histories.items()):
        color = f"C{number}"
        training = _series(history, "loss")
        if training[0]:
            left.plot(*training, color=color, alpha=0.5, linewidth=1, label=f"{name} training".strip())
        development = _series(history, "eval_loss")
        left.plot(*development, color=color, marker="o", markersize=4, label=f"{name} development".strip())
        right.plot(*_series(history, f"eval_{metric}"), color=color, marker="o", markersize=4, label=name or metric)
    left.set(xlabel="epoch", ylabel="loss", title="Loss")
    right.set(xlabel="epoch", ylabel=metric, title="Development score")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    return Path(path)


def _series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """The epochs and values of one key."""
    points: dict[float, float] = {}
    for entry in history:
        if key in entry and "epoch" in entry:
            # The first value of an epoch counts: at the end of a run the best model is evaluated again.
            points.setdefault(float(entry["epoch"]), float(entry[key]))
    return list(points), list(points.values())
