"""The user's own files: every format, what is guessed, and a one-sentence error for everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from attendrop.errors import UserError
from attendrop.lab.tasks import Data, Task, find_task, load_files, load_inputs, without_rows

REVIEWS = [("a warm film", "good"), ("dull, and long", "bad"), ('she said "no"', "bad"), ("two\nlines", "good")]


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def csv_of(rows: int, label: Any) -> str:
    return "text,label\n" + "".join(f"some words {i},{label(i)}\n" for i in range(rows))


def rows_of(data: Data, split: str = "train") -> list[tuple[Any, ...]]:
    """Texts and label names."""
    dataset = data.splits()[split]
    names = [*data.task.text, *([data.task.label] if data.task.label in dataset.column_names else [])]

    def named(name: str, value: Any) -> Any:
        if name != data.task.label or not data.task.labels:
            return value
        return [data.task.labels[tag] for tag in value] if isinstance(value, list) else data.task.labels[value]

    return [tuple(named(name, row[name]) for name in names) for row in dataset]


def written(folder: Path, form: str) -> Path:
    records = [{"text": text, "label": label} for text, label in REVIEWS]
    if form == "csv":
        return file(
            folder,
            "a.csv",
            'text,label\na warm film,good\n"dull, and long",bad\n"she said ""no""",bad\n"two\nlines",good\n',
        )
    if form == "semicolons":
        return file(
            folder,
            "a.csv",
            'text;label\na warm film;good\ndull, and long;bad\n"she said ""no""";bad\n"two\nlines";good\n',
        )
    if form == "bom":
        return file(folder, "a.csv", b"\xef\xbb\xbf" + written(folder, "csv").read_bytes().replace(b'\n"d', b'\r\n"d'))
    if form == "tsv":
        return file(
            folder,
            "a.tsv",
            'text\tlabel\na warm film\tgood\ndull, and long\tbad\n"she said ""no"""\tbad\n"two\nlines"\tgood\n',
        )
    if form == "jsonl":
        return file(folder, "a.jsonl", "\n\n".join(json.dumps(record) for record in records))
    if form == "json":
        return file(folder, "a.json", json.dumps(records, indent=1))
    parquet.write_table(pyarrow.Table.from_pylist(records), folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize("form", ["csv", "semicolons", "bom", "tsv", "jsonl", "json", "parquet"])
def test_every_format_gives_the_same_examples(form: str, tmp_path: Path) -> None:
    data = load_files(written(tmp_path, form))
    assert rows_of(data) == REVIEWS
    assert data.task.labels == ("bad", "good")
    assert data.task.kind == "classification"
    assert data.task.metrics[0] == "accuracy"
    assert data.validation is None
    assert data.test is None


def test_unpaired_quotation_marks_in_tab_separated_files_are_plain_characters(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", 'text\tlabel\n"oh\t1\nno"\t0\nsaid "so"\t1\n')
    assert rows_of(load_files(path)) == [('"oh', "1"), ('no"', "0"), ('said "so"', "1")]


def test_conll_files_are_read_as_sentences(tmp_path: Path) -> None:
    lines = "-DOCSTART- -X- O\n\n# text = EU #\nEU NNP B-ORG\n# SYM O\n\n\nPeter\tNNP B-PER \nwon VBD O\n"
    data = load_files(file(tmp_path, "a.conll", lines))
    assert rows_of(data) == [(["EU", "#"], ["B-ORG", "O"]), (["Peter", "won"], ["B-PER", "O"])]
    assert data.task.kind == "token_classification"
    assert data.task.labels == ("B-ORG", "B-PER", "O")
    assert data.task.metrics[0] == "entity_f1"
    tagged = load_files(file(tmp_path, "a.txt", "the DT\ndog NN\n\nruns VBZ\n"))
    assert tagged.task.metrics == ("token_accuracy",)


def test_lists_and_strings_of_words_are_read_as_sentences(tmp_path: Path) -> None:
    rows = '{"words": ["EU", "won"], "tags": ["B-ORG", "O"]}\n{"words": ["so"], "tags": ["O"]}\n'
    expected = [(["EU", "won"], ["B-ORG", "O"]), (["so"], ["O"])]
    assert rows_of(load_files(file(tmp_path, "a.jsonl", rows))) == expected
    strings = file(tmp_path, "a.csv", "words,tags\nEU won,B-ORG O\nso,O\n")
    assert rows_of(load_files(strings, kind="token_classification")) == expected


def test_label_names_in_a_parquet_file_are_kept(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "ja"])})
    dataset = datasets.Dataset.from_dict({"text": ["a b", "c d", "e f"], "label": [0, 1, 1]}, features=features)
    dataset.to_parquet(str(tmp_path / "a.parquet"))
    assert rows_of(load_files(tmp_path / "a.parquet")) == [("a b", "no"), ("c d", "ja"), ("e f", "ja")]


