"""The verbs."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UserError
from .flags import as_arguments, dashed, with_flags
from .launch import is_first, is_worker, launch

app = typer.Typer(
    name="attendrop",
    help="Fine-tune pretrained transformers with attention dropout that is learned or driven by attribution.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def run(arguments: list[str]) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped by Ctrl-C."""
    from .show import errors

    try:
        app(dashed(arguments), standalone_mode=True)
    except UserError as error:
        if is_first():
            errors.print(f"[red]error:[/red] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        errors.print("[yellow]stopped[/yellow]")
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """What the libraries would print between our own lines is left out, and their settings are put back."""
    import datasets
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled(), not datasets.are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars[0]:
            logging.enable_progress_bar()
        if bars[1]:
            datasets.enable_progress_bars()


@_quiet_libraries()
def train_command(
    settings: dict[str, Any],
    config: Annotated[
        str | None, typer.Option(help="A YAML file with the same names; flags win.", rich_help_panel="Run")
    ] = None,
    nproc: Annotated[int, typer.Option(help="Processes on this machine.", rich_help_panel="Several processes")] = 1,
    nnodes: Annotated[int, typer.Option(help="Machines.", rich_help_panel="Several processes")] = 1,
    node_rank: Annotated[int, typer.Option(help="Which of them this is.", rich_help_panel="Several processes")] = 0,
    main_address: Annotated[
        str | None, typer.Option(help="Address of machine 0.", rich_help_panel="Several processes")
    ] = None,
    main_port: Annotated[int, typer.Option(help="Port on machine 0.", rich_help_panel="Several processes")] = 29500,
) -> None:
    """Fine-tune a model on a task or on your own files, with any of the methods."""
    from ..experiments.settings import make_config, read_yaml

    settings = {**(read_yaml(config) if config else {}), **settings}
    resolved = make_config(settings)
    if nproc * nnodes > 1 and not is_worker():
        raise typer.Exit(launch(as_arguments(settings), nproc, nnodes, node_rank, main_address, main_port))
    from ..experiments import train
    from ..experiments.checkpoints import last_checkpoint
    from .show import Terminal, summary

    terminal = Terminal(is_first())
    resume = shlex.join(["attendrop", "train", "--config", str(resolved.output_dir / "run.yaml"), "--resume"])
    try:
        result = train(resolved, terminal)
    except KeyboardInterrupt:
        terminal.bar.stop()
        saved = last_checkpoint(resolved.output_dir)
        told = f"; {saved.name} is whole, go on with: {resume}" if saved else "; there is no checkpoint yet"
        terminal.console.print(f"stopped at once{told}", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        terminal.bar.stop()
    if not result.finished:
        terminal.console.print(f"stopped with a checkpoint; go on with: {resume}", soft_wrap=True)
        raise typer.Exit(130)
    summary(result, terminal.console)


app.command("train")(with_flags(train_command))


@app.command("predict")
@_quiet_libraries()
def predict(
    folder: Annotated[str, typer.Argument(help="What `attendrop train` wrote.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; for a task of pairs, two for each.")] = None,
    file: Annotated[
        str | None, typer.Option(help="CSV, TSV, JSON Lines, Parquet or CoNLL with the same columns.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="CSV or TSV to write; by default beside the file.")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in a batch.")] = 32,
    overwrite: Annotated[bool, typer.Option(help="Replace the output where it exists.")] = False,
) -> None:
    """Predict with a model that `attendrop train` wrote: a few texts, or a whole file."""
    from ..experiments.predict import predict_file, predict_texts
    from .show import console

    if bool(texts) == bool(file):
        raise UserError("give either texts or --file with many of them.")
    if file:
        done = predict_file(folder, file, output, batch_size, overwrite)
        for name, value in done.metrics.items():
            console.print(f"{name} {value:.4f}")
        console.print(f"{done.rows} predictions are in {escape(str(done.path))}", soft_wrap=True)
        return
    for text, answer in predict_texts(folder, texts or [], batch_size):
        console.print(f"[bold]{escape(str(answer))}[/bold]  {escape(text)}", soft_wrap=True)


@app.command("demo")
@_quiet_libraries()
def demo(
    train_samples: Annotated[int, typer.Option(help="Reviews to train on.")] = 300,
    dev_samples: Annotated[int, typer.Option(help="Other reviews, to judge by.")] = 400,
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 4,
    seed: Annotated[int, typer.Option(help="Of all three runs.")] = 42,
    output_dir: Annotated[str, typer.Option(help="Folder for models and pictures.")] = "attendrop-demo",
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier demo in that folder.")] = False,
) -> None:
    """Fine-tune a small model on film reviews, plain and with two methods; needs no hub, takes minutes on a CPU."""
    from .demo.command import Demo, run_demo

    run_demo(Demo(train_samples, dev_samples, epochs, seed, Path(output_dir), overwrite))


@app.command("methods")
def methods(name: Annotated[str | None, typer.Argument(help="One of them, for its fields.")] = None) -> None:
    """List the methods, or show the fields of one."""
    from ..methods import METHODS, method_class
    from .show import console

    if name is None:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("method", style="bold")
        table.add_column("what it does")
        for method, cls in METHODS.items():
            table.add_row(method, escape(_first_sentence(cls)))
        console.print(table)
        console.print("\n`attendrop methods NAME` shows its fields; use it as --method NAME:field=value,field=value")
        return
    try:
        cls = method_class(name)
    except ValueError as error:
        raise UserError(str(error)) from None
    console.print(f"[bold]{name}[/bold]: {escape(_first_sentence(cls))}\n")
    told = _told_fields(cls)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("field", "default", "what it is"):
        table.add_column(column)
    for field in dataclasses.fields(cls):
        table.add_row(field.name, escape(str(getattr(cls, field.name, ""))), escape(told.get(field.name, "")))
    console.print(table)
    console.print(f"\nuse it as --method {name}, or --method {name}:field=value,field=value")


@app.command("tasks")
def tasks() -> None:
    """List the data sets that are known by name."""
    from ..tasks import TASKS
    from .show import console

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("task", "kind", "metrics", "on the Hub"):
        table.add_column(column)
    for name, task in TASKS.items():
        table.add_row(name, task.kind, ", ".join(task.metrics), task.hub or "")
    console.print(table)


def _told_fields(cls: type) -> dict[str, str]:
    """What the class's docstring says of each field, in lines of `field   what it is`."""
    names = {field.name for field in dataclasses.fields(cls)}
    told: dict[str, str] = {}
    for line in (inspect.getdoc(cls) or "").splitlines():
        words = line.split()
        if words and words[0] in names and not line[0].isspace():
            last = words[0]
            told[last] = " ".join(words[1:])
        elif line[:1].isspace() and told:
            told[last] += " " + " ".join(words)
    return told


def _first_sentence(cls: type) -> str:
    """Of the method's module, which begins with "Name: what it does."."""
    text = " ".join((inspect.getdoc(sys.modules[cls.__module__]) or "").split("\n\n")[0].split())
    return text.partition(": ")[2] or text
