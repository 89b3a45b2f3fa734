"""Flags from settings: every field of a run's configuration and of TrainingArguments is a flag of the same name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ..experiments.settings import TRAINING, Setting, all_settings


def parameter(setting: Setting) -> inspect.Parameter:
    """The setting as a parameter that typer turns into a flag. None = not given."""
    flag = f"--{setting.name.replace('_', '-')}"
    # ours are off unless given; a training argument may have to be switched off
    switched = setting.type is bool and setting.panel == TRAINING
    declared = f"{flag}/--no-{flag[2:]}" if switched else flag
    shown = setting.default if setting.default not in (None, "", [], False) or switched else None
    option = typer.Option(
        declared,
        help=_escaped(setting.help) + (f" [dim]\\[default: {shown}][/dim]" if shown is not None else ""),
        rich_help_panel=setting.panel,
        show_default=False,
    )
    types: dict[type, Any] = {int: int | None, float: float | None, bool: bool | None, list: list[str] | None}
    annotation = Annotated[types.get(setting.type, str | None), option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The flags that the command has beside the settings."""
    return [p for name, p in inspect.signature(function, eval_str=True).parameters.items() if name != "settings"]


def with_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(settings, ...)` with a flag for every setting; those that were given arrive in `settings`."""
    names = list(all_settings())

    def command(**values: Any) -> Any:
        given = {name: values.pop(name) for name in names}
        return function({name: value for name, value in given.items() if value not in (None, [])}, **values)

    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own_parameters(function)]
    signature = inspect.Signature([*keyword_only, *(parameter(s) for s in all_settings().values())])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """The flags that give these settings."""
    found: list[str] = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag[2:]}")
        else:
            for each in value if isinstance(value, list) else [value]:
                found += [flag, json.dumps(each) if isinstance(each, dict) else str(each)]
    return found


def dashed(arguments: Sequence[str]) -> list[str]:
    """`--learning_rate`, as transformers' scripts have it, is `--learning-rate`."""
    found = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        found.append(name.replace("_", "-") + equals + value if name.startswith("--") else argument)
    return found


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
