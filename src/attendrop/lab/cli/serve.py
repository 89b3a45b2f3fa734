"""`attendrop serve`: a small HTTP service with the predictions of a finished run."""

from __future__ import annotations

from typing import Annotated

import typer

from ...errors import UserError
from ...utils.checks import check_whole
from . import prediction_options
from .console import console, print_sentence, quiet_libraries, shown
from .signals import exits_on_interrupt


@quiet_libraries()
def command(
    folder: prediction_options.Folder,
    host: Annotated[
        str, typer.Option(help="The address to listen on. The default is reached from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 = any that is free.")] = 8000,
    max_texts: Annotated[int, typer.Option(help="Examples that one request may have.")] = 256,
    max_bytes: Annotated[int, typer.Option(help="Bytes that the body of a request may have.")] = 1_000_000,
    max_waiting: Annotated[int, typer.Option(help="Requests that may wait for the model.")] = 100,
    batch_size: prediction_options.BatchSize = 32,
    engine: prediction_options.Engine = "torch",
    temperature: prediction_options.Temperature = None,
    min_confidence: prediction_options.MinConfidence = None,
    target_accuracy: prediction_options.TargetAccuracy = None,
    coverage: prediction_options.Coverage = None,
) -> None:
    if not 0 <= port <= 65535:
        raise UserError(f"port is {port}; it must be from 0 to 65535.")
    for name, value in (
        ("max_texts", max_texts), ("max_bytes", max_bytes), ("max_waiting", max_waiting), ("batch_size", batch_size)
    ):  # fmt: skip
        check_whole(name, value, 1)
    with exits_on_interrupt():
        from ..runs.decisions import Required
        from ..runs.predict import read_finished
        from ..serving.app import LOOPBACK, Limits, make_app
        from ..serving.run import listen, serve

    run = read_finished(folder, temperature, Required(min_confidence, target_accuracy, coverage))
    for sentence in run.rule.sentences if run.rule is not None else ():
        print_sentence(shown(sentence))
    with listen(host, port) as opened:
        is_local = host in LOOPBACK
        limits = Limits(max_texts, max_bytes, max_waiting)
        app = make_app(run.load(engine), limits, batch_size, LOOPBACK if is_local else ())
        if not is_local:
            print_sentence(
                f"[yellow]warning:[/yellow] everyone who reaches {shown(host)} can use the model, without a password."
            )
        opened.listen(1024)  # from here on requests wait and are not refused
        place = f"[{host}]" if ":" in host else host
        address = f"http://{place}:{opened.getsockname()[1]}"
        console.print(
            f"serving {shown(folder)} at {address} (documentation: {address}/docs); Ctrl-C stops it", soft_wrap=True
        )
        serve(app, opened)
    console.print("stopped")
