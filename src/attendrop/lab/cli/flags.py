"""The flags of `attendrop train`: each setting of a run and each field of TrainingArguments is a flag."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from ..runs.settings import RUN_SETTINGS, Setting, all_settings
from .arguments import flag_of

# The settings that every command with the flags of a run shows in `--help`; `--help-all` shows the others too.
COMMON = (
    "model", "task", "train_file", "validation_file", "text", "text_pair", "label", "kind", "max_length", "method",
    "output_dir", "num_train_epochs", "learning_rate", "per_device_train_batch_size", "bf16", "lora", "config",
)  # fmt: skip

ConfigFile = Annotated[
    str | None, typer.Option(help="A YAML file with the same names; flags take precedence.", rich_help_panel="Run")
]


def with_flags(
    function: Callable[..., Any], without: Collection[str] = (), shown: Collection[str] = ()
) -> Callable[..., Any]:
    """Turn `function(settings, ...)` into a command with a flag for every setting.

    `--help` of the command shows the flags that most users need, and `--help-all` every flag.

    Args:
        function: Called with the settings that the user gave, as a dictionary, and with its own parameters. A
            parameter with the name of a setting replaces its flag, and one whose type is a dataclass has a flag for
            each field.
        without: Settings that are no flags of this command.
        shown: Settings and own parameters that `--help` shows, besides those of `COMMON`.
    """
    own, groups = own_parameters(function), _groups(function)
    replaced = {*without, *(parameter.name for parameter in own)}
    settings = {name: setting for name, setting in all_settings().items() if name not in replaced}

    def command(**values: Any) -> Any:
        values.pop("help_all")
        given = {name: values.pop(name) for name in settings}
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in dataclasses.fields(group)})
        return function({name: value for name, value in given.items() if value not in (None, [])}, **values)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters += map(_parameter, settings.values())
    for parameter in parameters:
        parameter.annotation.__metadata__[0].hidden = parameter.name not in {*COMMON, *shown}
    signature = inspect.Signature([*parameters, _HELP_ALL])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    command.__name__ = function.__name__
    return command


def own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command besides `settings`, and the fields of those that are groups of them.

    Their options are copies, which may be changed.
    """
    groups, parameters = _groups(function), list[inspect.Parameter]()
    for p in inspect.signature(function, eval_str=True).parameters.values():
        if p.name in groups:
            parameters += inspect.signature(groups[p.name], eval_str=True).parameters.values()
        elif p.name != "settings":
            parameters.append(p)
    return [p.replace(annotation=_copied(p.annotation)) for p in parameters]


def _groups(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of a command whose type is a dataclass, and this type."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return {p.name: p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)}


def _copied(annotation: Any) -> Any:
    """Return the same annotation with an option of its own: commands share some annotations (`engine_options`)."""
    return Annotated[annotation.__origin__, copy.copy(annotation.__metadata__[0])]


def _show_all(context: typer.Context, is_given: bool) -> None:
    """Print the help with the flags that `--help` leaves out."""
    if not is_given or context.resilient_parsing:
        return
    for parameter in context.command.params:
        parameter.hidden = False  # type: ignore[attr-defined]
    print(context.get_help(), end="")
    raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            help="Show every flag, also the rarely used ones and all training arguments of transformers.",
            callback=_show_all,
            is_eager=True,
        ),
    ],
)


_METAVARS: dict[type, str] = {int: "INTEGER", float: "FLOAT", bool: ""}  # what help texts show as the value of a flag


def _parameter(setting: Setting) -> inspect.Parameter:
    """Return the parameter that typer turns into the flag of a setting. Its value is None if the flag is not given."""
    flag = flag_of(setting.name)
    # Our own switches are off by default; a training argument may be on, so it also has a --no-… flag.
    has_negation = setting.type is bool and setting.name not in RUN_SETTINGS
    default = setting.default if setting.default not in (None, "", [], False) or has_negation else None
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if has_negation else flag,
        metavar=_METAVARS.get(setting.type, "TEXT"),
        help=_escaped(setting.help) + (f" [dim]\\[default: {default}][/dim]" if default is not None else ""),
        rich_help_panel=setting.panel,
        show_default=False,
    )
    # A number is read by `Setting.parse`, whose errors name the setting and the value.
    types: dict[type, Any] = {bool: bool | None, list: list[str] | None}
    annotation = Annotated[types.get(setting.type, str | None), option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
