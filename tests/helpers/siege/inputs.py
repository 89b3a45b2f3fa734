"""Files and flags with odd content: the command works on them, or says in one sentence why it does not."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq

from attendrop import METHODS
from attendrop.lab.cli.arguments import flag_of
from attendrop.lab.runs.settings import all_settings

from .cases import Case, Siege

_ROWS = [(f"a film {number}", "good" if number % 2 else "bad") for number in range(12)]
_DEEP = "[" * 3000 + "]" * 3000
_HALF = "\\ud800"  # as JSON writes half of a surrogate pair

# Content of a value of a JSON file, as text.
_JSON = (
    "1" + "0" * 5000, "-1e999", "NaN", "1e400", f'"{_HALF}"', f'"x{_HALF}y"', _DEEP, '{"a":' * 3000 + "1" + "}" * 3000,
    "null", "true", '""', '"\\u0000"', '"\\u202e"', "[]", "{}", "[1,[2]]", '"' + "w" * 300_000 + '"', "0.1", '"1e2"',
    '{"a": null}', "12345678901234567890",
)  # fmt: skip

_WORDS = (
    "", " ", "None", "nan", "inf", "-1", "0", "1e300", "1e-300", "9" * 400, "1" * 5000, "x", "no", "true", "[]", "{}",
    "[" * 2000, '{"a":' * 2000, "[[1]]", '{"a": NaN}', "a=b", "a,b", ":", "=", "~", "-", "--", "..", "/", "/dev/null",
    "/proc/self/mem", "a\udcffb", "\u202e", "\x1b[31m", "a\nb", "a" * 70_000, "%s", "{x}", "é", "1_000", "٣", "0x10",
    "1,2,3", "*", "none", "auto", "all", "first:", "1:0:0", "layers", "../x", "~/", "'", '"', "\\", "$HOME",
)  # fmt: skip

# Encodings that are no encodings of text, do not exist here, or need a state.
_ENCODINGS = (
    "punycode", "idna", "base64", "hex", "zlib", "bz2", "rot13", "uu", "quopri", "undefined", "unicode_escape",
    "raw_unicode_escape", "utf-7", "mbcs", "oem", "utf-16", "utf-32", "utf-16-be", "cp037", "hz", "iso2022_jp", "", " ",
    "utf-8\x00", "../../x", "a" * 5000, "utf_8_sig", "ascii",
)  # fmt: skip


def _json(draw: random.Random) -> bytes:
    text, label = draw.choice(_JSON), draw.choice(_JSON)
    rows = [f'{{"text": {json.dumps(a)}, "label": {json.dumps(b)}}}' for a, b in _ROWS]
    odd = f'{{"text": {draw.choice((text, json.dumps("a film")))}, "label": {draw.choice((label, json.dumps("bad")))}}}'
    rows.insert(draw.randrange(len(rows)), odd)
    return ("[" + ",".join(rows) + "]").encode()


def _json_lines(draw: random.Random) -> bytes:
    return _json(draw)[1:-1].replace(b"},{", b"}\n{")


def _csv(draw: random.Random) -> bytes:
    odd = ['"', "\x00", "\r", ",,,,", '""', "a" * 200_000, "\ufeff", "\u2028", "=1+1", "a\tb", "'", ";", "\x1a", "\x85"]
    rows = [f"{a},{b}" for a, b in _ROWS]
    for _ in range(draw.randint(1, 3)):
        rows.insert(draw.randrange(len(rows)), "".join(draw.choice(odd) for _ in range(draw.randint(1, 4))) + ",good")
    text = "text,label\n" + draw.choice(("\n", "\r\n", "\r")).join(rows)
    return _damaged(text.encode(draw.choice(("utf-8", "utf-16", "utf-32", "utf-8-sig"))), draw)


def _damaged(content: bytes, draw: random.Random) -> bytes:
    """Nothing changed, half of the content, a few other bytes, or two parts exchanged."""
    way, changed = draw.randrange(5), bytearray(content)
    if way == 1:
        return content[: draw.randrange(len(content))]
    if way == 2:
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    if way == 3:
        at = draw.randrange(len(changed))
        changed[:] = changed[at:] + changed[:at]
    return bytes(changed)


def _parquet(draw: random.Random) -> bytes:
    columns: dict[str, Any] = {"text": [a for a, _ in _ROWS], "label": [b for _, b in _ROWS]}
    kind = draw.choice((None, pa.list_(pa.list_(pa.string())), pa.binary(), pa.duration("ns"), pa.decimal128(38, 9),
                        pa.map_(pa.string(), pa.int64()), pa.null(), pa.struct([("a", pa.date64())])))  # fmt: skip
    if kind is not None:
        columns[draw.choice(("text", "label"))] = pa.nulls(len(_ROWS), kind)
    odd = ("", "[]", "{", "null", '{"info": 3}', '{"info": {"features": []}}', _DEEP,
           '{"info": {"features": {"text": 1}}}',
           '{"info": {"features": {"text": {"_type": "Image"}, "label": {"_type": "No"}}}}',
           '{"info": {"features": {"text": {"dtype": "x", "_type": "Value"}}}}',
           '{"info": {"features": {"label": {"names": ["a"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}}}',
           '{"info": {"features": {"a": {"dtype": "string", "_type": "Value"}}}}')  # fmt: skip
    metadata = {b"huggingface": draw.choice(odd).encode(), b"pandas": draw.choice(odd).encode()}
    if draw.random() < 0.3:
        metadata = {}
    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata or None), file)
    return _damaged(file.getvalue(), draw) if draw.random() < 0.4 else file.getvalue()


def _xlsx(draw: random.Random) -> bytes:
    book, file = openpyxl.Workbook(), io.BytesIO()
    assert book.active is not None
    book.active.append(("text", "label"))
    for row in _ROWS:
        book.active.append(row)
    book.save(file)
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(list(parts))
    way = draw.randrange(4)
    if way == 0:
        parts.pop(name)
    elif way == 1:
        parts[name] = _damaged(parts[name], draw)
    elif way == 2:
        parts[name] = draw.choice((b"", b"<a>", b"<a/>", b"<?xml version='1.0'?>" + b"<a>" * 5000, b"\xff\xfe"))
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return _damaged(changed.getvalue(), draw) if way == 3 else changed.getvalue()


def _gz(draw: random.Random) -> bytes:
    return _damaged(gzip.compress(_csv(draw)), draw)


def _conll(draw: random.Random) -> bytes:
    rows = ["EU B-ORG", "", "rejects O", " ", "-DOCSTART- -X-", "a\tO", "x  O  O", "\u00a0 O", "b O", "# c", "O"]
    return _damaged("\n".join(draw.choice(rows) for _ in range(20)).encode(), draw)


FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "json": _json, "jsonl": _json_lines, "csv": _csv, "parquet": _parquet, "xlsx": _xlsx, "csv.gz": _gz,
    "conll": _conll,
}  # fmt: skip


def files(siege: Siege) -> Iterator[Case]:
    """Odd files in each format for `check`, `predict` and `train`."""
    while True:
        suffix = siege.draw.choice(list(FORMATS))
        content, name = FORMATS[suffix](siege.draw), f"given.{suffix}"

        def before(name: str = name, content: bytes = content) -> None:
            Path(name).write_bytes(content)

        encoding = ["--encoding", siege.draw.choice(_ENCODINGS)] if siege.draw.random() < 0.2 else []
        commands: list[list[object]] = [
            ["check", name, *encoding],
            ["check", name],
            ["predict", siege.run, "--file", name, "--output", "out.csv", *encoding],
            siege.training("out", "--train-file", name, "--max-steps", 1, *encoding),
        ]
        words = siege.draw.choice(commands)
        yield Case(f"{words[0]} {suffix} {content[:80]!r}", words, before=before, megabytes=1500)


def flags(siege: Siege) -> Iterator[Case]:
    """Odd values of every flag of `train`, of `predict`, and of every field of every method."""
    settings = [setting for setting in all_settings().values() if setting.name not in _LEFT_OUT]
    while True:
        draw, value = siege.draw, siege.draw.choice(_WORDS)
        kind = draw.randrange(4)
        if kind == 0:
            method = draw.choice(list(METHODS))
            names = [f.name for f in fields(METHODS[method])]
            words = siege.training("out", "--method", f"{method}:{draw.choice([*names, 'x'])}={value}")
        elif kind == 1:
            command, flag = draw.choice(_OTHER_FLAGS)
            place = {"RUN": siege.run, "FILE": siege.train, "MODEL": siege.model}
            words = [place.get(word, word) for word in (*command.split(), f"--{flag}={value}")]
        else:
            setting = draw.choice(settings)
            words = siege.training("out", f"{flag_of(setting.name)}={value}")
        yield Case(f"{words[0]} {words[-1]!r}"[:200], words, megabytes=3000)


# They would reach out of the folder of a case, wait for other machines, or are tested elsewhere.
_LEFT_OUT = {"output_dir", "push_to_hub", "hub_model_id", "nproc", "nnodes", "main_address", "main_port", "node_rank",
             "logging_dir", "report_to", "ddp_timeout", "local_rank", "log_on_each_node", "model", "task"}  # fmt: skip
_OTHER_FLAGS = [
    *(("predict RUN --file FILE --output out.csv", flag) for flag in (
        "batch-size", "temperature", "format", "separator", "encoding", "max-length", "text", "sheet", "threshold",
        "device", "examples", "explain")),
    *(("robustness RUN --file FILE --output out.png", flag) for flag in ("rates", "max-samples", "batch-size", "seed")),
    *(("evaluate RUN --file FILE --output out", flag) for flag in ("batch-size", "label", "text", "encoding")),
    *(("compare --use-cpu --output-dir out --max-steps 1 --model MODEL --train-file FILE --workers 0", flag)
      for flag in ("worker-timeout", "engine", "cpus-per-worker", "seeds", "method", "address", "data")),
    *(("check FILE", flag) for flag in ("kind", "text", "label", "encoding", "separator", "max-length")),
]  # fmt: skip
