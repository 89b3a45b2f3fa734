"""LP-FT: training against literal steps, and that nothing but the head moves at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from attendrop import L2SP, LPFT, Engine, FreeLB, RegularizedTrainer
from helpers import zoo
from helpers.data import make_arguments, make_examples, pad
from helpers.literal_training import literally_trained, trained
from helpers.precision import assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("fields", "probing"), [({"share": 0.5}, 2), ({"steps": 3}, 3), ({"share": 0.9, "steps": 0}, 0)]
)
def test_training_matches_a_literal_loop(fields: dict[str, Any], probing: int) -> None:
    """5 steps, of which `probing` train the head alone. Adam counts the steps of the other weights from there."""
    literal = literally_trained(5, lambda name, step: None if name.startswith("bert.") and step < probing else 1.0)
    for name, weight in trained(5, LPFT(**fields)).items():
        assert_same_numbers(weight, literal[name])


def backward_products(method: LPFT, *others: Any) -> int:
    """The matrix products in the backward of a first step."""
    model = zoo.make_model("bert").train()
    with Engine(model, [method, *others], steps_per_epoch=4) as engine:
        with engine.micro_batch(zoo.make_batch("bert")) as inputs:
            loss = engine.loss(model(**inputs))
            with FlopCounterMode(display=False) as counter:
                loss.backward()
        engine.before_optimizer()
        assert {n for n, p in model.named_parameters() if p.grad is not None} == {
            "classifier.weight",
            "classifier.bias",
        }
    return counter.get_total_flops()


def test_the_backward_ends_after_the_last_block_while_the_head_is_trained_alone() -> None:
    alone, beside = backward_products(LPFT(steps=1)), backward_products(LPFT(steps=1), FreeLB(steps=2))
    assert alone < beside / 20  # FreeLB needs the gradient of the embeddings


class Watch(TrainerCallback):
    """The weights that have changed and that have a state in the optimizer, after each step."""

    def __init__(self, model: Any) -> None:
        self.before = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.changed: list[set[str]] = []
        self.in_optimizer: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.changed.append({n for n, p in model.named_parameters() if not torch.equal(p, self.before[n])})
        self.in_optimizer.append(len(kwargs["optimizer"].state))


def test_only_the_head_moves_at_first_with_other_methods_too(tmp_path: Path) -> None:
    model = zoo.make_model("bert")
    trainer = RegularizedTrainer(
        model=model,
        args=make_arguments(tmp_path, max_steps=4, weight_decay=0.5, gradient_accumulation_steps=2),
        train_dataset=make_examples("bert", 32),
        data_collator=pad,
        regularizers=[LPFT(0.5), L2SP(alpha=0.5)],
    )
    watch = Watch(model)
    trainer.add_callback(watch)
    trainer.train()
    head = {"classifier.weight", "classifier.bias"}
    assert watch.changed[:2] == [head, head]
    assert watch.in_optimizer[:2] == [2, 2]
    assert watch.changed[2] == set(watch.before)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("gpt2", "has no head whose weights are trained"), ("bert", "nothing to train after the head")],
)
def test_models_without_a_separate_trained_head_and_base_are_refused(kind: str, message: str) -> None:
    model = zoo.make_model(kind)
    if kind == "bert":
        model.bert.requires_grad_(False)
    with pytest.raises(ValueError, match=message):
        Engine(model, LPFT(0.5))


def test_head_phase_must_be_shorter_than_training() -> None:
    with (
        Engine(zoo.make_model("bert").train(), LPFT(steps=4), steps_per_epoch=4) as engine,
        pytest.raises(ValueError, match=r"LPFT\.steps is 4; it must be below 4, the steps of the run"),
    ):
        engine.begin_step()


@pytest.mark.parametrize(("field", "value"), [("share", 1), ("share", -0.1), ("steps", 1.5), ("steps", -2)])
def test_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"LPFT\.{field} is {value}; it must be"):
        LPFT(**{field: value})