@pytest.mark.parametrize(
    ("header", "text", "label"),
    [
        ("text,label", ("text",), "label"),
        ("id,Review,Sentiment", ("Review",), "Sentiment"),
        ("premise,hypothesis,label", ("premise", "hypothesis"), "label"),
        ("label,sentence2,sentence1,idx", ("sentence1", "sentence2"), "label"),
        ("text,text_pair,target", ("text", "text_pair"), "target"),
        ("question,sentence,label", ("question", "sentence"), "label"),
        ("label,score,content", ("content",), "label"),
        ("what,label", ("what",), "label"),
        ("text,what", ("text",), "what"),
        (",text,label", ("text",), "label"),  # a row number that pandas saved
    ],
)
def test_obvious_columns_are_guessed_and_noted(header: str, text: tuple[str, ...], label: str, tmp_path: Path) -> None:
    names = header.split(",")
    lines = [",".join(f"{i % 2}" if name == label else f"some words {i}" for name in names) for i in range(4)]
    data = load_files(file(tmp_path, "a.csv", "\n".join([header, *lines])))
    assert (data.task.text, data.task.label) == (text, label)
    assert any(repr(label) in note for note in data.notes)
    assert any(repr(text[0]) in note for note in data.notes)


def test_column_with_sentences_is_taken_as_the_text(tmp_path: Path) -> None:
    data = load_files(file(tmp_path, "a.csv", "x,y\nno,it was dull\nyes,it was fun\nno,so so\n"))
    assert (data.task.text, data.task.label) == (("y",), "x")


