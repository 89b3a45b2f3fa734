"""The step itself, with toy methods that use the verbs AD-DROP does not: views, penalties, edits, gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import zoo

from attendrop import ADDrop, Engine, Plan, Regularizer


@dataclass
class TwoViews(Regularizer):
    """As R-Drop: the two views of each example shall agree."""

    views: ClassVar[int] = 2
    weight: float = 1.0

    def penalty(self, outputs: Any, step: Any) -> torch.Tensor:
        first, second = outputs["logits"].chunk(2)
        return self.weight * (first - second).square().mean()


@dataclass
class Halved(Regularizer):
    """Halves all gradients, and counts its verbs."""

    edits_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.calls: list[str] = []

    def on_step_begin(self, step: Any) -> None:
        self.calls.append("begin")

    def plan(self, batch: Any, step: Any) -> Plan:
        self.calls.append("plan")
        return Plan()

    def on_gradients(self, step: Any) -> None:
        self.calls.append("gradients")
        for parameter in step.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    def on_step_end(self, step: Any) -> None:
        self.calls.append("end")


def test_views_share_the_plan_and_the_penalty_is_added() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    engine = Engine(model, [TwoViews(weight=2.0), ADDrop(p=0.5, q=0.5, cross_tuning=False)])
    with engine.micro_batch(batch) as inputs:
        assert inputs["input_ids"].shape == (6, 9)
        keep = engine.seams.plan.keep[0]
        assert keep.shape[0] == 6
        assert torch.equal(keep[:3], keep[3:])
        outputs = model(**inputs)
        first, second = outputs.logits.chunk(2)
        assert not torch.equal(first, second)  # ordinary dropout tells the views apart
        expected = outputs.loss + 2 * (first - second).square().mean()
        torch.testing.assert_close(engine.loss(outputs), expected)
    engine.close()


def test_the_verbs_come_in_their_order() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    model(**batch).loss.backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    method = Halved()
    engine = Engine(model, [method])
    for _ in range(2):
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
    engine.before_optimizer()
    engine.after_optimizer()
    assert method.calls == ["begin", "plan", "plan", "gradients", "end"]
    for before, parameter in zip(plain, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, before)  # two micro-batches, halved
    engine.close()


def test_two_methods_that_edit_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="Halved and Halved, which both edit the weights"):
        Engine(zoo.make_model("bert"), [Halved(), Halved()])


def test_a_bare_loop_moves_through_epochs_by_itself() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    engine = Engine(model, [ADDrop(p=0.5, q=0.5)], epochs=3, steps_per_epoch=2)
    dropped = []
    for _ in range(6):
        with engine.micro_batch(batch) as inputs:
            dropped.append(bool(engine.seams.plan.keep))
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        engine.after_optimizer()
    assert dropped == [False, False, True, True, False, False]
    engine.close()
