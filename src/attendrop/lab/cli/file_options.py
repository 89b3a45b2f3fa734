"""The flags of commands that read one file of examples: its format, and the treatment of bad rows."""

from __future__ import annotations

from typing import Annotated

import typer

Encoding = Annotated[str | None, typer.Option(help="Encoding of the file, if it is not UTF-8.")]
Separator = Annotated[str | None, typer.Option(help="Column delimiter, or 'tab'; detected by default.")]
Columns = Annotated[
    list[str] | None, typer.Option(help="Names of its columns if it has no header line, such as label,text.")
]
DropBadRows = Annotated[bool, typer.Option("--drop-bad-rows", help="Leave out rows that cannot be used.")]
