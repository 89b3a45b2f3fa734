"""A killed run continues from its last checkpoint exactly as an uninterrupted run."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from attendrop import parse_method
from attendrop.core.schedule import is_method_epoch
from helpers.data import same_bits, weights_of
from helpers.forks import Fork, run_python
from helpers.zoo import make_model
from scripts.train_tiny import EPOCHS, METHODS, SAVE_STEPS, STEPS_PER_EPOCH, train

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "train_tiny.py")
STEPS = EPOCHS * STEPS_PER_EPOCH

Found = tuple[dict[str, torch.Tensor], Any]


def kill_in_step(method: str, folder: Path, step: int) -> None:
    """Starts a run and kills it between a backward pass and the optimizer step."""
    child = Fork([SCRIPT, method, folder, "--pause-in-step", step])
    while "paused" not in child.written():
        assert child.process.is_alive(), "the run ended before it could be killed"
        time.sleep(0.05)
    child.kill()
    assert child.wait().code == -signal.SIGKILL


def read(path: Path) -> Found:
    return load_file(path), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def assert_same(one: Found, other: Found) -> None:
    assert one[1] == other[1]
    assert same_bits(one[0], other[0])


@pytest.mark.parametrize(
    ("method", "killed_in"),
    [
        ("addrop", 12),  # two steps after the second checkpoint, in the middle of the epoch that is AD-DROP's
        # the second checkpoint is two steps into the third round
        pytest.param("dev", 12, marks=pytest.mark.slow),
        # the first checkpoint is one step into the second round of an update that takes two
        pytest.param("cached", 7, marks=pytest.mark.slow),
    ],
)
def test_killed_run_resumes_exactly(tmp_path: Path, method: str, killed_in: int) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    saved = killed_in - killed_in % SAVE_STEPS
    kill_in_step(method, killed, killed_in)
    checkpoints = {f"checkpoint-{n}" for n in range(SAVE_STEPS, saved + 1, SAVE_STEPS)}
    assert {path.name for path in killed.glob("checkpoint-*")} == checkpoints
    if method == "addrop":
        assert saved % STEPS_PER_EPOCH != 0
        assert saved // STEPS_PER_EPOCH == killed_in // STEPS_PER_EPOCH
        assert is_method_epoch(saved // STEPS_PER_EPOCH, EPOCHS, "plain")
    else:
        check_the_middle_of_a_round(method, killed / f"checkpoint-{saved}", saved)

    assert run_python(SCRIPT, method, killed, "--resume").code == 0
    train(method, str(whole))
    resumed = read(killed / "end.safetensors")
    assert_same(resumed, read(whole / "end.safetensors"))
    model = {name.removeprefix("model."): value for name, value in resumed[0].items() if name.startswith("model.")}
    fresh = weights_of(make_model("bert"))
    assert model.keys() == fresh.keys()
    assert not same_bits(model, fresh)
    if method == "addrop":
        return
    # At the end a round is over; the checkpoint before has steps in its cache.
    between = Path("checkpoint-15", "attendout.safetensors")
    assert_same(read(killed / between), read(whole / between))
    assert read(whole / between)[1]["steps_in_round"] == 3
    assert [entry["step"] for entry in resumed[1]["history"]] == list(range(4, STEPS + 1, 4))


def check_the_middle_of_a_round(method: str, checkpoint: Path, saved: int) -> None:
    """The checkpoint has a cache, both moving averages and, where an update takes two rounds, a gradient."""
    tensors, values = read(checkpoint / "attendout.safetensors")
    regularizer: Any = parse_method(METHODS[method])
    rounds, steps = divmod(saved, regularizer.T)
    assert steps > 0
    assert (values["rounds"], values["steps_in_round"]) == (rounds, steps)
    assert [at for at, _ in values["counters"]] == list(range(saved - steps, saved))
    assert values["baseline"] != 0
    assert values["size"] > 0
    assert len(values["history"]) == rounds
    parts = {name.split(".")[0] for name in tensors}
    kept = {"defender", "defender_optimizer", "generator", "round"}
    assert parts == kept | ({"optimizer"} if method == "dev" else {"gradient", "labelled"})
