"""The options of `attendrop demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import quiet_libraries
from ..signals import exits_on_interrupt
from .options import DemoOptions


@quiet_libraries()
def command(
    train_samples: Annotated[int, typer.Option(help="Reviews to train on.")] = 300,
    dev_samples: Annotated[int, typer.Option(help="Other reviews to evaluate on.")] = 400,
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 4,
    seed: Annotated[int, typer.Option(help="Random seed of all three runs.")] = 42,
    output_dir: Annotated[str, typer.Option(help="Folder for models and figures.")] = "attendrop-demo",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier demo in that folder.")] = False,
) -> None:
    with exits_on_interrupt():
        from .run import run_demo

    run_demo(DemoOptions(train_samples, dev_samples, epochs, seed, Path(output_dir), overwrite))
