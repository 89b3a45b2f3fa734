"""L2-SP: gradients against autograd of the literal penalty, with mixed weights, accumulation and scaled losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attendrop import L2SP, Engine, Loop, NoisyTune
from helpers import zoo
from helpers.precision import assert_same_numbers


class ScaledLoop(Loop):
    """A loop whose loss is scaled, as that of fp16 training."""

    @property
    def gradient_scale(self) -> float:
        return 8.0


def is_head(name: str) -> bool:
    return name.startswith("classifier")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_gradients_are_those_of_the_literal_penalty(scale: float) -> None:
    alpha, beta, batch = 0.7, 0.3, zoo.make_batch("bert")
    model = zoo.make_model("bert", dropout=False).train()
    origin = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loop = Loop() if scale == 1 else ScaledLoop()
    with Engine(model, L2SP(alpha, beta), steps_per_epoch=4, loop=loop) as engine:
        for _ in range(4):
            loss = model(**batch)["loss"]
            for name, parameter in model.named_parameters():
                away = parameter if is_head(name) else parameter - origin[name]
                loss = loss + (beta if is_head(name) else alpha) / 2 * (away * away).sum()
            expected = torch.autograd.grad(scale * loss, list(model.parameters()))
            for _ in range(2):  # two micro-batches: the penalty counts once for each step
                with engine.micro_batch(batch) as inputs:
                    (scale / 2 * engine.loss(model(**inputs))).backward()
            engine.before_optimizer()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert_same_numbers(parameter.grad, gradient)
            optimizer.step()
            engine.after_optimizer()
            optimizer.zero_grad()


def test_target_is_the_weight_with_which_training_starts() -> None:
    """Also where a method that comes later in the list changes the weights in the first step."""
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    method = L2SP()
    with Engine(model, [method, NoisyTune(0.5)]) as engine, engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        targets = method.state()[0]
        assert not any(is_head(name) for name in targets)
        assert all(torch.equal(targets[name], p) for name, p in model.named_parameters() if not is_head(name))


def test_lora_adapters_are_pulled_to_zero() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(zoo.make_model("bert"), peft.LoraConfig(r=2, target_modules=["query"]))
    model.train()
    method, batch = L2SP(), zoo.make_batch("bert")
    with Engine(model, method) as engine, engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        targets = method.state()[0]
    assert len(targets) == 4
    assert not any(target.any() for target in targets.values())


def test_distance_is_logged() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    with Engine(model, L2SP()) as engine:
        for _ in range(2):
            engine.begin_step(measure=True)
            with engine.micro_batch(batch) as inputs:
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            with torch.no_grad():
                model.bert.pooler.dense.bias.add_(1.0)
            engine.after_optimizer()
        distance = engine.pop_metrics()["l2_sp/distance"]
    assert distance.item() == pytest.approx(32**0.5 / 2, abs=1e-4)  # the mean of 0 and √32


@pytest.mark.parametrize("field", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-1, "much", float("nan")])
def test_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"L2SP\.{field} is .*; it must be a number from 0"):
        L2SP(**{field: value})


def test_fully_frozen_model_is_refused() -> None:
    with pytest.raises(ValueError, match="has no weight that is trained, so L2SP has nothing to act on"):
        Engine(zoo.make_model("bert").requires_grad_(False), L2SP())


@pytest.mark.parametrize(
    ("decay", "method", "warns"), [(0.01, L2SP(), True), (0, L2SP(), False), (0.01, L2SP(0, 0), False)]
)
def test_weight_decay_beside_it_is_a_warning(
    decay: float, method: L2SP, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class DecayingLoop(Loop):
        arguments = SimpleNamespace(weight_decay=decay)

    Engine(zoo.make_model("bert"), method, loop=DecayingLoop()).close()
    assert ("weight_decay is 0.01, which pulls the weights to zero" in caplog.text) == warns
