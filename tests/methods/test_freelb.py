"""FreeLB compared with K passes by hand, and an accumulated step with the whole batch."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import ADDrop, AttendOut, Engine, FreeLB, Progress, RDrop, RegularizedTrainer
from attendrop.capture.draws import DrawKeys, StaticMicroBatch
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import zoo
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, weights_of
from helpers.literal import WORDS, giving
from helpers.precision import assert_same_gradients, assert_same_numbers

EPSILON, STEPS, STEP_SIZE = 0.5, 4, 0.3


def literal_gradients(model: Any, kind: str, batch: dict[str, torch.Tensor], seed: int | None = None) -> torch.Tensor:
    """Adds the mean gradient of K passes to those of the model; returns the mean loss."""
    real = batch["attention_mask"]
    delta: list[torch.Tensor] = []
    losses = []
    for number in range(STEPS):

        def perturb(x: torch.Tensor, number: int = number) -> torch.Tensor:
            if number == 0:
                for row in range(len(x)):
                    draws = uniform(key_of(5, 2, -1, "freelb"), torch.tensor([row]), (1, *x.shape[1:]))[0, 0]
                    count = int(real[row].sum()) * x.shape[-1]
                    delta.append((2 * draws - 1) * EPSILON / count**0.5 * real[row].unsqueeze(-1))
            for row in range(len(x)):
                delta[row] = delta[row].detach().requires_grad_()
            return torch.stack([x[row] + delta[row] for row in range(len(x))])

        if seed is not None:
            torch.manual_seed(seed)
        with giving(model.get_submodule(WORDS[kind]), perturb):
            loss = model(**batch).loss
        losses.append(loss.detach())
        (loss / STEPS).backward()
        for row, gradients in enumerate(delta):
            gradient = gradients.grad * real[row].unsqueeze(-1)
            moved = gradients.detach() + STEP_SIZE * gradient / gradient.square().sum().sqrt()
            length = moved.square().sum().sqrt()
            delta[row] = moved * EPSILON / length if length > EPSILON else moved
    return torch.stack(losses).mean()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "albert", "llama", "bart"])
def test_whole_step_matches_passes_by_hand(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal, plain = copy.deepcopy(model), copy.deepcopy(model)
    with Engine(model, [FreeLB(EPSILON, STEPS, STEP_SIZE)], seed=5) as engine:
        engine.begin_step(Progress(step=2, total_steps=10))
        losses = []
        for inputs in engine.passes(engine.begin_micro_batch(batch)):
            losses.append(engine.loss(model(**inputs)))
            losses[-1].backward()
    assert len(losses) == STEPS
    assert losses[-1] > losses[0]  # the loss rises along the ascent
    assert_same_numbers(sum(losses), literal_gradients(literal, kind, batch))
    assert_same_gradients(model, literal)
    plain(**batch).loss.backward()
    assert (
        max((p.grad - q.grad).abs().max() for p, q in zip(model.parameters(), plain.parameters(), strict=True)) > 1e-3
    )


@pytest.mark.usefixtures("float64")
def test_all_passes_draw_the_same_dropout() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    literal = copy.deepcopy(model)
    torch.manual_seed(3)
    with Engine(model, [FreeLB(EPSILON, STEPS, STEP_SIZE)], seed=5) as engine:
        engine.begin_step(Progress(step=2, total_steps=10))
        with engine.micro_batch(batch) as inputs:  # runs the passes but the last by itself
            engine.loss(model(**inputs)).backward()
    literal_gradients(literal, "bert", batch, seed=3)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_accumulated_step_matches_the_whole_batch(tmp_path: Path) -> None:
    """Examples have different lengths: the perturbation of one does not depend on the padding or on the others."""
    examples = make_examples("llama", 8)

    def run(size: int, accumulated: int, **fields: Any) -> dict[str, torch.Tensor]:
        model = zoo.make_model("llama", dropout=False)
        options = {**SGD, "learning_rate": 0.002, "per_device_train_batch_size": size, "max_steps": 2}
        args = make_arguments(tmp_path, gradient_accumulation_steps=accumulated, **options)
        method = FreeLB(**{"epsilon": 0.5, "step_size": 0.3, **fields})
        RegularizedTrainer(
            model=model, args=args, train_dataset=examples, data_collator=pad, regularizers=[method]
        ).train()
        return weights_of(model)

    actual = run(1, 4)
    assert largest_difference(actual, run(4, 1)) < 1e-9
    assert largest_difference(actual, run(1, 4, steps=1)) > 1e-5


def test_other_methods_act_in_every_pass() -> None:
    """The gradient with K = 2 and no ascent is that of one pass with the same noise, mask and views."""
    batch, gradients = zoo.make_batch("bert"), []
    for steps in (1, 2):
        model = zoo.make_model("bert", dropout=False).train()
        methods = [FreeLB(0.5, steps, step_size=0), RDrop(alpha=3.0), ADDrop(p=0.5, q=0.5, cross_tuning=False)]
        with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_attendout_and_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"FreeLB changes weights or gradients of the model alone"):
        Engine(zoo.make_model("bert"), [FreeLB(), AttendOut()])
    with pytest.raises(ValueError, match=r"FreeLB\.steps is 0; it must be a whole number of at least 1"):
        FreeLB(steps=0)
    with pytest.raises(ValueError, match=r"FreeLB\.epsilon is -1; it must be from 0"):
        FreeLB(epsilon=-1)
    with pytest.raises(ValueError, match=r"FreeLB\.init is 'big'; it must be a number from 0"):
        FreeLB(init="big")


@pytest.mark.usefixtures("float64")
def test_trial_run_before_capture_changes_nothing() -> None:
    """A captured pass runs as a trial first; keys and numbers are in tensors, and so is what it leaves for the next."""
    batch, gradients = zoo.make_batch("bert"), []
    for trials in (0, 1):
        model = zoo.make_model("bert", dropout=False).train()
        with Engine(model, [FreeLB("0.2..0.8", STEPS, STEP_SIZE)], seed=5) as engine:
            for step in range(2):
                model.zero_grad()
                engine.begin_step(Progress(step, total_steps=4))
                planned = engine.begin_micro_batch(batch)
                if not trials:
                    for inputs in engine.passes(planned):
                        engine.loss(model(**inputs)).backward()
                    continue
                keys = DrawKeys(torch.device("cpu"))
                keys.write(planned)
                static = StaticMicroBatch.of(planned, keys)
                for _ in engine.passes(planned, lambda batch: nullcontext):
                    before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                    for _ in range(1 + trials):
                        for parameter, gradient in zip(model.parameters(), before, strict=True):
                            parameter.grad = None if gradient is None else gradient.clone()
                        with engine.tracked(static, engine.seams.applied(engine.plan(static))):
                            engine.loss(model(**static.inputs)).backward()
        gradients.append([p.grad for p in model.parameters()])
    for eager, repeated in zip(*gradients, strict=True):
        assert (eager - repeated).abs().max() < 1e-6  # a captured schedule is in float32