def test_named_columns_are_not_guessed(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "sentence1,sentence2,label,topic\nab c,de f,1,x\ngh i,jk l,0,y\n")
    data = load_files(path, text="sentence2", label="topic", kind="classification")
    assert rows_of(data) == [("de f", "x"), ("jk l", "y")]
    assert data.notes == []


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        (["b", "a", "b"], "classification", ("a", "b")),
        (["10", "9", "-1"], "classification", ("-1", "9", "10")),
        (["1.5", "2", "0.25"], "regression", ()),
        (["1e-3", "2", "3"], "regression", ()),
        (["1", "2", "x"], "classification", ("1", "2", "x")),
        (["10", "9", "²"], "classification", ("10", "9", "²")),
        (["true", "false", "true"], "classification", ("false", "true")),
    ],
)
def test_kind_is_guessed_from_the_labels(values: list[str], kind: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    data = load_files(file(tmp_path, "a.csv", csv_of(3, lambda i: values[i])))
    assert (data.task.kind, data.task.labels) == (kind, labels)
    assert data.train is not None
    if kind == "regression":
        assert data.train["label"][:] == [float(value) for value in values]
        assert data.task.metrics[0] == "pearson"
    else:
        assert [labels[index] for index in data.train["label"]] == values


def test_thousands_of_classes_are_read(tmp_path: Path) -> None:
    data = load_files(file(tmp_path, "a.csv", csv_of(6000, lambda i: f"c{i % 2000}")))
    assert (data.task.kind, len(data.task.labels)) == ("classification", 2000)


def test_the_kind_can_be_chosen(tmp_path: Path) -> None:
    scores = file(tmp_path, "a.csv", csv_of(60, lambda i: i % 30))
    assert load_files(scores, kind="regression").task.kind == "regression"
    assert load_files(scores, kind="classification").task.labels == tuple(map(str, range(30)))
    decimals = file(tmp_path, "b.csv", csv_of(9, lambda i: f"{i % 3}.0"))
    assert load_files(decimals, kind="classification").task.labels == ("0.0", "1.0", "2.0")
    pairs = file(tmp_path, "c.csv", "en,de\na dog,ein Hund\na cat,eine Katze\n")
    for flags in ({"text_pair": "de"}, {"label": "de"}):
        data = load_files(pairs, text="en", kind="translation", **flags)
        assert (data.task.text, data.task.label, data.task.metrics) == (("en", "de"), None, ("bleu",))
        assert rows_of(data) == [("a dog", "ein Hund"), ("a cat", "eine Katze")]


def test_all_splits_share_labels_and_the_test_split_may_have_none(tmp_path: Path) -> None:
    train = file(tmp_path, "train.csv", "text,label\na b,x\nc d,y\ne f,z\n")
    validation = file(tmp_path, "dev.jsonl", '{"label": "z", "text": "g h", "more": 1}\n')
    for test in (
        file(tmp_path, "plain.csv", "text\ni j\n"),
        file(tmp_path, "empty.csv", "text,label\ni j,\n"),
        file(tmp_path, "hidden.csv", "text,label\ni j,-1\n"),
    ):
        data = load_files(train, validation, test)
        assert rows_of(data, "validation") == [("g h", "z")]
        assert rows_of(data, "test") == [("i j",)]
    labelled = load_files(train, None, file(tmp_path, "gold.csv", "text,label\ni j,y\n"))
    assert rows_of(labelled, "test") == [("i j", "y")]


def test_inputs_of_a_trained_model_have_its_columns_and_labels(tmp_path: Path) -> None:
    rte = find_task("glue/rte")
    named = file(tmp_path, "a.csv", "sentence1,sentence2,label\na b,c d,not_entailment\n")
    numbered = file(tmp_path, "b.csv", "sentence1,sentence2,label\na b,c d,1\n")
    bare = file(tmp_path, "c.csv", "sentence2,sentence1\nc d,a b\n")
    assert rows_of(load_inputs(named, rte), "test") == [("a b", "c d", "not_entailment")]
    assert rows_of(load_inputs(numbered, rte), "test") == [("a b", "c d", "not_entailment")]
    assert rows_of(load_inputs(bare, rte), "test") == [("a b", "c d")]
    english = file(tmp_path, "d.csv", "en\na dog\n")
    assert without_rows(load_inputs(english, find_task("multi30k")).splits()["test"]).column_names == ["en"]
    words = file(tmp_path, "e.conll", "EU\nwon\n\nso\n")
    tagging = Task("mine", "token_classification", ("tokens",), "tags", ("B-ORG", "O"))
    assert rows_of(load_inputs(words, tagging), "test") == [(["EU", "won"],), (["so"],)]
    own = Task("mine", "classification", ("sentence1", "sentence2"), "label", ("no", "yes"))
    with pytest.raises(UserError, match="line 2 of .*b.csv has the label '1', which the training data do not have"):
        load_inputs(numbered, own)


GOOD = csv_of(6, lambda i: "ab"[i % 2])
IDS = csv_of(1000, lambda i: f"id{i}")

# file name, content, pattern of the error message
BAD_FILES: list[tuple[str, str | bytes, str]] = [
    ("empty.csv", "", "empty.csv is empty"),
    ("blank.csv", " \n\n", "blank.csv is empty"),
    ("header.csv", "text,label\n", "header.csv has no examples, only a header"),
    ("empty.jsonl", "", "is empty"),
    ("empty.json", "[]", "has no examples"),
    ("latin.csv", "text,label\nfine,a\ncafé,b\n".encode("latin1"), "is not UTF-8: line 3 has the byte 0xe9"),
    (
        "utf16.csv",
        "text,label\nab,c\n".encode("utf-16-le"),
        "looks like UTF-16 without a byte order mark; read it with --encoding utf-16-le",
    ),
    ("twice.csv", "text,label,text\na b,1,c d\n", "has the column 'text' 2 times"),
    ("twice.jsonl", '{"text": "a", "label": 1, "text": "b"}', "line 1 of .* has the column 'text' twice"),
    ("ragged.csv", "text,label\na b,1\nc, d,0\n", "line 3 of .*ragged.csv has 3 fields, but the header has 2"),
    ("short.csv", 'text,label\n"a\nb",1\nc d\n', "line 4 of .*short.csv has 1 field, but the header has 2"),
    ("ragged.tsv", "text\tlabel\na b\t1\nc\td\t0\n", "line 3 of .*ragged.tsv has 3 fields, but the header has 2"),
    ("open.csv", 'text,label\na b,1\n"c d,0\ne f,1\n', "line 3 of .*open.csv cannot be read: .*quotation mark"),
    ("broken.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "lab\n', "line 2 of .*broken.jsonl is not JSON"),
    ("broken.json", '[{"text": "a",\n "label": 1},\n {"text" "b"}]', "line 3 of .*broken.json is not JSON"),
    ("list.jsonl", '{"text": "a", "label": 1}\n["b", 2]\n', "line 2 of .*list.jsonl is not an object"),
    ("broken.parquet", b"PAR1 this is not all of it", "broken.parquet is incomplete or not a Parquet file"),
    ("empty.parquet", b"", "is empty"),
    ("a.xlsx", b"PK", "is incomplete or not an Excel file; save it again, or as CSV .UTF-8."),
    (
        "a.ods",
        b"PK",
        "is an old or other spreadsheet; save it as .xlsx or CSV .UTF-8.; the formats are .csv, .tsv",
    ),
    ("a.csv.gz", b"PK", "is incomplete or not a gzip file"),
    (
        "ragged.conll",
        "EU B-ORG\nrejects O\nGerman\n",
        "line 3 of .*ragged.conll has 1 column, but the lines before it have 2",
    ),
    ("wide.conll", "EU B-ORG\n\na b c\n", "line 3 of .* has 3 columns, but the lines before it have 2"),
    ("untagged.conll", "EU\nrejects\n", "has words without tags; if a sign divides them, name it"),
    (
        "texts.csv",
        "text,label\na b,1\n  ,0\nc d,1\n,0\n",
        "line 3 of .* has no text in column 'text' .2 such rows in total.;",
    ),
    ("text.jsonl", '{"text": "a", "label": 1}\n{"label": 0}\n', "line 2 of .* has no text in column 'text'"),
    (
        "number.jsonl",
        '{"text": 7, "label": 1}\n{"text": 8, "label": 2}\n',
        "column 'text' does not hold text: line 1 of .* has 7",
    ),
    (
        "labels.csv",
        "text,label\na b,1\nc d,\ne f,0\ng h,nan\n",
        "line 3 of .* has no label in column 'label' .2 such rows in total.;",
    ),
    ("null.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": null}\n', "line 2 of .* has no label"),
    ("nan.jsonl", '{"text": "a", "label": 1.5}\n{"text": "b", "label": NaN}\n', "line 2 of .* has no label"),
    (
        "inf.jsonl",
        '{"text": "a", "label": 1.5}\n{"text": "b", "label": Infinity}\n',
        "line 2 of .* has the label inf among numbers",
    ),
    ("word.csv", "text,label\na b,1.5\nc d,many\ne f,2\n", "line 3 of .* has the label 'many' among numbers"),
    ("one.csv", csv_of(5, lambda i: "a"), "one.csv has one class only: every label in column 'label' is 'a'"),
    ("tag.conll", "a O\nb O\n", "one class only"),
    ("ids.csv", IDS, "'label' of .* has 1,000 different values in 1,000 rows, which looks like an id"),
    ("many.csv", csv_of(3003, lambda i: f"c{i % 1502}"), "has 1,502 different values in 3,003 rows"),
    ("numbers.csv", csv_of(100, lambda i: i), "holds 100 different whole numbers; choose --kind classification or"),
    ("decimals.csv", csv_of(9, lambda i: f"{i % 3}.0"), "whole numbers, written as decimals; choose --kind"),
    (
        "columns.csv",
        "a,b,c\nx y,1,2\nz w,1,3\n",
        "none is clearly the text or the label; .*, perhaps --text a --label c",
    ),
    ("named.csv", "text,b,c\nx y,1,2\nz w,1,3\n", "none is clearly the label; name it with --label, perhaps --label c"),
    ("two.csv", "text,target,class\nx y,1,2\n", "target and class could each be the label; name it with --label"),
    ("what.csv", "a,b,label\nx y,z w,2\n", "has the columns a, b, label, .* name it with --text"),
    ("both.csv", "text,review,label\nx y,z w,2\n", "not clear which of them is the text"),
    ("dict.jsonl", '{"text": "a", "label": {"x": 1}}\n', "holds objects"),
    ("count.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}\n', "line 1 of .* has 2 words and 1 tag; each word needs"),
    ("tags.jsonl", '{"tokens": ["a", "b"], "tags": ["O", null]}\n', "line 1 of .* has the tag None"),
    ("words.jsonl", '{"tokens": [], "tags": []}\n', "line 1 of .* has no words"),
    ("mixed.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["b"], "tags": 3}\n', "line 2 of .* has 3"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES, ids=[name for name, *_ in BAD_FILES])
def test_bad_files_are_refused_in_one_sentence(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_files(file(tmp_path, name, content))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert name in sentence


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing.csv does not exist"):
        load_files(tmp_path / "missing.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="is a folder; give the file"):
        load_files(tmp_path / "folder.csv")


def test_an_incomplete_parquet_file_is_named(tmp_path: Path) -> None:
    whole = written(tmp_path, "parquet").read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 4):
        with pytest.raises(UserError, match=r"cut\.parquet is incomplete or not a Parquet file"):
            load_files(file(tmp_path, "cut.parquet", whole[:length]))


def test_duplicate_column_names_are_refused(tmp_path: Path) -> None:
    table = pyarrow.table([["a b"], ["c d"], [1]], names=["text", "text", "label"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has the column 'text' 2 times"):
        load_files(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"text": "txt"}, "--text is 'txt', but .* has the columns text, label"),
        ({"label": "lbl"}, "--label is 'lbl', but"),
        ({"text_pair": "pair"}, "--text-pair is 'pair', but"),
        ({"text": "label", "label": "label"}, "name the same column 'label'"),
        ({"text_pair": "text"}, "so --text must name the first text"),
        (
            {"kind": "ranking"},
            "--kind is 'ranking'; .* classification, regression, multilabel, token_classification, multiple_choice",
        ),
        ({"kind": "multiple_choice"}, "a multiple choice needs at least two answers; name them with --choices"),
        (
            {"kind": "regression"},
            "line 2 of .* has the label 'a' in column 'label' .6 such rows in total.; a regression",
        ),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_files(file(tmp_path, "a.csv", GOOD), **flags)


@pytest.mark.parametrize("value", ["many", "inf", "-Infinity", "1_000", "٣", "1,5"])
def test_regression_labels_must_be_finite_numbers(value: str, tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", f'text,label\na b,1.5\nc d,"{value}"\n')
    with pytest.raises(UserError, match="line 3 of .* a regression needs numbers"):
        load_files(path, kind="regression")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na b,c\n", "line 2 of .*dev.csv has the label 'c', which the training data do not have .a, b."),
        ("text,other\na b,a\n", "dev.csv has no column 'label'; it has text, other"),
        ("review,label\na b,a\n", "dev.csv has no column 'text'"),
        ("text,label\na b,\n", "line 2 of .*dev.csv has no label"),
        ("text,label\n,a\n", "line 2 of .*dev.csv has no text"),
    ],
)
def test_validation_must_fit_training(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_files(file(tmp_path, "a.csv", GOOD), file(tmp_path, "dev.csv", content))


def test_a_tag_that_the_training_data_do_not_have_is_refused(tmp_path: Path) -> None:
    train = file(tmp_path, "a.conll", "EU B-ORG\nwon O\n")
    with pytest.raises(UserError, match="line 3 of .*dev.conll has the label 'B-LOC'"):
        load_files(train, file(tmp_path, "dev.conll", "so O\n\nit O\nRome B-LOC\n"))


def test_partly_labelled_test_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 3 of .*test.csv has no label"):
        load_files(file(tmp_path, "a.csv", GOOD), None, file(tmp_path, "test.csv", "text,label\na b,a\nc d,\n"))
