"""ASAM compared with two passes by hand, weight by weight."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import ASAM, SAM, Engine
from helpers import zoo
from helpers.precision import assert_same_gradients


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_step_matches_two_passes_by_hand(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [ASAM(0.7, eta=0.02)]) as engine:
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()

    literal(**batch).loss.backward()
    # The authors scale what has "weight" in its name, and no biases.
    scales = {n: p.detach().abs() + 0.02 if "weight" in n else 1.0 for n, p in literal.named_parameters()}
    scaled = {n: p.grad * scales[n] for n, p in literal.named_parameters() if p.grad is not None}
    length = torch.cat([x.flatten() for x in scaled.values()]).norm()
    with torch.no_grad():
        for name, weight in literal.named_parameters():
            if name in scaled:
                weight.add_(0.7 * scales[name] * scaled[name] / length)
    literal.zero_grad()
    literal(**batch).loss.backward()
    assert_same_gradients(model, literal)


def test_asam_and_sam_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"ASAM and SAM, which both edit the weights; choose one of them"):
        Engine(zoo.make_model("bert"), [ASAM(), SAM()])
