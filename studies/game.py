"""Analyses what AttendOut learned (files of `studies.glue --learned`): rewards, agreement of seeds, pruning.

python -m studies.game learned-rte.json learned-mrpc.json --plot docs/images
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np


def signal_share(history: list[dict[str, Any]]) -> float:
    """The share of the variance of the rewards that is not measurement error."""
    rewards = [entry["reward"] for entry in history]
    variance = statistics.pvariance(rewards)
    noise = statistics.mean(entry["reward_error"] ** 2 for entry in history)
    return max(0.0, 1 - noise / variance) if variance > 0 else 0.0


def agreement(runs: list[dict[str, Any]]) -> float:
    """The correlation of the final drop probabilities of the layers, as the mean over pairs of seeds."""
    ends = [run["history"][-1]["drop_probability"] for run in runs]
    return statistics.mean(float(np.corrcoef(a, b)[0, 1]) for a, b in itertools.combinations(ends, 2))


def select(runs: list[dict[str, Any]], task: str, method: str) -> list[dict[str, Any]]:
    """The runs of a task and a method, sorted by seed."""
    return sorted((run for run in runs if run["task"] == task and run["method"] == method), key=lambda run: run["seed"])


def tasks_of(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["task"] for run in runs))


def game_table(runs: list[dict[str, Any]]) -> str:
    """The rounds between attacker and defender, one row for each task and method."""
    lines = [
        "| task | method | rounds | attacker better | mean reward | signal in the reward "
        "| P(drop) at the end, by layer | agreement of seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    played = [run for run in runs if run["history"]]
    for task, method in dict.fromkeys((run["task"], run["method"]) for run in played):
        seeds = select(played, task, method)
        rounds = [entry for run in seeds for entry in run["history"]]
        attacker_better = statistics.mean(entry["reward"] > 0 for entry in rounds)
        ends = np.mean([run["history"][-1]["drop_probability"] for run in seeds], axis=0)
        lines.append(
            f"| {task} | `{method}` | {len(seeds[0]['history'])} | {attacker_better:.0%} | "
            f"{statistics.mean(entry['reward'] for entry in rounds):+.4f} | "
            f"{statistics.mean(signal_share(run['history']) for run in seeds):.0%} | "
            f"{' '.join(f'{p:.2f}' for p in ends)} | {agreement(seeds):+.2f} |"
        )
    return "\n".join(lines)


def pruning_table(runs: list[dict[str, Any]], methods: list[str]) -> str:
    """The score after pruning k layers, as the mean over seeds, in percent."""
    depth = len(runs[0]["order"])
    lines = [
        f"| task | method | {' | '.join(f'k = {k}' for k in range(depth + 1))} |",
        "|---|---|" + "---|" * (depth + 1),
    ]
    for task, method in itertools.product(tasks_of(runs), methods):
        seeds = select(runs, task, method)
        means = [100 * statistics.mean(run["pruned"][k] for run in seeds) for k in range(depth + 1)]
        lines.append(f"| {task} | `{method}` | {' | '.join(f'{m:.1f}' for m in means)} |")
    return "\n".join(lines)


def plot(runs: list[dict[str, Any]], method: str, path: Path) -> None:
    """Draws P(drop) of each layer over training: a row for each task, a column for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = tasks_of(runs)
    columns = max(len(select(runs, task, method)) for task in tasks)
    figure, axes = pyplot.subplots(
        len(tasks), columns, figsize=(3.6 * columns, 2.4 * len(tasks)), layout="constrained", squeeze=False, sharey=True
    )
    colours = pyplot.get_cmap("viridis")
    for row, task in enumerate(tasks):
        for column, run in enumerate(select(runs, task, method)):
            axis = axes[row][column]
            steps = [entry["step"] for entry in run["history"]]
            layers = len(run["history"][0]["drop_probability"])
            for layer in range(layers):
                curve = [entry["drop_probability"][layer] for entry in run["history"]]
                axis.plot(steps, curve, color=colours(layer / (layers - 1)), label=f"layer {layer}")
            axis.set_title(f"{task}, seed {run['seed']}", fontsize=9)
            if row == len(tasks) - 1:
                axis.set_xlabel("step", fontsize=8)
            if column == 0:
                axis.set_ylabel("P(drop)", fontsize=8)
    axes[0][-1].legend(fontsize=6)
    figure.suptitle(method, fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, help="folder for the curves, as PNG files")
    options = parser.parse_args(arguments)
    runs = [run for path in options.files for run in json.loads(path.read_text(encoding="utf-8"))]
    print(game_table(runs), end="\n\n")
    pruning = [method for method in dict.fromkeys(run["method"] for run in runs) if "mode=prune" in method]
    print(pruning_table(runs, ["plain", *pruning]))
    if options.plot:
        options.plot.mkdir(parents=True, exist_ok=True)
        played = dict.fromkeys(run["method"] for run in runs if run["history"])
        for number, method in enumerate(played):
            path = options.plot / f"attendout-{number}.png"
            plot(runs, method, path)
            print(f"{path}: {method}")


if __name__ == "__main__":
    main()
