"""`attendrop methods`: the list of methods, or the fields of one.

The list is read from the docstrings in the source files: importing the methods would import torch.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ... import methods
from ...core.hyper import hyper_of
from ...errors import UserError
from .console import console, plain_table


def command(name: Annotated[str | None, typer.Argument(help="The method whose fields to show.")] = None) -> None:
    if name is None:
        _list_methods()
    elif methods.names_file(name) and ":" not in name:
        for cls in methods.methods_in(name):
            _show_fields(f"{name}:{cls}")
    else:
        _show_fields(name)


def _list_methods() -> None:
    table = plain_table()
    table.add_column("method", style="bold")
    table.add_column("what it does")
    for name in methods.known_names():
        table.add_row(name, escape(description_of(name)))
    console.print(table)
    console.print("\n`attendrop methods NAME` shows its fields; use it as --method NAME:field=value,field=value")
    console.print("a method of your own is FILE.py:CLASS in the place of NAME")


def _show_fields(name: str) -> None:
    cls = methods.method_class(name)
    descriptions = field_descriptions(cls)
    table = plain_table("field", "default", "what it is")
    for field in dataclasses.fields(cls):
        default = str(getattr(cls, field.name, ""))
        table.add_row(field.name, escape(default), escape(with_bounds(cls, field, descriptions.get(field.name, ""))))
    console.print(f"[bold]{name}[/bold]: {escape(description_of(name))}\n")
    console.print(table)
    console.print(f"\nuse it as --method {name}, or --method {name}:field=value,field=value")


def with_bounds(cls: type, field: dataclasses.Field[Any], description: str) -> str:
    """Return the description of a field, with its bounds if neither it nor the first line of the class has them."""
    bounds, stated = hyper_of(field), f"{(inspect.getdoc(cls) or '').partition('Args:')[0]}{description}"
    if bounds is None or "number" in stated or any(f'"{choice}"' in stated for choice in bounds.choices):
        return description
    return "; ".join(part for part in (description, bounds.described(field)) if part)


def description_of(name: str) -> str:
    """Return the one-line description of a method, from the first paragraph of its module.

    That of a method that is not part of attendrop is in the docstring of its class, or of its module.
    """
    if name not in methods.method_names():
        return _description_of_class(name)
    folder = Path(methods.__path__[0])
    module, package = folder / f"{name}.py", folder / name / "method.py"
    source = (module if module.is_file() else package).read_text(encoding="utf-8")
    text = _first_paragraph(ast.get_docstring(ast.parse(source)))
    return text.partition(": ")[2] or text


def _description_of_class(name: str) -> str:
    try:
        cls = methods.method_class(name)
    except UserError as error:
        return str(error)
    own = vars(cls).get("__doc__") or ""
    is_generated = own.startswith(f"{cls.__name__}(")  # by dataclass
    text = _first_paragraph(sys.modules[cls.__module__].__doc__ if is_generated else own)
    return f"{text} ({cls._code})".strip()


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def field_descriptions(cls: type) -> dict[str, str]:
    """Return the description of each field from the `Args:` of a method's docstring.

    A description is a line `field: text`, continued on lines with more indentation.
    """
    section = (inspect.getdoc(cls) or "").partition("\nArgs:\n")[2]
    names = "|".join(field.name for field in dataclasses.fields(cls))
    pattern = re.compile(rf"(?P<indent> *)(?P<field>{names}): (?P<text>.+)")
    descriptions: dict[str, str] = {}
    field, indent = "", ""
    for line in section.splitlines():
        match = pattern.fullmatch(line)
        if match and (not field or match["indent"] == indent):
            field, indent = match["field"], match["indent"]
            descriptions[field] = match["text"]
        elif field and line.startswith(f"{indent} "):
            descriptions[field] += f" {line.strip()}"
    return descriptions
