"""Read JSON: one object in each line, or one document that holds a table in one of the usual shapes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ....errors import UserError
from ....utils.limits import MOST_COLUMNS, check_shape
from ..findings import NOTE, Finding, listed, plural
from .content import looks_like_text, suggested_names
from .decoding import decode
from .table import Problem, Source, Table

_KEY = "key"  # the column of the names in an object of objects
_SPLITS = {"train", "training", "validation", "valid", "val", "dev", "test", "testing"}
_HEADER = {"text", "sentence", "utterance", "question", "review", "label", "labels", "class", "category", "intent"}
_TEXTS_OF_A_CLASS = ("utterances", "patterns", "examples", "samples", "phrases", "queries", "texts", "sentences")
_MOST_PARTS = 50  # names of splits among more names are ordinary words
_MANY = 10  # an object with so many times more names than each of its lists has values holds rows by name


class _Unreadable(Exception):
    """A text that is not JSON.

    Attributes:
        line: The line of the text, counted from 0; None if it is not known.
        reason: The mistake, as the end of a sentence.
    """

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise KeyError(next(name for name, count in counts.items() if count > 1))
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_reject_repeated_keys)
    except json.JSONDecodeError as error:
        raise _Unreadable(error.lineno - 1, f"is not JSON: {error.msg}") from None
    except KeyError as error:
        raise _Unreadable(None, f"has the column {error.args[0]!r} twice; rename or remove one") from None
    except RecursionError:
        raise _Unreadable(0, "is nested too deeply") from None
    except ValueError:
        raise _Unreadable(None, "has a number of more than 4,300 digits; write it as text") from None


def read_json(source: Source) -> Table:
    """Read a JSON document, or one object in each line."""
    text = decode(source)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    first = lines[0][1].rstrip()
    may_be_lines = not first.startswith("[") and source.part is None
    if may_be_lines and (len(lines) > 1 or source.suffix != ".json") and _is_a(dict, first):
        return _read_objects(source, lines)
    try:
        value = _parse(text)
    except _Unreadable as error:
        if may_be_lines and (records := _consecutive(text)):
            source.findings.append(
                Finding(NOTE, f"{source.path} has one object after another, each over several lines")
            )
            return _of_records(source, [record for _, record in records], [line for line, _ in records])
        if may_be_lines and (source.suffix != ".json" or first.endswith("}")):
            return _read_objects(source, lines)  # each wrong line has an error
        if source.part is None and _is_a(list, first):
            return _read_lists(source, lines)
        place = "" if error.line is None else f"line {error.line + 1} of "
        raise UserError(f"{place}{source.path} {error.reason}.") from None
    return _table_of(source, value if source.part is None else _part_of(source, value, source.part))


def _is_a(kind: type, line: str) -> bool:
    try:
        return isinstance(_parse(line), kind)
    except _Unreadable:
        return False


def _consecutive(text: str) -> list[tuple[int, dict[str, Any]]] | None:
    """Return objects that follow one another, as `json.dumps(…, indent=2)` in a loop writes them, with their lines."""
    decoder = json.JSONDecoder(object_pairs_hook=_reject_repeated_keys)
    records, place, line = [], 0, 1
    while begin := re.compile(r"\S").search(text, place):
        line += text.count("\n", place, begin.start())
        try:
            record, end = decoder.raw_decode(text, begin.start())
        except (ValueError, KeyError, RecursionError):
            return None
        if not isinstance(record, dict):
            return None
        records.append((line, record))
        line, place = line + text.count("\n", begin.start(), end), end
    return records


def _read_objects(source: Source, lines: Iterable[tuple[int, str]]) -> Table:
    advice = 'write one object with columns on each line, like {"text": …, "label": …}'
    records, numbers = [], []
    for number, line in lines:
        try:
            value = _parse(line)
        except _Unreadable as error:
            source.drop(number, Problem(error.reason, advice, "json"))
            continue
        if isinstance(value, dict):
            records.append(value)
            numbers.append(number)
        else:
            source.drop(number, Problem("is not an object with columns", advice))
    return _of_records(source, records, numbers)


def _read_lists(source: Source, lines: Iterable[tuple[int, str]]) -> Table:
    """Read one list of values in each line."""
    rows: list[tuple[int, list[Any]]] = []
    for number, line in lines:
        try:
            value = _parse(line)
        except _Unreadable as error:
            source.drop(number, Problem(error.reason, "write one list of values on each line", "json"))
            continue
        width = len(rows[0][1]) if rows else len(value)
        if isinstance(value, list) and len(value) == width:
            rows.append((number, value))
        else:
            text = f"is not a list of {plural(width, 'value')}, as the first one"
            source.drop(number, Problem(text, "write as many values on each line", "list"))
    return _of_rows(source, rows, _has_header([row for _, row in rows]), has_lines=True)


def _of_records(source: Source, records: list[dict[str, Any]], lines: list[int] | None = None) -> Table:
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record))
        if len(names) > MOST_COLUMNS:
            check_shape(source.path, len(names), len(records))
    check_shape(source.path, len(names), len(records))
    if source.options.columns:
        raise UserError(
            f"columns is {','.join(source.options.columns)!r}, and {source.path} has names for its columns; leave "
            "--columns out."
        )
    texts = _column_of_texts(records)
    if texts is None:
        return source.table({name: [record.get(name) for record in records] for name in names}, lines, form="jsonl")
    text = f"{source.path} has lists of texts in {texts!r}, which are read as one row for each text"
    source.findings.append(Finding(NOTE, text))
    pairs = [(place, value) for place, record in enumerate(records) for value in record.get(texts) or []]
    columns = {name: [value if name == texts else records[place].get(name) for place, value in pairs] for name in names}
    numbers = [place + 1 if lines is None else lines[place] for place, _ in pairs]
    where = {"rows": numbers} if lines is None else {"lines": numbers}
    return source.table(columns, **where, form="jsonl")


def _column_of_texts(records: list[dict[str, Any]]) -> str | None:
    """Return the column with the texts of each class, in files for chatbots: `{"intent": …, "utterances": […]}`."""
    for name in _TEXTS_OF_A_CLASS:
        lists = [record.get(name) or [] for record in records]
        if not all(isinstance(of, list) and all(isinstance(text, str) for text in of) for of in lists):
            continue
        texts = [text for of in lists for text in of]
        if len(texts) > len(records) and looks_like_text(texts):
            return name
    return None


def _part_of(source: Source, value: Any, part: str) -> Any:
    if isinstance(value, dict) and part not in value:
        inside = [of for of in value.values() if isinstance(of, dict) and part in of]
        value = inside[0] if len(inside) == 1 else value
    if not isinstance(value, dict) or part not in value:
        known = listed(map(repr, value), 10) if isinstance(value, dict) and value else "no parts with names"
        raise UserError(f"{source.path} has no part {part!r}; it has {known}.")
    return value[part]


def _table_of(source: Source, value: Any) -> Table:
    """Return the table that a document holds, whatever its usual shape."""
    if isinstance(value, list):
        return _of_list(source, value)
    if not isinstance(value, dict):
        raise UserError(f"{source.path} holds {value!r:.60}, and no rows; write a list of objects with columns.")
    if isinstance(value.get("columns"), list) and isinstance(value.get("data"), list):  # pandas, orient="split"
        return _of_rows(source, _numbered([value["columns"], *value["data"]]), has_header=True)
    inner = list(value.values())
    parts = {name: of for name, of in value.items() if _names_split(name) and isinstance(of, (list, dict)) and of}
    if parts and (len(parts) == len(value) or not (_are_columns(value) or len(value) > _MOST_PARTS)):
        return _of_parts(source, parts)
    if inner and all(isinstance(of, dict) and not any(map(_holds_rows, of.values())) for of in inner):
        return _of_objects(source, value)
    if _are_columns(value):
        return _of_records(source, [dict(zip(value, row, strict=True)) for row in zip(*inner, strict=True)])
    if all(isinstance(of, list) and 1 < len(of) == len(inner[0]) for of in inner) and _are_rows(inner):
        return _of_rows(source, _numbered([[name, *of] for name, of in value.items()]), has_header=False)
    if (records := _snips_records(value)) is not None:
        source.findings.append(Finding(NOTE, f"{source.path} has the utterances of intents, as Snips writes them"))
        return _of_records(source, records)
    if len(value) > 1 and all(isinstance(of, list) and all(isinstance(text, str) for text in of) for of in inner):
        distinct = len({text for of in inner for text in of})
        if _MANY * distinct <= len(value):
            names = plural(len(value), "name")
            text = f"{source.path} has a list of labels for each of {names}, which are read as texts"
            source.findings.append(Finding(NOTE, text))
            return _of_records(source, [{"text": name, "labels": labels} for name, labels in value.items()])
        text = f"{source.path} has a list of texts for each of {plural(len(value), 'name')}, which are read as labels"
        source.findings.append(Finding(NOTE, text))
        return _of_records(source, [{"text": text, "label": name} for name, texts in value.items() for text in texts])
    if len(value) > 1 and looks_like_text([*value]) and all(isinstance(of, (str, int, float)) for of in inner):
        text = (
            f"{source.path} has one value for each of {plural(len(value), 'name')}, which are read as texts with labels"
        )
        source.findings.append(Finding(NOTE, text))
        return _of_records(source, [{"text": name, "label": of} for name, of in value.items()])
    tables = {name: of for name, of in value.items() if _holds_rows(of)}
    tables = tables or {name: of for name, of in value.items() if isinstance(of, dict) and len(of) > 1}
    return _of_parts(source, tables) if tables else _of_records(source, [value])


def _snips_records(value: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the texts of `{"intents": {NAME: {"utterances": [{"data": [{"text": …}]}]}}}` with their intents."""
    intents = value.get("intents")
    try:
        return [
            {"text": "".join(part["text"] for part in utterance["data"]), "label": name}
            for name, intent in intents.items()  # type: ignore[union-attr]
            for utterance in intent["utterances"]
        ] or None
    except (AttributeError, KeyError, TypeError):
        return None


