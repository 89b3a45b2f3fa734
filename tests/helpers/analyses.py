"""Analyses of studies that never ran, with every part that a report can show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attendrop.lab.records import TuningResult
from attendrop.lab.report.analysis import (
    Agreement,
    Analysis,
    Cell,
    Curves,
    Disagreement,
    Ensemble,
    Failure,
    Heatmap,
    Method,
    MethodSummary,
    Result,
    Run,
    Series,
)
from attendrop.lab.statistics.verdict import Comparison, Verdict

METHODS = {"plain": "plain", "addrop:p=0.3,q=0.3": "AD-DROP", "rdrop:weight=1": "R-Drop", "attendout": "AttendOut"}
OFFSETS = {"plain": 0.0, "addrop:p=0.3,q=0.3": 0.018, "rdrop:weight=1": 0.004, "attendout": -0.02}
VERDICTS: dict[str, Verdict] = {"addrop:p=0.3,q=0.3": "helps", "rdrop:weight=1": "undecided", "attendout": "hurts"}
COSTS = {"plain": 1.0, "addrop:p=0.3,q=0.3": 1.31, "rdrop:weight=1": 1.87, "attendout": 2.95}
SENTENCES = {
    "helps": "{} helps: compared with plain, it raises the accuracy by 0.018 (95 % interval 0.009 to 0.027; 10 pairs).",
    "hurts": "{} hurts: compared with plain, the whole interval of the difference is on the wrong side of zero.",
    "undecided": "{} is undecided: zero and differences that matter are possible; about 14 more seeds would settle it.",
    "no difference": "{} makes no difference that matters: the whole interval lies within ±0.01.",
    "too few seeds": "No verdict on {}: with fewer than 5 the test cannot tell a difference from chance.",
}
TOKENS = ["[CLS]", "the", "film", "is", "not", "bad", "at", "all", ",", "it", "is", "fun", "[SEP]"]


def make_analysis(
    seeds: int = 10,
    tasks: tuple[str, ...] = ("glue/rte", "glue/mrpc"),
    sizes: tuple[str, ...] = ("fraction=0.1", "all"),
    methods: tuple[str, ...] = tuple(METHODS),
    explorer: bool = True,
    protocol: str = "honest",
    layers: int = 6,
    heads: int = 12,
    examples: int = 2,
) -> Analysis:
    """An analysis as `attendrop.lab.studies.analysis.analyse` returns it.

    Args:
        seeds: the number of seeds; below 5 there are no verdicts.
        tasks: the names of the tasks.
        sizes: the amounts of training data.
        methods: keys of `METHODS`, the baseline first.
        explorer: whether there are examples for the attention explorer.
        protocol: "honest" or "paper".
        layers: layers of the explorer's model.
        heads: heads of each layer.
        examples: examples of the explorer.
    """
    draws = np.random.default_rng(0)
    cells: list[Cell] = []
    runs: list[Run] = []
    for task in tasks:
        for size in sizes:
            for method in methods:
                cell = _cell(draws, method, task, size, seeds, methods[0])
                cells.append(cell)
                runs += _runs(cell, seeds)
    failure = Failure(methods[-1], "training diverged at step 120", task=tasks[0], seed=3)
    runs[-1] = replace(runs[-1], status="failed", scores={}, error=failure.message)
    return Analysis(
        title=f"Four regularisers on {' and '.join(tasks)}", created="2026-11-15T22:10:00Z",
        command="attendrop compare --model roberta-base --task glue/rte --method plain --method addrop --seeds 10",
        protocol=protocol, baseline=methods[0],
        delta={"score": 0.01, "loss": 0.02, "ece": 0.01, "brier": 0.01, "cost": 0.05},
        model="roberta-base", device="CPU", metric="accuracy",
        versions={"attendrop": "0.1.0", "torch": "2.11.0", "transformers": "5.17.0"},
        methods=[
            Method(name, METHODS[name], name == methods[0], seeds,
                   settings={"learning_rate": 2e-05, "num_train_epochs": 6, "method": name}) for name in methods
        ],
        cells=cells, ensembles=[_ensemble(cell, seeds) for cell in cells],
        summary=_summary(methods, seeds) if len(tasks) > 1 else [], runs=runs,
        method_metrics=_method_metrics(draws, methods), heatmaps=_heatmaps(draws) if seeds > 4 else [],
        tuning=_tuning(methods) if seeds > 4 else None, agreement=_agreement(draws, methods, tasks, sizes),
        disagreements=_disagreements(methods, tasks), failures=[failure],
        explorer={"examples": [_example(draws, layers, heads) for _ in range(examples)]} if explorer else None,
        notes=["The learning rate is that of the preset; it was not searched for."],
    )  # fmt: skip


def _cell(draws: Any, method: str, task: str, size: str, seeds: int, baseline: str) -> Cell:
    level = (0.62 if task.endswith("rte") else 0.83) + (0.09 if size == "all" else 0.0) + OFFSETS[method]
    common = np.random.default_rng(len(task) + len(size)).normal(0, 0.02, seeds)  # what the methods share in a seed
    scores = level + common + draws.normal(0, 0.006, seeds)
    values = {
        "score": scores, "loss": 1.3 - scores, "ece": 0.3 - 0.25 * scores, "brier": 0.9 - scores,
        "cost": COSTS[method] * draws.normal(1, 0.02, seeds),
    }  # fmt: skip
    outcomes = {
        name: Result(
            {str(seed): float(value) for seed, value in enumerate(numbers)},
            float(numbers.mean()),
            (float(numbers.mean() - numbers.std()), float(numbers.mean() + numbers.std())),
            None if method == baseline else _comparison(method, name, seeds),
        )
        for name, numbers in values.items()
    }
    return Cell(method, task, size, "validation", outcomes, examples=277, curves=_curves(level))


def _ensemble(cell: Cell, seeds: int) -> Ensemble:
    mean = cell.outcomes["score"].mean
    assert mean is not None
    return Ensemble(
        cell.method, cell.task, cell.size, cell.part, seeds,
        {"score": mean + 0.012, "loss": 0.42, "ece": 0.05, "brier": 0.2}, gain=0.012, mean=mean,
        interval=None if seeds < 5 else (0.004, 0.02), verdict="too few seeds" if seeds < 5 else "helps",
        sentence=f"Ensemble of the {seeds} seeds of {cell.method}: accuracy {mean + 0.012:.4f}.",
    )  # fmt: skip


def _comparison(method: str, outcome: str, seeds: int) -> Comparison:
    verdict: Verdict = VERDICTS[method] if outcome == "score" else "hurts" if outcome == "cost" else "no difference"
    sign = {"score": 1, "cost": 0}.get(outcome, -1)
    difference = sign * OFFSETS[method] or COSTS[method] - 1
    half = {"helps": 0.009, "hurts": 0.008}.get(verdict, 0.013)
    if seeds < 5:
        verdict, half = "too few seeds", 0.05
    return Comparison(
        difference=difference, interval=(difference - half, difference + half), p=0.004, p_adjusted=0.012,
        p_sign_flip=None, p_equivalence=None, probability_of_improvement=0.87, probability_interval=None,
        verdict=verdict, pairs=seeds, failed=0, unpaired=0, sentence=SENTENCES[verdict].format(METHODS[method]),
        minimum_detectable_effect=0.011, seeds_needed=14 if verdict == "undecided" else None,
    )  # fmt: skip


def _summary(methods: tuple[str, ...], seeds: int) -> list[MethodSummary]:
    rows = []
    for method in methods[1:]:
        for outcome in ("score", "loss", "ece", "brier", "cost"):
            of = _comparison(method, outcome, seeds)
            figures = (of.difference, of.interval, of.p, None, of.verdict, of.sentence)
            rows.append(MethodSummary(2, 0, *figures, method=method, outcome=outcome))
    return rows


def _curves(level: float) -> Curves:
    epochs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    rise = [1 - 0.5**epoch for epoch in epochs]
    mean: dict[str, Any] = {
        "accuracy": [0.5 + (level - 0.5) * share for share in rise],
        "loss": [0.7 - 0.25 * share + 0.01 * epoch for share, epoch in zip(rise, epochs, strict=True)],
        "train_loss": [0.7 - 0.55 * share for share in rise],
    }
    return Curves(
        epochs,
        mean,
        {name: [value - 0.02 for value in values] for name, values in mean.items()},
        {name: [value + 0.02 for value in values] for name, values in mean.items()},
    )


def _runs(cell: Cell, seeds: int) -> list[Run]:
    accuracies, losses, costs = (cell.outcomes[name].values for name in ("score", "loss", "cost"))
    return [
        Run(
            cell.method, cell.task, seed, "finished", size=cell.size,
            id=f"{abs(hash((cell.method, cell.task, cell.size, seed))):016x}"[:16],
            seconds=10 * (costs[str(seed)] or 0),
            scores={"validation": {"accuracy": accuracies[str(seed)], "loss": losses[str(seed)]}},
        )
        for seed in range(seeds)
    ]  # fmt: skip


def _method_metrics(draws: Any, methods: tuple[str, ...]) -> dict[str, dict[str, Series]]:
    steps = list(range(0, 500, 25))

    def series(start: float, end: float) -> Series:
        mean = np.linspace(start, end, len(steps)) + draws.normal(0, 0.004, len(steps))
        return Series(steps, mean.tolist(), (mean - 0.02).tolist(), (mean + 0.02).tolist())

    logged = {
        "addrop:p=0.3,q=0.3": {
            "addrop/candidate_share_layer_0": series(0.3, 0.31), "addrop/drop_rate_layer_0": series(0.09, 0.093),
            "addrop/dropped_mass_layer_0": series(0.12, 0.17),
        },
        "attendout": {
            f"attendout/drop_probability_layer_{layer}": series(0.1, 0.1 + 0.05 * layer) for layer in range(6)
        },
    }  # fmt: skip
    return {method: metrics for method, metrics in logged.items() if method in methods}


def _heatmaps(draws: Any) -> list[Heatmap]:
    grid = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    difference = [[0.02 - 0.05 * (p - 0.3) ** 2 - 0.07 * p * q + draws.normal(0, 0.004) for p in grid] for q in grid]
    return [Heatmap("addrop:p=0.3,q=0.3", "p", "q", grid, grid, difference)]


def _tuning(methods: tuple[str, ...]) -> TuningResult:
    trials = list(range(1, 21))
    curves = []
    for method in methods[:3]:
        best = [0.70 + OFFSETS[method] + 0.02 * (1 - 0.8**k) for k in trials]
        curves.append({"method": method, "k": trials, "expected_best": best, "low": [b - 0.008 for b in best],
                       "high": [b + 0.008 for b in best]})  # fmt: skip
    chosen = {"trial": 7, "score": 0.71, "point": {"learning_rate": 2e-5, "p": 0.3}}
    roles = {role: {**chosen, "values": {"0": 0.72, "1": 0.73}, "mean": 0.725} for role in ("chosen", "median")}
    content = {"curves": curves, "chosen": dict.fromkeys(methods[:2], chosen), "dev": dict.fromkeys(methods[:2], roles)}
    return TuningResult.from_json(content)


def _agreement(draws: Any, methods: tuple[str, ...], tasks: tuple[str, ...], sizes: tuple[str, ...]) -> list[Agreement]:
    return [
        Agreement(method, task, 0.83, size, [round(float(share), 1) for share in draws.beta(0.9, 0.35, 277)])
        for method in methods for task in tasks for size in sizes
    ]  # fmt: skip


def _disagreements(methods: tuple[str, ...], tasks: tuple[str, ...]) -> list[Disagreement]:
    text = "A premise that is long enough to fill a line and a half of the page. A hypothesis that follows from it."
    return [
        Disagreement(
            task, 12 * number, {method: round(0.1 + 0.25 * ((k + number) % 4), 2) for k, method in enumerate(methods)},
            text=text, gold="entailment",
        )
        for task in tasks for number in range(4)
    ]  # fmt: skip


def _example(draws: Any, layers: int, heads: int, tokens: list[str] | None = None) -> dict[str, Any]:
    tokens = tokens or TOKENS

    def head() -> dict[str, Any]:
        n = len(tokens)
        weights = np.exp(draws.normal(0, 1.4, (n, n)))
        attribution = draws.normal(0, 0.02, (n, n)) + 0.04 * (draws.random((n, n)) > 0.9)
        candidates = attribution >= np.quantile(attribution, 0.7, axis=1, keepdims=True)
        return {
            "attention": np.round(weights / weights.sum(1, keepdims=True), 3).tolist(),
            "attribution": np.round(attribution, 3).tolist(), "candidates": candidates.astype(int).tolist(),
            "dropped": (candidates & (draws.random((n, n)) < 0.3)).astype(int).tolist(),
        }  # fmt: skip

    def all_layers(numbers: range) -> list[dict[str, Any]]:
        return [{"layer": layer, "heads": [head() for _ in range(heads)]} for layer in numbers]

    return {"text": " ".join(tokens[1:-1]), "tokens": tokens, "gold": "positive", "predicted": "positive",
            "layers": all_layers(range(layers)),
            "pruned": {"predicted": "negative", "layers": all_layers(range(layers // 2))}}  # fmt: skip
