"""The flags of commands that predict with a finished run."""

from __future__ import annotations

from typing import Annotated

import typer

Folder = Annotated[str, typer.Argument(help="The folder that `attendrop train` wrote.")]
BatchSize = Annotated[int, typer.Option(help="Examples per batch.")]
Engine = Annotated[str, typer.Option(help="torch, or onnx or onnx-int8 for a file that `attendrop export` wrote.")]
Temperature = Annotated[
    float | None, typer.Option(help="Logits are divided by it; by default as fitted on the validation data.")
]
MinConfidence = Annotated[float | None, typer.Option(help="Mark predictions with a smaller probability as unsure.")]
TargetAccuracy = Annotated[
    float | None, typer.Option(help="Mark as unsure what is needed so that the others have this accuracy.")
]
Coverage = Annotated[
    float | None, typer.Option(help="Add prediction sets that have the right class this often, such as 0.9.")
]