def _names_split(name: str) -> bool:
    """Return whether a name is that of a split, such as `train`, `oos_val` or `train_labels`, and not `train_17`."""
    return not any(map(str.isdecimal, name)) and not _SPLITS.isdisjoint(re.split(r"[\W_]+", name.lower()))


def _are_rows(lists: list[list[Any]]) -> bool:
    """Return whether equally long lists are rows with a text and something else, and not the texts of labels."""
    are_texts = [looks_like_text([row[place] for row in lists]) for place in range(len(lists[0]))]
    return len(lists) > _MANY * len(are_texts) and any(are_texts) and not all(are_texts)


def _of_parts(source: Source, tables: dict[str, Any]) -> Table:
    """Return the table of the one part of a document; of several, one must be named."""
    loose = [name for name, of in tables.items() if isinstance(of, list) and not _holds_rows(of)]
    if len(loose) < len(tables):
        tables = {name: of for name, of in tables.items() if name not in loose}
    else:
        raise UserError(
            f"the parts {listed(map(repr, loose), 10)} of {source.path} are lists of single values, and no rows; write "
            'each text with its label, like {"train": [{"text": …, "label": …}]}.'
        )
    if len(tables) == 1:
        ((name, only),) = tables.items()
        source.findings.append(Finding(NOTE, f"the rows of {source.path} are those of its part {name!r}"))
        return _table_of(source, only)
    shown = listed((f"{name} ({_size(of)})" for name, of in tables.items()), 10)
    first = next((name for name in tables if name.lower().startswith("train")), next(iter(tables)))
    rows = tables[first]
    flag = ""
    if isinstance(rows, list) and isinstance(rows[0], list) and not source.options.columns and not _has_header(rows):
        values = {str(place): [row[place] for row in rows if place < len(row)] for place in range(len(rows[0]))}
        flag = f" with --columns {','.join(suggested_names(values))}"
    raise UserError(
        f"{source.path} holds several tables: {shown}; name one of them, such as '{source.path}::{first}'{flag}."
    )


