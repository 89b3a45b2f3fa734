"""Robustness of a trained model: its score when attention positions are dropped at evaluation.

For each layer and each drop rate r, the share r of every row of the attention map is dropped before the softmax: the
positions with the highest attribution, those with the lowest, or random ones. In each row of n valid positions, n −
⌊n(1−r)⌋ are dropped in every order (AD-DROP, arXiv 2210.05883, Figures 7 and 8).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EvalPrediction
from transformers.trainer_pt_utils import nested_concat

from ...kernels.attribution_mask.reference import candidates
from ...kernels.draws import uniform
from ...model.attribution import ATTRIBUTIONS, scores
from ...model.modes import evaluating
from ...model.objective import example_scores, head_of
from ...model.plan import Plan
from ...model.probe import Probe
from ...model.seams import Seams, bound
from ...model.sites import Layers
from ...random import key_of
from ...utils.batches import batch_size
from ...utils.checks import check_choice, check_number
from ...utils.files import whole_file

ORDERS = ("high", "low", "random")
TOGETHER = "together"
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class DropScore:
    """The score of a model while attention positions are dropped.

    Args:
        layer: The layer in which they are dropped, such as "layer_3"; "together": in all measured layers at once.
        order: Which positions: "high" or "low" attribution, or "random".
        rate: The share of the positions of each row that is dropped.
        score: The score on all examples.
        loss: The loss on all examples.
    """

    layer: str
    order: str
    rate: float
    score: float
    loss: float


@dataclass(frozen=True)
class Robustness:
    """The scores of a model against the drop rate. `attendrop.lab.robustness.figure.plot_robustness` draws it.

    Args:
        points: One score for each layer, order and rate.
        metric: The name of the score.
        attribution: The attribution that orders the positions.
        examples: The number of examples that were evaluated.
        seed: The seed of the random positions.
    """

    points: tuple[DropScore, ...]
    metric: str
    attribution: str
    examples: int
    seed: int

    @property
    def layers(self) -> list[str]:
        """The measured layers, in the order of the model."""
        return list(dict.fromkeys(point.layer for point in self.points))

    @property
    def orders(self) -> list[str]:
        """The measured orders."""
        return list(dict.fromkeys(point.order for point in self.points))

    def curve(self, layer: str, order: str) -> list[DropScore]:
        """Return the scores of one layer and order, by rising rate.

        Args:
            layer: One of `layers`.
            order: One of `orders`.
        """
        return [point for point in self.points if (point.layer, point.order) == (layer, order)]

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain values, ready for JSON."""
        return {**asdict(self), "points": [asdict(point) for point in self.points]}

    def write_csv(self, path: str | Path) -> Path:
        """Write one line for each point.

        Args:
            path: The file to write.
        """
        with whole_file(path, is_text=True) as file:
            writer = csv.DictWriter(file, [f.name for f in fields(DropScore)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, self.points))
        return Path(path)


def measure_robustness(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    *,
    rates: Sequence[float] = RATES,
    layers: Layers = "all",
    orders: Sequence[str] = ORDERS,
    attribution: str = "ga",
    label: str = "pseudo",
    together: bool = True,
    seed: int = 0,
    compute_metrics: Callable[[EvalPrediction], Mapping[str, float]] | None = None,
    metric: str | None = None,
) -> Robustness:
    """Return the score of a model in eval mode while attention positions are dropped, by layer, rate and order.

    Each layer is measured by itself, in one forward for each rate and order. Random positions depend on the seed, the
    layer and the index of the example, not on the batch size. The model is not changed.

    Args:
        model: A transformers model with a head.
        batches: Batches with labels, for example a `DataLoader`. Tensors are moved to the device of the model.
        rates: The drop rates, from 0 to 1. Rate 0, the model as it is, is always measured.
        layers: The layers: "all", "first", a number, a list or a slice of numbers, "encoder", "decoder" or "cross".
        orders: Which positions are dropped: "high" or "low" attribution, or "random".
        attribution: "ga" gradient, "iga" integrated gradient, or "aa", the attention itself.
        label: The label that is attributed: "pseudo", the model's own prediction, or "gold".
        together: Whether to drop in all these layers at once as well.
        seed: The seed of the random positions.
        compute_metrics: The function of the same name of a Trainer, called with the logits and labels of all examples.
            By default the score is the share of correctly predicted labels, averaged over the examples; for a
            regression it is minus the mean absolute error.
        metric: The score to use, a key of what `compute_metrics` returns; by default its first.

    Example:
        ```python
        result = measure_robustness(model, DataLoader(dev, batch_size=32, collate_fn=collator), rates=[0.2, 0.5, 0.8])
        result.write_csv("robustness.csv")
        ```
    """
    check_choice("attribution", attribution, [name for name in ATTRIBUTIONS if name != "rd"])
    for order in orders:
        check_choice("orders", order, ORDERS)
    for rate in rates:
        check_number("rates", rate, 0, 1)
    steps = sorted({0.0, *map(float, rates)})
    with bound(model) as seams, evaluating(model):
        sites = seams.select(layers)
        runs = _Runs(model, seams, sites, steps[1:], orders, together and len(sites) > 1, compute_metrics is not None)
        for batch in batches:
            runs.add(batch, attribution, label, seed)
    return runs.result(steps, attribution, seed, compute_metrics, metric)


