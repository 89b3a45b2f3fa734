"""`--nproc` and `--nnodes`: the same command again, once for each process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ..errors import UserError


def is_worker() -> bool:
    """Whether a launcher has started this process already."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


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
    environment = dict(os.environ)
    if on_cpu:
        # accelerate's launcher starts one process alone on a CPU unless it has MPI; torch's is the one below it.
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--nproc-per-node", str(nproc), "--nnodes", str(nnodes), "--node-rank", str(node_rank)]
        command += ["--standalone"] if nnodes == 1 else []
        command += ["--master-addr", main_address, "--master-port", str(main_port)] if main_address else []
        environment["ACCELERATE_USE_CPU"] = "true"
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    else:
        command = [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
        ]
        command += [
            "--num_processes",
            str(nproc * nnodes),
            "--num_machines",
            str(nnodes),
            "--machine_rank",
            str(node_rank),
        ]
        command += ["--multi_gpu"] if nproc * nnodes > 1 else []
        command += ["--main_process_ip", main_address] if main_address else []
        command += ["--main_process_port", str(main_port)]
    process = subprocess.Popen([*command, "-m", "attendrop", "train", *arguments], env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the processes got it too: they save a checkpoint and end by themselves