def _size(table: Any) -> str:
    """Return the size of a part, as it will be read."""
    if isinstance(table, dict) and _are_columns(table):
        return plural(len(next(iter(table.values()))), "row")
    return plural(len(table), "row" if isinstance(table, list) else "name")


def _holds_rows(value: Any) -> bool:
    """Return whether a value is a list of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, (list, dict)) for row in value)


def _are_columns(value: dict[str, Any]) -> bool:
    """Return whether an object has a list for each column, and the lists are equally long."""
    lengths = {len(of) if isinstance(of, list) else 0 for of in value.values()}
    return len(value) > 1 and len(lengths) == 1 and min(lengths) > 0 and len(value) <= _MANY * min(lengths)


def _of_list(source: Source, rows: list[Any]) -> Table:
    if rows and all(isinstance(row, list) for row in rows):
        return _of_rows(source, _numbered(rows), _has_header(rows))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(
                f'row {number} of {source.path} is not an object with columns, like {{"text": …, "label": …}}.'
            )
    return _of_records(source, rows)


def _numbered(rows: list[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(rows, 1))


def _has_header(rows: Sequence[list[Any]]) -> bool:
    """Return whether the first of rows that are lists has names of columns: two usual ones that no row repeats."""
    names = rows[0] if rows else []
    if len({str(name).lower() for name in names} & _HEADER) < 2:
        return False
    return not any(value == name for row in rows[1:] for value, name in zip(row, names, strict=False))


def _of_rows(source: Source, rows: list[tuple[int, Any]], has_header: bool, has_lines: bool = False) -> Table:
    """Return the table of rows that are lists, with their numbers, which are those of lines or not."""
    widths = [len(row) if isinstance(row, list) else -1 for _, row in rows]
    wrong = next((place for place, width in enumerate(widths) if width != widths[0] or width < 1), None)
    if wrong is not None:
        raise UserError(
            f"row {wrong + 1} of {source.path} is not a list of {plural(max(widths[0], 1), 'value')}, as the first one."
        )
    header, kept = source.header_and_rows(rows, has_header)
    columns = {name: [row[place] for _, row in kept] for place, name in enumerate(header) if name}
    return source.table(columns, [number for number, _ in kept] if has_lines else None, form="jsonl")


def _of_objects(source: Source, value: dict[str, dict[str, Any]]) -> Table:
    """Return the table of an object of objects: rows by their names, or columns of rows by their numbers (pandas)."""
    first = next(iter(value.values()))
    if first and all(name.isdecimal() for name in first) and not all(name.isdecimal() for name in value):
        rows = dict.fromkeys(name for column in value.values() for name in column)
        check_shape(source.path, len(value), len(rows))
        return _of_records(source, [{name: column.get(row) for name, column in value.items()} for row in rows])
    key = _KEY if not any(_KEY in row for row in value.values()) else f"{_KEY}_of_object"
    return _of_records(source, [{key: name, **row} for name, row in value.items()])
