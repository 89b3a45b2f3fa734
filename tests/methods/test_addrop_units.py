"""AD-DROP on the inner units of the feed-forwards, compared with a slow version that hooks stock models."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attendrop import ADDrop, Engine, Progress
from attendrop.core.step import Loop
from attendrop.kernels.draws import uniform
from attendrop.model.attribution import IntegrationRule
from attendrop.model.probe import Probe
from attendrop.model.seams import bound
from attendrop.model.unit_attribution import unit_scores
from attendrop.random import key_of
from helpers import oracles, zoo
from helpers.precision import assert_same_gradients, assert_same_numbers

# The last linear layer of a feed-forward, as each architecture calls it.
LAST = re.compile(
    r"(layers?\.\d+\.output\.dense|ffn\.lin2|mlp\.c_proj|mlp\.down_proj|\.fc2|DenseReluDense\.wo|mlp\.Wo|ffn_output)$"
)


class LiteralUnits:
    """Hooks of a stock model that keep each inner activation in the graph, scale the one of a call, or mask all."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[Tensor] = []
        self.scaled: int | None = None
        self.factor = 1.0
        self.keep: dict[int, Tensor] = {}
        for name, module in model.named_modules():
            if LAST.search(name):
                module.register_forward_pre_hook(self._see)

    def _see(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, call = args[0], len(self.seen)
        if call == self.scaled:
            x = x * self.factor
        if call in self.keep:
            x = x * self.keep[call]
        self.seen.append(x)
        return (x, *args[1:])


def literal_scores(kind: str, model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """∂F/∂Z with a backward for each block."""
    units = LiteralUnits(model)
    f = oracles.literal_objective(kind, model(**batch), batch, [])
    return [torch.autograd.grad(f, z, retain_graph=True)[0] for z in units.seen]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", zoo.ARCHITECTURES + zoo.HEADS)
def test_whole_step_matches_a_slow_reference_step(kind: str) -> None:
    p, q = 0.5, 0.6
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    scores = literal_scores(kind, copy.deepcopy(model), batch)
    assert len(scores) > 1

    engine = Engine(model, [ADDrop(p=p, q=q, layers="all", cross_tuning=False, units="ffn")], seed=11)
    engine.begin_step(Progress(step=5, total_steps=10))
    with engine.micro_batch(batch) as inputs:
        assert not engine.seams.plan.keep  # no attention position
        actual = model(**inputs)
        engine.loss(actual).backward()
    engine.close()

    oracle = copy.deepcopy(model)
    oracle.zero_grad()
    units = LiteralUnits(oracle)
    for block, score in enumerate(scores):
        maps = score.unsqueeze(1)
        draws = uniform(key_of(11, 5, block, "addrop ffn"), torch.arange(len(maps)), tuple(maps.shape[1:]))
        units.keep[block] = oracles.literal_keep(maps, torch.ones_like(maps, dtype=torch.bool), p, q, draws)[0].squeeze(
            1
        )
    outputs = oracle(**batch)
    outputs.loss.backward()
    assert_same_numbers(actual.loss, outputs.loss)
    assert_same_gradients(model, oracle)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama", "token"])
def test_integrated_gradient_matches_a_slow_sum(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    rule = IntegrationRule("sum", 3)
    oracle = copy.deepcopy(model)
    units = LiteralUnits(oracle)
    target: list[Any] = []
    oracles.literal_objective(kind, oracle(**batch), batch, target)
    unscaled = [z.detach() for z in units.seen]
    with bound(model) as seams:
        actual = list(unit_scores(Probe(model, seams, batch), seams.select_blocks("all"), "iga", rule=rule))
    for block, z in enumerate(unscaled):
        total = torch.zeros_like(z)
        for at in (1 / 3, 2 / 3, 1.0):
            units.seen, units.scaled, units.factor = [], block, at
            f = oracles.literal_objective(kind, oracle(**batch), batch, target)
            total += torch.autograd.grad(f, units.seen[block])[0] / 3
        number, activation, score = actual[block]
        assert number == block
        assert score is not None
        assert_same_numbers(activation, z)
        assert_same_numbers(score, z * total)


def test_low_direction_random_units_and_the_activation_itself() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    rates = {}
    for attribution, direction in (("ga", "high"), ("ga", "low"), ("aa", "high"), ("rd", "high")):
        method = ADDrop(
            p=0.5, q=1.0, layers="all", attribution=attribution, direction=direction, cross_tuning=False, units="ffn"
        )
        engine = Engine(model, [method], seed=1)
        engine.begin_step(Progress(step=1, total_steps=10), measure=True)
        with engine.micro_batch(batch) as inputs:
            ((block, (edit,)), *_) = engine.seams.plan.inner.items()
            assert block == 0
            real = inputs["attention_mask"].bool()
            kept = edit(torch.ones(*real.shape, 48))[real]
            engine.loss(model(**inputs)).backward()
        rates[attribution, direction] = float((kept == 0).float().mean())
        assert engine._step.metrics["addrop/ffn_drop_rate_layer_0"] == pytest.approx(rates[attribution, direction])
        engine.close()
    assert rates["ga", "high"] == rates["ga", "low"] == rates["aa", "high"] == 0.5  # half of 48 units, without ties
    assert 0.4 < rates["rd", "high"] < 0.6


def test_steps_that_drop_units_are_not_captured_and_plain_ones_are() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    for units, key in (("ffn", None), ("attention", True)):
        method = ADDrop(cross_tuning=False, units=units)
        engine = Engine(model, [method])
        engine.begin_step(Progress(step=0, total_steps=10))
        with engine.micro_batch(batch):
            assert method.capture_key(engine._step) is key
        engine.close()
    off = ADDrop(cross_tuning=False, units="ffn", q=0)
    engine = Engine(model, [off])
    engine.begin_step(Progress(step=0, total_steps=10))
    with engine.micro_batch(batch):
        assert off.capture_key(engine._step) is False
        assert not engine.seams.plan
    engine.close()


def test_what_cannot_be_attributed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ADDrop.units is 'heads'; it must be one of"):
        ADDrop(units="heads")
    loop = Loop(calls_model=True)
    with pytest.raises(ValueError, match="units must be 'attention'"):
        ADDrop(units="ffn").check_loop(zoo.make_model("bert"), loop)
