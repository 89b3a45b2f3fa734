"""Draws an AttendOut run: the drop probability of each layer over training, and the scores of the two networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_run(run: Any, path: str | Path, log_history: Sequence[dict[str, Any]] = (), metric: str = "loss") -> None:
    """`run` is an `AttendOut` after training, its history, or the path of a saved `attendout_run.json`.

    `log_history` is the Trainer's: with it the development score of attacker and defender is drawn for each epoch;
    without it, their reward scores for each round.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if isinstance(run, (str, Path)):
        run = json.loads(Path(run).read_text(encoding="utf-8"))
    history = run if isinstance(run, list) else run.history
    if not history:
        raise ValueError("the run has no dropout step yet; there is nothing to draw.")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    steps = [entry["step"] for entry in history]
    layers = len(history[0]["drop_probability"])
    colours = pyplot.get_cmap("viridis")
    marker = "." if len(steps) < 30 else None  # a single round is a point
    for layer in range(layers):
        curve = [entry["drop_probability"][layer] for entry in history]
        colour = colours(layer / max(1, layers - 1))
        left.plot(steps, curve, color=colour, marker=marker, label=f"layer {layer}")
    highest = max(max(entry["drop_probability"]) for entry in history)
    limits = (0, min(1.0, 1.3 * highest + 0.01))
    left.set(xlabel="step", ylabel="P(drop)", ylim=limits, title="drop probability, mean over valid positions")
    left.legend(fontsize=7, ncols=2)
    pairs = _by_epoch(log_history, metric)
    if pairs:
        epochs = [epoch for epoch, _, _ in pairs]
        right.plot(epochs, [a for _, a, _ in pairs], marker="o", label="attacker")
        right.plot(epochs, [d for _, _, d in pairs], marker="s", linestyle="--", label="defender")
        right.set(xlabel="epoch", ylabel=metric, title=f"development {metric}", xticks=epochs)
    else:
        right.plot(steps, [entry["attacker"] for entry in history], label="attacker")
        right.plot(steps, [entry["defender"] for entry in history], linestyle="--", label="defender")
        right.set(xlabel="step", ylabel="score on the reward's examples", title="rounds")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _by_epoch(log_history: Sequence[dict[str, Any]], metric: str) -> list[tuple[float, float, float]]:
    attacker = {e["epoch"]: e[f"eval_{metric}"] for e in log_history if f"eval_{metric}" in e}
    defender = {e["epoch"]: e[f"eval_defender_{metric}"] for e in log_history if f"eval_defender_{metric}" in e}
    return [(epoch, attacker[epoch], defender[epoch]) for epoch in sorted(attacker.keys() & defender.keys())]
