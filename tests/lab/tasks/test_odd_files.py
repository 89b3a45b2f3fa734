"""Files as people have them: spreadsheets of other programs, nested JSON, halves of letters, odd separators."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pytest
from pyarrow import parquet

from attendrop.errors import UserError
from attendrop.lab.tasks import ReadOptions, inspect_files, load_files
from attendrop.lab.tasks.files import read_table

ROWS = [("a warm film", "good"), ("dull and long", "bad"), ("so very nice", "good"), ("not for me", "bad")]


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows_of(path: Path | str, **options: Any) -> list[tuple[Any, ...]]:
    table = read_table(path, ReadOptions(**options))
    return list(zip(*table.columns.values(), strict=True))


def excel(path: Path, *rows: tuple[Any, ...], title: str = "Sheet") -> Path:
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def changed(path: Path, name: str, old: bytes, new: bytes) -> Path:
    """Replace bytes in a part of an Excel file."""
    with zipfile.ZipFile(path) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    assert old in parts[name]
    parts[name] = parts[name].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return path


# ---- Excel ----------------------------------------------------------------------------------------------------------


def test_rows_beyond_the_stated_dimension_of_a_sheet_are_read(tmp_path: Path) -> None:
    path = excel(tmp_path / "a.xlsx", ("text", "label"), *[(f"words {i}", i % 2) for i in range(100)])
    changed(path, "xl/worksheets/sheet1.xml", b'<dimension ref="A1:B101"', b'<dimension ref="A1:B31"')
    assert len(read_table(path)) == 100


def test_escapes_of_excel_are_characters(tmp_path: Path) -> None:
    path = excel(tmp_path / "a.xlsx", ("text",), ("one_x000D_\ntwo",), ("a_x005F_x000D_b",), ("hi _xD83D__xDE00_",))
    assert read_table(path).columns["text"] == ["one\ntwo", "a_x000D_b", "hi 😀"]


def test_sheet_is_named_after_the_file(tmp_path: Path) -> None:
    path = excel(tmp_path / "a.xlsx", ("notes",), ("not this",))
    book = openpyxl.load_workbook(path)
    book.create_sheet("my data")
    for row in (("text", "label"), *ROWS):
        book["my data"].append(row)
    book.save(path)
    assert load_files(f"{path}::my data").task.labels == ("bad", "good")
    with pytest.raises(UserError, match=r"a.xlsx::mine has no sheet 'mine'; it has 'Sheet', 'my data'."):
        load_files(f"{path}::mine")
    with pytest.raises(UserError, match=r"names the part 'mine', and a .csv file has no parts; give .*b.csv"):
        load_files(f"{file(tmp_path, 'b.csv', 'text,label')}::mine")


def test_names_of_columns_can_be_typed_as_they_are_printed(tmp_path: Path) -> None:
    path = excel(
        tmp_path / "a.xlsx", ("Ticket\n#", "The\u200b text\r\n(long)", "Group"), (1, "a b", "x"), (2, "c d", "y")
    )
    assert list(read_table(path).columns) == ["Ticket #", "The text (long)", "Group"]
    assert load_files(path, text="The text (long)", label="Group").task.labels == ("x", "y")


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("xl/worksheets/sheet1.xml", b"</row>", b"<row>"),
        ("xl/worksheets/sheet1.xml", b'r="A2"', b'r="?"'),
        ("xl/worksheets/sheet1.xml", b'<c r="B2"', b'<c s="x" r="B2"'),
        ("xl/workbook.xml", b"<sheets>", b"<sheets/><sheets>"),
        ("xl/workbook.xml", b'r:id="rId1"', b'r:id="rId9"'),
        ("xl/worksheets/sheet1.xml", b"<is>", b"<it>"),
        ("xl/styles.xml", b"<styleSheet", b"<x"),
        ("[Content_Types].xml", b"worksheet+xml", b"chart+xml"),
    ],
)  # fmt: skip
def test_damaged_excel_file_is_read_or_refused_in_one_line(part: str, old: bytes, new: bytes, tmp_path: Path) -> None:
    path = changed(excel(tmp_path / "a.xlsx", ("text", "label"), *ROWS), part, old, new)
    try:
        assert len(read_table(path)) <= 4
    except UserError as error:
        assert "a.xlsx" in str(error)  # noqa: PT017


def test_sheets_without_examples_are_passed_over(tmp_path: Path) -> None:
    path = excel(tmp_path / "a.xlsx", ("exported on Monday",), title="Read me")
    book = openpyxl.load_workbook(path)
    for title in ("Empty", "Tickets"):
        book.create_sheet(title)
    for row in (("text", "label"), *ROWS):
        book["Tickets"].append(row)
    book.save(path)
    table = read_table(path)
    assert list(table.columns) == ["text", "label"]
    assert "of which 'Tickets', the first with examples, is read" in table.findings[0].text


def test_title_above_the_header_of_a_sheet_is_explained(tmp_path: Path) -> None:
    path = excel(tmp_path / "a.xlsx", ("All tickets",), ("text", "label"), *ROWS)
    inspection = inspect_files(path)
    assert "if this is a title, remove the rows above the names of the columns" in inspection.errors[0]
    assert not any("separator" in finding.text for finding in inspection.findings)


# ---- JSON -----------------------------------------------------------------------------------------------------------

RECORDS = [{"text": text, "label": label} for text, label in ROWS]
DOCUMENTS = {
    "one object, pretty": ({"data": RECORDS, "version": "1.0"}, {}),
    "objects by name": ({f"id{i}": record for i, record in enumerate(RECORDS)}, {}),
    "columns": ({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}, {}),
    "columns of pandas": (
        {name: {str(i): row[place] for i, row in enumerate(ROWS)} for place, name in enumerate(("text", "label"))}, {},
    ),
    "split of pandas": ({"columns": ["text", "label"], "index": [0, 1, 2, 3], "data": [list(row) for row in ROWS]}, {}),
    "rows": ([list(row) for row in ROWS], {"columns": ("text", "label")}),
    "rows without names": ([list(row) for row in ROWS], {"columns": ("auto",)}),
    "labels by text": (dict(ROWS), {}),
    "rows by name": ({f"id{i}": list(ROWS[i % 4]) for i in range(40)}, {"columns": ("key", "text", "label")}),
    "rows below names": ([["text", "label"], *map(list, ROWS)], {}),
    "one split": ({"meta": "v1", "train": [["text", "label"], *map(list, ROWS)]}, {}),
    "objects named like splits": ({f"train_{i}": record for i, record in enumerate(RECORDS)}, {}),
    "texts of each class": (
        {"data": [
            {"label": "good", "patterns": [ROWS[0][0], ROWS[2][0]], "responses": ["so glad"]},
            {"label": "bad", "patterns": [ROWS[1][0], ROWS[3][0]], "responses": ["oh no"]},
        ]}, {"flags": {"text": "patterns"}},
    ),
    "texts by label": ({"good": [ROWS[0][0], ROWS[2][0]], "bad": [ROWS[1][0], ROWS[3][0], "one more"]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("shape", DOCUMENTS)
def test_documents_of_every_usual_shape_are_read(shape: str, indent: int | None, tmp_path: Path) -> None:
    value, options = DOCUMENTS[shape]
    path = file(tmp_path, "a.json", json.dumps(value, indent=indent))
    flags = options.get("flags", {})
    data = load_files(path, **flags, options=ReadOptions(**{k: v for k, v in options.items() if k != "flags"}))
    assert data.train is not None
    assert data.task.text == (flags.get("text", "text"),)
    assert data.task.labels == ("bad", "good")
    read = [(row[data.task.text[0]], data.task.labels[row["label"]]) for row in data.train]
    assert set(ROWS) <= set(read)


def test_part_of_a_document_is_named_after_the_file(tmp_path: Path) -> None:
    value = {"train": [list(row) for row in ROWS * 2], "val": [list(row) for row in ROWS], "oos_val": [["x y", "oos"]]}
    path = file(tmp_path, "clinc.json", json.dumps(value))
    message = (
        r"holds several tables: train \(8 rows\), val \(4 rows\), oos_val \(1 row\); name .* '.*clinc.json::train'"
    )
    with pytest.raises(UserError, match=message):
        load_files(path)
    with pytest.raises(UserError, match="has no names of columns; give them with --columns text,label"):
        load_files(f"{path}::train")
    assert len(load_files(f"{path}::train", options=ReadOptions(columns=("auto",))).train or ()) == 8
    with pytest.raises(UserError, match="has no part 'test'; it has 'train', 'val', 'oos_val'"):
        load_files(f"{path}::test")


SPLITS = {
    "rows": [list(row) for row in ROWS],
    "columns": {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]},
    "objects by name": {f"id{i}": record for i, record in enumerate(RECORDS)},
    "texts by label": {"good": [ROWS[0][0], ROWS[2][0], "one more"], "bad": [ROWS[1][0]]},
    "labels by text": dict(ROWS),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", SPLITS)
def test_splits_of_a_document_are_never_columns_or_labels(shape: str, nested: bool, tmp_path: Path) -> None:
    value = {"train": SPLITS[shape], "test": SPLITS[shape]}
    path = file(tmp_path, "a.json", json.dumps({"data": value, "version": 1} if nested else value))
    with pytest.raises(UserError, match=r"several tables: train \(\d .*, test \(\d .*'.*a.json::train'") as caught:
        load_files(path)
    named = "--columns text,label" in str(caught.value)
    data = load_files(f"{path}::train", options=ReadOptions(columns=("text", "label") if named else ()))
    assert (data.task.text, data.task.labels, len(data.train or ())) == (("text",), ("bad", "good"), 4)


def test_texts_and_labels_in_lists_of_their_own_are_refused(tmp_path: Path) -> None:
    value = {"train": ["good film", "bad film"], "train_labels": ["good", "bad"]}
    with pytest.raises(UserError, match="'train', 'train_labels' of .* are lists of single values, and no rows; write"):
        load_files(file(tmp_path, "a.json", json.dumps(value)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_lines_that_are_lists_are_rows(name: str, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in ROWS]
    path = file(tmp_path, name, "\n".join(lines))
    with pytest.raises(UserError, match="no names of columns; give them with --columns text,label"):
        load_files(path)
    assert len(load_files(path, options=ReadOptions(columns=("text", "label"))).train or ()) == 4
    assert len(load_files(file(tmp_path, name, "\n".join(['["text", "label"]', *lines]))).train or ()) == 4
    broken = file(tmp_path, name, "\n".join([*lines, '["one"]', '{"text": "x"}']))
    with pytest.raises(UserError, match=r"line 5 of .* is not a list of 2 values, as the first one \(2 such rows"):
        load_files(broken, options=ReadOptions(columns=("text", "label")))


BAD_JSON = [
    ("a.json", '{\n "a": [1,\n 2\n', "line 4 of .*a.json is not JSON"),
    ("a.json", '"words"', "holds 'words', and no rows; write a list of objects with columns"),
    ("a.json", "[[1, 2], [3]]", "row 2 of .* is not a list of 2 values, as the first one"),
    (
        "a.json",
        '[{"text": "a b", "label": 1' + "0" * 5000 + "}]",
        "has a number of more than 4,300 digits; write it as",
    ),
    (
        "a.jsonl",
        '{"text": "a b", "label": 1' + "0" * 5000 + "}\n",
        "line 1 .* more than 4,300 digits; write it as text",
    ),
    ("a.jsonl", '{"text": ' + "[" * 100_000 + "]" * 100_000 + ', "label": 1}\n', "line 1 .* is nested too deeply"),
    (
        "a.jsonl",
        '{"text": ' + "[" * 200 + "]" * 200 + ', "label": 1}\n',
        "line 1 of .*lists or objects in column 'text'",
    ),
    ("a.json", '{"text": "x", "label": ' + '{"a": ' * 300 + "1" + "}" * 301, "in column 'label' nested too deeply"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_json_that_is_no_table_is_explained(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_of_one_error(file(tmp_path, name, content))


def read_of_one_error(path: Path) -> None:
    errors = inspect_files(path, text="text", label="label").errors
    if errors:
        raise UserError(f"{errors[0]}.")


def test_objects_over_several_lines_follow_one_another(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", "\n".join(json.dumps(record, indent=2) for record in RECORDS))
    table = read_table(path)
    assert rows_of(path) == ROWS
    assert table.lines == [1, 5, 9, 13]
    broken = file(tmp_path, "b.json", path.read_text() + "\n{")
    with pytest.raises(UserError, match="b.json"):
        read_table(broken)


# ---- letters --------------------------------------------------------------------------------------------------------


def test_letters_in_two_halves_are_joined(tmp_path: Path) -> None:
    halves = "hi 😀 ü".encode("utf-16-le").decode("utf-16-le", "surrogatepass")
    cesu = "".join(c if ord(c) < 0x10000 else "\ud83d\ude00" for c in halves).encode("utf-8", "surrogatepass")
    table = read_table(file(tmp_path, "a.csv", b"text,label\n" + cesu + b",1\n"))
    assert table.columns["text"] == ["hi 😀 ü"]
    assert any("1 letter in two halves (CESU-8), which are joined" in finding.text for finding in table.findings)


def test_lone_half_of_a_letter_in_bytes_is_no_pair(tmp_path: Path) -> None:
    half = "\ud83d".encode("utf-8", "surrogatepass")
    table = read_table(file(tmp_path, "a.csv", b"text,label\nhi " + half + b",1\n"))
    assert table.columns["text"] == ["hi \ufffd"]
    assert [f.level for f in table.findings] == ["warning"]


def test_half_a_letter_is_replaced_with_a_warning(tmp_path: Path) -> None:
    content = '{"text": "hi \\ud83d there", "label": 1}\n{"text": ["\\udc00"], "label": 2}\n'
    table = read_table(file(tmp_path, "a.jsonl", content))
    assert table.columns["text"] == ["hi \ufffd there", ["\ufffd"]]
    assert any(f.text.startswith("2 values of") and "half of a surrogate pair" in f.text for f in table.findings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("größer, süß und schön\n".encode() * 9 + b"gr\xf6\xdfer\n", "is UTF-8 but for 2 bytes: line 10 .* near 'gr"),
        (b"text\ncaf\xe9 \x9d\n", "read it with --encoding latin-1"),  # cp1252 has no 0x9d
        (b"text\n\x93caf\xe9\x94\n", "read it with --encoding cp1252"),
    ],
)  # fmt: skip
def test_advice_on_encodings_works(content: bytes, message: str, tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", content)
    with pytest.raises(UserError, match=message) as caught:
        read_table(path)
    if "--encoding" in str(caught.value):
        read_table(path, ReadOptions(encoding=str(caught.value).rstrip(".").split()[-1]))


@pytest.mark.parametrize("encoding", ["punycode", "idna", "unicode_escape", "undefined", "rot13", "base64"])
def test_encodings_of_other_things_are_refused(encoding: str) -> None:
    with pytest.raises(UserError, match=f"encoding is '{encoding}', which is no encoding of files"):
        ReadOptions(encoding=encoding)


# ---- Parquet --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b"[]", b'{"info": 3}', b'{"info": {"features": {"label": {"_type": "No"}, "text": 3}}}', b"\xff"],
)
def test_metadata_of_datasets_that_are_damaged_are_ignored(metadata: bytes, tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(RECORDS).replace_schema_metadata({b"huggingface": metadata})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert load_files(tmp_path / "a.parquet").task.labels == ("bad", "good")


def test_parquet_texts_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    data = pyarrow.array([b"ok then", b"\xff\xfe"], pyarrow.binary())
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 2, data.buffers())
    parquet.write_table(pyarrow.table({"text": broken, "label": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="column 'text' of .* cannot be read: .*; repair or remove it"):
        read_table(tmp_path / "a.parquet")


# ---- words with tags ------------------------------------------------------------------------------------------------

NER = [("Anna", "B-PER"), ("lives", "O"), ("in", "O"), ("New York", "B-LOC"), (".", "O")]


@pytest.mark.parametrize("sign", ["\t", " | ", " ; ", "\u00a0", "\u3000", ","])
def test_words_and_tags_may_have_other_signs_between_them(sign: str, tmp_path: Path) -> None:
    words = [(word.replace(" ", "-") if sign != "\t" else word, tag) for word, tag in NER]
    sentence = "".join(f"{word}{sign}{tag}\n" for word, tag in words)
    table = read_table(file(tmp_path, "a.conll", f"{sentence}\n" * 9))
    assert table.columns["tokens"][0] == [word for word, _ in words]
    assert table.columns["tags"][0] == [tag for _, tag in words]


@pytest.mark.parametrize("sign", ["_", "/", "\\", "^", "=", "->"])
def test_a_sign_before_iob_tags_is_found(sign: str, tmp_path: Path) -> None:
    path = file(tmp_path, "a.conll", f"Anna{sign}B-PER\nlives{sign}O\n\na{sign}b{sign}O\n")
    table = read_table(path)
    assert table.columns["tokens"] == [["Anna", "lives"], [f"a{sign}b"]]
    assert table.columns["tags"] == [["B-PER", "O"], ["O"]]


def test_words_without_tags_are_explained(tmp_path: Path) -> None:
    path = file(tmp_path, "a.conll", "Anna~NN\nlives~VB\n")
    with pytest.raises(UserError, match="has words without tags; if a sign divides them, name it, as in --separator"):
        load_files(path)
    assert load_files(path, options=ReadOptions(separator="~")).task.labels == ("NN", "VB")


def test_separator_of_words_and_tags_can_be_named(tmp_path: Path) -> None:
    path = file(tmp_path, "a.conll", "Anna_B-PER\nlives_O\n\nso_O\n")
    assert read_table(path, ReadOptions(separator="_")).columns["tags"] == [["B-PER", "O"], ["O"]]


def test_sentence_with_a_broken_line_can_be_dropped(tmp_path: Path) -> None:
    path = file(tmp_path, "a.conll", "Anna B-PER\nlives O\n\nwith this O\n\nso O\n")
    with pytest.raises(UserError, match="line 4 of .* has 3 columns, but the lines before it have 2"):
        load_files(path)
    data = load_files(path, options=ReadOptions(drop_bad_rows=True))
    assert data.train is not None
    assert data.train["tokens"][:] == [["Anna", "lives"], ["so"]]


def test_table_with_a_word_in_each_row_is_read_as_sentences(tmp_path: Path) -> None:
    rows = ["1,Anna,NN,B-PER", ",lives,VB,O", "2,so,RB,O", ",they,PR,O", ",say,VB,O"]
    path = file(tmp_path, "ner.csv", "\n".join(["Sentence #,Word,POS,Tag", *rows]))
    table = read_table(path)
    assert table.columns["tokens"] == [["Anna", "lives"], ["so", "they", "say"]]
    assert table.columns["tags"] == [["B-PER", "O"], ["O", "O", "O"]]
    assert table.place(1, 2) == "line 6"
    assert load_files(path).task.labels == ("B-PER", "O")
    assert load_files(path, label="POS").task.labels == ("NN", "PR", "RB", "VB")
    repeated = [f"{1 + i // 3},{row.partition(',')[2]}" for i, row in enumerate(rows)]  # its number in every row
    again = read_table(file(tmp_path, "b.csv", "\n".join(["sentence_id,Word,POS,Tag", *repeated])))
    assert [len(words) for words in again.columns["tokens"]] == [3, 2]


@pytest.mark.parametrize("header", ["Sentence #,Word", "Sentence,Tag", "sentence_id,word,tag"])
def test_tables_of_texts_are_not_joined(header: str, tmp_path: Path) -> None:
    width = header.count(",") + 1
    rows = [",".join([f"{i}", "two words", "x"][:width]) for i in range(4)]
    assert len(read_table(file(tmp_path, "a.csv", "\n".join([header, *rows])))) == 4


def test_lines_of_fasttext_are_read(tmp_path: Path) -> None:
    one = file(tmp_path, "a.train", "".join(f"__label__{label} {text}\n" for text, label in ROWS))
    assert rows_of(one) == ROWS
    several = file(tmp_path, "b.txt", "__label__a __label__b so nice\n\n__label__a not so\n")
    assert rows_of(several) == [("so nice", ["a", "b"]), ("not so", ["a"])]


# ---- which columns --------------------------------------------------------------------------------------------------


def test_text_and_label_are_proposed_by_their_content(tmp_path: Path) -> None:
    header = ("Ticket #", "Opened", "Agent mail", "Subject", "Long story", "Queue")
    groups = [f"group {'ABCDEFGHI'[i % 9]}" for i in range(90)]
    rows = [
        (
            1000 + i,
            f"2024-01-{i % 28 + 1:02d} 10:{i % 60:02d}:{i:02d}",
            f"a{i}@b.c",
            f"short {i}",
            f"It does not work {i}. " * 9,
            g,
        )
        for i, g in enumerate(groups)
    ]
    with pytest.raises(UserError, match="perhaps --text 'Long story' --label Queue"):
        load_files(excel(tmp_path / "a.xlsx", header, *rows))


def test_unique_ids_are_not_proposed_as_the_label(tmp_path: Path) -> None:
    rows = "".join(f"{i},some words {i}\n" for i in range(50))
    with pytest.raises(UserError) as caught:
        load_files(file(tmp_path, "a.csv", f"number,words and more,other\n{rows.replace(chr(10), ',same' + chr(10))}"))
    assert "--label" not in str(caught.value).partition("perhaps")[2]


def test_columns_of_a_table_without_header_are_named_by_one_flag(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "".join(f"{i},{label},{text}\n" for i, (text, label) in enumerate(ROWS * 5)))
    data = load_files(path, options=ReadOptions(columns=("auto",)))
    assert (data.task.text, data.task.label, len(data.train or ())) == (("text",), "label", 20)
    assert any("its columns are called column1,label,text" in note for note in data.notes)


def test_broken_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(UserError, match="is incomplete or not an Excel file"):
        read_table(file(tmp_path, "a.xlsx", stream.getvalue()))


# ---- shapes of files in packages ------------------------------------------------------------------------------------


def test_utterances_of_snips_are_texts_with_their_intents(tmp_path: Path) -> None:
    parts = [{"text": "rain in "}, {"text": "Oslo", "entity": "place", "slot_name": "where"}, {"text": " today?"}]
    intents = {name: {"utterances": [{"data": parts}, {"data": parts[1:2]}]} for name in ("weather", "other")}
    content = {"intents": intents, "entities": {"place": {"data": [], "use_synonyms": True}}, "language": "en"}
    path = file(tmp_path, "a.json", json.dumps(content, indent=1))
    assert rows_of(path)[:2] == [("rain in Oslo today?", "weather"), ("Oslo", "weather")]
    assert len(rows_of(path)) == 4


def test_many_names_with_few_labels_are_texts(tmp_path: Path) -> None:
    words = {f"word{i}": ["fear", "joy", "trust"][: 1 + i % 3] for i in range(40)}
    assert rows_of(file(tmp_path, "a.json", json.dumps(words)))[1] == ("word1", ["fear", "joy"])
    labels = {"good": ["a nice film", "so very nice", "warm"], "bad": ["dull", "far too long"]}
    assert rows_of(file(tmp_path, "b.json", json.dumps(labels)))[0] == ("a nice film", "good")


def test_words_of_a_dictionary_are_no_splits(tmp_path: Path) -> None:
    names = ["train ticket", "test", *(f"word {i}" for i in range(60))]
    path = file(tmp_path, "a.json", json.dumps({name: {"pos": "n", "pol": "0.5"} for name in names}, indent=1))
    assert rows_of(path)[:2] == [("train ticket", "n", "0.5"), ("test", "n", "0.5")]


def test_comments_above_a_table_are_no_rows(tmp_path: Path) -> None:
    rows = "".join(f"love\tsex{i}\t{i}.5\n" for i in range(5))
    path = file(tmp_path, "a.tsv", f"# The collection of words\n# from the year 2002\n# Word 1\tWord 2\tMean\n{rows}")
    table = read_table(path)
    assert (list(table.columns), table.place(0), len(table)) == (["Word 1", "Word 2", "Mean"], "line 4", 5)
    assert "begins with 2 lines of comments" in table.findings[0].text
    tags = file(tmp_path, "b.tsv", "#tag\tlabel\n#good\tyes\n#bad\tno\n")
    assert rows_of(tags) == [("#good", "yes"), ("#bad", "no")]


def test_a_label_before_each_text_is_read(tmp_path: Path) -> None:
    questions = [f"What is the meaning of {'very ' * (i % 3)}word {i} ?" for i in range(60)]
    lines = [f"{('DESC:def', 'HUM:ind')[i % 2]} {text}" for i, text in enumerate(questions)]
    path = file(tmp_path, "train_5500.label", "\n".join(lines) + "\n")
    assert rows_of(path)[:2] == [
        ("What is the meaning of word 0 ?", "DESC:def"),
        ("What is the meaning of very word 1 ?", "HUM:ind"),
    ]
    few = [f"{'ABCDEFGHI'[i]}:x {text}" for i, text in enumerate(questions[:9])]
    assert rows_of(file(tmp_path, "few.txt", "\n".join(few)))[8] == (questions[8], "I:x")
    words = "".join(f"word{i} NN B-NP\n" + "\n" * (i % 5 == 4) for i in range(60))
    assert list(read_table(file(tmp_path, "b.txt", words)).columns) == ["tokens", "tags"]


def test_words_with_values_in_lines_are_a_table(tmp_path: Path) -> None:
    lines = [f"{'can not' if i == 39 else 'word'}{i}\t{i % 5 - 2}" for i in range(40)]
    path = file(tmp_path, "a.txt", "\n".join(lines))
    assert rows_of(path, columns=("text", "label"))[-1] == ("can not39", "2")


def test_expressions_of_several_words_with_tags_are_sentences(tmp_path: Path) -> None:
    sentence = "Quyền\tB-N\nthông tin\tB-N\nlà\tB-C\n.\tB-CH\n"
    path = file(tmp_path, "a.txt", f"{sentence}\n" * 20)
    assert rows_of(path)[0] == (["Quyền", "thông tin", "là", "."], ["B-N", "B-N", "B-C", "B-CH"])


def test_class_that_orange_declares_is_the_label(tmp_path: Path) -> None:
    head = "Retweet\tAuthor\tContent\ndiscrete\tdiscrete\tstring\n\tclass\tmeta\n"
    rows = "".join(f"{bool(i % 2)}\t{'AB'[i % 2]}\twords of number {i}\n" for i in range(20))
    path = file(tmp_path, "a.tab", head + rows)
    findings = inspect_files(path).findings
    assert "using column 'Author' as the label" in {finding.text for finding in findings}


def test_names_of_images_that_are_not_there_leave_the_texts(tmp_path: Path) -> None:
    rows = [{"name": f"a smiling face {i}", "image": f"{i}.png", "category": "AB"[i % 2]} for i in range(20)]
    path = file(tmp_path, "a.json", json.dumps(rows))
    findings = inspect_files(path, text="name").findings
    assert not [finding for finding in findings if finding.level == "error"]
    with pytest.raises(UserError, match="perhaps --text name"):
        load_files(path)


@pytest.mark.parametrize(
    ("rows", "proposal"),
    [
        (
            [("NE", f"RIFLE,{i % 9} MILLIMETER", 10 + i % 3, f"Guns, through {i % 3} mm") for i in range(60)],
            "--text item",
        ),
        ([("love", f"sex{i}", f"{i}.5", "x") for i in range(60)], "--text item"),
    ],
)
def test_words_that_differ_most_are_proposed_as_the_text(
    rows: list[tuple[Any, ...]], proposal: str, tmp_path: Path
) -> None:
    path = excel(tmp_path / "a.xlsx", ("state", "item", "number", "name"), *rows)
    with pytest.raises(UserError, match=proposal):
        load_files(path)


def test_the_command_that_is_advised_for_conllu_works(tmp_path: Path) -> None:
    words = "".join(f"{i}\tword{i}\tword\tNOUN\tX\t_\t0\troot\t_\t_\n" for i in range(1, 5))
    path = file(tmp_path, "my words.conllu", f"# sent_id = 1\n# text = words\n{words}\n# sent_id = 2\n{words}\n")
    with pytest.raises(UserError, match=r"cut -f 2,4") as refused:
        read_table(path)
    command = str(refused.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert rows_of(path.with_suffix(".conll"))[1] == ([f"word{i}" for i in range(1, 5)], ["NOUN"] * 4)
