"""The options of `attendrop demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import console, quiet_libraries
from ..signals import exits_on_interrupt
from .options import DemoOptions


@quiet_libraries()
def command(
    train_samples: Annotated[int, typer.Option(help="Reviews to train on.")] = 300,
    dev_samples: Annotated[int, typer.Option(help="Other reviews to evaluate on.")] = 300,
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 3,
    seed: Annotated[int, typer.Option(help="Random seed of all three runs.")] = 42,
    output_dir: Annotated[str, typer.Option(help="Folder for models and figures.")] = "attendrop-demo",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier demo in that folder.")] = False,
) -> None:
    options = DemoOptions(train_samples, dev_samples, epochs, seed, Path(output_dir), overwrite)
    options.check()
    console.print("loading PyTorch and transformers …")  # takes ten seconds where Python has not compiled them yet
    with exits_on_interrupt():
        from .run import run_demo

    run_demo(options)
