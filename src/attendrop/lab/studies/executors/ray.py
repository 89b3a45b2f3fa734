"""Workers as actors of a Ray cluster, with fractional GPUs. A run whose actor or node is lost is reassigned.

attendrop must be installed on all nodes, in the same version, and data and models must have the same paths there. Only
specifications and records are transferred.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ....errors import UserError, on_one_line
from ..records import worker_name
from ..spec import RunSpec
from .host import load_worker, run_spec
from .pool import Message, Pool, WorkerHandle

_PATIENCE = 5.0  # seconds for an answer from the address of a cluster
# The head node speaks HTTP/2. Either side begins with a frame of settings, whose type is 4.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class RayExecutor(Pool):
    """See `make_executor("ray")`.

    Args:
        workers: How many; None = as many as fit into the cluster.
        address: `host:port` of the head node, or "auto" for the cluster that this machine belongs to; None starts Ray
            on this machine.
        gpus: The share of a GPU for each worker; None = one, or none in a cluster without GPUs.
        cpus: The number of processors for each worker.
        make_worker: The import path of the worker class, `module:name`.
        patience: A worker that is silent for this number of seconds is killed; None = no limit.
    """

    def __init__(
        self,
        workers: int | None,
        address: str | None,
        gpus: float | None,
        cpus: float,
        make_worker: str,
        patience: float | None = None,
    ) -> None:
        super().__init__(attempts=3, patience=patience)
        self.ray = _import_ray()
        self.workers, self.cpus, self.make_worker = workers, cpus, make_worker
        self._is_ours = not self.ray.is_initialized()
        if self._is_ours:
            _connect(self.ray, address)
        resources = self.ray.cluster_resources()
        self.gpus = gpus if gpus is not None else min(1.0, resources.get("GPU", 0.0))
        self._check(resources)

    def may_start(self) -> bool:
        return not self.handles or len(self.handles) < self._most(self.ray.cluster_resources())

    def start(self) -> WorkerHandle:
        return ActorHandle(self.events, self.ray, self.make_worker, self.cpus, self.gpus)

    def lost_memory(self, worker: WorkerHandle) -> None:
        """No-op: the user specifies the resources of a worker, and Ray schedules it."""

    def close(self) -> None:
        handles = [worker for worker in self.handles if isinstance(worker, ActorHandle)]
        super().close()
        for worker in handles:
            worker.thread.join(_PATIENCE)  # no thread may call Ray after the shutdown
        if self._is_ours:
            self._is_ours = False
            self.ray.shutdown()

    def _most(self, resources: dict[str, float]) -> int:
        """Return the number of workers that fit into the cluster now, at most `workers`."""
        fits = [resources.get(name, 0.0) / share for name, share in (("CPU", self.cpus), ("GPU", self.gpus)) if share]
        most = int(min(fits, default=1) + 1e-9)
        return most if self.workers is None else min(self.workers, most)

    def _check(self, resources: dict[str, float]) -> None:
        if self._most(resources) < 1:
            self.close()
            raise UserError(
                f"gpus_per_worker is {self.gpus:g} and cpus_per_worker is {self.cpus:g}, and the cluster has "
                f"{resources.get('GPU', 0):g} GPUs and {resources.get('CPU', 0):g} processors; they must fit."
            )


class ActorHandle(WorkerHandle):
    """A worker in a Ray actor.

    Args:
        events: Receives the worker messages.
        ray: The module.
        make_worker: The import path of the worker class.
        cpus: The number of processors that it reserves.
        gpus: The share of a GPU that it reserves.
    """

    def __init__(
        self, events: queue.Queue[tuple[WorkerHandle, Message]], ray: Any, make_worker: str, cpus: float, gpus: float
    ) -> None:
        super().__init__(events)
        self.ray = ray
        # Two calls at a time: a run, and the answers to its reports.
        actor = ray.remote(_Actor).options(num_cpus=cpus, num_gpus=gpus, max_concurrency=2, max_restarts=0)
        self._actor = actor.remote()
        self._listen(self._start, make_worker)

    def submit(self, spec: RunSpec) -> None:
        self._listen(self._run, asdict(spec))

    def answer(self, stop: bool) -> None:
        self._actor.answer.remote(stop)

    def end(self) -> None:
        with contextlib.suppress(Exception):  # it has already terminated
            self.ray.kill(self._actor)

    def _start(self, make_worker: str) -> Iterator[Message]:
        yield self.ray.get(self._actor.start.remote(make_worker))

    def _run(self, spec: dict[str, Any]) -> Iterator[Message]:
        for reference in self._actor.run.options(num_returns="streaming").remote(spec):
            yield self.ray.get(reference)

    def _listen(self, messages: Any, *arguments: Any) -> None:
        self.thread = threading.Thread(target=self._pass_on, args=(messages, arguments), daemon=True)
        self.thread.start()

    def _pass_on(self, messages: Any, arguments: tuple[Any, ...]) -> None:
        try:
            for message in messages(*arguments):
                self.events.put((self, message))
        except Exception as error:  # raised by Ray: the actor or its node was lost
            self.events.put((self, {"lost": f"the Ray actor was lost ({type(error).__name__}: {_first_line(error)})"}))


class _Actor:
    """The actor class."""

    def __init__(self) -> None:
        self.answers: queue.Queue[bool] = queue.Queue()

    def start(self, make_worker: str) -> Message:
        """Make the worker. An error is returned as a message, because Ray would wrap it in many lines."""
        import ray

        device = "cuda:0" if ray.get_gpu_ids() else "cpu"
        self.name = worker_name(device)
        try:
            self.worker = load_worker(make_worker, device, owns_process=True)
        except Exception as error:
            return {"lost": f"{type(error).__name__} in {self.name}: {on_one_line(error)}"}
        return {"ready": self.name}

    def answer(self, stop: bool) -> None:
        self.answers.put(stop)

    def run(self, values: dict[str, Any]) -> Iterator[Message]:
        """Execute a run in a thread; yields its progress reports and then its record."""
        messages: queue.Queue[Message] = queue.Queue()

        def progress(report: dict[str, Any]) -> bool:
            messages.put({"progress": report})
            return self.answers.get()

        def work() -> None:
            record, is_fatal = run_spec(self.worker, RunSpec(**values), progress, self.name)
            messages.put({"record": record.to_json(), "fatal": is_fatal})

        threading.Thread(target=work, daemon=True).start()
        while True:
            message = messages.get()
            yield message
            if "record" in message:
                return


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a late call must not start a cluster of its own
    try:
        import ray
    except ImportError:
        raise UserError("engine is 'ray', and Ray is not installed: pip install 'attendrop[ray]'.") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """Connect to the cluster at an address, or start a local one. Only errors are printed."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options["include_dashboard"] = False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics for a cluster that we start
    elif address != "auto":
        _check_address(address)
    try:
        ray.init(address="local" if address is None else address, **options)
    except Exception as error:
        raise UserError(
            f"address is {address!r}, and Ray cannot be reached there ({type(error).__name__}: {_first_line(error)}); "
            "this machine must be a node of the cluster (`ray start --address …`)."
        ) from None


def _check_address(address: str) -> None:
    """Open an HTTP/2 connection first, because Ray would wait for minutes for an address that does not respond."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"address is {address!r}; it must be host:port of the head node of a Ray cluster, or auto.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(len(_GREETING))
        # The type of a frame follows its three-byte length. A cluster with certificates uses TLS instead.
        reason = None if answer[3:4] == b"\x04" or os.environ.get("RAY_USE_TLS") else "it is another program's port"
    except OSError as error:
        reason = error.strerror or on_one_line(error)
    if reason:
        raise UserError(
            f"address is {address!r}, where no Ray cluster answers ({reason}); it must be host:port of the head node "
            "of a cluster that runs."
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
