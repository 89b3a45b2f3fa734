"""Two processes train like one: with replicas (DDP) and with shards (FSDP2, by accelerate and by transformers)."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.data import largest_difference, same_bits, weights_of
from helpers.forks import run_ranks
from helpers.precision import float64
from helpers.zoo import make_model
from scripts.train_distributed import ATTENDOUT_STEPS, SAVE_STEPS, STEPS, make_trainer, networks_of

# One process runs all of these tests, so that their shared fixtures are created once.
pytestmark = pytest.mark.xdist_group("distributed")

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "train_distributed.py")


def _on_two_processes(mode: str, folder: Path, method: str = "addrop", *options: str) -> list[dict[str, Any]]:
    """Runs the script on two processes; returns the results of each rank."""
    for done in run_ranks(2, SCRIPT, mode, method, folder, *options):
        assert done.code == 0, done.err[-4000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses of one process that takes the batches of both."""
    with float64():
        trainer = make_trainer("alone", "addrop", str(tmp_path_factory.mktemp("alone")))
        trainer.train()
    return weights_of(trainer.model), _losses(trainer.state.log_history)


def _losses(history: list[dict[str, float]]) -> list[float]:
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.mark.usefixtures("float64")
def test_addrop_changes_the_weights_in_these_runs(
    tmp_path: Path, alone: tuple[dict[str, torch.Tensor], list[float]]
) -> None:
    """Otherwise the equalities below would not test AD-DROP."""
    plain = make_trainer("alone", "addrop", str(tmp_path), q=0)
    plain.train()
    assert largest_difference(weights_of(plain.model), alone[0]) > 1e-3


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("mode", "strategy", "sharded"),
    [("ddp", "MULTI_CPU", False), ("fsdp", "FSDP", True), ("sharded_at_load", "MULTI_CPU", True)],
)
def test_two_processes_match_one_process(
    tmp_path: Path, alone: tuple[dict[str, torch.Tensor], list[float]], mode: str, strategy: str, sharded: bool
) -> None:
    first, second = _on_two_processes(mode, tmp_path)
    for rank in (first, second):
        assert (rank["world"], rank["strategy"]) == (2, strategy)
        assert rank["sharded"] == (len(list(make_model("bert").parameters())) if sharded else 0)
        assert rank["unbound"]
        assert rank["edits"] == 1
    actual = first["networks"]["model"]
    assert same_bits(actual, second["networks"]["model"])
    weights, losses = alone
    assert largest_difference(actual, weights) < 1e-9
    assert largest_difference(actual, weights_of(make_model("bert", dropout=False))) > 1e-2
    assert len(losses) == STEPS
    assert all(math.isfinite(loss) for loss in losses)
    assert _losses(first["logs"]) == pytest.approx(losses, rel=1e-9)
    assert first["logs"][0]["addrop/drop_rate_layer_0"] == second["logs"][0]["addrop/drop_rate_layer_0"]


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["cached", "dev"])
def test_two_processes_match_one_process_for_all_networks_of_attendout(tmp_path: Path, method: str) -> None:
    first, second = _on_two_processes("ddp_saved", tmp_path / "two", method)
    assert (first["world"], first["strategy"]) == (2, "MULTI_CPU")
    assert first["networks"].keys() == {"model", "defender", "generator"}
    for name, weights in first["networks"].items():
        assert same_bits(weights, second["networks"][name]), name
    assert first["record"] == second["record"]

    alone = make_trainer("alone", method, str(tmp_path / "alone"))
    alone.train()
    networks, record = networks_of(alone), alone.regularizers[0].record()
    for name in ("model", "defender", "generator"):
        assert largest_difference(first["networks"][name], networks[name]) < 1e-9
    assert [entry["step"] for entry in record] == list(range(3, ATTENDOUT_STEPS + 1, 3))
    for two, one in zip(first["record"], record, strict=True):
        assert two["winner"] == one["winner"]
        for name in ("reward", "reward_error", "baseline", "attacker", "defender"):
            assert two[name] == pytest.approx(one[name], abs=1e-9), name

    # Otherwise the equalities would say nothing: the masks matter, and all networks have moved.
    assert largest_difference(networks["model"], networks["defender"]) > 1e-4
    plain = make_trainer("alone", method, str(tmp_path / "plain"), init_drop=0.0)
    plain.train()
    assert largest_difference(weights_of(plain.model), networks["model"]) > 1e-3
    assert largest_difference(networks_of(plain)["generator"], networks["generator"]) > 1e-3

    # State that only one process has is saved too: resumed in the middle of a round, both continue exactly.
    shutil.rmtree(tmp_path / "two" / f"checkpoint-{ATTENDOUT_STEPS}")
    assert (tmp_path / "two" / f"checkpoint-{SAVE_STEPS}").is_dir()
    for before, after in zip(
        (first, second), _on_two_processes("ddp_saved", tmp_path / "two", method, "--resume"), strict=True
    ):
        assert all(same_bits(before["networks"][name], after["networks"][name]) for name in before["networks"])
        assert before["record"] == after["record"]
