"""Attention LayerDrop: how often layers become uniform, and the output of uniform attention."""

from __future__ import annotations

import pytest
import torch

from attendrop import AttentionLayerDrop, Engine, Plan, Progress
from helpers import zoo


def test_layers_become_uniform_with_probability_p_and_equally_on_every_process() -> None:
    model, batch = zoo.make_model("albert").train(), zoo.make_batch("albert")
    engines = [Engine(model, [AttentionLayerDrop(p=0.2)], seed=1)]
    count = 0
    for step in range(2000):
        engines[0].begin_step(Progress(step=step, total_steps=2000))
        with engines[0].micro_batch(batch):
            chosen = engines[0].seams.plan.uniform
        count += len(chosen)
    assert abs(count / 6000 - 0.2) < 4 * (0.16 / 6000) ** 0.5
    engines[0].close()
    other = Engine(model, [AttentionLayerDrop(p=0.2)], seed=1, rank=1, world=2)
    other.begin_step(Progress(step=1999, total_steps=2000))
    with other.micro_batch(batch):
        assert other.seams.plan.uniform == chosen


def test_p_one_gives_uniform_attention() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    engine = Engine(model, [AttentionLayerDrop(p=1)])
    with engine.micro_batch(batch) as inputs:
        actual = model(**inputs).logits
    with engine.seams.applied(Plan(keep={i: torch.zeros(1, 1, 1, 1, dtype=torch.bool) for i in (0, 1)})):
        assert torch.equal(actual, model(**batch).logits)


def test_p_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"AttentionLayerDrop\.p is 1\.2; it must be from 0 to 1"):
        AttentionLayerDrop(p=1.2)
