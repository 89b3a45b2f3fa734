"""Assembles the commands of the `attendrop` program, which `COMMANDS` lists.

The module of a command is imported only when that command is called: most of them need torch and transformers, which
take seconds to import. `attendrop --help`, `attendrop --version` and `attendrop methods` need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ... import __version__
from ...errors import UserError
from ...utils.deprecation import OTHER_NAMES, warn_renamed
from .boundary import reported
from .console import console, print_stopped
from .once import OnceCommand
from .packages import check_packages
from .signals import exits_on_interrupt

_UsageError: Any = typer.BadParameter.__base__  # an unknown flag, a missing argument: typer has no name for it

# The help text of each command. The module of the same name in this folder defines the function `command`.
COMMANDS = {
    "check": "Check your own files before training: what is wrong with them, and what is unusual.",
    "train": "Fine-tune a model on a task or on your own files, with any of the methods.",
    "predict": "Predict with a model that `attendrop train` wrote: a few texts, or a whole file.",
    "serve": "Serve a model that `attendrop train` wrote over HTTP, with a page to try texts.",
    "evaluate": "Evaluate a model that `attendrop train` wrote on another file with labels.",
    "compress": "Make a model that `attendrop train` wrote faster: less attention, fewer tokens, distilled.",
    "export": "Export a finished model to ONNX, fp32 or int8, or with torch.export, after a check of its score.",
    "compare": "Compare methods on the same seeds, with statistics: which one helps on your data?",
    "plan": "Write the plan of a comparison before it is run; `attendrop compare --plan` runs it.",
    "tune": "Search the fields of methods and the learning rate, on splits of the training data.",
    "reproduce": "Repeat a table or a figure of the papers, with their numbers beside yours; or list all of them.",
    "study": "Show the progress of a study: what is done, running and failed, and when it will end.",
    "report": "Show the results of a study: one page with verdicts and figures, Markdown and CSV.",
    "soup": "Average the weights of the runs of one method of a study into one model.",
    "curves": "Draw the losses and scores of several finished runs in one figure.",
    "dropped": "Show what AD-DROP or a trained generator drops: by distance, kind of token, and tag.",
    "robustness": "Show what a trained model depends on: its score while attention positions are dropped.",
    "demo": "Fine-tune a small model on film reviews, plain and with two methods. Needs no Hub; minutes on a CPU.",
    "methods": "List the methods, or show the fields of one.",
    "tasks": "List the data sets that are known by name.",
}


class LazyGroup(TyperGroup):
    """Lists the commands by their help texts, and imports the module of a command when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing:  # shell completion
            from .completion import command_for_completion

            return name, command_for_completion(str(name)), rest
        check_packages(str(name), rest)
        return name, load_command(str(name)), rest


def load_command(name: str) -> Any:
    """Import the module of a command and build the command with its options."""
    command = typer.Typer(rich_markup_mode="rich", add_completion=False)
    with exits_on_interrupt():
        command.command(name, cls=OnceCommand, help=COMMANDS[name])(import_module(f".{name}", __package__).command)
        return typer.main.get_command(command)


app = typer.Typer(
    name="attendrop",
    cls=LazyGroup,
    help="Fine-tune pretrained transformers with attention dropout that is learned or driven by attribution.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _placeholder() -> None:
    """Do nothing: a placeholder in the list of commands, which `LazyGroup` replaces when it is called."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_placeholder)


def _show_version(is_given: bool) -> None:
    if is_given:
        console.print(f"attendrop {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


RENAMED = {"--step": "--capture"}  # deprecated flags


def dashed(arguments: Sequence[str]) -> list[str]:
    """Write flags with dashes: `--learning_rate`, as the scripts of transformers have it, is `--learning-rate`.

    Replaces deprecated flags.
    """
    words = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in RENAMED:
            warn_renamed(name, RENAMED[name])
            name = RENAMED[name]
        words.append(name.replace("_", "-") + equals + value if name.startswith("--") else argument)
    return words


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The words that follow `attendrop`.

    Returns:
        The exit code: 0 on success, 1 after a bug, 2 after a mistake of the user, 3 if training diverged, 130 if
        stopped by Ctrl-C.
    """
    try:
        return int(app(dashed(arguments), standalone_mode=False) or 0)
    except _UsageError as error:
        return reported(UserError(_usage(error))) if arguments else 2  # without arguments, the help has been printed
    except (KeyboardInterrupt, typer.Abort):
        print_stopped()
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        return reported(error)


def _nearest(error: Any) -> list[str] | None:
    """Return the flags that an unknown flag may stand for."""
    known = OTHER_NAMES.get(getattr(error, "option_name", "").removeprefix("--").replace("-", "_"))
    if known is not None and error.ctx is not None:
        flag = f"--{known.replace('_', '-')}"
        if any(flag in parameter.opts for parameter in error.ctx.command.params):
            return [flag]
    return getattr(error, "possibilities", None)


def _usage(error: Any) -> str:
    """Return what is wrong with the flags, as a sentence that ends with where to look."""
    near = _nearest(error)
    message = error.message if near else error.format_message()
    message = message.replace(". Did you mean", "; did you mean").rstrip(".")
    if near:
        message += f"; did you mean {' or '.join(near)}?"
    is_command = error.ctx is not None and error.ctx.parent is not None
    program = f"attendrop {error.ctx.info_name}" if is_command else "attendrop"
    has_more = is_command and any(parameter.name == "help_all" for parameter in error.ctx.command.params)
    end = "" if message.endswith("?") else ";"
    flag = "--help-all" if has_more else "--help"
    return f"{message[:1].lower()}{message[1:]}{end} `{program} {flag}` lists what is allowed."
