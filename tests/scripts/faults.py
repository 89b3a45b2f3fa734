"""Injects faults into runs of `attendrop train` and counts how the resumed runs end.

    python tests/scripts/faults.py FOLDER [--method NAME] [--faults kill,damage,full] [--sample N]

A run must go on bit for bit or say in one sentence what is wrong. Every case runs in a forked process, so that nothing
is imported twice. The last line that is printed is JSON: the number of cases with each outcome, and the bad ones.

    equal      the resumed run ended with the weights of a run that was never disturbed
    refused    exit code 2 and one sentence
    silent     exit code 0 and other weights, or damage that was not mentioned: never allowed
    traceback  anything else: never allowed
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parents[1]))

import pathlib

import matplotlib.figure  # noqa: F401 - imported here, so that no forked process imports it again
import safetensors.torch
import sklearn.metrics  # noqa: F401
import torch
import transformers.modeling_utils
from safetensors.torch import load_file

import attendrop.core.state
import attendrop.lab.cli.train
import attendrop.lab.report.learning_curves
from attendrop import parse_method
from attendrop.lab.cli.app import run
from attendrop.methods.supertickets.tickets import Tickets
from attendrop.trainer.mixin import RegularizerMixin
from attendrop.utils.manifest import MANIFEST_FILE
from attendrop.utils.processes import freeze_imported
from helpers.cli_tools import save_encoder, sentences, write_csv
from helpers.data import same_bits

METHODS = {
    "attendout": "attendout:T=2,init_drop=0.4,samples=4,reward_on=dev",
    "mixout": "mixout:p=0.7",
    "concrete_dropout": "concrete_dropout:init=0.3,lr=0.05",
    "child_tuning": "child_tuning:variant=D,p=0.4,samples=8",
    "noisytune": "noisytune:strength=0.5",
    "supertickets": "supertickets:tickets={tickets}",
}
STEPS, SAVE_STEPS = 6, 2  # checkpoints 2, 4 and 6


@dataclass
class Counts:
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, case: str, outcome: str, text: str) -> None:
        self.outcomes[f"{case.split()[0]} {outcome}"] += 1
        if outcome not in ("equal", "refused"):
            self.bad.append(f"{case}: {outcome}: {text[-600:]}")


class Harness:
    """The runs of one method in one folder."""

    def __init__(self, folder: Path, method: str, sample: int | None) -> None:
        self.folder, self.sample = folder, sample
        self.draw = random.Random(0)
        rows = sentences(16, seed=1)
        if not (folder / "model").exists():
            save_encoder(folder / "model", [text for text, _ in rows])
            write_csv(folder / "train.csv", rows)
            write_csv(folder / "dev.csv", sentences(8, seed=2))
            Tickets(heads=[[0, 1], [1, 0]], feed_forwards=[1]).save(folder / "tickets.json")
        self.method = METHODS[method].format(tickets=folder / "tickets.json")
        parse_method(self.method)  # imports the module of the method
        self.counts = Counts()
        self.number = 0
        reference = folder / f"{method}-whole"
        code, text = self.train(reference)
        assert code == 0, text
        self.reference = load_file(reference / "model.safetensors")
        self.home = folder / method
        self.home.mkdir()

    def train(self, output: Path, *more: str, before: Callable[[], None] | None = None) -> tuple[int, str]:
        """One run of the command line in a forked process: its exit code (negative if killed) and what it printed."""
        usual = {
            "--model": self.folder / "model", "--train-file": self.folder / "train.csv", "--output-dir": output,
            "--validation-file": self.folder / "dev.csv", "--method": self.method, "--max-steps": STEPS,
            "--save-strategy": "steps", "--save-steps": SAVE_STEPS, "--eval-strategy": "no", "--learning-rate": 1e-3,
            "--per-device-train-batch-size": 4, "--save-total-limit": 2,
        }  # fmt: skip
        given = [word for flag, value in usual.items() if flag not in more for word in (flag, value)]
        words = ["train", *given, "--use-cpu", "--keep-checkpoints", *more]
        log = self.folder / "log.txt"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, 1)
                os.dup2(file, 2)
                if before is not None:
                    before()
                code = run(list(map(str, words)))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), log.read_text(errors="replace")

    def outcome(self, output: Path, code: int, text: str, names: str | None = None) -> str:
        """What became of a resumed run. If `names` is given, the output must have this text."""
        if "Traceback" in text or code not in (0, 2):
            return "traceback"
        if names is not None and names not in text:
            return "silent"
        if code == 2:
            return "refused" if "error: " in text else "traceback"
        return "equal" if same_bits(self.reference, load_file(output / "model.safetensors")) else "silent"

    def output(self) -> Path:
        self.number += 1
        return self.home / str(self.number)

    def sampled(self, cases: list[Any]) -> list[Any]:
        return cases if self.sample is None or len(cases) <= self.sample else self.draw.sample(cases, self.sample)

    def resume(self, case: str, output: Path, names: str | None = None, *more: str) -> str:
        code, text = self.train(output, *(more or ("--resume",)))
        outcome = self.outcome(output, code, text, names)
        self.counts.add(case, outcome, text)
        return outcome

    # ---- killed while a checkpoint is written ------------------------------------------------------------------

    def kill(self) -> None:
        """Kills at every write of the second checkpoint, which also deletes the first one."""
        counted = self.home / "count"
        self.train(self.output(), "--save-total-limit", "1", before=lambda: Killer(None, counted).install())
        events = int(counted.read_text())
        for k in self.sampled(list(range(1, events + 1))):
            output = self.output()
            killer = Killer(k, counted)
            code, text = self.train(output, "--save-total-limit", "1", before=killer.install)
            assert code == -signal.SIGKILL, (code, text)
            self.resume(f"kill at event {k}", output)
            shutil.rmtree(output)

    # ---- damaged files -----------------------------------------------------------------------------------------

    def damage(self) -> None:
        """Damages each file of the newest checkpoint of a stopped run, in each way."""
        stopped, other = self.home / "stopped", self.home / "other"
        code, text = self.train(stopped, before=lambda: stop_after(5))
        assert code == -signal.SIGKILL, text
        self.train(other, "--seed", "9", "--learning-rate", "0.002", before=lambda: stop_after(5))
        files = [path.relative_to(stopped) for path in sorted((stopped / "checkpoint-4").rglob("*")) if path.is_file()]
        number = 0
        for name, how in self.sampled([(name, how) for name in files for how in DAMAGE]):
            original = (stopped / name).read_bytes()
            if how == "swapped" and (other / name).read_bytes() == original:
                continue
            number += 1
            for case in ("fallback", ("named", "alone")[number % 2]):
                output = self.output()
                shutil.copytree(stopped, output)
                DAMAGE[how](output / name, other / name)
                more = ["--resume"] if case != "named" else ["--resume-from-checkpoint", str(output / "checkpoint-4")]
                if case == "alone":
                    shutil.rmtree(output / "checkpoint-2")
                # A manifest of another run is right in itself, and does not fit to the files.
                is_foreign = how == "swapped" and name.name == MANIFEST_FILE
                named = "cannot be resumed from" if is_foreign else name.name
                outcome = self.resume(f"{how} {name} ({case})", output, named, *more)
                expected = "equal" if case == "fallback" else "refused"
                if outcome != expected:
                    self.counts.bad.append(f"{how} {name} ({case}): {outcome}, expected {expected}")
                shutil.rmtree(output)

    # ---- a full disk -------------------------------------------------------------------------------------------

    def full(self) -> None:
        """Fills the disk in the first checkpoint, between two, and in the last files of a run."""
        whole = sum(path.stat().st_size for path in (self.home.parent).glob("*-whole/checkpoint-6/*"))
        whole //= len(list(self.home.parent.glob("*-whole")))
        for share in self.sampled([0.4, 0.95, 1.4, 2.2, 3.02]):
            with small_disk(self.home / f"disk{share}", int(whole * share)) as (disk, is_mounted):
                limit = None if is_mounted else lambda share=share: limit_files(int(whole * share / 3))
                code, text = self.train(disk / "run", before=limit)
                outcome = "refused" if code == 2 and "disk is full" in text else "equal" if code == 0 else "traceback"
                self.counts.add(f"full disk of {share:g} checkpoints", outcome, text)
                if is_mounted:
                    subprocess.run(["mount", "-o", f"remount,size={whole * 20}", disk], check=True)
                if list((disk / "run").glob("checkpoint-*")) and code != 0:
                    self.resume(f"resumed after a full disk of {share:g} checkpoints", disk / "run")


class Killer:
    """Counts the writes in the second checkpoint of a run, and kills the process at the k-th.

    A file is written in three events: before, when half of it is written, and after.
    """

    def __init__(self, k: int | None, counted: Path) -> None:
        self.k, self.counted = k, counted
        self.events, self.saves, self.is_armed = 0, 0, False

    def event(self) -> None:
        if self.is_armed:
            self.events += 1
            if self.events == self.k:
                os.kill(os.getpid(), signal.SIGKILL)

    def half(self, path: Any) -> None:
        if self.is_armed and self.k == self.events + 1 and os.path.isfile(path):
            os.truncate(path, os.path.getsize(path) // 2)
        self.event()

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or name in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            self.event()

    def writer(self, function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            self.event()
            result = function(*args, **kwargs)
            self.half(args[place] if len(args) > place else kwargs.get("filename"))
            self.event()
            return result

        return write

    def install(self) -> None:
        sys.addaudithook(self.audit)
        torch.save = self.writer(torch.save, 1)
        attendrop.core.state.save_file = self.writer(safetensors.torch.save_file, 1)
        transformers.modeling_utils.safe_save_file = self.writer(safetensors.torch.save_file, 1)
        pathlib.Path.write_text = self.writer(pathlib.Path.write_text, 0)  # type: ignore[method-assign]
        flush = os.fsync

        def fsync(file: int) -> None:
            self.event()
            flush(file)

        os.fsync = fsync  # type: ignore[assignment]
        save = RegularizerMixin._save_checkpoint

        def save_checkpoint(trainer: Any, *args: Any) -> None:
            self.saves += 1
            self.is_armed = self.saves == 2
            save(trainer, *args)
            self.event()
            if self.is_armed and self.k is None:
                self.is_armed = False
                self.counted.write_text(str(self.events))
            self.is_armed = False

        RegularizerMixin._save_checkpoint = save_checkpoint  # type: ignore[method-assign]


def stop_after(step: int) -> None:
    """Kills the process in the step after this one."""
    begin = RegularizerMixin._begin_step

    def begin_step(trainer: Any) -> None:
        if trainer.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        begin(trainer)

    RegularizerMixin._begin_step = begin_step  # type: ignore[method-assign]


def truncate(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path, other: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def delete(path: Path, other: Path) -> None:
    path.unlink()


def flip(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def swap(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


DAMAGE: dict[str, Callable[[Path, Path], None]] = {
    "truncated": truncate, "zeroed": zero, "deleted": delete, "flipped": flip, "swapped": swap,
}  # fmt: skip


class small_disk:
    """A file system of a few bytes in memory, where this user may mount one; otherwise a plain folder."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size, self.is_mounted = path, size, False

    def __enter__(self) -> tuple[Path, bool]:
        self.path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={self.size}", "tmpfs", str(self.path)]
        self.is_mounted = subprocess.run(command, capture_output=True).returncode == 0
        return self.path, self.is_mounted

    def __exit__(self, *error: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", str(self.path)], check=True)


def limit_files(size: int) -> None:
    """No file may have more bytes than this; a write beyond that fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def harnesses(options: argparse.Namespace) -> Iterator[Harness]:
    for method in [options.method] if options.method else METHODS:
        yield Harness(Path(options.folder), method, options.sample)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--faults", default="kill,damage,full")
    parser.add_argument("--sample", type=int, help="cases of each kind of fault; all of them without it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    attendrop.lab.report.learning_curves.plot_history = lambda *args, **kwargs: (
        None
    )  # the figure takes as long as the run
    freeze_imported()
    total: Counter[str] = Counter()
    bad: list[str] = []
    for harness in harnesses(options):
        for fault in options.faults.split(","):
            getattr(harness, fault)()
        print(harness.method, dict(harness.counts.outcomes), flush=True)
        total += harness.counts.outcomes
        bad += [f"{harness.method}: {text}" for text in harness.counts.bad]
        shutil.rmtree(harness.home, ignore_errors=True)
    print(json.dumps({"counts": total, "bad": bad}))


if __name__ == "__main__":
    main()
