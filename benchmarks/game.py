"""Reads what AttendOut runs learned (`benchmarks.glue --learned`): signal in the reward, agreement of seeds, pruning.

python -m benchmarks.game learned-rte.json learned-mrpc.json --plot docs/images
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
    """The share of the variance of the rounds' rewards that is not the error of their measurement."""
    rewards = [entry["reward"] for entry in history]
    variance = statistics.pvariance(rewards)
    noise = statistics.mean(entry["reward_error"] ** 2 for entry in history)
    return max(0.0, 1 - noise / variance) if variance > 0 else 0.0


def agreement(runs: list[dict[str, Any]]) -> float:
    """The mean correlation, over pairs of seeds, of the layers' drop probabilities at the end."""
    ends = [run["history"][-1]["drop_probability"] for run in runs]
    return statistics.mean(float(np.corrcoef(a, b)[0, 1]) for a, b in itertools.combinations(ends, 2))


def of_method(runs: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    return sorted((run for run in runs if run["method"] == method), key=lambda run: run["seed"])


def game_table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| task | method | rounds | attacker better | mean reward | signal in the reward "
        "| P(drop) at the end, by layer | agreement of seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for task in dict.fromkeys(run["task"] for run in runs):
        here = [run for run in runs if run["task"] == task and run["history"]]
        for method in dict.fromkeys(run["method"] for run in here):
            found = of_method(here, method)
            rounds = [entry for run in found for entry in run["history"]]
            ahead = statistics.mean(entry["reward"] > 0 for entry in rounds)
            ends = np.mean([run["history"][-1]["drop_probability"] for run in found], axis=0)
            lines.append(
                f"| {task} | `{method}` | {len(found[0]['history'])} | {ahead:.0%} | "
                f"{statistics.mean(entry['reward'] for entry in rounds):+.4f} | "
                f"{statistics.mean(signal_share(run['history']) for run in found):.0%} | "
                f"{' '.join(f'{p:.2f}' for p in ends)} | {agreement(found):+.2f} |"
            )
    return "\n".join(lines)


def pruning_table(runs: list[dict[str, Any]], methods: list[str]) -> str:
    depth = len(runs[0]["order"])
    lines = [
        f"| task | method | {' | '.join(f'k = {k}' for k in range(depth + 1))} |",
        "|---|---|" + "---|" * (depth + 1),
    ]
    for task in dict.fromkeys(run["task"] for run in runs):
        for method in methods:
            found = of_method([run for run in runs if run["task"] == task], method)
            means = [100 * statistics.mean(run["pruned"][k] for run in found) for k in range(depth + 1)]
            lines.append(f"| {task} | `{method}` | {' | '.join(f'{m:.1f}' for m in means)} |")
    return "\n".join(lines)


def plot(runs: list[dict[str, Any]], method: str, path: Path) -> None:
    """P(drop) of each layer over training: a row for each task, a column for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(run["task"] for run in runs))
    columns = max(len(of_method([r for r in runs if r["task"] == task], method)) for task in tasks)
    figure, axes = pyplot.subplots(
        len(tasks), columns, figsize=(3.6 * columns, 2.4 * len(tasks)), layout="constrained", squeeze=False, sharey=True
    )
    colours = pyplot.get_cmap("viridis")
    for row, task in enumerate(tasks):
        for column, run in enumerate(of_method([r for r in runs if r["task"] == task], method)):
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
    parser.add_argument("--plot", type=Path, help="a folder for the curves as PNG")
    options = parser.parse_args(arguments)
    runs = [run for path in options.files for run in json.loads(path.read_text(encoding="utf-8"))]
    print(game_table(runs), end="\n\n")
    prunes = [method for method in dict.fromkeys(run["method"] for run in runs) if "mode=prune" in method]
    print(pruning_table(runs, ["plain", *prunes]))
    if options.plot:
        options.plot.mkdir(parents=True, exist_ok=True)
        games = dict.fromkeys(run["method"] for run in runs if run["history"])
        for number, method in enumerate(games):
            path = options.plot / f"attendout-{number}.png"
            plot(runs, method, path)
            print(f"{path}: {method}")


if __name__ == "__main__":
    main()
