"""A run that is killed goes on from its last checkpoint as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from data import same_bits, weights_of
from scripts.train_tiny import EPOCHS, SAVE_STEPS, STEPS_PER_EPOCH, train
from zoo import make_model

from attendrop.schedule import is_method_epoch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_tiny.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
KILLED_IN = 12  # two steps after the second checkpoint, in the middle of the epoch that is AD-DROP's


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    saved = KILLED_IN - KILLED_IN % SAVE_STEPS
    assert saved % STEPS_PER_EPOCH != 0
    assert saved // STEPS_PER_EPOCH == KILLED_IN // STEPS_PER_EPOCH
    assert is_method_epoch(saved // STEPS_PER_EPOCH, EPOCHS, "plain")

    folder = tmp_path / "killed"
    child = subprocess.Popen(
        [sys.executable, SCRIPT, str(folder), "--pause-in-step", str(KILLED_IN)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        assert any(line.strip() == "paused" for line in child.stdout), "the run ended before it could be killed"
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    assert {path.name for path in folder.glob("checkpoint-*")} == {f"checkpoint-{n}" for n in (5, 10)}

    subprocess.run([sys.executable, SCRIPT, str(folder), "--resume"], env=ENVIRONMENT, check=True, timeout=300)
    resumed = torch.load(folder / "weights.pt")
    uninterrupted = train(str(tmp_path / "uninterrupted"))
    assert same_bits(resumed, uninterrupted)
    assert not same_bits(resumed, weights_of(make_model("bert")))
