"""Freezing: which weights stay, that no optimizer touches them, and that attribution still works in frozen layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import EMA, LPFT, SWA, ADDrop, Engine, Freeze, Reinit, WiSEFT
from helpers import zoo
from helpers.literal_training import literally_trained, trained
from helpers.precision import assert_same_numbers
from helpers.training import train

BELOW = ("bert.embeddings.", "bert.encoder.layer.0.")


@pytest.mark.usefixtures("float64")
def test_training_matches_a_literal_loop() -> None:
    literal = literally_trained(3, lambda name, step: None if name.startswith(BELOW) else 1.0)
    for name, weight in trained(3, Freeze(1)).items():
        assert_same_numbers(weight, literal[name])


@pytest.mark.parametrize(
    ("kind", "fields", "frozen"),
    [
        ("bert", {"blocks": 1}, BELOW),
        ("bert", {"blocks": 1, "embeddings": False}, BELOW[1:]),
        ("bert", {"blocks": 0}, BELOW[:1]),
        (
            "bart",
            {"blocks": 2},
            ("model.shared.", "model.encoder.", "model.decoder.embed", "model.decoder.layernorm_e"),
        ),
    ],
)
def test_frozen_weights_stay_and_are_not_in_the_optimizer(
    kind: str, fields: dict[str, Any], frozen: tuple[str, ...], tmp_path: Path
) -> None:
    model = zoo.make_model(kind)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _, trainer = train(tmp_path, kind, [Freeze(**fields)], model=model, weight_decay=0.5, max_steps=1)
    same = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert same == {name for name in before if name.startswith(frozen)}
    held = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    assert held == len(before) - len(same)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_attribution_in_frozen_layers_is_that_of_the_whole_model() -> None:
    plans = []
    for methods in ([], [Freeze(2)]):
        model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
        addrop = ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=False)
        torch.manual_seed(0)
        with Engine(model, [*methods, addrop]) as engine, engine.micro_batch(batch) as inputs:
            plans.append(engine.seams.plan.keep)
            engine.loss(model(**inputs)).backward()
        assert model.classifier.weight.grad is not None
        assert (model.bert.encoder.layer[0].output.dense.weight.grad is None) == bool(methods)
    assert plans[0].keys() == plans[1].keys() == {0, 1}
    assert all(torch.equal(plans[0][site], plans[1][site]) for site in plans[0])
    assert not plans[1][0].all()


def adapters_in_the_first_block() -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query"], layers_to_transform=[0])
    return peft.get_peft_model(zoo.make_model("bert"), config)


@pytest.mark.parametrize(
    ("make", "methods", "message"),
    [
        (lambda: zoo.make_model("bert"), [Freeze(3)], r"Freeze\.blocks is 3; it must be at most 2, the blocks of Bert"),
        (adapters_in_the_first_block, [Freeze(1)], r"Freeze\.blocks is 1, which leaves no weight of Bert.* to train"),
        (lambda: zoo.make_model("albert"), [Freeze(1)], "uses one block several times, so Freeze cannot tell"),
        (
            lambda: zoo.make_model("bert"),
            [Freeze(2), Reinit(1)],
            "regularizers has Freeze and Reinit, which cannot act",
        ),
        (lambda: zoo.make_model("bert"), [Reinit(3), Freeze(2)], r"^Reinit\.blocks is 3; it must be at most 2"),
        *(
            (lambda: zoo.make_model("bert").requires_grad_(False), [average], "has no weight that is trained, so")
            for average in (EMA(), SWA(), WiSEFT())
        ),
    ],
)
def test_unsupported_models_are_refused_before_training(make: Any, methods: list[Any], message: str) -> None:
    model = make()
    before = [parameter.requires_grad for parameter in model.parameters()]
    with pytest.raises(ValueError, match=message):
        Engine(model, methods)
    assert [parameter.requires_grad for parameter in model.parameters()] == before


def test_lp_ft_needs_weights_outside_of_the_head() -> None:
    model = zoo.make_model("distilbert")  # no pooler: frozen blocks leave the head alone
    with pytest.raises(
        ValueError, match="Freeze and LPFT, which cannot act together, .*nothing to train after the head"
    ):
        Engine(model, [LPFT(0.5), Freeze(2)])
    Engine(model, [LPFT(0.5), Freeze(1)]).close()


@pytest.mark.parametrize(("field", "value"), [("blocks", -1), ("blocks", 1.5), ("embeddings", "yes")])
def test_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Freeze\.{field} is {value!r}; it must be"):
        Freeze(**{field: value})
