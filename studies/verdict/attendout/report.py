"""The tables of docs/verdict-attendout.md. Every number comes from docs/results/verdict/attendout-minilm.csv."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from statistics import mean, median
from typing import Any

import numpy as np

from attendrop.lab.statistics.paired import Pairs, make_pairs, t_interval
from attendrop.lab.statistics.verdict import Comparison, judge_family
from attendrop.lab.tasks.outcomes import SCORE
from docs.tables.markdown import NOT_YET, table

from ..judge import question
from ..lines import RECORDS, read
from ..outcomes import OUTCOMES as OF_STUDY
from ..show import amount, with_interval
from ..show import judged as shown
from .fits import Fit, fit_rewards, fit_search
from .plan import (
    CONFIRMATION,
    CONTROLS,
    DEVELOPMENT,
    GAMES,
    LAYERS,
    NO_MASKS,
    OF_TASK,
    PLAIN,
    Row,
    finalists,
    of_stage,
    rates_of,
)

FILE = "attendout-minilm.csv"
OUTCOMES = {
    "accuracy": replace(SCORE, label="accuracy"),
    "loss": OF_STUDY["loss"],
    "scaled_loss": OF_STUDY["scaled_loss"],
}
NAMES = {name: outcome.label for name, outcome in OUTCOMES.items()}
Values = dict[str, dict[int, float | None]]  # method -> seed -> value


@cache
def lines() -> tuple[Row, ...]:
    """The lines of all runs; none before the first run."""
    return tuple(read(RECORDS / FILE))


# ---- numbers ----------------------------------------------------------------------------------------------------


def values(rows: Iterable[Row], outcome: str) -> Values:
    """Method -> seed -> outcome; None for a run that failed."""
    by_method: Values = {}
    for row in rows:
        value = float(row[outcome]) if row["status"] == "finished" else None
        by_method.setdefault(row["method"], {})[int(row["seed"])] = value
    return by_method


def comparisons(
    rows: list[Row], outcome: str, baseline: str = PLAIN, methods: Iterable[str] | None = None
) -> dict[str, Comparison]:
    """Methods against another on one task, corrected for the number of methods (Holm).

    Args:
        rows: The lines of the task.
        outcome: One of `OUTCOMES`.
        baseline: The method that they are compared with.
        methods: The methods; None = all others.
    """
    by_method = values(rows, outcome)
    others = by_method.pop(baseline, {})
    own: Mapping[str, Any] = {m: of for m, of in by_method.items() if methods is None or m in methods}
    asked = question(OUTCOMES[outcome], baseline)
    return judge_family(own, others, asked) if others and own else {}  # type: ignore[arg-type]


def shown_name(rows: list[Row], method: str) -> str:
    """The name of a method; fixed rates are shown with the reason why they were chosen."""
    if not method.startswith("rates "):
        return method
    roles = [role for role, contender in finalists(rows).items() if contender.name == method]
    listed = " ".join(f"{rate:g}" for rate in rates_of(method))
    return f"{', '.join(role.replace(OF_TASK, 'best of ') for role in roles) or 'rates'}: {listed}"


def _rows_of(stage: str, task: str) -> list[Row]:
    return [row for row in of_stage(list(lines()), stage) if row["task"] == task]


# ---- is there a pattern? ----------------------------------------------------------------------------------------


def recipes() -> str:
    """Plain fine-tuning with each learning rate and number of epochs."""
    rows = of_stage(list(lines()), "recipe")
    keys = sorted(
        {(row["learning_rate"], row["epochs"]) for row in rows}, key=lambda key: (float(key[1]), float(key[0]))
    )
    if not keys:
        return NOT_YET
    table_rows = []
    for rate, epochs in keys:
        own = [r for r in rows if (r["learning_rate"], r["epochs"], r["status"]) == (rate, epochs, "finished")]
        means = [mean(float(row[name]) for row in own) for name in ("dev_accuracy", "dev_loss", "dev_scaled_loss")]
        table_rows.append(
            [f"{float(rate):g}", f"{float(epochs):g}", f"{100 * means[0]:.1f}", *(f"{m:.3f}" for m in means[1:])]
        )
    return table(["learning rate", "epochs", "accuracy", "log loss", "log loss, scaled"], table_rows)


def slopes() -> str:
    """What a higher rate of one layer does to the trained model, all other rates being equal."""
    lines = []
    for task in DEVELOPMENT:
        rows = _rows_of("search", task)
        for outcome, name in NAMES.items():
            fit = fit_search(rows, f"dev_{outcome}")
            if fit is not None:
                lines.append([task, name, *_slopes_of(fit, outcome, 0.1)])
    titles = ["task", "outcome", *(f"layer {layer}" for layer in range(LAYERS)), "explained"]
    return table(titles, lines) if lines else NOT_YET


def _slopes_of(fit: Fit, outcome: str, unit: float) -> list[str]:
    cells = [
        with_interval(outcome, unit * slope, (unit * (slope - error), unit * (slope + error)))
        for slope, error in zip(fit.slopes, fit.half_widths, strict=True)
    ]
    return [*cells, f"{fit.explained:.0%}"]


def best_of_search() -> str:
    """The five best fixed rates and all uniform ones, on the reward set."""
    rows = of_stage(list(lines()), "search")
    if not rows:
        return NOT_YET
    outcomes = ("dev_accuracy", "dev_loss", "dev_scaled_loss")
    by_name: dict[str, list[float]] = {}
    for name in dict.fromkeys(row["method"] for row in rows if row["method"] != PLAIN):
        pairs = [np.concatenate([_pairs(rows, task, name, o).differences for task in DEVELOPMENT]) for o in outcomes]
        if all(len(of) for of in pairs):
            by_name[name] = [float(of.mean()) for of in pairs]
    order = sorted(by_name, key=lambda name: by_name[name][1])
    shown = dict.fromkeys([*order[:5], *(name for name in order if len(set(rates_of(name))) == 1)])
    return table(
        ["rates of layers 0 to 5", *NAMES.values()],
        [
            [" ".join(f"{r:g}" for r in rates_of(name)), *map(amount, outcomes, by_name[name])]
            for name in sorted(shown, key=order.index)
        ],
    )


def _pairs(rows: Iterable[Row], task: str, method: str, outcome: str) -> Pairs:
    by_method = values((row for row in rows if row["task"] == task), outcome)
    return make_pairs(by_method.get(method, {}), by_method.get(PLAIN, {}))  # type: ignore[arg-type]


# ---- what is judged ---------------------------------------------------------------------------------------------


def judged(stage: str, tasks: Iterable[str]) -> str:
    """Every contender against plain fine-tuning, on the test examples."""
    lines_of_table = []
    for task in tasks:
        rows = _rows_of(stage, task)
        of = {outcome: comparisons(rows, outcome) for outcome in OUTCOMES}
        for method in of["accuracy"]:
            cells = [shown(outcome, of[outcome][method]) for outcome in OUTCOMES]
            lines_of_table.append([task, shown_name(list(lines()), method), str(of["accuracy"][method].pairs), *cells])
    return table(["task", "method", "pairs", *NAMES.values()], lines_of_table) if lines_of_table else NOT_YET


def learned() -> str:
    """The games against their controls: a generator that never learns, and no masks."""
    learning = [game for game in GAMES if game not in CONTROLS]
    lines_of_table = []
    for stage, task, control in (
        (stage, task, control)
        for stage, tasks in (("judge", DEVELOPMENT), ("confirm", CONFIRMATION))
        for control in CONTROLS
        for task in tasks
    ):
        of = {o: comparisons(_rows_of(stage, task), o, control, learning) for o in OUTCOMES}
        lines_of_table += [[task, game, control, *(shown(o, of[o][game]) for o in OUTCOMES)] for game in of["accuracy"]]
    return table(["task", "game", "against", *NAMES.values()], lines_of_table) if lines_of_table else NOT_YET


def selection() -> str:
    """What the games gain on the reward set, which chooses the winners, and on test examples."""
    lines_of_table = []
    for stage, tasks in (("judge", DEVELOPMENT), ("confirm", CONFIRMATION)):
        for task in tasks:
            rows = _rows_of(stage, task)
            for game in GAMES:
                cells = [_gap(rows, task, game, outcome) for outcome in ("accuracy", "loss")]
                if all(cells):
                    lines_of_table.append([task, game, *(text for cell in cells for text in cell)])
    titles = ["accuracy, reward set", "test", "difference", "log loss, reward set", "test", "difference"]
    return table(["task", "game", *titles], lines_of_table) if lines_of_table else NOT_YET


def _gap(rows: list[Row], task: str, game: str, outcome: str) -> list[str]:
    dev, test = (_pairs(rows, task, game, name).differences for name in (f"dev_{outcome}", outcome))
    if len(dev) < 2 or len(dev) != len(test):
        return []
    gap = dev - test
    return [
        amount(outcome, dev.mean()), amount(outcome, test.mean()), with_interval(outcome, gap.mean(), t_interval(gap)),
    ]  # fmt: skip


# ---- what happens in the game -----------------------------------------------------------------------------------


def rounds_of(rows: Iterable[Row], game: str) -> list[dict[str, Any]]:
    """What each finished run of a game logged."""
    return [json.loads(row["rounds"]) for row in rows if row["method"] == game and row["rounds"]]


def played() -> str:
    """The rounds of each game: who won, what was rewarded, and where the drop rates went."""
    lines_of_table = []
    for task in DEVELOPMENT:
        for game in GAMES:
            runs = rounds_of(_rows_of("judge", task), game)
            if runs:
                lines_of_table.append([task, game, *_played(runs, game)])
    titles = ["rounds", "attacker better", "mean reward", "signal in the reward", "P(drop) at the end", "agreement"]
    return table(["task", "game", *titles], lines_of_table) if lines_of_table else NOT_YET


def _played(runs: list[dict[str, Any]], game: str) -> list[str]:
    rewards = np.array([run["reward"] for run in runs])
    errors = np.array([run["reward_error"] for run in runs])
    signal = max(0.0, 1 - float((errors**2).mean()) / float(rewards.var())) if rewards.var() > 0 else 0.0
    ends = np.array([run["drop_probability"][-1] for run in runs])
    moved = ends - np.array([run["drop_probability"][0] for run in runs])
    per_run = rewards.mean(1)
    return [
        str(rewards.shape[1]),
        f"{(rewards > 0).mean():.0%}",
        with_interval("reward", float(per_run.mean()), t_interval(per_run)) if len(per_run) > 1 else "",
        f"{signal:.0%}",
        " ".join(f"{p:.2f}" for p in ends.mean(0)) if game != NO_MASKS else "no masks",
        f"{agreement(moved):+.2f}".replace("-", "−") if game not in CONTROLS and len(runs) > 1 else "",
    ]


def agreement(moved: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The mean correlation, over pairs of seeds, of how the rates of the layers moved: 1 if all seeds learn the same.

    Args:
        moved: Change of each layer's rate, [seeds, layers].
    """
    centred = moved - moved.mean(1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    directions = centred[length[:, 0] > 0] / length[length[:, 0] > 0]  # a seed whose rates all moved alike has none
    return float((directions @ directions.T)[np.triu_indices(len(directions), 1)].mean())


def reward_slopes() -> str:
    """What a higher rate of one layer does to the reward of a round, from the shifts of `explore`."""
    game = next(name for name, text in GAMES.items() if "explore" in text)
    lines_of_table = []
    for task in DEVELOPMENT:
        runs = rounds_of(_rows_of("judge", task), game)
        count = len(runs[0]["reward"]) if runs else 0
        parts = {"all": range(count), "first half": range(count // 2), "second half": range(count // 2, count)}
        for name, part in parts.items():
            fit = fit_rewards(runs, part) if runs else None
            if fit is not None:
                lines_of_table.append([task, name, *_slopes_of(fit, "reward", 1.0), _rounds_needed(fit)])
    titles = ["task", "rounds", *(f"layer {layer}" for layer in range(LAYERS)), "explained", "rounds for the largest"]
    return table(titles, lines_of_table) if lines_of_table else NOT_YET


def _rounds_needed(fit: Fit) -> str:
    """The rounds after which the largest slope is as large as two standard errors."""
    largest = float(np.abs(fit.slopes).max())
    return f"{(2 * fit.spread / largest) ** 2:.0f}" if largest else ""


def cost() -> str:
    """Training time beside that of plain fine-tuning, while many runs shared the GPU."""
    lines_of_table = []
    for task in DEVELOPMENT:
        rows = [row for row in _rows_of("judge", task) if row["status"] == "finished"]
        times = {
            name: median(float(r["seconds"]) for r in rows if r["method"] == name) for name in values(rows, "loss")
        }
        if PLAIN in times:
            lines_of_table.append(
                [task, *(f"{times[game] / times[PLAIN]:.1f} ×" if game in times else "" for game in GAMES)]
            )
    return table(["task", *GAMES], lines_of_table) if lines_of_table else NOT_YET


def counted() -> str:
    """How many runs there are, and how many failed."""
    rows = lines()
    if not rows:
        return NOT_YET
    failed = sum(row["status"] != "finished" for row in rows)
    seconds = sum(float(row["seconds"] or 0) for row in rows)
    stages = dict.fromkeys(row["stage"] for row in rows)
    parts = ", ".join(f"{sum(row['stage'] == stage for row in rows)} in `{stage}`" for stage in stages)
    return f"{len(rows)} runs ({parts}), of which {failed} failed; {seconds / 60:.0f} minutes of training in all.\n"


TABLES: dict[str, Callable[[], str]] = {
    "attendout-runs": counted,
    "attendout-recipes": recipes,
    "attendout-slopes": slopes,
    "attendout-search": best_of_search,
    "attendout-judged": lambda: judged("judge", DEVELOPMENT),
    "attendout-learned": learned,
    "attendout-confirmed": lambda: judged("confirm", CONFIRMATION),
    "attendout-selection": selection,
    "attendout-played": played,
    "attendout-rewards": reward_slopes,
    "attendout-cost": cost,
}
