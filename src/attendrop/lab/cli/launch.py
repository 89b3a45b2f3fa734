"""Starts `attendrop train` in several processes (`--nproc`, `--nnodes`), by the launcher of accelerate or of torch."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from ...utils.limits import MOST_WORKERS
from ...utils.processes import end_with_parent

_LOOPBACK = "attendrop"  # how the processes of one machine meet
_IS_WATCHED = "ATTENDROP_END_WITH_LAUNCHER"  # set for the processes that `launch` starts


def watch_launcher() -> None:
    """Exit this process, which `launch` has started, when the launcher exits."""
    if _IS_WATCHED in os.environ:
        end_with_parent()


def is_launched() -> bool:
    """Return whether a launcher has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_process() -> bool:
    """Return whether this process is the one that prints."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class Processes:
    """How many processes there are, and how the machines find each other."""

    per_node: int
    nodes: int
    node_rank: int
    main_address: str | None
    main_port: int

    @property
    def total(self) -> int:
        return self.per_node * self.nodes

    def check(self) -> None:
        """Refuse numbers that no launcher can start processes with."""
        for flag, value, low, high in (
            ("nproc", self.per_node, 1, MOST_WORKERS),
            ("nnodes", self.nodes, 1, None),
            ("node_rank", self.node_rank, 0, self.nodes - 1),
            ("main_port", self.main_port, 1, 65535),
        ):
            if value < low or (high is not None and value > high):
                end = "" if high is None else f" and at most {high}"
                raise UserError(f"{flag} is {value}; it must be at least {low}{end}.")
        if self.nodes > 1 and self.main_address is None:
            raise UserError(
                f"nnodes is {self.nodes}, and --main-address is missing: the address of the machine whose --node-rank "
                "is 0."
            )


def launch(arguments: Sequence[str], processes: Processes) -> int:
    """Start the processes of this machine and wait for them.

    Args:
        arguments: The flags of `attendrop train` for each process.
        processes: The number of processes, and the address of the main machine.

    Returns:
        The exit code.
    """
    import torch

    os.environ[_IS_WATCHED] = "1"
    words = ["-m", "attendrop", "train", *arguments]
    if not torch.cuda.is_available() or "--use-cpu" in arguments:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        return _launch_by_torch(words, processes)
    if processes.per_node > torch.cuda.device_count():
        raise UserError(f"nproc is {processes.per_node}, and this machine has {torch.cuda.device_count()} GPUs.")
    return _launch_on_machines(words, processes) if processes.nodes > 1 else _launch_by_torch(words, processes)


def _launch_on_machines(words: Sequence[str], processes: Processes) -> int:
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(processes.total)]
    command += ["--num_machines", str(processes.nodes), "--machine_rank", str(processes.node_rank)]
    command += ["--multi_gpu", "--main_process_ip", str(processes.main_address)]
    command += ["--main_process_port", str(processes.main_port)]
    # accelerate's process stands between this one and the workers, and must end too.
    process = subprocess.Popen([*command, *words], preexec_fn=end_with_parent if sys.platform == "linux" else None)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C reaches the processes too: they save a checkpoint and exit


def _stay_on_this_machine() -> None:
    """Let the processes that are started next talk to each other on the loopback interface alone."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class OnLoopback(StaticTCPRendezvous):
        """Meets at a store that listens on the loopback interface, and not on all interfaces."""

        def __init__(self, parameters: Any) -> None:
            listening = socket.create_server(("127.0.0.1", 0))
            host, port = listening.getsockname()
            super().__init__(host, port, 0, 1, parameters.run_id, int(parameters.config["timeout"]))
            self._store = TCPStore(
                host, port, 1, True, self.timeout, multi_tenant=True, master_listen_fd=listening.detach()
            )

        def get_backend(self) -> str:
            return _LOOPBACK

    if sys.platform == "linux":  # the name of the interface differs elsewhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    with suppress(ValueError):  # it is registered already
        rendezvous_handler_registry.register(_LOOPBACK, OnLoopback)


def _launch_by_torch(words: Sequence[str], processes: Processes) -> int:
    """Use torch's launcher: accelerate's starts one process on a CPU without MPI, and listens on all interfaces."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The processes report their own errors.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if processes.nodes == 1:
        _stay_on_this_machine()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes.per_node)))
    address = processes.main_address
    config = LaunchConfig(
        min_nodes=processes.nodes,
        max_nodes=processes.nodes,
        nproc_per_node=processes.per_node,
        run_id=uuid.uuid4().hex if processes.nodes == 1 else "attendrop",
        rdzv_backend=_LOOPBACK if processes.nodes == 1 else "static",
        rdzv_endpoint="127.0.0.1:0" if processes.nodes == 1 else f"{address}:{processes.main_port}",
        rdzv_configs={"rank": processes.node_rank, "timeout": 900},
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)(*words)
    except ChildFailedError as error:
        return max(failure.exitcode for failure in error.failures.values())
    except SignalException:
        return 130
    return 0
