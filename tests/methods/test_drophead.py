"""Scheduled DropHead compared with its equation: drop rates, expectation, schedule, draws."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from attendrop import DropHead, Engine, Plan, Progress
from attendrop.methods.drophead import head_factors, v_shape
from helpers import zoo
from helpers.oracles import ChangedAttention
from helpers.precision import assert_same_gradients, assert_same_numbers


def factors_of(
    method: DropHead, steps: int, kind: str = "bert", fraction: float = 0.0
) -> list[dict[int, torch.Tensor]]:
    factors = []
    with Engine(zoo.make_model(kind).train(), [method], seed=3) as engine:
        for step in range(steps):
            engine.begin_step(Progress(step=step, total_steps=10**9 if fraction == 0 else round(step / fraction)))
            with engine.micro_batch(zoo.make_batch(kind)):
                factors.append(dict(engine.seams.plan.scale))
    return factors


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5"])
def test_forward_and_gradients_match_the_equation(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [DropHead(0.6, "constant")]) as engine, engine.micro_batch(batch) as inputs:
        kept = {site: (factor > 0).flatten(1).tolist() for site, factor in engine.seams.plan.scale.items()}
        actual = model(**inputs)
        actual.loss.backward()
    assert any(not all(row) for rows in kept.values() for row in rows)

    def scale(call: int, output: torch.Tensor) -> torch.Tensor:
        examples = []
        for b in range(len(output)):
            alive = sum(kept[call][b])
            examples.append(
                torch.stack(
                    [o * (4 / alive) if keep else o * 0 for o, keep in zip(output[b], kept[call][b], strict=True)]
                )
            )
        return torch.stack(examples)

    ChangedAttention(scale=scale).attach(literal)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_heads_are_dropped_with_probability_p_and_the_expected_factor_is_one(p: float) -> None:
    """If all heads would be dropped, one is kept: P(dropped) = p − p^H / H."""
    factors = torch.cat([x for actual in factors_of(DropHead(p, "constant"), 400) for x in actual.values()]).flatten(1)
    assert factors.shape == (2400, 4)
    dropped = (factors == 0).float()
    expected = p - p**4 / 4
    error = dropped.mean(1).std() / math.sqrt(2400)  # the heads of a layer are not independent of each other
    assert abs(dropped.mean() - expected) < 4 * error
    assert_same_numbers(factors.sum(1), torch.full((2400,), 4.0))
    assert ((factors.mean(0) - 1).abs() < 4 * factors.std(0) / math.sqrt(2400)).all()
    by_head = dropped.mean(0)
    assert ((by_head - expected).abs() < 4 * math.sqrt(expected * (1 - expected) / 2400)).all()


def test_expected_output_of_a_layer_is_unchanged() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert", size=2)
    outputs, steps = [], 200
    with Engine(model, [DropHead(0.5, "constant")], seed=7) as engine, torch.no_grad():
        with engine.seams.applied(Plan(record=frozenset({0}))):
            model(**batch)
            expected = engine.seams.records[0].output
        for step in range(steps):
            engine.begin_step(Progress(step=step, total_steps=steps))
            with engine.micro_batch(batch) as inputs:
                plan = engine.seams.plan
                with engine.seams.applied(plan | Plan(record=frozenset({0}))):
                    model(**inputs)
                    outputs.append(engine.seams.records[0].output)
    actual = torch.stack(outputs)
    away = (actual.mean(0) - expected) / (actual.std(0) / steps**0.5)
    assert away.abs().max() < 5


def test_at_least_one_head_is_kept() -> None:
    for actual in factors_of(DropHead(1, "constant"), 20):
        for factor in actual.values():
            assert sorted(factor[0].flatten().tolist()) == [0.0, 0.0, 0.0, 4.0]
    draws = torch.tensor([[0.1, 0.7, 0.3], [0.9, 0.8, 0.95]])
    assert head_factors(draws, 0.8).tolist() == [[0.0, 3.0, 0.0], [1.0, 1.0, 1.0]]
    assert head_factors(draws, 0.85).tolist() == [[0.0, 3.0, 0.0], [1.5, 0.0, 1.5]]
    which = [
        int(x.flatten(1).argmax(1)[0]) for actual in factors_of(DropHead(1, "constant"), 40) for x in actual.values()
    ]
    assert set(which) == {0, 1, 2, 3}


def test_schedule_is_v_shaped() -> None:
    assert [round(v_shape(0.4, 0.25, t), 6) for t in (0, 0.125, 0.25, 0.625, 1)] == [0.4, 0.2, 0.0, 0.2, 0.4]
    assert [v_shape(0.4, 0, t) for t in (0, 0.5, 1)] == [0.0, 0.2, 0.4]
    assert [v_shape(0.4, 1, t) for t in (0, 0.5, 1)] == [0.4, 0.2, 0.0]
    model, batch, used = zoo.make_model("bert").train(), zoo.make_batch("bert"), []
    with Engine(model, [DropHead(0.8, warmup=0.5)]) as engine:
        for step in range(9):
            engine.begin_step(Progress(step=step, total_steps=8), measure=True)
            with engine.micro_batch(batch):
                used.append(round(float(engine._step.metrics.get("drophead/p", 0.0)), 6))
                assert bool(engine.seams.plan) == (step != 4)
    assert used == [0.8, 0.6, 0.4, 0.2, 0.0, 0.2, 0.4, 0.6, 0.8]


def test_draws_depend_on_example_layer_and_step_but_not_on_the_process() -> None:
    first, second = factors_of(DropHead(0.5, "constant"), 2)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])
    batch, model = zoo.make_batch("bert", size=4), zoo.make_model("bert").train()
    with Engine(model, [DropHead(0.5, "constant")], seed=8) as engine, engine.micro_batch(batch):
        whole = engine.seams.plan.scale[0]
    assert len({tuple(row) for row in whole.flatten(1).tolist()}) > 1
    part = {k: v[2:] for k, v in batch.items()}
    with (
        Engine(model, [DropHead(0.5, "constant")], seed=8, rank=1, world=2, batch_size=2) as engine,
        engine.micro_batch(part),
    ):
        assert torch.equal(engine.seams.plan.scale[0], whole[2:])


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DropHead\.p is 2; it must be from 0 to 1"):
        DropHead(p=2)
    with pytest.raises(ValueError, match=r"DropHead\.schedule is 'w'; it must be one of 'v', 'constant'"):
        DropHead(schedule="w")
    with pytest.raises(ValueError, match=r"DropHead\.warmup is 100; it must be a share of the training"):
        DropHead(warmup=100)
    with pytest.raises(ValueError, match=r"DropHead\.p is a schedule, and .* set schedule='constant'"):
        DropHead(p="0..0.2")
