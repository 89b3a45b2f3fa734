"""Workers for the tests of executors and drivers: they wait instead of training, and fail on order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attendrop.errors import DivergedError, UserError
from attendrop.lab.records import StudyRecord
from attendrop.lab.studies.records import now, worker_name
from attendrop.lab.studies.spec import RunSpec

Progress = Callable[[dict[str, Any]], bool]

HERE = "helpers.study_workers"
LIGHT, BROKEN = f"{HERE}:LightWorker", f"{HERE}:BrokenWorker"


def make_record(spec: RunSpec, started: str, device: str | None, **more: Any) -> StudyRecord:
    content = {
        "schema": 2, "id": spec.id, "status": "finished", "method": spec.method, "task": spec.task, "size": spec.size,
        "seed": spec.seed, "keep": spec.keep, "fold": spec.fold, "trial": spec.trial, "settings": dict(spec.settings),
        "versions": {"torch": "1"}, "model": {"name": "tiny", "fingerprint": "m"},
        "data": {"train": "t", "validation": "v"}, "scores": {"validation": {"accuracy": 0.5}},
        "cost": {"seconds": 1.0}, "started": started, "ended": now(), "worker": worker_name(str(device)), "error": None,
        **more,
    }  # fmt: skip
    return StudyRecord.from_json(content)


class LightWorker:
    """Waits instead of training. `fault` in the settings of a run says what goes wrong, and `marks` is a folder in
    which each attempt leaves a file."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def run(self, spec: RunSpec, progress: Progress | None = None) -> StudyRecord:
        settings, started = spec.settings, now()
        if spec.only_check:
            self.fail(str(settings.get("fault", "")), True)
            return make_record(spec, started, self.device, status="checked")
        is_first = True
        if marks := settings.get("marks"):
            is_first = not list(Path(marks).glob(f"{spec.id}-*"))
            Path(marks, f"{spec.id}-{time.time_ns()}").touch()
        self.fail(str(settings.get("fault", "")), is_first)
        for _ in range(int(settings.get("signs", 0))):  # of a long epoch
            time.sleep(0.5)
            assert progress is not None
            progress({"id": spec.id, "step": 0})
        for epoch in (1, 2):
            time.sleep(float(settings.get("seconds", 0)) / 2)
            report = {"id": spec.id, "epoch": epoch, "epochs": 2, "step": epoch, "steps": 2, "score": spec.seed / 10}
            if progress is not None and progress(report):
                return make_record(spec, started, self.device, status="stopped")
        threads = os.environ.get("OMP_NUM_THREADS")
        return make_record(spec, started, self.device, notes=[f"threads: {threads}"], **settings.get("record", {}))

    def fail(self, fault: str, is_first: bool) -> None:
        if fault == "dies" or (fault == "dies once" and is_first):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "hangs":
            time.sleep(600)
        elif fault == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif fault == "exits":
            print("the driver of the GPU is broken")
            os._exit(7)
        elif fault == "diverges":
            raise DivergedError("the loss is not finite\nin step 3")
        elif fault == "user":
            raise UserError("task is 'nope'; it must be one of 'a', 'b'.")
        elif fault == "memory" or (fault == "memory once" and is_first):
            raise MemoryError("out of memory")
        elif fault == "disk":
            raise OSError(28, "No space left on device")


class BrokenWorker:
    def __init__(self, device: str | None = None) -> None:
        raise RuntimeError("no CUDA here")


def light_specs(count: int, **settings: Any) -> list[RunSpec]:
    """Runs of a `LightWorker`, one for each seed."""
    return [RunSpec(settings={"seed": seed, **settings}, method="plain", task="t", seed=seed) for seed in range(count)]


def real_specs(folder: Path, seeds: int, methods: tuple[str, ...] = ("plain", "addrop:p=0.5,q=0.5")) -> list[RunSpec]:
    """Runs that train a tiny BERT on a few sentences, for the worker of the package."""
    from attendrop.lab.studies.design import make_design

    from .cli_tools import save_encoder, sentences, write_csv

    rows = sentences(48, seed=1)
    if not (folder / "model").exists():
        save_encoder(folder / "model", [text for text, _ in rows])
        write_csv(folder / "train.csv", rows)
        write_csv(folder / "dev.csv", sentences(24, seed=2))
    settings = {
        "model": str(folder / "model"), "train_file": str(folder / "train.csv"), "learning_rate": 1e-3,
        "validation_file": str(folder / "dev.csv"), "num_train_epochs": 2, "per_device_train_batch_size": 8,
    }  # fmt: skip
    return make_design(settings, list(methods)).all_runs(seeds)
