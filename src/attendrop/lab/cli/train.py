"""`attendrop train`: one fine-tuning run, in this process or in several."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...trainer.checkpoint_folders import newest_checkpoint
from ...utils.shell import command_line
from ..runs import RunConfig, make_config, read_yaml, train
from ..runs.hub_token import token_in_environment
from .arguments import as_arguments
from .console import quiet_libraries
from .flags import ConfigFile, with_flags
from .launch import Processes, is_launched, is_main_process, launch, watch_launcher
from .terminal import Terminal, print_summary

_PROCESSES = "Several processes"  # the panel of these options in --help


@quiet_libraries()
def train_command(
    settings: dict[str, Any],
    config: ConfigFile = None,
    nproc: Annotated[int, typer.Option(help="Processes on this machine.", rich_help_panel=_PROCESSES)] = 1,
    nnodes: Annotated[int, typer.Option(help="Machines.", rich_help_panel=_PROCESSES)] = 1,
    node_rank: Annotated[int, typer.Option(help="Number of this machine, from 0.", rich_help_panel=_PROCESSES)] = 0,
    main_address: Annotated[str | None, typer.Option(help="Address of machine 0.", rich_help_panel=_PROCESSES)] = None,
    main_port: Annotated[int, typer.Option(help="Port on machine 0.", rich_help_panel=_PROCESSES)] = 29500,
) -> None:
    """Train with `settings`, the flags that the user gave; `with_flags` adds a flag for each setting."""
    watch_launcher()
    settings = {**(read_yaml(config) if config else {}), **settings}
    resolved = make_config(settings)
    processes = Processes(nproc, nnodes, node_rank, main_address, main_port)
    processes.check()
    with token_in_environment(resolved):
        if processes.total > 1 and not is_launched():
            raise typer.Exit(launch(as_arguments(settings), processes))
        _train(resolved)


command = with_flags(
    train_command,
    shown=("test_file", "resume", "overwrite", "gradient_accumulation_steps", "seed", "patience", "quantize", "nproc"),
)


def _train(config: RunConfig) -> None:
    """Train and show the run in the terminal. Exits with code 130 if Ctrl-C stops it."""
    terminal = Terminal(is_main_process())
    resume = command_line("attendrop", "train", "--config", config.output_dir / "run.yaml", "--resume")
    try:
        result = train(config, terminal)
    except KeyboardInterrupt:
        terminal.bar.stop()
        saved = newest_checkpoint(config.output_dir)
        hint = f"; {saved.name} is complete; continue with: {resume}" if saved else "; there is no checkpoint yet"
        terminal.console.print(f"stopped immediately{hint}", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    finally:
        terminal.bar.stop()
    if not result.finished:
        terminal.console.print(
            f"stopped after saving a checkpoint; continue with: {resume}", soft_wrap=True, markup=False
        )
        raise typer.Exit(130)
    print_summary(result, terminal.console)