@dataclass
class _Tally:
    """The sums of one condition over the batches so far."""

    loss: float = 0.0
    score: float = 0.0
    predictions: Any = None
    labels: Any = None

    def add(self, model: nn.Module, batch: Mapping[str, Any], outputs: Any, keep_logits: bool) -> None:
        self.loss += float(outputs["loss"]) * batch_size(batch)
        if not keep_logits:
            self.score += float(example_scores(model, batch, outputs)[1].double().sum())
            return
        is_span = "start_logits" in outputs
        names = ("start_logits", "end_logits") if is_span else ("logits",)
        gold = ("start_positions", "end_positions") if is_span else ("labels",)
        logits = tuple(outputs[name].detach().cpu() for name in names)
        labels = tuple(batch[name].cpu() for name in gold)
        self.predictions = logits if self.predictions is None else nested_concat(self.predictions, logits)
        self.labels = labels if self.labels is None else nested_concat(self.labels, labels)

    def scored(self, compute_metrics: Callable[[EvalPrediction], Mapping[str, float]]) -> Mapping[str, float]:
        """Return the metrics of all logits and labels in the Trainer's format: alone, or several as a tuple."""
        arrays = [tuple(tensor.float().numpy() for tensor in self.predictions), tuple(x.numpy() for x in self.labels)]
        predictions, labels = (values[0] if len(values) == 1 else values for values in arrays)
        return compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))


Condition = tuple[str, str, float]  # layer, order, rate


@dataclass
class _Runs:
    """Evaluates all conditions on one batch after the other."""

    model: nn.Module
    seams: Seams
    sites: Sequence[int]
    rates: Sequence[float]  # those above 0
    orders: Sequence[str]
    together: bool
    keep_logits: bool
    plain: _Tally = field(default_factory=_Tally)
    tallies: dict[Condition, _Tally] = field(default_factory=dict)
    examples: int = 0
    rows: int = 0
    head: str = ""

    def add(self, batch: Mapping[str, Any], attribution: str, label: str, seed: int) -> None:
        device = next(self.model.parameters()).device
        batch = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}
        probe = Probe(self.model, self.seams, batch)
        self.head = head_of(self.model, batch)
        self._run(probe, Plan(), self.plain)
        maps = {site: (s, r.valid) for site, s, r in scores(probe, self.sites, attribution, label) if s is not None}
        rows = len(next(iter(maps.values()))[0])
        positions = torch.arange(self.rows, self.rows + rows)
        for order in self.orders:
            ordered = {
                site: (_ordered(order, score, key_of(seed, 0, site, "robustness"), positions), valid)
                for site, (score, valid) in maps.items()
            }
            for rate in self.rates:
                self._run_rate(probe, ordered, order, rate)
        self.rows += rows
        self.examples += batch_size(batch)

    def _run_rate(self, probe: Probe, ordered: Mapping[int, tuple[Tensor, Tensor]], order: str, rate: float) -> None:
        keep = {site: ~candidates(score, valid, rate) for site, (score, valid) in ordered.items()}
        plans = {self.seams.sites[site].label: Plan(keep={site: mask}) for site, mask in keep.items()}
        if self.together:
            plans[TOGETHER] = Plan(keep=keep)
        for layer, plan in plans.items():
            self._run(probe, plan, self.tallies.setdefault((layer, order, rate), _Tally()))

    def _run(self, probe: Probe, plan: Plan, tally: _Tally) -> None:
        with probe.untracked(), torch.no_grad():
            outputs, _ = probe.forward(plan, with_labels=True)
        if outputs.get("loss") is None:
            raise ValueError(f"a batch has no labels, only {', '.join(probe.batch)}; the loss and the score need them.")
        tally.add(self.model, probe.batch, outputs, self.keep_logits)

    def result(
        self,
        rates: Sequence[float],
        attribution: str,
        seed: int,
        compute_metrics: Callable[[EvalPrediction], Mapping[str, float]] | None,
        metric: str | None,
    ) -> Robustness:
        if not self.examples:
            raise ValueError("batches is empty; there is nothing to evaluate.")
        name = "minus the absolute error" if self.head == "regression" else "accuracy"
        if compute_metrics is not None:
            known = self.plain.scored(compute_metrics)
            name = next(iter(known)) if metric is None else metric
            check_choice("metric", name, known)

        def point(layer: str, order: str, rate: float) -> DropScore:
            tally = self.plain if rate == 0 else self.tallies[layer, order, rate]
            score = tally.score / self.examples if compute_metrics is None else tally.scored(compute_metrics)[name]
            return DropScore(layer, order, rate, float(score), tally.loss / self.examples)

        names = [self.seams.sites[site].label for site in self.sites] + ([TOGETHER] if self.together else [])
        points = tuple(point(layer, order, rate) for layer in names for order in self.orders for rate in rates)
        return Robustness(points, name, attribution, self.examples, seed)


def _ordered(order: str, score: Tensor, key: int, positions: Tensor) -> Tensor:
    """Return a map whose highest entries are the positions that are dropped first: [B, H, Q, K]."""
    if order == "random":
        return uniform(key, positions, tuple(score.shape[1:]), score.device)
    return score if order == "high" else -score
