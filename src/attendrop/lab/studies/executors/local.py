"""Workers as local processes: as many as fit, several on one GPU, each for many runs."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from typing import Any

from ..spec import RunSpec
from .capacity import Device, find_devices
from .pool import Message, Pool, WorkerHandle


class LocalExecutor(Pool):
    """See `make_executor("local")`.

    Args:
        workers: How many; None = as many as fit.
        device: "cpu" or "cuda"; None = the GPUs if there are any.
        make_worker: The import path of the worker class, `module:name`.
        patience: A worker that is silent for this number of seconds is killed; None = no limit.
    """

    def __init__(
        self, workers: int | None, device: str | None, make_worker: str, patience: float | None = None
    ) -> None:
        super().__init__(attempts=2, patience=patience)
        self.make_worker = make_worker
        self.devices, self.threads = find_devices(workers, device)

    def may_start(self) -> bool:
        return any(device.workers < device.limit for device in self.devices)

    def start(self) -> WorkerHandle:
        device = min(self.devices, key=lambda device: (device.workers >= device.limit, device.workers))
        return ProcessHandle(self.events, self.make_worker, device, self.threads)

    def may_stay(self, worker: WorkerHandle, message: Message) -> bool:
        assert isinstance(worker, ProcessHandle)
        worker.device.learn(message.get("memory"))
        return worker.device.workers <= worker.device.limit

    def lost_memory(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, ProcessHandle)
        worker.device.ran_out()


class ProcessHandle(WorkerHandle):
    """A worker process. It sees one device and is terminated with its parent.

    Args:
        events: Receives the worker messages.
        make_worker: The import path of its class.
        device: Its device.
        threads: The number of threads that torch uses in it.
    """

    def __init__(
        self, events: queue.Queue[tuple[WorkerHandle, Message]], make_worker: str, device: Device, threads: int
    ) -> None:
        super().__init__(events)
        self.device = device
        device.workers += 1
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - open as long as the worker
        self._process = subprocess.Popen(
            # -P: the current folder may contain a `random.py`
            [sys.executable, "-P", "-m", "attendrop.lab.studies.executors.process", make_worker, device.torch_device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
            env=_environment(device, threads),
            start_new_session=True,  # Ctrl-C is for the driver, which ends its workers
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def submit(self, spec: RunSpec) -> None:
        self._log.truncate(0)
        self._send({"run": asdict(spec)})

    def answer(self, stop: bool) -> None:
        self._send({"stop": stop})

    def end(self) -> None:
        self.device.workers -= 1
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # a line that was not read
            self._process.stdin.close()  # type: ignore[union-attr]

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the worker is dead; `_listen` reports it
            self._process.stdin.write(json.dumps(message, default=str) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            for line in output:
                if line.endswith("\n"):  # a killed worker may leave half a line
                    self.events.put((self, json.loads(line)))
        code = self._process.wait()
        # The operating system kills with SIGKILL where the memory of the machine is full.
        self.events.put((self, {"lost": self._reason(code), "memory_full": code == -signal.SIGKILL}))

    def _reason(self, code: int) -> str:
        """Return the exit reason of the process, with the last line of its output."""
        if code < 0:
            names = {member.value: member.name for member in signal.Signals}
            reason = f"the worker process was killed by {names.get(-code, f'signal {-code}')}"
            reason += ", maybe because the memory of the machine is full" if code == -signal.SIGKILL else ""
        else:
            reason = f"the worker process ended with code {code}"
        self._log.seek(0)
        lines = self._log.read()[-4000:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{reason}: {last.rstrip('.')}" if last and code >= 0 else reason


def _environment(device: Device, threads: int) -> dict[str, str]:
    """Return the environment variables of a worker: the same import path, one device, its share of the CPU cores."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    chosen = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **chosen, "CUDA_VISIBLE_DEVICES": device.visible or ""}
