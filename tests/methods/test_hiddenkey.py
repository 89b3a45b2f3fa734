"""HiddenKey compared with two manual passes: keys masked by hand, features dropped by hand, KL row by row."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from attendrop import Engine, HiddenKey, Progress
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import oracles, zoo
from helpers.literal import FEED_FORWARD, giving, kl, mean_over_rows
from helpers.precision import assert_same_gradients, assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama", "bart"])
def test_whole_step_matches_two_manual_passes(kind: str) -> None:
    p_key, p_hidden, alpha = 0.3, 0.4, 0.7
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [HiddenKey(p_key, p_hidden, alpha)], seed=7) as engine:
        engine.begin_step(Progress(step=3, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()

    def draws(at: int, stream: str, shape: tuple[int, ...], rows: int) -> torch.Tensor:
        return uniform(key_of(7, 3, at, stream), torch.arange(rows), shape)

    def drop(block: int, view: str) -> Any:
        def change(x: torch.Tensor) -> torch.Tensor:
            kept = draws(block, f"hiddenkey{view}", (1, *x.shape[1:]), len(x)).squeeze(1) >= p_hidden
            return x * kept / (1 - p_hidden)

        return change

    def masked(view: str) -> Any:
        def change(call: int, scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            rows, heads, _, keys = scores.shape
            kept = draws(call, f"HiddenKey{view}", (heads, 1, keys), rows) >= p_key
            allowed = valid & kept
            even = valid / valid.sum(-1, keepdim=True)  # of a row that has lost every key
            actual = scores.masked_fill(~allowed, -1e300).softmax(-1)
            return torch.where(allowed.any(-1, keepdim=True), actual, even)

        return change

    outputs = []
    for view in ("", "/1"):
        oracles.ChangedAttention(masked(view)).attach(literal)
        with ExitStack() as dropping:
            for block, name in enumerate(FEED_FORWARD[kind]):
                dropping.enter_context(giving(literal.get_submodule(name), drop(block, view)))
            outputs.append(literal(**batch))
    one, two = outputs
    divergence = mean_over_rows(kind, one.logits, two.logits, batch["labels"], lambda p, q: (kl(p, q) + kl(q, p)) / 2)
    assert divergence > 1e-5
    expected = (one.loss + two.loss) / 2 + alpha * divergence
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


def test_without_divergence_there_is_one_view() -> None:
    assert HiddenKey(alpha=0).views == 1
    model, batch = zoo.make_model("span").train(), zoo.make_batch("span")
    with Engine(model, [HiddenKey(alpha=0)]) as engine, engine.micro_batch(batch) as inputs:
        assert len(inputs["input_ids"]) == len(batch["input_ids"])
        assert set(engine.seams.plan.keep) == {0, 1} == set(engine.seams.plan.ffn)
        engine.loss(model(**inputs)).backward()
    with pytest.raises(
        ValueError, match="HiddenKey compares the predictions of two views and is not defined for a span"
    ):
        Engine(model, [HiddenKey()])
