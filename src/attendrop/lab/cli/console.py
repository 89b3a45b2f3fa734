"""Helpers that commands share: consoles, a plain table, path checks, and a context that silences the libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

from ...errors import UserError, one_line
from ...utils.secrets import without_login
from .signals import exits_on_interrupt


class _TextConsole(Console):
    """A console on which the texts of users, such as the names of their files, cannot control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render text with control characters, such as the escape that begins a colour, as escapes."""
        for segment in super().render(renderable, options):
            has_control = segment.control is None and _CONTROL.search(segment.text)
            yield Segment(_CONTROL.sub(_escaped, segment.text), segment.style) if has_control else segment


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


# All control characters but tab and line feed, and the marks that turn the direction of a line.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
console = _TextConsole(highlight=False)
errors = _TextConsole(stderr=True, highlight=False, soft_wrap=True)


def shown(text: object) -> str:
    """Return the user's text, such as a file name or a label, on one line and with its markup escaped."""
    return escape(one_line(text))


def print_sentence(text: str, screen: Console = console) -> None:
    """Print a sentence: in a terminal it is wrapped between words, and elsewhere it stays on one line.

    Args:
        text: The sentence, with markup.
        screen: Where it is printed.
    """
    screen.print(text, soft_wrap=not screen.is_terminal)


def print_error(error: object) -> None:
    """Print an error on stderr."""
    print_sentence(f"[red]error:[/red] {shown(without_login(str(error)))}", errors)


def print_note(text: str, screen: Console = console) -> None:
    """Print a note, or a warning if the text begins with `warning: `."""
    is_warning = text.startswith("warning: ")
    level = "[yellow]warning:[/yellow]" if is_warning else "[dim]note:[/dim]"
    print_sentence(f"{level} {shown(text.removeprefix('warning: '))}", screen)


def print_stopped() -> None:
    """Print that Ctrl-C has stopped the program."""
    errors.print("[yellow]stopped[/yellow]")


def plain_table(*columns: str, align_right: bool = False) -> Table:
    """Return a table without lines.

    Args:
        columns: The titles; more columns can be added later.
        align_right: Whether the columns after the first are aligned to the right, as numbers are.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if align_right and number else "left")
    return table


def checked_figure(path: str | Path, overwrite: bool) -> Path:
    """Return the path of a figure that a command will write; refuses a file that exists, and other suffixes.

    Args:
        path: The path that the user gave.
        overwrite: Whether an existing file may be replaced.
    """
    figure = Path(path)
    if figure.suffix.lower() not in (".png", ".pdf"):
        raise UserError(f"output is {str(figure)!r}; the file must end in .png or .pdf.")
    if figure.exists() and not overwrite:
        raise UserError(f"output is {str(figure)!r}, which exists; choose another with --output or use --overwrite.")
    if not figure.parent.is_dir():
        raise UserError(f"output is {str(figure)!r}, and the folder {str(figure.parent)!r} does not exist.")
    return figure


def timed_bar(screen: Console, *figures: ProgressColumn, transient: bool = False) -> Progress:
    """Return a progress bar with the remaining time; nothing is shown where a line cannot be redrawn.

    Args:
        screen: Where it is shown: not in a file or a pipe, and not in a terminal without escape codes.
        figures: Columns after the number of steps.
        transient: Whether it vanishes at the end.
    """
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        *figures, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=screen, transient=transient,
        disable=screen.quiet or not screen.is_interactive,
    )  # fmt: skip


@contextmanager
def progress_bar(title: str, least: int = 1000, screen: Console = errors) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left, which disappears at the end; no bar is shown for few examples.

    Args:
        title: The name of the work.
        least: The smallest number of examples that shows a bar.
        screen: Where it is shown.
    """
    with ExitStack() as stack:
        bar = timed_bar(screen, transient=True)

        def update(done: int, total: int) -> None:
            if total < least:
                return
            if not bar.tasks:
                bar.add_task(title, total=total)
                stack.enter_context(bar)
            bar.update(bar.task_ids[0], completed=done)

        yield update


@contextmanager
def announced(text: str) -> Iterator[None]:
    """Print the first step of a command in a terminal, before the import of the libraries, which takes seconds.

    Args:
        text: The step.
    """
    if errors.is_terminal:
        errors.print(f"[dim]{text} …[/dim]")
    yield


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers and datasets, and restore their settings at the end."""
    with exits_on_interrupt():
        import datasets

        from ...utils.quiet import quiet_transformers

    has_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with quiet_transformers():
            yield
    finally:
        if has_bars:
            datasets.enable_progress_bars()
