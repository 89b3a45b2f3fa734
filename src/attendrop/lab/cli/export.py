"""`attendrop export`: the model of a finished run as an ONNX file or a program of torch.export."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import announced, console, print_sentence, quiet_libraries, shown
from .signals import exits_on_interrupt


@announced("loading the model")
@quiet_libraries()
def command(
    folder: Annotated[str, typer.Argument(help="The folder that `attendrop train` or `attendrop compress` wrote.")],
    to: Annotated[str, typer.Option(help="onnx, or torch for a program of torch.export.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Weights and activations of ONNX in 8 bits.")] = False,
    tolerance: Annotated[float, typer.Option(help="The loss of the score that int8 may have.")] = 0.01,
    file: Annotated[
        str | None,
        typer.Option(help="A file with labels to check the score on; by default the validation data of the run."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per batch of the check.")] = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier file.")] = False,
) -> None:
    with exits_on_interrupt():
        from ..exporting.run_folder import export_run

    def note(text: str) -> None:
        print_sentence(f"[yellow]warning:[/yellow] {shown(text.removeprefix('warning: '))}")

    done = export_run(
        folder, to, int8=int8, tolerance=tolerance, file=file, batch_size=batch_size, overwrite=overwrite, note=note
    )
    for sentence in done.sentences:
        print_sentence(shown(sentence))
    console.print(f"the model is in {shown(done.path)}; these lines run it:\n", soft_wrap=True)
    for line in done.script.splitlines():
        console.print(shown(line), soft_wrap=True, highlight=False)
    if to == "onnx":
        engine = "onnx-int8" if int8 else "onnx"
        console.print(f"\nor: attendrop predict {shown(folder)} TEXT --engine {engine}", soft_wrap=True)
