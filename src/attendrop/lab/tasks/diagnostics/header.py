"""Recognise a first line that is an example, and not the names of the columns."""

from __future__ import annotations

from ..files import Table
from ..files.content import suggested_names
from ..findings import ERROR, WARNING, Finding, shortened
from ..values import as_number

_WORDS_OF_A_TEXT = 6


def examine_header(table: Table) -> list[Finding]:
    """Return an error if the first line is certainly data, and a warning if it may be."""
    names = list(table.columns)
    if not table.has_header or names == [str(number) for number in range(len(names))]:  # pandas numbers its columns
        return []
    add = (
        f"if it is data, name the columns with --columns {','.join(suggested_names(table.columns))}, or --columns auto"
    )
    for name in names:
        values = [str(value).strip() for value in table.columns[name] if value is not None]
        if (again := values.count(name)) > 1:
            reason = f"its {shortened(name)!r} is also the value of {again:,} rows below it"
        elif as_number(name) is not None and any(as_number(value) is not None for value in values):
            reason = f"its {name!r} is a number, as the values below it"
        else:
            continue
        return [
            Finding(
                ERROR,
                f"the first line of {table.path} looks like data and not like a header: {reason}; {add}, or "
                "add a line with their names",
            )
        ]
    long = [name for name in names if len(name.split()) >= _WORDS_OF_A_TEXT]
    if long:
        text = (
            f"the first line of {table.path} may be data and not a header: one column is called {shortened(long[0])!r}"
        )
        return [Finding(WARNING, f"{text}; {add}")]
    return []
