"""New processes for tests, forked from a server that has imported the heavy libraries once.

A process that trains spends most of a short test on importing torch and transformers. A fork of the server begins
without any state of the tests, and imports attendrop itself. Tests of how a program starts use `subprocess` instead.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

_LIBRARIES = [
    "torch",
    "torch._dynamo",
    "pandas",
    "scipy.stats",
    "sklearn.linear_model",
    "matplotlib.backends.backend_agg",
    "datasets",
    "transformers.trainer",
    "transformers.models.auto.modeling_auto",
]
_servers = multiprocessing.get_context("forkserver")
_servers.set_forkserver_preload(_LIBRARIES)


class Done(NamedTuple):
    """A process that has ended: its exit status (minus the signal that ended it), and what it wrote."""

    code: int
    out: str
    err: str


class Fork:
    """A running program.

    Args:
        program: What `python` would get: a script, or "-m" and a module; then the arguments.
        variables: Added to the environment of this process.
    """

    def __init__(self, program: Sequence[Any], **variables: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.out, self.err = (Path(self._folder.name, name) for name in ("out", "err"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        arguments = (list(map(str, program)), environment, str(self.out), str(self.err))
        self.process: BaseProcess = _servers.Process(target=_run, args=arguments)
        self.process.start()

    def wait(self, timeout: float = 300) -> Done:
        """Waits until the program ends; one that takes longer is killed, and fails the test."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.kill()
            raise TimeoutError(f"the program did not end in {timeout:g} seconds")
        with self._folder:
            return Done(self.process.exitcode, self.out.read_text("utf-8"), self.err.read_text("utf-8"))

    def written(self) -> str:
        """What the program has written to its standard output so far."""
        return self.out.read_text("utf-8") if self.out.exists() else ""

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def run_python(*program: Any, **variables: str) -> Done:
    """Runs a program to its end; see `Fork`."""
    return Fork(program, **variables).wait()


def run_ranks(count: int, *program: Any) -> list[Done]:
    """Runs a program on several processes of one process group, as torchrun does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    group = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    forks = [Fork(program, RANK=str(rank), LOCAL_RANK=str(rank), **group) for rank in range(count)]
    return [fork.wait() for fork in forks]


def _run(program: list[str], environment: dict[str, str], out: str, err: str) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # the Trainer collects garbage in every run: not among half a million objects of the libraries
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            sys.path.insert(0, str(Path(program[0]).parent))
            runpy.run_path(program[0], run_name="__main__")
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
