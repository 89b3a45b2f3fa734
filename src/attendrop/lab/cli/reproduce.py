"""`attendrop reproduce`: repeat a table or a figure of the papers, or list all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UserError
from ...utils.shell import command_line
from ..reproduction.entry import PAPERS, Entry
from ..reproduction.outcome import NOT_TRANSCRIBED, Outcome
from ..reproduction.page import READING, table_rows
from ..reproduction.registry import ENTRIES, find_entry
from .arguments import as_arguments
from .compare import NOT_FOR_STUDIES
from .console import console, plain_table, quiet_libraries, shown
from .engine_options import LOCAL, EngineOptions, RetryFailed
from .flags import with_flags
from .study_view import StudyView

_PANEL = "Reproduction"  # of these options in --help
_NOT_HERE = (*NOT_FOR_STUDIES, "method", "preset", "train_file", "validation_file", "test_file", "data_dir", "config")


def _option(help_text: str) -> Any:
    return typer.Option(help=help_text, rich_help_panel=_PANEL)


@quiet_libraries()
def reproduce_command(
    settings: dict[str, Any],
    entry: Annotated[
        str | None, typer.Argument(help="Such as addrop/table-2; without it, all of them are listed.")
    ] = None,
    data: Annotated[str | None, _option("The folder with the data sets, as Parquet files; by default the Hub.")] = None,
    scale: Annotated[
        str, _option("paper: the paper's settings; small: minutes on a laptop, to see that the experiment runs.")
    ] = "paper",
    task: Annotated[list[str] | None, _option("Some of the tasks of the entry alone; may be repeated.")] = None,
    protocol: Annotated[
        str, _option("How the scored epoch is chosen: paper (on the development set), honest, or both.")
    ] = "both",
    seeds: Annotated[int | None, _option("Runs of each row; by default those of the entry.")] = None,
    executor: EngineOptions = LOCAL,
    retry_failed: RetryFailed = False,
) -> None:
    """Reproduce with `settings`, the flags that the user gave; `with_flags` adds a flag for each setting."""
    if entry is None:
        print_entries()
        return
    chosen = find_entry(entry)
    folder, model = settings.pop("output_dir", None), settings.pop("model", None)
    if model is None:
        raise UserError(
            f"{chosen.name} needs a model, such as --model {chosen.models[0]}; those of the paper are "
            f"{', '.join(chosen.models)}."
        )
    from ..reproduction.run import make_setup, reproduce

    setup = make_setup(
        chosen, model, data=data, scale=scale, task=task or (), protocol=protocol, seeds=seeds, settings=settings
    )
    name = re.sub(r"[^\w.-]+", "-", f"{chosen.name}-{Path(model).name}-{scale}")
    place = Path(folder or Path("reproductions", name))
    options = {"model": model, "data": data, "scale": scale, "task": task, "seeds": seeds}
    given = {name: value for name, value in options.items() if value not in (None, [], "paper")}
    protocols = {} if protocol == "both" else {"protocol": protocol}
    command = command_line("attendrop", "reproduce", chosen.name, *as_arguments({**given, **protocols, **settings}))
    _announce(chosen, setup.tasks, place)
    made = executor.make(settings)
    try:
        outcome = reproduce(setup, place, made, command=command, retry_failed=retry_failed, watcher=StudyView())
    except KeyboardInterrupt:
        console.print("stopped; finished runs are kept; rerun the command to continue", soft_wrap=True)
        raise typer.Exit(130) from None
    print_outcome(outcome, chosen)
    files = ["outcome.md", "outcome.json", *(["outcome.png"] if chosen.drawing != "none" else [])]
    console.print(f"written: {shown(', '.join(str(place / file) for file in files))}", soft_wrap=True)


command = with_flags(
    reproduce_command,
    without=_NOT_HERE,
    shown=("data", "scale", "task", "protocol", "seeds", "workers", "max_train_samples", "max_eval_samples"),
)


def print_entries() -> None:
    """Print all entries of each paper."""
    for paper, (title, place) in PAPERS.items():
        own = [entry for entry in ENTRIES.values() if entry.paper == paper]
        table = plain_table("entry", "what it shows")
        table.title, table.title_justify = shown(f"{title}, {place}"), "left"
        for one in own:
            mark = " *" if one.is_reading else ""
            table.add_row(shown(one.name + mark), shown(one.title))
        console.print(table)
    console.print(f"* {READING[0].lower()}{READING[1:]}", soft_wrap=True)
    numbers = [f"{one.name}, {n.row}, {n.column}: {n.value:g}" for one in ENTRIES.values() for n in one.numbers]
    console.print(shown(f"the paper's number is known for {'; '.join(numbers)}, and otherwise {NOT_TRANSCRIBED}"))
    console.print("run one with attendrop reproduce ENTRY --model MODEL --data FOLDER, first with --scale small")


def _announce(entry: Entry, tasks: tuple[str, ...], folder: Path) -> None:
    console.print(shown(f"{entry.heading}: {entry.title}; {', '.join(tasks)}; records are in {folder}"), soft_wrap=True)
    if entry.is_reading:
        console.print(f"[dim]note:[/dim] {READING[0].lower()}{READING[1:]}", soft_wrap=True)


def print_outcome(outcome: Outcome, entry: Entry) -> None:
    """Print the numbers, and what the paper says beside them.

    Args:
        outcome: The outcome.
        entry: Its entry.
    """
    header, rows = table_rows(outcome, entry)
    table = plain_table(*header)
    for row in rows:
        table.add_row(*map(shown, row))
    console.print(table)
    if outcome.verdicts:
        said = plain_table("the paper says", "ours", "verdict")
        for one in outcome.verdicts:
            said.add_row(shown(one.text), shown(one.ours), one.verdict)
        console.print(said)
    if outcome.failed:
        console.print(
            f"{len(outcome.failed)} of {outcome.runs} runs failed: {shown(outcome.failed[0])}", soft_wrap=True
        )
