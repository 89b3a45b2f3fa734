"""Mixup of hidden states compared with states and losses that are mixed by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from attendrop import R3F, Engine, HiddenMixup, LabelSmoothing, Progress
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import zoo
from helpers.literal import giving, reading
from helpers.precision import assert_same_gradients, assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["bert", "multilabel", "regression", "vit", *zoo.POOLED])
def test_step_matches_states_and_losses_mixed_by_hand(kind: str, step: int) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind, size=6)
    literal = copy.deepcopy(model)
    method = HiddenMixup(1.0)
    with Engine(model, [method], seed=5) as engine:
        engine.begin_step(Progress(step=step, total_steps=10))
        shares = method._shares(engine._step)
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()
    chosen, share = int(shares.argmax()), float(shares.max())
    assert int((shares > 0).sum()) == 1
    assert 0 < share < 1
    draws = uniform(key_of(5, step, 0, "hidden_mixup"), torch.arange(6), (1, 1, 1)).flatten().tolist()
    partners = sorted(range(6), key=lambda i: draws[i])

    def mix(x: torch.Tensor) -> torch.Tensor:
        rows = []
        texts = len(x) // 6  # that are encoded apart
        mask = None if kind == "vit" else batch["attention_mask"].flatten(0, -2)
        for i, j in [(texts * i + k, texts * j + k) for i, j in enumerate(partners) for k in range(texts)]:
            both = torch.ones(x.shape[1]) if mask is None else mask[i] * mask[j]
            state = x[i].clone()
            for t in range(x.shape[1]):
                if both[t]:
                    state[t] = (1 - share) * x[i, t] + share * x[j, t]
            rows.append(state)
        return torch.stack(rows)

    layers: Any = literal.vit.layers if kind == "vit" else literal.bert.encoder.layer
    with reading(layers[0], mix) if chosen == 0 else giving(layers[chosen - 1], mix):
        one = literal(**batch)
        two = literal(**{**batch, "labels": batch["labels"][partners]})
    expected = (1 - share) * one.loss + share * two.loss
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


def test_layers_and_shares_are_drawn_evenly() -> None:
    model, method = zoo.make_model("bert").train(), HiddenMixup(1.0)
    results = []
    with Engine(model, [method], seed=5) as engine:
        for step in range(600):
            engine.begin_step(Progress(step=step, total_steps=600))
            results.append(method._shares(engine._step))
    shares = torch.stack(results)
    assert ((shares > 0).float().mean(0) - 1 / 3).abs().max() < 4 * (2 / 9 / 600) ** 0.5
    assert abs(shares.sum(-1).mean() - 0.5) < 4 * (1 / 12 / 600) ** 0.5  # Beta(1, 1) is uniform


def test_unsupported_heads_and_losses_are_refused() -> None:
    for kind in ("llama", "token", "choice", "span"):
        with pytest.raises(ValueError, match="HiddenMixup mixes the labels of whole examples"):
            Engine(zoo.make_model(kind), [HiddenMixup()])
    with pytest.raises(ValueError, match=r"R3F trains on the loss of unmixed labels; set R3F\(loss='both'\)"):
        Engine(zoo.make_model("bert"), [R3F(), HiddenMixup()])
    with pytest.raises(ValueError, match="both replace labels in the model's own loss"):
        Engine(zoo.make_model("bert"), [LabelSmoothing(), HiddenMixup()])
