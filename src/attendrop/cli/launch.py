"""`--nproc` and `--nnodes`: the same command again, once for each process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence

from ..errors import UserError


def is_worker() -> bool:
    """Whether a launcher has started this process already."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    return os.environ.get("RANK", "0") == "0"


def launch(
    arguments: Sequence[str], nproc: int, nnodes: int, node_rank: int, main_address: str | None, main_port: int
) -> int:
    """Starts `nproc` processes on this machine, of `nnodes` machines in all, and waits for them."""
    import torch

    if nproc < 1 or nnodes < 1:
        raise UserError(f"nproc is {nproc} and nnodes is {nnodes}; both must be at least 1.")
    if nnodes > 1 and main_address is None:
        raise UserError(
            f"nnodes is {nnodes}, and --main-address is missing: the address of the machine whose --node-rank is 0."
        )
    on_cpu = not torch.cuda.is_available() or "--use-cpu" in arguments
    if not on_cpu and nproc > torch.cuda.device_count():
        raise UserError(f"nproc is {nproc}, and this machine has {torch.cuda.device_count()} GPUs.")
    words = ["-m", "attendrop", "train", *arguments]
    if on_cpu:
        return _on_cpu(words, nproc, nnodes, node_rank, main_address, main_port)
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(nproc * nnodes)]
    command += ["--num_machines", str(nnodes), "--machine_rank", str(node_rank)]
    command += ["--multi_gpu"] if nproc * nnodes > 1 else []
    command += ["--main_process_ip", main_address] if main_address else []
    command += ["--main_process_port", str(main_port)]
    process = subprocess.Popen([*command, *words])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the processes got it too: they save a checkpoint and end by themselves


def _on_cpu(
    words: Sequence[str], nproc: int, nnodes: int, node_rank: int, main_address: str | None, main_port: int
) -> int:
    """accelerate's launcher starts one process alone on a CPU unless it has MPI; torch's is the one below it."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes tell what is wrong
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    config = LaunchConfig(
        min_nodes=nnodes,
        max_nodes=nnodes,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex if main_address is None else "attendrop",
        rdzv_backend="c10d" if main_address is None else "static",
        rdzv_endpoint="localhost:0" if main_address is None else f"{main_address}:{main_port}",
        rdzv_configs={"rank": node_rank, "timeout": 900},
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
