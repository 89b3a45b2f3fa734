"""Completion of flags in the shell, from a stored list: importing the commands would take seconds at every Tab.

`python -m attendrop.lab.cli.completion` writes the list, `flags.json` in this folder; a test compares it with the
commands.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ...methods import known_names
from ...utils.files import write_whole

_STORED = Path(__file__).with_name("flags.json")


def command_for_completion(name: str) -> Any:
    """Return a command with the flags of `name` that does nothing, for the shell to complete.

    Args:
        name: The name of a command.
    """
    flags = json.loads(_STORED.read_text(encoding="utf-8"))[name]

    def command(**values: Any) -> None: ...

    parameters = [_parameter(number, names, is_switch) for number, (names, is_switch) in enumerate(flags)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command(name)(command)
    return typer.main.get_command(app)


def _parameter(number: int, names: str, is_switch: bool) -> inspect.Parameter:
    complete = _VALUES.get(names)
    option = typer.Option(names, autocompletion=complete) if complete else typer.Option(names)
    annotation = Annotated[bool if is_switch else list[str], option]  # type: ignore[valid-type]
    default: Any = False if is_switch else ()
    return inspect.Parameter(f"flag{number}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _choices(*values: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _methods(incomplete: str) -> list[str]:
    return _choices(*known_names())(incomplete)


def _kinds(incomplete: str) -> list[str]:
    from ..tasks.modalities import file_kinds

    return _choices(*file_kinds())(incomplete)


_VALUES = {
    "--method": _methods,
    "--kind": _kinds,
    "--capture": _choices("auto", "eager", "captured"),
    "--quantize": _choices("4bit", "8bit"),
    "--preset": _choices("paper", "recommended"),
}


def stored_flags() -> str:
    """Return the content of `flags.json`: of each command, the names of each flag and whether it takes no value."""
    from .app import COMMANDS, load_command

    flags = {
        name: [
            ["/".join(filter(None, ("/".join(p.opts), "/".join(p.secondary_opts)))), p.is_flag]
            for p in load_command(name).params
            if p.param_type_name == "option"
        ]
        for name in COMMANDS
    }
    lines = [f" {json.dumps(name)}: {json.dumps(options)}" for name, options in flags.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    write_whole(_STORED, stored_flags())
