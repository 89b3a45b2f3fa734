"""What the engine gives to a step: places of examples in the global batch, metrics, state of each process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from attendrop import Engine, KeepsState
from helpers import zoo


def test_positions_count_the_examples_of_all_processes_and_micro_batches() -> None:
    """Two processes with two micro-batches of three examples have the positions of one batch of twelve."""
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    results = []
    for rank in (0, 1):
        with Engine(model, [], rank=rank, world=2, batch_size=3) as engine:
            engine.begin_step()
            for _ in range(2):
                results.append(engine.begin_micro_batch(batch).positions(3, torch.device("cpu")).tolist())
    assert results == [[0, 1, 2], [6, 7, 8], [3, 4, 5], [9, 10, 11]]


def test_choices_of_one_example_have_positions_of_their_own() -> None:
    model, batch = zoo.make_model("choice").train(), zoo.make_batch("choice")
    with Engine(model, [], batch_size=3) as engine:
        engine.begin_step()
        rows = [engine.begin_micro_batch(batch).positions(6, torch.device("cpu")).tolist() for _ in range(2)]
    assert rows == [list(range(6)), list(range(6, 12))]


@dataclass
class Counting(KeepsState):
    """Logs the number of the step, and has a state that differs between processes."""

    name: ClassVar[str] = "counting"
    local_state: ClassVar[tuple[str, ...]] = ("own",)

    def __post_init__(self) -> None:
        self.tensors = {"own.x": torch.zeros(1), "shared.x": torch.zeros(1)}

    def on_step_end(self, step: Any) -> None:
        step.metrics["counting/step"] = torch.tensor(float(step.progress.step))

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return self.tensors, {"rank": int(self.tensors["own.x"])}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        self.tensors, self.values = tensors, values


def test_metrics_are_means_over_the_steps_since_the_last_call() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    with Engine(model, [Counting()], epochs=1, steps_per_epoch=8) as engine:
        for expected in (1.5, 5.5):
            for _ in range(4):
                with engine.micro_batch(batch):
                    pass
                engine.before_optimizer()
                engine.after_optimizer()
            assert engine.pop_metrics()["counting/step"] == expected
        assert engine.pop_metrics() == {}


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_loads_its_own_state_and_the_shared_one(rank: int, tmp_path: Path) -> None:
    model = zoo.make_model("bert").train()
    for process in (0, 1):
        method = Counting()
        method.tensors = {"own.x": torch.tensor([float(process)]), "shared.x": torch.tensor([7.0 + process])}
        with Engine(model, [method], rank=process, world=2) as engine:
            engine.save_state(tmp_path)
    method = Counting()
    with Engine(model, [method], rank=rank, world=2) as engine:
        engine.load_state(tmp_path)
    assert {name: x.item() for name, x in method.tensors.items()} == {"own.x": rank, "shared.x": 7}
    assert method.values == {"rank": rank}
