"""HiddenCut compared with two manual passes: spans by loops over tokens, from maps of eager attention."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from attendrop import ADDrop, Engine, HiddenCut, Progress
from attendrop.kernels.draws import uniform
from attendrop.methods.hiddencut import span
from attendrop.random import key_of
from helpers import oracles, zoo
from helpers.literal import (
    FEED_FORWARD,
    FIRST_BLOCK,
    FixedNoise,
    giving,
    js,
    mean_over_rows,
    reading,
)
from helpers.precision import assert_same_gradients, assert_same_numbers

KINDS = ["bert", "gpt2", "llama", "bart", "mpnet"]


def literal_span(importance: list[float], real: list[bool], draw: float, ratio: float, pool: float) -> list[int]:
    tokens = [i for i, is_real in enumerate(real) if is_real]
    by_importance = sorted(tokens, key=lambda i: -importance[i])
    choices = max(1, int(pool * len(tokens)))
    first = tokens.index(by_importance[int(draw * choices)])
    return tokens[first : first + max(1, int(ratio * len(tokens)))]


@pytest.mark.parametrize(("ratio", "pool"), [(0.1, 0.4), (0.3, 0.5), (0.05, 0.0), (1.0, 1.0), (0.62, 0.77)])
def test_spans_match_a_slow_reference(ratio: float, pool: float) -> None:
    g = torch.Generator().manual_seed(0)
    importance, draws = torch.rand(40, 25, generator=g), torch.rand(40, generator=g)
    real = torch.arange(25) < torch.randint(1, 26, (40, 1), generator=g)
    real[30:] = real[30:].flip(-1)  # padding on the left
    actual = span(importance, real, draws, ratio, pool)
    for b in range(40):
        expected = literal_span(importance[b].tolist(), real[b].tolist(), draws[b].item(), ratio, pool)
        assert actual[b].nonzero().flatten().tolist() == expected
    assert not (actual & ~real).any()
    assert actual.any(-1).all()


def test_row_of_padding_has_no_span() -> None:
    assert not span(torch.rand(2, 4), torch.zeros(2, 4, dtype=torch.bool), torch.tensor([0.0, 0.99]), 1.0, 1.0).any()


def test_span_starts_are_drawn_evenly_from_the_pool() -> None:
    importance = torch.tensor([0.1, 0.9, 0.3, 0.8, 0.2, 0.7, 0.4, 0.0, 0.5, 0.6]).expand(6000, 10)
    draws = uniform(key_of(0, 1, 2), torch.arange(6000), (1,)).flatten()
    actual = span(importance, torch.ones(6000, 10, dtype=torch.bool), draws, 0.1, 0.4).float().mean(0)
    expected = torch.tensor([0, 0.25, 0, 0.25, 0, 0.25, 0, 0, 0, 0.25])
    assert ((actual - expected).abs() < 4 * (0.25 * 0.75 / 6000) ** 0.5).all()


def real_tokens(kind: str, batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return (batch["labels"] != -100) if kind == "bart" and "decoder" in name else batch["attention_mask"].bool()


def self_sites(engine: Engine) -> list[Any]:
    return [site for site in engine.seams.sites if site.kind == "self"]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("by", ["attention", "gradient", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_step_matches_two_manual_passes(kind: str, by: str) -> None:
    ratio, pool, weight = 0.3, 0.5, 0.8
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    # the second view attends otherwise than the first
    noise = torch.randn(6, 1, 32, generator=torch.Generator().manual_seed(0))
    noise[:3] = 0
    with Engine(model, [FixedNoise(noise), HiddenCut(ratio, by, pool, weight)], seed=7) as engine:
        engine.begin_step(Progress(step=3, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()
        sites = [site.index for site in self_sites(engine)]

    attention = oracles.LiteralAttention()
    attention.attach(literal)
    maps = [literal.get_submodule(name) for name in FEED_FORWARD[kind]]
    states: list[torch.Tensor] = []
    with ExitStack() as watching:
        for linear in maps:
            watching.enter_context(giving(linear, lambda x: states.append(x) or x))
        one = literal(**batch)
    gradients = torch.autograd.grad(one.loss, states, retain_graph=True)

    def cut(layer: int) -> Any:
        def change(x: torch.Tensor) -> torch.Tensor:
            site = sites[layer]
            real = real_tokens(kind, batch, FEED_FORWARD[kind][layer])
            draws = uniform(key_of(7, 3, site, "hiddencut"), torch.arange(len(x)), (1, 1, 1)).flatten().tolist()
            factor = torch.ones_like(x)
            for b in range(len(x)):
                if by == "attention":  # of this very pass
                    scores = [attention.maps[site][b, :, real[b], k].sum().item() for k in range(x.shape[1])]
                else:
                    scores = [
                        gradients[layer][b, k].norm().item() if by == "gradient" else 0.0 for k in range(x.shape[1])
                    ]
                share = pool if by != "random" else 1.0
                for t in literal_span(scores, real[b].tolist(), draws[b], ratio, share):
                    factor[b, t] = 0
            return x * factor

        return change

    attention.maps = []
    with ExitStack() as cutting:
        for layer, linear in enumerate(maps):
            cutting.enter_context(giving(linear, cut(layer)))
        first = literal.get_submodule(FIRST_BLOCK[kind])
        cutting.enter_context(reading(first, lambda x: x * (1 + noise[3:])))
        two = literal(**batch)
    divergence = mean_over_rows(kind, one.logits, two.logits, batch["labels"], js)
    assert divergence > 1e-7
    expected = (one.loss + two.loss + weight * divergence) / 2
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.parametrize(
    "kind", ["multilabel", "regression", "token", "choice", "masked", "albert", "vit", "t5", "modernbert"]
)
def test_every_head_and_other_architectures_train(kind: str) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    with Engine(model, [HiddenCut(ratio=0.5)]) as engine, engine.micro_batch(batch) as inputs:
        loss = engine.loss(model(**inputs))
        loss.backward()
        assert loss.isfinite()
        assert engine.loss(model(**inputs), torch.zeros(())) > 0  # the views differ


def test_selected_layers_are_cut_and_addrop_composes() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    methods = [ADDrop(p=0.5, q=0.5, cross_tuning=False), HiddenCut(ratio=0.3, layers=[1])]
    with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
        assert set(engine.seams.plan.ffn) == {1}
        assert engine.seams.plan.record == {1}
        assert engine.seams.plan.keep[0].shape[0] == 6
        engine.loss(model(**inputs)).backward()


@pytest.mark.usefixtures("float64")
def test_padding_does_not_change_the_loss() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    longer = {k: torch.nn.functional.pad(v, (0, 4)) if v.dim() == 2 else v for k, v in batch.items()}
    losses = []
    for each in (batch, longer):
        with Engine(model, [HiddenCut(ratio=0.4)]) as engine, engine.micro_batch(each) as inputs:
            losses.append(engine.loss(model(**inputs)).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_fields_out_of_range_are_refused() -> None:
    assert HiddenCut(ratio=0).views == 1
    with pytest.raises(ValueError, match=r"HiddenCut\.ratio is 1\.5; it must be from 0 to 1"):
        HiddenCut(ratio=1.5)
    with pytest.raises(ValueError, match=r"HiddenCut\.by is 'lime'; it must be one of 'attention', 'gradient'"):
        HiddenCut(by="lime")
    with pytest.raises(ValueError, match=r"HiddenCut\.pool is 2; it must be a number from 0 to 1"):
        HiddenCut(pool=2)
    with pytest.raises(ValueError, match=r"HiddenCut\.layers is \[9\], but there is no layer 9"):
        Engine(zoo.make_model("bert"), [HiddenCut(layers=[9])])
