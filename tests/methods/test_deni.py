"""DENI: training against literal copies, the noise, and when copies are trained."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attendrop import DENI, AttendOut, Engine, Loop, Mixout, Progress
from helpers import zoo
from helpers.literal_training import DECAY, RATE, LiteralAdamW, weights_of
from helpers.precision import assert_same_numbers

STEPS = 10
FIELDS: dict[str, Any] = {"models": 3, "noise": 0.2, "start": 0.2, "end": 0.6, "every": 0.2, "ensemble": 0.8}
FIRST, LAST = (2, 8), (3, 9)  # steps in which copies are made, and after which they are averaged


def mean_of(networks: list[Any]) -> dict[str, Tensor]:
    weights = [weights_of(network) for network in networks]
    return {name: sum(one[name] for one in weights) / len(weights) for name in weights[0]}  # type: ignore[misc]


@pytest.mark.usefixtures("float64")
def test_training_matches_literal_copies() -> None:
    """They begin with the noisy weights that the method has drawn."""
    model, literal = (zoo.make_model("bert", dropout=False).train() for _ in range(2))
    method = DENI(**FIELDS, noise_on="trained")
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    networks, optimizers = [literal], [LiteralAdamW()]
    with Engine(model, method, steps_per_epoch=STEPS, loop=Loop(optimizer=optimizer)) as engine:
        for step in range(STEPS):
            batch = zoo.make_batch("bert", seed=step)
            engine.begin_step()
            if step in FIRST:
                networks += [copy.deepcopy(network) for network in method.networks().values()]
                optimizers += [copy.deepcopy(optimizers[0]) for _ in networks[1:]]
            with engine.micro_batch(batch) as inputs:
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            optimizer.step()
            engine.after_optimizer()
            optimizer.zero_grad()
            for network, own in zip(networks, optimizers, strict=True):
                network(**batch).loss.backward()
                own.step(network, lambda name: RATE)
            with engine.evaluated_weights():
                for name, mean in mean_of(networks).items():
                    assert_same_numbers(dict(model.named_parameters())[name], mean)
            if step in LAST:
                literal.load_state_dict(mean_of(networks), strict=False)
                networks, optimizers = networks[:1], optimizers[:1]
        engine.finish()
    for name, weight in model.named_parameters():
        assert_same_numbers(weight, dict(literal.named_parameters())[name])


@pytest.mark.parametrize(("step", "variance"), [(2, 0.2 / 3), (8, 0.2)])
def test_noise_has_the_variance_of_the_paper(step: int, variance: float) -> None:
    model = zoo.make_model("bert").train()
    method, head = DENI(**FIELDS), DENI(**FIELDS, noise_on="head")
    method.noise_on = "trained"
    for one in (method, head):
        with Engine(model, one, loop=Loop(optimizer=torch.optim.SGD(model.parameters(), 0.1))) as engine:
            engine.begin_step(Progress(step, STEPS))
            first, second = one.networks().values()
            for name, weight in model.named_parameters():
                noise = first.get_parameter(name) - weight
                if one is head and name.startswith("bert."):
                    assert not noise.any()
                elif weight.numel() > 1000:
                    assert noise.std().item() == pytest.approx(variance**0.5 * weight.std().item(), rel=0.1)
                    assert noise.mean().abs() < 0.1 * noise.std()
                    assert not torch.equal(first.get_parameter(name), second.get_parameter(name))
            assert one is method or not torch.equal(first.classifier.weight, model.classifier.weight)


def test_defaults_cost_what_the_paper_says() -> None:
    """37 % of an ensemble of ten models."""
    method = DENI()
    rounds = [method._round(Progress(step, 1250)) for step in range(1250)]
    passes = sum(1 if number is None else method.models for number in rounds)
    assert passes / (10 * 1250) == pytest.approx(0.37)
    assert [number for step, number in enumerate(rounds) if step in (374, 375, 499, 500, 625, 750, 1124, 1125)] == [
        None, 0, 0, None, 1, None, None, -1,
    ]  # fmt: skip


def test_copies_draw_their_own_dropout_and_the_model_draws_as_without_them() -> None:
    draws = []
    for methods in ([], [DENI(models=3, noise=0, start=0, end=1, noise_on="trained")]):
        model = zoo.make_model("bert").train()
        loop = Loop(optimizer=torch.optim.SGD(model.parameters(), 0.1))
        torch.manual_seed(7)
        with Engine(model, methods, loop=loop) as engine:
            with engine.micro_batch(zoo.make_batch("bert")) as inputs:
                engine.loss(model(**inputs)).backward()
            for method in methods:
                gradients = [network.classifier.weight.grad for network in method.networks().values()]
                assert not torch.equal(*gradients)
                assert not torch.equal(gradients[0], model.classifier.weight.grad)
        draws.append(model.classifier.weight.grad)
    assert torch.equal(*draws)


@pytest.mark.parametrize("other", [Mixout(0.5), AttendOut()])
def test_methods_that_change_weights_are_refused(other: Any) -> None:
    with pytest.raises(ValueError, match="trains networks beside it that must take the same steps; choose one of them"):
        Engine(zoo.make_model("bert"), [DENI(), other])


def test_weights_must_be_trained() -> None:
    with pytest.raises(
        ValueError, match=r"DENI\.noise_on is 'head', and GPT2LMHeadModel has no head whose weights are"
    ):
        Engine(zoo.make_model("gpt2"), DENI())
    with pytest.raises(ValueError, match="has no weight that is trained, so DENI has nothing to act on"):
        Engine(zoo.make_model("bert").requires_grad_(False), DENI())


@pytest.mark.parametrize(
    ("field", "value"), [("models", 0), ("noise", -1), ("noise_on", "all"), ("start", 1.5), ("every", 0)]
)
def test_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"DENI\.{field} is {value!r}; it must be"):
        DENI(**{field: value})
