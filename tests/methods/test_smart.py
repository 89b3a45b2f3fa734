"""SMART compared with manual passes: the ascent example by example, the penalties row by row, the teacher by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import R3F, SMART, Engine, FreeLB, Progress, RDrop, RegularizedTrainer
from attendrop.core.step import Step
from attendrop.kernels.draws import uniform
from attendrop.methods._shared.noise import noise_of
from attendrop.random import key_of
from helpers import zoo
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, weights_of
from helpers.literal import WORDS, giving, kl, mean_over_rows
from helpers.precision import assert_same_gradients, assert_same_numbers

WEIGHT, MU, EPSILON, SIGMA, STEPS, STEP_SIZE, BETA = 0.7, 0.4, 0.25, 0.1, 2, 0.15, 0.6
FIELDS: dict[str, Any] = {
    "weight": WEIGHT, "mu": MU, "epsilon": EPSILON, "sigma": SIGMA, "steps": STEPS, "step_size": STEP_SIZE, "beta": BETA
}  # fmt: skip


def both(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return kl(p, q) + kl(q, p)


def literal_loss(
    model: Any, teacher: Any, kind: str, batch: dict[str, torch.Tensor], step: int, seed: int | None = None
) -> torch.Tensor:
    """With a seed there is ordinary dropout: the same for x and x + δ, none where δ is found and in the teacher."""
    words = model.get_submodule(WORDS.get(kind, WORDS["bert"]))
    labels = batch["labels"]
    model.train(seed is None)
    clean = model(**batch)
    deltas: list[torch.Tensor] = []
    for number in range(STEPS + 1):

        def noisy(x: torch.Tensor, number: int = number) -> torch.Tensor:
            if number == 0:
                draws = uniform(key_of(5, step, -1, "smart"), torch.arange(len(x)), (1, *x.shape[1:])).squeeze(1)
                deltas.extend(noise_of(draws, SIGMA, "normal"))
            deltas[:] = [delta.detach().requires_grad_() for delta in deltas]
            return x + torch.stack(deltas)

        if number == STEPS and seed is not None:
            model.train()
            torch.manual_seed(seed)
            clean = model(**batch)
            torch.manual_seed(seed)
        with giving(words, noisy):
            outputs = model(**batch)
        divergence = mean_over_rows(kind, outputs.logits, clean.logits, labels, both)
        if number == STEPS:
            break
        actual = torch.autograd.grad(divergence, deltas, retain_graph=True)
        for row, gradient in enumerate(actual):
            moved = deltas[row].detach() + STEP_SIZE * gradient / gradient.abs().max()
            deltas[row] = moved.maximum(torch.tensor(-EPSILON)).minimum(torch.tensor(EPSILON))
    with torch.no_grad():
        taught = teacher.train(seed is None)(**batch)
    return clean.loss + WEIGHT * divergence + MU * mean_over_rows(kind, clean.logits, taught.logits, labels, both)


def passes(engine: Engine, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Forward and backward of all passes; the sum of their losses."""
    losses = []
    for inputs in engine.passes(engine.begin_micro_batch(batch)):
        losses.append(engine.loss(model(**inputs)))
        losses[-1].backward()
    return sum(losses)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_both_views_draw_the_same_dropout(kind: str) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    literal, teacher = copy.deepcopy(model), copy.deepcopy(model)
    torch.manual_seed(3)
    with Engine(model, [SMART(**FIELDS)], seed=5) as engine:
        engine.begin_step(Progress(step=0, total_steps=10))
        total = passes(engine, model, batch)
    expected = literal_loss(literal, teacher, kind, batch, 0, seed=3)
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_default_perturbation_is_adversarial() -> None:
    """Without a perturbation the penalty is 0; with the default one it is more than with noise of the same size."""
    penalties = {}
    for name, fields in {"none": {"epsilon": 0.0}, "noise": {"step_size": 0.0, "sigma": 1e-3}, "default": {}}.items():
        model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert", size=16)
        torch.manual_seed(3)
        with Engine(model, [SMART(mu=0.0, **fields)], seed=5) as engine:
            total = passes(engine, model, batch)
        torch.manual_seed(3)
        penalties[name] = (total - model(**batch).loss).item()
    assert abs(penalties["none"]) < 1e-12
    assert penalties["default"] > 3 * penalties["noise"] > 0


