"""Workers for the tests of engines and drivers: one trains a tiny model, one only waits and fails on order."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attendrop.errors import DivergedError, UserError
from attendrop.study.design import RunSpec
from attendrop.study.records import now, worker_name

Progress = Callable[[dict[str, Any]], bool]

HERE = "helpers.study_workers"
LIGHT, TINY, BROKEN = f"{HERE}:LightWorker", f"{HERE}:TinyWorker", f"{HERE}:BrokenWorker"


def make_record(spec: RunSpec, started: str, device: str | None, **more: Any) -> dict[str, Any]:
    return {
        "format": 1, "id": spec.id, "status": "finished", "method": spec.method, "task": spec.task, "size": spec.size,
        "seed": spec.seed, "keep": spec.keep, "fold": spec.fold, "trial": spec.trial, "settings": dict(spec.settings),
        "versions": {"torch": "1"}, "model": {"name": "tiny", "fingerprint": "m"},
        "data": {"train": "t", "validation": "v"}, "scores": {"validation": {"accuracy": 0.5}},
        "cost": {"seconds": 1.0}, "started": started, "ended": now(), "worker": worker_name(str(device)), "error": None,
        **more,
    }  # fmt: skip


class LightWorker:
    """Waits instead of training. `fault` in the settings of a run says what goes wrong, and `marks` is a folder in
    which each attempt leaves a file."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def run(self, spec: RunSpec, progress: Progress | None = None) -> dict[str, Any]:
        settings, started = spec.settings, now()
        is_first = True
        if marks := settings.get("marks"):
            is_first = not list(Path(marks).glob(f"{spec.id}-*"))
            Path(marks, f"{spec.id}-{time.time_ns()}").touch()
        self.fail(str(settings.get("fault", "")), is_first)
        for epoch in (1, 2):
            time.sleep(float(settings.get("seconds", 0)) / 2)
            report = {"id": spec.id, "epoch": epoch, "epochs": 2, "step": epoch, "steps": 2, "score": spec.seed / 10}
            if progress is not None and progress(report):
                return make_record(spec, started, self.device, status="stopped")
        threads = os.environ.get("OMP_NUM_THREADS")
        return make_record(spec, started, self.device, threads=threads, **settings.get("record", {}))

    def fail(self, fault: str, is_first: bool) -> None:
        if fault == "dies" or (fault == "dies once" and is_first):
            os.kill(os.getpid(), signal.SIGKILL)
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


class TinyWorker:
    """Trains with `attendrop.experiments.train`, in a temporary folder."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def run(self, spec: RunSpec, progress: Progress | None = None) -> dict[str, Any]:
        from transformers import TrainerCallback

        from attendrop.experiments import Listener, make_config, train

        class Reporter(Listener, TrainerCallback):
            def callbacks(self) -> Sequence[TrainerCallback]:
                return [self]

            def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
                score = (metrics or {}).get("eval_accuracy")
                report = {"epoch": state.epoch, "epochs": state.num_train_epochs, "score": score}
                report |= {"step": state.global_step, "steps": state.max_steps}
                if progress is not None and progress({"id": spec.id, **report}):
                    control.should_training_stop = True

        started = now()
        with tempfile.TemporaryDirectory() as folder:
            result = train(make_config({**spec.settings, "output_dir": str(Path(folder, "run"))}), Reporter())
        scores = {name.removeprefix("validation/"): value for name, value in result.metrics.items()}
        return make_record(spec, started, self.device, scores={"validation": scores})


def light_specs(count: int, **settings: Any) -> list[RunSpec]:
    """Runs of a `LightWorker`, one for each seed."""
    return [RunSpec(settings={"seed": seed, **settings}, method="plain", task="t", seed=seed) for seed in range(count)]
