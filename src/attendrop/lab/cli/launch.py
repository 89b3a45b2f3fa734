"""Starts `attendrop train` in several processes (`--nproc`, `--nnodes`), by the launcher of accelerate or of torch."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UserError
from ...utils.limits import MOST_WORKERS
from ...utils.processes import end_with_parent

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
        return _launch_on_cpu(words, processes)
    if processes.per_node > torch.cuda.device_count():
        raise UserError(f"nproc is {processes.per_node}, and this machine has {torch.cuda.device_count()} GPUs.")
    return _launch_on_gpus(words, processes)


def _launch_on_gpus(words: Sequence[str], processes: Processes) -> int:
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(processes.total)]
    command += ["--num_machines", str(processes.nodes), "--machine_rank", str(processes.node_rank)]
    command += ["--multi_gpu"] if processes.total > 1 else []
    command += ["--main_process_ip", processes.main_address] if processes.main_address else []
    command += ["--main_process_port", str(processes.main_port)]
    # accelerate's process stands between this one and the workers, and must end too.
    process = subprocess.Popen([*command, *words], preexec_fn=end_with_parent if sys.platform == "linux" else None)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C reaches the processes too: they save a checkpoint and exit


def _launch_on_cpu(words: Sequence[str], processes: Processes) -> int:
    """Use torch's launcher: without MPI, accelerate's starts only one process on a CPU."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The processes report their own errors.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes.per_node)))
    address = processes.main_address
    config = LaunchConfig(
        min_nodes=processes.nodes,
        max_nodes=processes.nodes,
        nproc_per_node=processes.per_node,
        run_id=uuid.uuid4().hex if address is None else "attendrop",
        rdzv_backend="c10d" if address is None else "static",
        rdzv_endpoint="localhost:0" if address is None else f"{address}:{processes.main_port}",
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
