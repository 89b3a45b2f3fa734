"""LLRD: training against literal steps, the rates of every optimizer and scheduler, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from transformers.optimization import Adafactor

from attendrop import LLRD, Engine, Freeze, Loop, RegularizedTrainer
from helpers import zoo
from helpers.data import make_arguments, make_examples, pad
from helpers.literal_training import literally_trained, trained
from helpers.precision import assert_same_numbers


def layers_below_the_head(name: str) -> int:
    """In a BERT of two blocks."""
    places = (("embeddings", 3), ("layer.0.", 2), ("layer.1.", 1))
    return next((depth for text, depth in places if text in name), 0)


@pytest.mark.usefixtures("float64")
def test_training_matches_a_literal_loop() -> None:
    literal = literally_trained(5, lambda name, step: 0.5 ** layers_below_the_head(name))
    for name, weight in trained(5, LLRD(0.5)).items():
        assert_same_numbers(weight, literal[name])


class Rates(TrainerCallback):
    """The learning rate and the weight decay of each weight, by name."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        names = {id(parameter): name for name, parameter in given["model"].named_parameters()}
        groups = [(group, p) for group in given["optimizer"].param_groups for p in group["params"]]
        self.rates = {names[id(p)]: group["lr"] for group, p in groups}
        self.decays = {names[id(p)]: group["weight_decay"] for group, p in groups}


def make_trainer(folder: Path, method: Any, model: Any = None, optimizers: Any = (None, None), **options: Any) -> Any:
    return RegularizedTrainer(
        model=zoo.make_model("bert") if model is None else model,
        args=make_arguments(folder, **{"max_steps": 4, "weight_decay": 0.1, **options}),
        train_dataset=make_examples("bert", 16),
        data_collator=pad,
        optimizers=optimizers,
        regularizers=method,
    )


@pytest.mark.parametrize("own", [False, True])
def test_every_weight_has_its_rate_in_every_optimizer_and_schedule(own: bool, tmp_path: Path) -> None:
    model, rates = zoo.make_model("bert"), Rates()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1) if own else None
    trainer = make_trainer(
        tmp_path, LLRD(0.5), model, (optimizer, None), lr_scheduler_type="cosine", warmup_steps=2, learning_rate=0.02,
        logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    trainer.add_callback(rates)
    for _ in range(2):  # a Trainer may train again
        trainer.train()
        full = trainer.state.log_history[-2]["learning_rate"]
        assert 0 < full == rates.rates["classifier.weight"] < 0.02
        assert set(rates.rates) == {name for name, _ in model.named_parameters()}
        trainer.args.max_steps = 6
    assert {name for name, decay in rates.decays.items() if decay == 0} == (
        set() if own else {name for name in rates.decays if "bias" in name or "LayerNorm" in name}
    )
    top = rates.rates["classifier.weight"]
    for name, rate in rates.rates.items():
        assert rate == pytest.approx(top * 0.5 ** layers_below_the_head(name), rel=1e-12, abs=0), name
    assert len(trainer.optimizer.param_groups) == (1 if own else 2)


def test_frozen_weights_combine_with_scaled_rates() -> None:
    model = zoo.make_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Engine(model, [Freeze(1), LLRD(0.5)], loop=Loop(optimizer=optimizer)):
        assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.5, 1.0]
    assert len(optimizer.param_groups) == 1
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def with_scheduler(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    return optimizer


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        ("albert", lambda m: torch.optim.SGD(m.parameters(), lr=1.0), "uses one block several times, so LLRD cannot"),
        ("bert", with_scheduler, "has a learning rate scheduler already; pass the optimizer without one"),
        ("bert", lambda m: Adafactor(m.parameters()), r"Adafactor has none \(lr=None\)"),
        ("bert", lambda m: torch.optim.SGD(zoo.make_model("bert").parameters(), lr=1.0), "trains none of the weights"),
    ],
)
def test_unsupported_models_are_refused_before_training(kind: str, make: Any, message: str) -> None:
    model = zoo.make_model(kind)
    with pytest.raises(ValueError, match=message):
        Engine(model, LLRD(0.5), loop=Loop(optimizer=make(model)))
    Engine(model, []).close()  # the model is as it was


def test_a_loop_without_its_optimizer_is_refused() -> None:
    with (
        Engine(zoo.make_model("bert").train(), LLRD(0.5)) as engine,
        pytest.raises(ValueError, match=r"needs the optimizer; pass Engine\(loop=Loop\(optimizer=optimizer\)\)"),
    ):
        engine.begin_step()


def test_llrd_cannot_be_added_on_resume(tmp_path: Path) -> None:
    make_trainer(tmp_path, [], save_strategy="steps", save_steps=2).train()
    trainer = make_trainer(tmp_path, LLRD(0.5))
    with pytest.raises(ValueError, match="checkpoint-2 has other groups of weights in its optimizer; methods that"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"), resume_changed=True)


@pytest.mark.parametrize("value", [0, -1, 1.1, "much"])
def test_decay_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"LLRD\.decay is .*; it must be a number above 0 and at most 1"):
        LLRD(value)
