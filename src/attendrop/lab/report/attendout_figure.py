"""A figure of an AttendOut run: the drop probability of each layer, and the scores of attacker and defender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...utils.files import load_json
from .style import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_run(
    run: Any,
    path: str | Path | None = None,
    log_history: Sequence[Mapping[str, Any]] = (),
    metric: str = "loss",
) -> Figure:
    """Draw the drop probability of each layer on the left and the scores of the two networks on the right.

    Args:
        run: An `AttendOut` after training, its `history`, or the path of a saved `attendout_run.json`.
        path: The image file to write; None = none.
        log_history: The Trainer's `state.log_history`. With it, the development scores of both networks are drawn for
            each epoch; without it, their scores on the reward examples for each round.
        metric: The name of the development score.

    Example:
        ```python
        plot_run("out/attendout_run.json", "attendout.png", trainer.state.log_history, metric="accuracy")
        ```
    """
    from matplotlib.figure import Figure

    if isinstance(run, (str, Path)):
        run = load_json(run)
    rounds = run if isinstance(run, list) else run.history
    if not rounds:
        raise ValueError("the run has no dropout step yet; there is nothing to draw.")
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_probabilities(left, rounds)
    scores = _scores_by_epoch(log_history, metric)
    if scores:
        epochs, attacker, defender = zip(*scores, strict=True)
        right.plot(epochs, attacker, marker="o", label="attacker")
        right.plot(epochs, defender, marker="s", linestyle="--", label="defender")
        right.set(xlabel="epoch", ylabel=metric, title=f"development {metric}", xticks=epochs)
    else:
        steps = [entry["step"] for entry in rounds]
        right.plot(steps, [entry["attacker"] for entry in rounds], label="attacker")
        right.plot(steps, [entry["defender"] for entry in rounds], linestyle="--", label="defender")
        right.set(xlabel="step", ylabel="score on the reward's examples", title="rounds")
    right.legend(fontsize=8)
    return saved(figure, path, dpi=130)


def _draw_probabilities(axes: Any, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Draw one curve for each layer."""
    import matplotlib

    steps = [entry["step"] for entry in rounds]
    curves = list(zip(*(entry["drop_probability"] for entry in rounds), strict=True))
    colors = matplotlib.colormaps["viridis"]
    marker = "." if len(steps) < 30 else None  # without a marker a single round would be invisible
    for layer, curve in enumerate(curves):
        color = colors(layer / max(1, len(curves) - 1))
        axes.plot(steps, curve, color=color, marker=marker, label=f"layer {layer}")
    limits = (0, min(1.0, 1.3 * max(map(max, curves)) + 0.01))
    axes.set(xlabel="step", ylabel="P(drop)", ylim=limits, title="drop probability, mean over valid positions")
    axes.legend(fontsize=7, ncols=2)


def _scores_by_epoch(log_history: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float, float]]:
    """Epoch, score of the attacker and score of the defender, for the epochs that have both."""
    attacker, defender = (
        {entry["epoch"]: entry[key] for entry in log_history if key in entry}
        for key in (f"eval_{metric}", f"eval_defender_{metric}")
    )
    return [(epoch, attacker[epoch], defender[epoch]) for epoch in sorted(attacker.keys() & defender.keys())]
