"""A case of the siege, and the folder in which it runs."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attendrop.lab.cli.app import run
from helpers.cli_tools import save_encoder, sentences, write_csv

GOOD = ("done", "refused")
OUTCOMES = (*GOOD, "silent", "traceback", "hang", "memory")


@dataclass(frozen=True)
class Case:
    """One attack. It runs in a forked process and in an empty working folder of its own.

    Attributes:
        name: What is done, in a few words.
        words: The words after `attendrop`.
        then: Further commands, which run in the same process if those before them ended with code 0.
        act: Instead of words: what the process does; it returns its exit code.
        before: Called in the working folder before the process begins.
        inside: Called in the process before the command, to kill it or to fill its disk.
        check: Called in the working folder with the exit code and the output. It returns what went silently wrong, or
            None.
        may_die: Whether the process may be killed, as `inside` does.
        seconds: A process that takes longer hangs.
        megabytes: A process that needs more memory than that, beyond its start, is a bomb that went off.
    """

    name: str
    words: Sequence[object] = ()
    then: Sequence[Sequence[object]] = ()
    act: Callable[[], int] | None = None
    before: Callable[[], None] | None = None
    inside: Callable[[], None] | None = None
    check: Callable[[int, str], str | None] = lambda code, text: None
    may_die: bool = False
    seconds: float = 60
    megabytes: float | None = None


class Siege:
    """The folders that all cases share: a model, its files, and a finished run.

    Args:
        folder: Where they are, and where the cases run.
        seed: The seed of everything that is drawn.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.draw = folder.absolute(), random.Random(seed)
        self.model, self.train, self.run = self.folder / "model", self.folder / "train.csv", self.folder / "run"
        rows = sentences(16, seed=1)
        if not self.run.exists():
            save_encoder(self.model, [text for text, _ in rows])
            write_csv(self.train, rows)
            done = forked(Case("a run", self.training(self.run)))
            assert done[0] == 0, done[1]

    @cached_property
    def study(self) -> Path:
        """The folder of a comparison of two runs whose models are kept."""
        folder = self.folder / "study"
        validation = write_csv(self.folder / "validation.csv", sentences(12, seed=2))
        words = [
            "compare", "--model", self.model, "--train-file", self.train, "--validation-file", validation, "--use-cpu",
            "--output-dir", folder, "--max-steps", 1, "--per-device-train-batch-size", 8, "--method", "rdrop",
            "--seeds", 2, "--workers", 0, "--keep-models",
        ]  # fmt: skip
        done = forked(Case("a study", words))
        assert done[0] == 0, done[1]
        return folder

    @cached_property
    def search(self) -> Path:
        """The folder of a search of two trials."""
        folder = self.folder / "search"
        words = [
            "tune", "--model", self.model, "--train-file", self.train, "--use-cpu", "--output-dir", folder,
            "--max-steps", 1, "--per-device-train-batch-size", 8, "--method", "rdrop", "--trials", 2, "--workers", 0,
            "--final-seeds", 1,
        ]  # fmt: skip
        done = forked(Case("a search", words))
        assert done[0] == 0, done[1]
        return folder

    def training(self, output: object, *more: object) -> list[object]:
        """The words of a short training run. A flag of `more` takes the place of the usual one."""
        usual: dict[str, object] = {
            "--model": self.model, "--train-file": self.train, "--output-dir": output, "--max-steps": 2,
            "--per-device-train-batch-size": 4, "--save-strategy": "no",
        }  # fmt: skip
        given = {str(word).partition("=")[0] for word in more}
        words = [word for flag, value in usual.items() if flag not in given for word in (flag, value)]
        switches = ("--use-cpu", "--no-baselines", "--no-load-best-model-at-end")
        others = [flag for flag in switches if not given & {flag, flag.replace("--no-", "--")}]
        return ["train", *words, *others, *more]

    def outcome(self, case: Case) -> tuple[str, str]:
        """Run a case; return its outcome, one of `OUTCOMES`, and the text that explains it."""
        place, before = self.folder / "case", os.getcwd()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        os.chdir(place)
        try:
            if case.before is not None:
                case.before()
            code, text, megabytes = forked(case)
            return judged(case, code, text, megabytes)
        finally:
            os.chdir(before)
            shutil.rmtree(place, ignore_errors=True)


def judged(case: Case, code: int, text: str, megabytes: float) -> tuple[str, str]:
    """What became of a case."""
    if code == -signal.SIGALRM:
        return "hang", f"not ended after {case.seconds:g} s\n{text}"
    if case.megabytes is not None and megabytes > case.megabytes:
        return "memory", f"needed {megabytes:.0f} MB\n{text}"
    is_known = code in (0, 2, 3) or (case.may_die and code in (-signal.SIGKILL, -signal.SIGXFSZ))
    if "Traceback" in text or "internal error" in text or not is_known:
        return "traceback", f"exit code {code}\n{text}"
    sentences = len(re.findall(r"^error: ", text, re.MULTILINE))
    is_list = "check" in case.words[:1] and sentences > 1  # of all that is wrong with a file
    if code == 2 and case.act is None and sentences != 1 and not is_list:
        return "traceback", f"no sentence, or several\n{text}"
    problem = case.check(code, text)
    if problem is not None:
        return "silent", f"{problem}\n{text}"
    return "refused" if code else "done", text


def forked(case: Case) -> tuple[int, str, float]:
    """Run a case in a forked process: its exit code (negative if killed), what it printed, and its memory in MB."""
    start = _resident()
    reading, writing = os.pipe()  # a file would be under the limit of `full_disk`
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in (1, 2):
                os.dup2(writing, number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if case.inside is not None:
                case.inside()
            code = case.act() if case.act is not None else _run_all(case)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    os.set_blocking(reading, False)
    printed, deadline = b"", time.monotonic() + case.seconds
    with open(reading, "rb", buffering=0) as pipe:
        while True:
            pid, status, used = os.wait4(child, os.WNOHANG)
            while part := pipe.read(65536):
                printed += part
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return code, printed.decode(errors="replace"), used.ru_maxrss / 1024 - start
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return -signal.SIGALRM, printed.decode(errors="replace"), 0.0
            time.sleep(0.005)


def _run_all(case: Case) -> int:
    """Run the commands of a case up to the first that fails."""
    codes = (run([str(word) for word in words]) for words in (case.words, *case.then))
    return next((code for code in codes if code), 0)


def _resident() -> float:
    """The memory of this process in MB, which a fork begins with."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def full_disk(size: int) -> Callable[[], None]:
    """No file of the process may have more bytes than this; a write beyond that fails as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return limit


def killed_in_write(size: int) -> Callable[[], None]:
    """Kill the process when one of its files gets more bytes than this: half of them are written."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return limit


def killed_at(event: int) -> Callable[[], None]:
    """Kill the process at its n-th file event: an opening for writing, a renaming, a deletion, a new folder."""

    def install() -> None:
        count = 0

        def audit(name: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or name in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
                count += 1
                if count == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)

    return install
