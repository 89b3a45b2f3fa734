"""Functional SAM compared with Jacobians by hand, and with SAM where the two agree."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from attendrop import SAM, Engine, FunctionalSAM, LabelSmoothing, Loop, RDrop
from helpers import zoo
from helpers.precision import assert_same_gradients, assert_same_numbers


def literal_gradient(model: Any, batch: dict[str, torch.Tensor], rho: float) -> None:
    """J(W + e)ᵀ s, with s and e at W."""
    weights = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    outputs = model(**batch)
    (slope,) = torch.autograd.grad(outputs.loss, [outputs.logits], retain_graph=True)
    gradients = torch.autograd.grad(outputs.loss, weights, allow_unused=True)
    length = sum((g**2).sum() for g in gradients if g is not None) ** 0.5
    with torch.no_grad():
        for weight, g in zip(weights, gradients, strict=True):
            if g is not None:
                weight.add_(rho * g / length)
    logits = model(**batch).logits
    logits.backward(slope)
    with torch.no_grad():
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama", "bart", "regression", "pooled_regression", "multilabel", "token"])
def test_accumulated_step_matches_jacobians_by_hand(kind: str) -> None:
    model = zoo.make_model(kind, dropout=False).train()
    batches = [zoo.make_batch(kind, seed=1), zoo.make_batch(kind, seed=2)]
    literal, of_sam = copy.deepcopy(model), copy.deepcopy(model)
    before = [p.detach().clone() for p in model.parameters()]
    for own, method in ((model, FunctionalSAM(0.3)), (of_sam, SAM(0.3))):
        with Engine(own, [method]) as engine:
            losses = []
            for batch in batches:
                with engine.micro_batch(batch) as inputs:
                    losses.append(engine.loss(own(**inputs)))
                    losses[-1].backward()
            engine.before_optimizer()
            if own is model:
                first = losses
                assert all(torch.equal(p, x) for p, x in zip(model.parameters(), before, strict=True))
    assert_same_numbers(torch.stack(first), torch.stack(losses))  # the value of the loss is that of SAM
    for batch in batches:
        literal_gradient(literal, batch, 0.3)
    assert_same_gradients(model, literal)
    pairs = [
        (p.grad, q.grad) for p, q in zip(model.parameters(), of_sam.parameters(), strict=True) if p.grad is not None
    ]
    assert max((p - q).abs().max() for p, q in pairs) > 1e-4


@pytest.mark.usefixtures("float64")
def test_views_share_the_slope() -> None:
    """Without dropout both views are equal, so that two of them give the gradient of one."""
    gradients = []
    for methods in ([FunctionalSAM(0.3)], [FunctionalSAM(0.3), RDrop()]):
        model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
        with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        gradients.append(model)
    assert_same_gradients(*gradients)


def test_span_heads_other_losses_and_loss_scaling_are_refused() -> None:
    class Scaled(Loop):
        gradient_scale = 65536.0

    model = zoo.make_model("bert")
    with pytest.raises(ValueError, match="FunctionalSAM computes a gradient in a separate pass, and"):
        Engine(model, [FunctionalSAM()], loop=Scaled())
    with pytest.raises(ValueError, match="both replace a part of the model's own loss"):
        Engine(model, [FunctionalSAM(), LabelSmoothing()])
    with pytest.raises(ValueError, match="FunctionalSAM and SAM, which both edit the weights"):
        Engine(model, [FunctionalSAM(), SAM()])
    with pytest.raises(ValueError, match="FunctionalSAM compares|FunctionalSAM .* span head"):
        Engine(zoo.make_model("span"), [FunctionalSAM()])
    with pytest.raises(ValueError, match=r"FunctionalSAM\.rho is -1; it must be from 0"):
        FunctionalSAM(rho=-1)
