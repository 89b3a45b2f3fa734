"""Cutoff compared with two manual passes, in which tokens and features are cut one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from attendrop import Cutoff, Engine, Progress
from attendrop.kernels.draws import uniform
from attendrop.methods.cutoff import cut_of
from attendrop.model.sites import pretrained_part
from attendrop.random import key_of
from helpers import zoo
from helpers.literal import FIRST_BLOCK, js, kl, mean_over_rows, reading
from helpers.precision import assert_same_gradients, assert_same_numbers


def literal_cut(draws: list[float], real: list[bool], ratio: float, kind: str) -> list[int]:
    places = [i for i, is_real in enumerate(real) if is_real]
    count = max(1, int(ratio * len(places) + 1e-9))
    if kind == "span":
        start = int(draws[0] * (len(places) - count + 1))
        return places[start : start + count]
    return sorted(sorted(places, key=lambda i: draws[i])[:count])


def reference_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The divergence of the authors' code."""
    middle = (p + q) / 2
    return (kl(middle, p) + kl(middle, q)) / 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("divergence", ["reference", "js"])
@pytest.mark.parametrize("what", ["token", "feature", "span"])
@pytest.mark.parametrize("kind", ["bert", "llama", "bart", "pooled_regression", "pooled_pairs"])
def test_whole_step_matches_two_manual_passes(kind: str, what: str, divergence: str) -> None:
    ratio, weight = 0.3, 0.8
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [Cutoff(ratio, what, weight, divergence)], seed=7) as engine:
        engine.begin_step(Progress(step=3, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()

    def cut(x: torch.Tensor) -> torch.Tensor:
        width = x.shape[2] if what == "feature" else x.shape[1]
        draws = uniform(key_of(7, 3, -1, "cutoff"), torch.arange(len(x)), (1, 1, width)).view(len(x), width).tolist()
        factor = torch.ones_like(x)
        for b in range(len(x)):
            real = [True] * width if what == "feature" else batch["attention_mask"].flatten(0, -2)[b].bool().tolist()
            for i in literal_cut(draws[b], real, ratio, what):
                if what == "feature":
                    factor[b, :, i] = 0
                else:
                    factor[b, i] = 0
        return x * factor

    one = literal(**batch)

    def hide_cut_tokens(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        mask = kwargs["attention_mask"].clone()
        rows = mask.flatten(0, -2)
        draws = uniform(key_of(7, 3, -1, "cutoff"), torch.arange(len(rows)), (1, 1, rows.shape[1])).flatten(1).tolist()
        for b, row in enumerate(rows):
            row[literal_cut(draws[b], row.bool().tolist(), ratio, what)] = 0
        return args, {**kwargs, "attention_mask": mask}

    if what != "feature":
        pretrained_part(literal).register_forward_pre_hook(hide_cut_tokens, with_kwargs=True)
    with reading(literal.get_submodule(FIRST_BLOCK.get(kind, FIRST_BLOCK["bert"])), cut):
        two = literal(**batch)
    between = js if divergence == "js" else reference_divergence
    apart = mean_over_rows(kind, one.logits, two.logits, batch["labels"], between)
    assert apart > 1e-7
    expected = (one.loss + two.loss + weight * apart) / 2
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.parametrize("kind", ["token", "span"])
@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.5, 1.0])
def test_cuts_match_a_slow_reference(ratio: float, kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    draws = torch.rand(40, 20, generator=g)
    real = torch.arange(20) < torch.randint(1, 21, (40, 1), generator=g)
    real[30:] = real[30:].flip(-1)  # padding on the left
    actual = cut_of(draws, real, ratio, kind)
    for b in range(40):
        assert actual[b].nonzero().flatten().tolist() == literal_cut(draws[b].tolist(), real[b].tolist(), ratio, kind)
    assert not cut_of(draws, torch.zeros_like(real), ratio, kind).any()


def test_span_head_is_refused() -> None:
    assert Cutoff(ratio=0).views == 1
    with pytest.raises(ValueError, match="Cutoff compares the predictions of two views and is not defined for a span"):
        Engine(zoo.make_model("span"), [Cutoff()])
