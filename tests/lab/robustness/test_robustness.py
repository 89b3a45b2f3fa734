"""Dropping at evaluation: equal to a literal version, and nothing is left on the model."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import EvalPrediction

from attendrop import Robustness, Seams, measure_robustness
from attendrop.kernels.draws import uniform
from attendrop.lab.robustness.figure import plot_robustness
from attendrop.lab.robustness.measure import TOGETHER
from attendrop.random import key_of
from helpers import oracles, zoo
from helpers.data import same_bits, weights_of

RATES = [0.3, 0.5, 0.8]


def make(kind: str, seed: int = 1) -> tuple[Any, dict[str, Tensor]]:
    batch = zoo.make_batch(kind, seed=seed)
    return zoo.make_model(kind).double(), {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}


def literal_loss(
    model: Any, batch: dict[str, Tensor], layers: list[int], keep: Callable[[int, Tensor], Tensor]
) -> float:
    """The loss in eval mode where `keep(layer, valid)` is what these layers keep; other layers attend as they do."""

    def change(call: int, s: Tensor, valid: Tensor) -> Tensor:
        allowed = valid & keep(call, valid) if call in layers else valid
        attention = s.masked_fill(~allowed, float("-inf")).softmax(-1)
        return torch.where(allowed.any(-1, keepdim=True), attention, valid.double() / valid.sum(-1, keepdim=True))

    changed = copy.deepcopy(model).eval()
    oracles.ChangedAttention(change).attach(changed)
    with torch.no_grad():
        return changed(**batch).loss.item()


def literal_keep(order: Tensor, valid: Tensor, rate: float) -> Tensor:
    """Each row loses its n − ⌊n(1−rate)⌋ highest entries, and those that tie with them; row by row, by sorting."""
    keep = torch.ones_like(order, dtype=torch.bool)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in order.shape[:3])).tolist():
        row, ok = order[tuple(place)].tolist(), valid[tuple(place)].tolist()
        entries = sorted((x for x, v in zip(row, ok, strict=True) if v), reverse=True)
        count = len(entries) - int(len(entries) * (1 - Fraction(str(rate))))
        for k, (x, v) in enumerate(zip(row, ok, strict=True)):
            if v and count and x >= entries[count - 1]:
                keep[(*place, k)] = False
    return keep


@pytest.mark.parametrize("kind", ["bert", "gpt2", "token"])
def test_every_score_is_that_of_the_literal_version(kind: str) -> None:
    model, batch = make(kind)
    maps = oracles.literal_ga(kind, copy.deepcopy(model).eval(), batch)
    rows = torch.arange(len(maps[0]))
    draws = [uniform(key_of(7, 0, i, "robustness"), rows, tuple(a.shape[1:])) for i, a in enumerate(maps)]
    orders = {"high": maps, "low": [-a for a in maps], "random": draws}
    result = measure_robustness(model, [batch], rates=RATES, seed=7)
    assert result.layers == ["layer_0", "layer_1", TOGETHER]
    losses = set()
    for point in result.points:
        if point.rate == 0:
            continue
        layers = [0, 1] if point.layer == TOGETHER else [int(point.layer[-1])]

        def keep(layer: int, valid: Tensor, point: Any = point) -> Tensor:
            return literal_keep(orders[point.order][layer], valid, point.rate)

        assert point.loss == pytest.approx(literal_loss(model, batch, layers, keep), rel=1e-9)
        losses.add(round(point.loss, 10))
    # every layer, order and rate is another condition (rows of zero gradients tie: the last layer of a classifier)
    assert len(losses) > 0.8 * len(result.layers) * len(result.orders) * len(RATES)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart", "mpnet", "token", "regression", "choice", "span", "masked"])
def test_rate_zero_is_the_plain_evaluation_and_rate_one_is_uniform_attention(kind: str) -> None:
    model, batch = make(kind)
    result = measure_robustness(model, [batch], rates=[1.0])
    with torch.no_grad():
        plain = model.eval()(**batch).loss.item()
    # the mean over the examples, which may differ from the number itself in its last bit
    assert {point.loss for point in result.points if point.rate == 0} == {plain * 3 / 3}
    ends = {point.layer: set() for point in result.points}
    for point in result.points:
        if point.rate == 1:
            ends[point.layer].add(point.loss)
    assert all(len(losses) == 1 for losses in ends.values())  # whatever the order
    if kind not in zoo.ADAPTED | {"bart"}:
        nothing = literal_loss(model, batch, [0, 1], lambda layer, valid: torch.zeros_like(valid))
        assert ends[TOGETHER].pop() == pytest.approx(nothing, rel=1e-9)


def test_only_the_chosen_layers_are_measured() -> None:
    model, batch = make("bert")
    every = measure_robustness(model, [batch], rates=RATES, together=False)
    one = measure_robustness(model, [batch], rates=RATES, layers=[1])
    assert one.layers == ["layer_1"]
    assert list(one.points) == [point for point in every.points if point.layer == "layer_1"]
    cross = measure_robustness(*_listed("bart"), rates=[0.5], layers="cross")
    assert cross.layers == ["decoder_cross_layer_0", "decoder_cross_layer_1", TOGETHER]


def _listed(kind: str) -> tuple[Any, list[dict[str, Tensor]]]:
    model, batch = make(kind)
    return model, [batch]


def test_the_seed_decides_and_the_division_into_batches_does_not() -> None:
    model, batch = make("bert")
    halves = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    whole, again, divided = (measure_robustness(model, b, rates=RATES, seed=3) for b in ([batch], [batch], halves))
    assert whole == again
    assert [p.loss for p in divided.points] == pytest.approx([p.loss for p in whole.points], rel=1e-9)
    assert [p.score for p in divided.points] == pytest.approx([p.score for p in whole.points])
    other = measure_robustness(model, [batch], rates=RATES, seed=4)
    for order in whole.orders:
        is_same = [p.loss for p in whole.curve("layer_0", order)] == [p.loss for p in other.curve("layer_0", order)]
        assert is_same == (order != "random")


@pytest.mark.parametrize("attribution", ["ga", "iga", "aa"])
def test_measurement_leaves_the_model_unchanged(attribution: str) -> None:
    model, batch = make("bert")
    model.train()
    model.bert.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    weights, implementation, classes = weights_of(model), model.config._attn_implementation, str(model)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    measure_robustness(model, [batch], rates=[0.5], attribution=attribution)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert same_bits(weights_of(model), weights)
    assert (model.config._attn_implementation, str(model)) == (implementation, classes)
    assert Seams.of(model) is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_custom_metric_is_used() -> None:
    model, batch = make("bert")

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        correct = prediction.predictions.argmax(-1) == prediction.label_ids
        return {"errors": float((~correct).sum()), "accuracy": float(correct.mean())}

    own = measure_robustness(model, [batch, batch], rates=RATES, compute_metrics=compute, metric="accuracy")
    ours = measure_robustness(model, [batch, batch], rates=RATES)
    assert own.points == ours.points
    assert (own.metric, own.examples) == ("accuracy", 6)
    assert measure_robustness(model, [batch], compute_metrics=compute, rates=[0.5]).metric == "errors"
    with pytest.raises(ValueError, match=r"metric is 'f1'; it must be one of 'errors', 'accuracy'"):
        measure_robustness(model, [batch], rates=[0.5], compute_metrics=compute, metric="f1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": [1.5]}, r"rates is 1.5; it must be a number from 0 to 1"),
        ({"orders": ["highest"]}, r"orders is 'highest'; it must be one of 'high', 'low', 'random'"),
        ({"attribution": "rd"}, r"attribution is 'rd'; it must be one of 'ga', 'iga', 'aa'"),
        ({"layers": [5]}, r"layers is \[5\], but there is no layer 5"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    model, batch = make("bert")
    with pytest.raises(ValueError, match=message):
        measure_robustness(model, [batch], **options)
    assert Seams.of(model) is None


def test_missing_labels_and_missing_batches_are_refused() -> None:
    model, batch = make("bert")
    with pytest.raises(ValueError, match="batches is empty"):
        measure_robustness(model, [])
    del batch["labels"]
    with pytest.raises(ValueError, match="a batch has no labels, only input_ids, attention_mask"):
        measure_robustness(model, [batch])


def test_numbers_and_figure_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, batch = make("bert")
    result = measure_robustness(model, [batch], rates=RATES)
    assert json.loads(json.dumps(result.to_dict()))["points"][1]["rate"] == 0.3
    with result.write_csv(tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [point.loss for point in result.points]
    for value in ("score", "loss"):
        plot_robustness(result, tmp_path / f"{value}.png", value)
        assert (tmp_path / f"{value}.png").read_bytes().startswith(b"\x89PNG")
    one = Robustness(tuple(result.curve("layer_0", "low")), result.metric, "ga", 3, 0)
    assert len(plot_robustness(one).axes) == 1
    with pytest.raises(ValueError, match="value is 'accuracy'; it must be one of 'score', 'loss'"):
        plot_robustness(result, tmp_path / "no.png", "accuracy")