@pytest.mark.usefixtures("float64")
def test_another_method_with_two_views_acts_in_all_passes() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    literal, teacher = copy.deepcopy(model), copy.deepcopy(model)
    with Engine(model, [SMART(**FIELDS), RDrop(alpha=2.0)], seed=5) as engine:
        engine.begin_step(Progress(step=0, total_steps=10))
        total = passes(engine, model, batch)
    assert_same_numbers(total, literal_loss(literal, teacher, "bert", batch, 0))  # without dropout its views are equal


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama", "bart", "regression", "multilabel"])
def test_two_steps_match_manual_passes(kind: str) -> None:
    model = zoo.make_model(kind, dropout=False).train()
    literal, teacher = copy.deepcopy(model), copy.deepcopy(model)
    with Engine(model, [SMART(**FIELDS)], seed=5) as engine:
        for number in range(2):
            batch = zoo.make_batch(kind, seed=number)
            engine.begin_step(Progress(step=number, total_steps=10))
            total = passes(engine, model, batch)
            engine.before_optimizer()
            expected = literal_loss(literal, teacher, kind, batch, number)
            literal.zero_grad()
            expected.backward()
            assert_same_numbers(total, expected)
            assert_same_gradients(model, literal)
            with torch.no_grad():
                for of in (model, literal):
                    for parameter in of.parameters():
                        parameter.sub_(0.1 * parameter.grad)
                for mean, parameter in zip(teacher.parameters(), literal.parameters(), strict=True):
                    mean.copy_(BETA * mean + (1 - BETA) * parameter)
            engine.after_optimizer()
            model.zero_grad()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("part", ["weight", "mu"])
def test_strength_of_each_part_may_be_zero(part: str) -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    fields = {**FIELDS, "weight": 0.0, "mu": 0.0, part: FIELDS[part]}
    method = SMART(**fields)
    plain = copy.deepcopy(model)
    with Engine(model, [method]) as engine:
        for _ in range(2):  # in the first step the teacher has the weights of the model
            total = passes(engine, model, batch)
            assert engine.number_of_passes(Step(model, engine.seams, Progress(1))) == (3 if part == "weight" else 1)
            with torch.no_grad():
                model.classifier.weight.mul_(1.5)
            engine.before_optimizer()
            engine.after_optimizer()
    plain.classifier.weight.data.mul_(1.5)
    assert total > plain(**batch).loss + 1e-4


@pytest.mark.usefixtures("float64")
def test_accumulated_step_matches_the_whole_batch(tmp_path: Path) -> None:
    examples = make_examples("llama", 8)

    def run(size: int, steps: int, **fields: float) -> dict[str, torch.Tensor]:
        model = zoo.make_model("llama", dropout=False)
        options = {**SGD, "learning_rate": 0.002, "per_device_train_batch_size": size, "max_steps": 2}
        args = make_arguments(tmp_path, gradient_accumulation_steps=steps, **options)
        RegularizedTrainer(
            model=model, args=args, train_dataset=examples, data_collator=pad, regularizers=[SMART(**FIELDS | fields)]
        ).train()
        return weights_of(model)

    actual = run(1, 4)
    assert largest_difference(actual, run(4, 1)) < 1e-9
    assert largest_difference(actual, run(1, 4, weight=0.1)) > 1e-5
    assert largest_difference(actual, run(1, 4, mu=4.0)) > 1e-6


def test_methods_that_replace_the_loss_and_bad_fields_are_refused(tmp_path: Path) -> None:
    model = zoo.make_model("bert")
    with pytest.raises(
        ValueError, match=r"SMART leaves the model's own loss out of a pass and R3F replaces a part of "
    ):
        Engine(model, [SMART(), R3F()])
    Engine(model, [SMART(weight=0), R3F()]).close()
    with pytest.raises(
        ValueError, match=r"FreeLB and SMART, which both decide how often a batch passes through the mo"
    ):
        Engine(model, [FreeLB(), SMART()])
    with pytest.raises(ValueError, match=r"SMART is not defined|SMART compares the predictions"):
        Engine(zoo.make_model("span"), [SMART()])
    with pytest.raises(ValueError, match=r"SMART\.beta is 1\.5; it must be from 0 to 1"):
        SMART(beta=1.5)
    with pytest.raises(ValueError, match=r"SMART\.steps is 0; it must be a whole number of at least 1"):
        SMART(steps=0)
    args = make_arguments(tmp_path, max_steps=1, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=r"SMART\.weight is not 0, for which the loss must be the model's own"):
        RegularizedTrainer(
            model=zoo.make_model("bert"),
            args=args,
            train_dataset=make_examples("bert", 4),
            data_collator=pad,
            regularizers=[SMART()],
        )
