"""SWA: the mean against a literal one, and which steps it contains."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attendrop import EMA, SWA, Engine
from helpers import zoo
from helpers.precision import assert_same_numbers


def run(method: SWA, steps: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The first weight after each step of a random walk, and at the end."""
    model = zoo.make_model("bert").train()
    weight, seen = next(model.parameters()), []
    with Engine(model, method, steps_per_epoch=steps) as engine, torch.no_grad():
        for _ in range(steps):
            engine.begin_step()
            weight += torch.randn_like(weight)
            seen.append(weight.clone())
            engine.after_optimizer()
        engine.finish()
    return seen, weight.detach().clone()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({"start": 0}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"start": 0.7}, [8, 9, 10]),
        ({"start": 0.5, "every": 2}, [6, 8, 10]),
        ({"start": 0.25, "every": 3}, [4, 7, 10]),
        ({"start": 0.99}, [10]),
        ({"start": 0, "every": 50}, [10]),
    ],
)
def test_final_weights_are_the_mean_of_the_chosen_steps(fields: dict[str, Any], chosen: list[int]) -> None:
    seen, final = run(SWA(**fields), steps=10)
    assert_same_numbers(final, sum(seen[number - 1] for number in chosen) / len(chosen))


def test_start_1_changes_nothing() -> None:
    seen, final = run(SWA(start=1), steps=4)
    assert torch.equal(final, seen[-1])


def test_two_averages_are_refused() -> None:
    with pytest.raises(ValueError, match="EMA and SWA, which both decide the weights of the final model"):
        Engine(zoo.make_model("bert"), [EMA(), SWA()])


@pytest.mark.parametrize(("field", "value"), [("start", 1.5), ("start", -1), ("every", 0), ("every", 1.5)])
def test_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"SWA\.{field} is {value}"):
        SWA(**{field: value})
