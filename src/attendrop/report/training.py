"""Loss and scores over a training run, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def plot_history(history: Sequence[Mapping[str, Any]], path: str | Path, metric: str) -> Path:
    """Draws the Trainer's `log_history`: losses on the left, the development score `metric` on the right."""
    plot_histories({"": history}, path, metric)
    return Path(path)


def plot_histories(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, metric: str) -> Path:
    """The same for several runs, each with its name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for number, (name, history) in enumerate(histories.items()):
        color = f"C{number}"
        train = _series(history, "loss")
        if train[0]:
            left.plot(*train, color=color, alpha=0.5, linewidth=1, label=f"{name} training".strip())
        dev = _series(history, "eval_loss")
        left.plot(*dev, color=color, marker="o", markersize=4, label=f"{name} development".strip())
        key = metric if metric.startswith("eval_") else f"eval_{metric}"
        right.plot(*_series(history, key), color=color, marker="o", markersize=4, label=name or metric)
    left.set(xlabel="epoch", ylabel="loss", title="Loss")
    right.set(xlabel="epoch", ylabel=metric.removeprefix("eval_"), title="Development score")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return Path(path)


def _series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    points: dict[float, float] = {}
    for entry in history:
        if key in entry and "epoch" in entry:
            points.setdefault(float(entry["epoch"]), float(entry[key]))  # the last evaluation repeats the best model's
    return list(points), list(points.values())
