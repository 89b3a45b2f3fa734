"""Two real processes train as one does: replicas (DDP), and shards (FSDP2, by accelerate and by transformers)."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from data import largest_difference, same_bits, weights_of
from scripts.train_distributed import STEPS, make_trainer
from zoo import make_model

SCRIPT = str(Path(__file__).parent / "scripts" / "train_distributed.py")


def _on_two_processes(mode: str, folder: Path) -> list[dict[str, Any]]:
    """What each of the two ranks left behind."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, SCRIPT, mode, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses of one process that takes the batches of both."""
    trainer = make_trainer("alone", str(tmp_path_factory.mktemp("alone")))
    trainer.train()
    return weights_of(trainer.model), _losses(trainer.state.log_history)


def _losses(history: list[dict[str, float]]) -> list[float]:
    return [entry["loss"] for entry in history if "loss" in entry]


def test_dropping_matters_here(tmp_path: Path, alone: tuple[dict[str, torch.Tensor], list[float]]) -> None:
    """Otherwise the equalities below would say nothing about AD-DROP."""
    plain = make_trainer("alone", str(tmp_path), q=0)
    plain.train()
    assert largest_difference(weights_of(plain.model), alone[0]) > 1e-3


@pytest.mark.parametrize(
    ("mode", "strategy", "sharded"),
    [("ddp", "MULTI_CPU", False), ("fsdp", "FSDP", True), ("sharded_at_load", "MULTI_CPU", True)],
)
def test_two_processes_train_as_one(
    tmp_path: Path, alone: tuple[dict[str, torch.Tensor], list[float]], mode: str, strategy: str, sharded: bool
) -> None:
    first, second = _on_two_processes(mode, tmp_path)
    for rank in (first, second):
        assert (rank["world"], rank["strategy"]) == (2, strategy)
        assert rank["sharded"] == (len(list(make_model("bert").parameters())) if sharded else 0)
        assert rank["unbound"]
        assert rank["edits"] == 1
    assert same_bits(first["weights"], second["weights"])
    weights, losses = alone
    assert largest_difference(first["weights"], weights) < 1e-5
    assert largest_difference(first["weights"], weights_of(make_model("bert", dropout=False))) > 1e-2
    assert len(losses) == STEPS
    assert all(math.isfinite(loss) for loss in losses)
    assert _losses(first["logs"]) == pytest.approx(losses, rel=1e-5)
    assert first["logs"][0]["addrop/drop_rate_layer_0"] == second["logs"][0]["addrop/drop_rate_layer_0"]
