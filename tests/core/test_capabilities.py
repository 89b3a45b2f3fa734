"""What a method inherits from: the base class alone, or capabilities."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import attendrop
from attendrop import METHODS, AveragesWeights, Engine, KeepsState, LayerDrop, Regularizer
from attendrop.core import capabilities
from attendrop.core.regularizer import _CAPABILITY_OF
from helpers import zoo

CAPABILITIES = [
    cls for cls in vars(capabilities).values() if inspect.isclass(cls) and cls.__module__ == capabilities.__name__
]


def members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_a_method_that_only_plans_sees_at_most_15_members() -> None:
    assert len(members(Regularizer)) <= 15
    assert members(LayerDrop) == members(Regularizer) | {"p"}


def test_capabilities_are_public_and_their_members_are_known_to_the_base_class() -> None:
    assert all(getattr(attendrop, cls.__name__) is cls for cls in CAPABILITIES)
    owners = {name: cls.__name__ for cls in CAPABILITIES for name in vars(cls) if not name.startswith("_")}
    assert owners.items() <= _CAPABILITY_OF.items()
    assert set(_CAPABILITY_OF.values()) == {cls.__name__ for cls in CAPABILITIES}


@pytest.mark.parametrize(("member", "capability"), _CAPABILITY_OF.items())
def test_member_without_its_capability_raises_one_line_error(member: str, capability: str) -> None:
    with pytest.raises(TypeError) as error:
        type("Old", (Regularizer,), {member: None})
    end = ", and rename it to requires_model_loss." if member == "own_loss" else "."
    assert str(error.value) == (
        f"Old defines {member!r}, and only methods that inherit from {capability} have it; write class "
        f"Old(attendrop.{capability}){end}"
    )
    type("New", (getattr(attendrop, capability),), {member: None})


def test_every_capability_is_used_by_a_method() -> None:
    assert [cls for cls in CAPABILITIES if not any(issubclass(method, cls) for method in METHODS.values())] == []


def test_capabilities_can_be_combined_in_a_method_of_the_user() -> None:
    @dataclass
    class Last(AveragesWeights, KeepsState):
        name: ClassVar[str] = "last"

        def reset(self) -> None:
            self.steps = 0

        def on_step_end(self, step: Any) -> None:
            self.steps += 1

        def evaluated_weights(self, model: Any) -> dict[str, Any]:
            return {name: weight.detach() * 0 for name, weight in model.named_parameters()}

        def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
            return {}, {"steps": self.steps}

    method, model, batch = Last(), zoo.make_model("bert").train(), zoo.make_batch("bert")
    assert method.steps == 0
    with Engine(model, method) as engine:
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        engine.after_optimizer()
        with engine.evaluated_weights():
            assert all((parameter == 0).all() for parameter in model.parameters())
        assert not all((parameter == 0).all() for parameter in model.parameters())
    assert method.state() == ({}, {"steps": 1})
