"""Steps a second of runs that train side by side in one captured program, against one process for each run.

    python -m benchmarks.replicas                       # MiniLM, 25 × 64, bf16: at most nine minutes on a GPU
    python -m benchmarks.replicas --models roberta-base --size 16x128 --replicas 4 8
    python -m benchmarks.replicas --device cpu --models "tiny bert" --size 4x8 --replicas 2 --processes 2 --seconds 1

"replicas" are S runs as one program (`benchmarks/stacked.py`): forward, loss, backward, clipping by replica and AdamW
in one CUDA graph, and for AD-DROP one more for its probe. "processes" are as many Trainers with captured steps, which
share the GPU through MPS where it can be started; they begin to count together, when each has recorded its graphs. A
step counts once for each run. "norms compiled" are replicas whose norms torch.compile fuses with weight and bias.

The last lines decide whether studies should train runs side by side: where 8 to 16 replicas of MiniLM take at least 2.5
times as many steps a second as 14 processes. Before them stands where the time of a step of the most replicas goes.
What would pass the time limit is left out, the least important last; what fails is named.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from attendrop import ADDrop, Engine
from attendrop.capture.graphs import Graphs
from attendrop.random import preserved

from .fusions import compiled
from .profile import by_kind, kernels_of
from .records import RESULTS, append, conditions, spread_of
from .shapes import MODELS, make_model
from .stacked import StackedAdamW, StackedLayerNorm, StackedTraining, stack, stacked_norm

WARM_UP = 10  # steps
WINDOWS = 5
ENOUGH = 2.5  # times the steps a second of processes
METHODS = ("plain", "addrop")


class Replicas:
    """Training steps of replicas, captured on a GPU, with random tokens that are on the device.

    Args:
        model: The name of the model.
        method: One of `METHODS`.
        replicas: How many.
        size: Examples of a replica, and their tokens.
        device: "cpu" or "cuda".
        compiles_norms: Whether torch.compile fuses norms with their weights and biases.
    """

    def __init__(
        self, model: str, method: str, replicas: int, size: tuple[int, int], device: str, compiles_norms: bool = False
    ) -> None:
        self.device, self.replicas = torch.device(device), replicas
        stacked = stack([make_model(model, size[1], device)] * replicas).train()
        for module in stacked.modules():
            if compiles_norms and isinstance(module, StackedLayerNorm):
                module.compute = compiled(stacked_norm)
        ids = torch.randint(1000, 30000, (replicas * size[0], size[1]), device=device)
        first = 2 if stacked.config.model_type == "roberta" else 0
        self.batch = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(first, first + size[1], device=device).expand_as(ids).contiguous(),
            "labels": torch.randint(0, 2, ids.shape[:1], device=device),
        }
        regularizers = [ADDrop(layers="all", cross_tuning=False)] if method == "addrop" else []
        self.engine = Engine(stacked, regularizers, example=self.batch)
        self.training = StackedTraining(self.engine, StackedAdamW(list(stacked.parameters())))
        self.training.optimizer.rate.fill_(1e-5)
        self.probes = bool(regularizers)
        self.graphs = Graphs(self.device)
        if device == "cpu":
            self.graphs.failure = "a CPU has no graphs"

    def step(self) -> None:
        """Take a step of each replica."""
        engine = self.engine
        engine.begin_step()
        batch = engine.begin_micro_batch(self.batch)
        work, plan = self.graphs.static_micro_batch(batch), None
        if self.probes:
            probing = replace(work, may_probe=True)
            with preserved(self.device):
                plan = self._run("plan", lambda: engine.plan(probing), batch)

        def train() -> None:
            applied = engine.plan(work) if plan is None else plan
            with engine.tracked(work, work.step.seams.applied(applied)):
                gradients = self.training.gradients(dict(work.inputs))
            self.training.optimizer.step(gradients)

        self._run("step", train, batch)
        engine.before_optimizer()
        engine.after_optimizer()

    def _run(self, key: str, function: Any, batch: Any) -> Any:
        enabled = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False):
            result = self.graphs.run(key, function, batch=batch, forward_of=self.engine.model)
        if enabled and self.graphs.failure is not None:
            raise RuntimeError(f"the steps of replicas cannot be captured, because {self.graphs.failure}")
        return result

    def seconds_of(self, steps: int) -> float:
        """The time of some steps."""
        self._finish()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._finish()
        return time.perf_counter() - start

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def measured(self, seconds: float) -> dict[str, Any]:
        """Steps a second of all replicas together, the spread over windows and the peak of memory."""
        self.seconds_of(WARM_UP)
        steps = max(2, round(seconds / WINDOWS / (self.seconds_of(WARM_UP) / WARM_UP)))
        windows = [self.seconds_of(steps) / steps for _ in range(WINDOWS)]
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        middle = statistics.median(windows)
        return {
            "steps a second": round(self.replicas / middle, 2),
            "spread": spread_of(windows),
            "step ms": round(middle * 1e3, 3),
            "peak MiB": round(peak / 2**20),
        }

    def kinds(self) -> dict[str, Any]:
        """Where the time of a step goes: milliseconds by kind of kernel, and the largest kernels."""
        step, steps = self.seconds_of(WARM_UP) / WARM_UP * 1e3, 3
        activity = ProfilerActivity.CUDA if self.device.type == "cuda" else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiler:
            self.seconds_of(steps)
        kernels = kernels_of(profiler, steps)
        return {
            "kinds": {k.name: [round(k.milliseconds, 3), round(k.calls)] for k in by_kind(kernels, step)},
            "kernels": {k.name[:90]: [round(k.milliseconds, 3), round(k.calls)] for k in kernels[:20]},
        }


class Counting(TrainerCallback):
    """Says when it is warm, waits for a line, and counts the steps of some seconds.

    Args:
        seconds: How long.
    """

    steps = 10**6  # more than there is time for

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = state.global_step
        if number == WARM_UP:
            self._finish()
            _say(ready=True)
            sys.stdin.readline()
            self.start = time.perf_counter()
        elif number > WARM_UP and time.perf_counter() - self.start > self.seconds:
            self._finish()
            _say(steps=number - WARM_UP, seconds=time.perf_counter() - self.start)
            control.should_training_stop = True

    def _finish(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def work(options: argparse.Namespace) -> None:
    """What a process of this benchmark does: one training run, or replicas of one number after the other."""
    model, method = options.models[0], options.work[1]
    if options.work[0] == "process":
        from .trainer_steps import Setting, trained

        trained(f"{method} captured", Setting(model, *options.size, options.device), Counting(options.seconds))  # type: ignore[arg-type]
        return
    for number in map(int, options.work[2:]):
        for compiles in (False, True) if number == max(map(int, options.work[2:])) else (False,):
            kind = "replicas, norms compiled" if compiles else "replicas"
            try:
                replicas = Replicas(model, method, number, options.size, options.device, compiles)
                _say(kind=kind, method=method, runs=number, **replicas.measured(options.seconds))
                if number == max(map(int, options.work[2:])):
                    _say(kind=kind, method=method, runs=number, **replicas.kinds())
            except Exception as error:  # out of memory, or a compiler that is missing
                lines = str(error).strip().splitlines() or [""]
                _say(kind=kind, method=method, runs=number, failed=f"{type(error).__name__}: {lines[0]}")
            replicas = None
            if options.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


class Process:
    """A process whose lines are read until a deadline.

    Args:
        command: Its command.
        env: Its environment.
        deadline: In the time of `time.monotonic`.
    """

    def __init__(self, command: list[str], env: dict[str, str], deadline: float) -> None:
        self._deadline = deadline
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `end`)
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            start_new_session=True, cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.failure = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the process says, until it ends or the deadline has passed."""
        with suppress(queue.Empty):
            while (line := self._lines.get(timeout=max(0.0, self._deadline - time.monotonic()))) is not None:
                with suppress(json.JSONDecodeError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        yield message

    def go_on(self) -> None:
        """Write the line that the process waits for."""
        assert self._process.stdin is not None
        with suppress(OSError):  # where it has failed
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Wait a moment for its end, and kill it then. Sets `failure` to its last line where it has failed."""
        try:
            if self._process.wait(timeout=5):
                self._errors.seek(0)
                self.failure = (self._errors.read().strip().splitlines() or ["it failed"])[-1]
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()


class Processes:
    """Starts the processes of this benchmark.

    Args:
        options: Those of the command line.
        model: The name of the model.
        deadline: In the time of `time.monotonic`.
    """

    def __init__(self, options: argparse.Namespace, model: str, deadline: float) -> None:
        self.deadline, self.model = deadline, model
        size = "x".join(map(str, options.size))
        self.command = [
            *(sys.executable, "-m", "benchmarks.replicas", "--models", model, "--size", size),
            *("--device", options.device, "--seconds", str(options.seconds), "--work"),
        ]

    def started(self, *arguments: str, env: dict[str, str] | None = None) -> Process:
        """A process in a session of its own."""
        return Process([*self.command, *arguments], {**os.environ, **(env or {})}, self.deadline)

    def replicas(self, method: str, numbers: list[int]) -> Iterator[dict[str, Any]]:
        """The measurements of replicas, as they come."""
        process = self.started("replicas", method, *map(str, numbers))
        try:
            yield from process.lines()
        finally:
            process.end()
        if process.failure:
            yield {"kind": "replicas", "method": method, "runs": 0, "failed": process.failure}

    def separate(self, method: str, count: int, env: dict[str, str]) -> dict[str, Any]:
        """Steps a second of processes that train at once."""
        row: dict[str, Any] = {"kind": "processes", "method": method, "runs": count}
        processes = [self.started("process", method, env=env) for _ in range(count)]
        try:
            answers = [process.lines() for process in processes]
            counted = []
            if all("ready" in next(lines, {}) for lines in answers):
                for process in processes:
                    process.go_on()
                counted = [next(lines, {}) for lines in answers]
        finally:
            for process in processes:
                process.end()
        rates = [one["steps"] / one["seconds"] for one in counted if "steps" in one]
        if len(rates) < count:
            reasons = [process.failure for process in processes if process.failure]
            return {**row, "failed": (reasons or ["the time limit has passed"])[0]}
        rate = sum(rates)
        timing = {"spread": spread_of(rates), "step ms": round(count / rate * 1e3, 3)}
        return {**row, "steps a second": round(rate, 2), **timing}


@contextmanager
def shared_gpu(is_wanted: bool) -> Iterator[dict[str, str]]:
    """MPS, where it can be started: yields the environment of the processes that use it."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not is_wanted or control is None:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        started = subprocess.run([control, "-d"], env={**os.environ, **env}, check=False).returncode == 0
        try:
            yield env if started else {}
        finally:
            if started:
                subprocess.run([control], input="quit\n", text=True, env={**os.environ, **env}, check=False)


def decision(rows: list[dict[str, Any]], model: str) -> list[str]:
    """What the measurements of a model say, one line for each method."""
    lines = []
    best: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        if row["model"] == model and "steps a second" in row:
            group = "processes" if row["kind"] == "processes" else "replicas"
            described = f"{row['runs']} {row['kind']}: {row['steps a second']:g} steps a second"
            best[f"{row['method']} {group}"].append((row["steps a second"], described))
    for method in METHODS:
        processes, replicas = (max(best[f"{method} {group}"], default=None) for group in ("processes", "replicas"))
        if processes is None or replicas is None:
            lines.append(f"{model}, {method}: nothing to compare was measured, so nothing is decided")
            continue
        ratio = replicas[0] / processes[0]
        verdict = "runs side by side are worth building" if ratio >= ENOUGH else "stop here, and say what bounds it"
        lines.append(f"{model}, {method}: {replicas[1]}; {processes[1]}; {ratio:.2f} x, wanted {ENOUGH} x: {verdict}")
    return lines


def show_kinds(row: dict[str, Any]) -> None:
    """Print where the time of a step goes."""
    print(f"a step of {row['runs']} {row['kind']}, {row['method']}, milliseconds and kernels:")
    for name in ("kinds", "kernels"):
        for kind, (milliseconds, calls) in row[name].items():
            print(f"  {milliseconds:>8.3f} {calls:>6}  {kind}")


def size_of(text: str) -> tuple[int, int]:
    """A size as batch x length."""
    batch, length = map(int, text.split("x"))
    return batch, length


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["minilm"], help="BERT's and RoBERTa's")
    parser.add_argument("--size", type=size_of, default=(25, 64), help="batch x length")
    parser.add_argument("--replicas", nargs="+", type=int, default=[8, 16, 12, 4, 1])
    parser.add_argument("--processes", nargs="+", type=int, default=[14, 8, 4, 1])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--minutes", type=float, default=9.0, help="the time limit")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--output", type=Path, default=None, help="CSV file to append to")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options)
        return 0
    deadline, rows = time.monotonic() + 60 * options.minutes, []
    with shared_gpu(options.device == "cuda") as env:
        sharing = "MPS" if env else "no MPS"
        print(f"processes share the GPU by {sharing}" if options.device == "cuda" else "processes share the CPU")
        for model in options.models:
            processes = Processes(options, model, deadline)

            def note(row: dict[str, Any], model: str = model) -> None:
                row["model"] = model
                rows.append(row)
                if "kinds" in row:
                    show_kinds(row)
                else:
                    print("  ".join(f"{name}: {value}" for name, value in row.items()), flush=True)

            for first in (True, False):  # what decides first
                for method in options.methods:
                    if first:
                        for row in processes.replicas(method, options.replicas):
                            note(row)
                    for count in options.processes[:1] if first else options.processes[1:]:
                        if time.monotonic() < deadline:
                            note(processes.separate(method, count, env))
    measured = [row for row in rows if "steps a second" in row]
    if measured:
        batch, length = options.size
        shared = conditions(options.device, batch=batch, length=length, sharing=sharing)
        append(options.output or RESULTS / f"replicas-{options.device}.csv", [{**shared, **row} for row in measured])
    for model in options.models:
        print("\n".join(decision(rows, model)))
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
