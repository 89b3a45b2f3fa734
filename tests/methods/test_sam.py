"""SAM compared with two passes by hand, and what it leaves behind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from attendrop import ASAM, EMA, SAM, SMART, SWA, ADDrop, ChildTuning, Engine, FreeLB, Loop, Mixout
from attendrop.kernels.foreach import ascend, restore
from helpers import zoo
from helpers.precision import assert_same_gradients, assert_same_numbers


def literal_gradients(model: Any, batches: list[dict[str, torch.Tensor]], rho: float) -> None:
    """Adds the gradient of each batch at the weights of its own ascent."""
    weights = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    for batch in batches:
        gradients = torch.autograd.grad(model(**batch).loss, weights, allow_unused=True)
        length = sum((g**2).sum() for g in gradients if g is not None) ** 0.5
        with torch.no_grad():
            for weight, g in zip(weights, gradients, strict=True):
                if g is not None:
                    weight.add_(rho * g / length)
        model(**batch).loss.backward()
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama", "bart"])
def test_accumulated_step_matches_two_passes_by_hand(kind: str) -> None:
    model = zoo.make_model(kind, dropout=False).train()
    batches = [zoo.make_batch(kind, seed=1), zoo.make_batch(kind, seed=2)]
    literal, plain = copy.deepcopy(model), copy.deepcopy(model)
    before = [p.detach().clone() for p in model.parameters()]
    with Engine(model, [SAM(0.3)]) as engine:
        for batch in batches:
            with engine.micro_batch(batch) as inputs:
                assert not all(torch.equal(p, x) for p, x in zip(model.parameters(), before, strict=True))
                engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        assert all(torch.equal(p, x) for p, x in zip(model.parameters(), before, strict=True))
    literal_gradients(literal, batches, 0.3)
    literal_gradients(plain, batches, 0.0)
    assert_same_gradients(model, literal)
    assert (
        max((p.grad - q.grad).abs().max() for p, q in zip(model.parameters(), plain.parameters(), strict=True)) > 1e-4
    )


@pytest.mark.usefixtures("float64")
def test_first_pass_draws_the_dropout_of_the_second() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    literal = copy.deepcopy(model)
    torch.manual_seed(3)
    with Engine(model, [SAM(0.3)]) as engine, engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()

    class Seeded:  # both passes begin with the same random state
        def parameters(self) -> Any:
            return literal.parameters()

        def __call__(self, **inputs: Any) -> Any:
            torch.manual_seed(3)
            return literal(**inputs)

    literal_gradients(Seeded(), [batch], 0.3)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_zero_or_nonfinite_gradient_moves_no_weight() -> None:
    weights, trained = ([torch.ones(3), torch.ones(2, 2)] for _ in range(2))
    is_moved = torch.tensor(False)
    for bad in (0.0, float("inf"), float("nan")):
        ascend(weights, trained, [torch.zeros(3), torch.full((2, 2), bad)], 0.5, None, is_moved)
        assert all(map(torch.equal, weights, trained))
    ascend(weights, trained, [torch.tensor([3.0, 0.0, 0.0]), torch.full((2, 2), 2.0)], 0.5, None, is_moved)
    assert_same_numbers(weights[0], torch.tensor([1.3, 1.0, 1.0]))
    assert_same_numbers(weights[1], torch.full((2, 2), 1.2))
    restore(weights, trained, is_moved)
    assert all(torch.equal(x, torch.ones_like(x)) for x in weights)


def test_plan_that_runs_again_starts_from_the_trained_weights() -> None:
    """A captured plan first runs as a trial. In the next step the optimizer has changed the trained weights."""
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    with Engine(model, [SAM(0.3)], steps_per_epoch=2) as engine:
        for _ in range(2):
            before = copy.deepcopy(model.state_dict())
            micro_batch = engine.begin_micro_batch(batch)
            engine.regularizers[0].on_batch(micro_batch)
            results = []
            for _ in range(2):
                engine.plan(micro_batch)
                results.append(copy.deepcopy(model.state_dict()))
            assert all(map(torch.equal, results[0].values(), results[1].values()))
            assert not all(map(torch.equal, results[0].values(), before.values()))
            engine.before_optimizer()
            assert all(map(torch.equal, model.state_dict().values(), before.values()))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01)
            engine.after_optimizer()


def test_interrupted_step_leaves_the_trained_weights() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    before = copy.deepcopy(model.state_dict())
    engine = Engine(model, [SAM(0.3)])
    with pytest.raises(RuntimeError, match="in the middle"), engine.micro_batch(batch):
        raise RuntimeError("in the middle")
    engine.close()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_methods_see_trained_weights_in_on_gradients() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    before = [p.detach().clone() for p in model.parameters()]
    with Engine(model, [ChildTuning(p=0.5), SAM(0.3), ADDrop(cross_tuning=False)]) as engine:
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        assert all(torch.equal(p, x) for p, x in zip(model.parameters(), before, strict=True))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        engine.after_optimizer()
        engine.begin_step()  # nothing is restored any more
        assert all(torch.equal(p, x + 1) for p, x in zip(model.parameters(), before, strict=True))
    with pytest.raises(ValueError, match=r"SAM and Mixout, which both edit the weights"):
        Engine(model, [SAM(), Mixout()])


def test_loss_scaling_and_a_frozen_model_are_refused() -> None:
    """The scaler of float16 does not cover the first pass. Accumulation is right: each micro-batch has its own step."""

    class Scaled(Loop):
        gradient_scale = 65536.0

    model = zoo.make_model("bert")
    for method in (SAM(), ASAM()):
        name = type(method).__name__
        with pytest.raises(ValueError, match=rf"{name} computes a gradient in a separate pass, and"):
            Engine(model, [method], loop=Scaled())
    for several in (FreeLB(), SMART()):
        Engine(model, [SAM(rho=0), several], loop=Scaled()).close()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for averaging in (SAM(), ASAM(), EMA(), SWA()):
        with pytest.raises(ValueError, match=r"BertForSequenceClassification has no weight that is trained"):
            Engine(model, [averaging])
