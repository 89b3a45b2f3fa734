"""The data doctor: every finding, on files like those that people have. Nothing in the data is changed silently."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from datasets import Dataset

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.tasks import (
    Data,
    Finding,
    ReadOptions,
    Task,
    examine_vocabulary,
    inspect_files,
    load_files,
    load_inputs,
    load_tokenizer,
    split_validation,
)
from attendrop.lab.tasks.vocabulary import is_hard
from helpers.cli_tools import save_encoder

HAM = [
    "Go until jurong point, crazy.. Available only in bugis n great world la e buffet...",
    "Ok lar... Joking wif u oni...",
    "U dun say so early hor... U c already then say...",
    "Nah I don't think he goes to usf, he lives around here though",
]
SPAM = [
    "Free entry in 2 a wkly comp to win FA Cup final tkts 21st May 2005",
    "WINNER!! As a valued network customer you have been selected to receive a £900 prize reward!",
]


def sms(*rows: str, header: str = "label,text", ham: str = "ham") -> str:
    """A file of SMS messages, with `rows` at the end."""
    lines = [f'{ham},"{text}"' for text in HAM] + [f'spam,"{text}"' for text in SPAM]
    return "\n".join([header, *lines, *rows]) + "\n"


SICK = """\
pair_ID	sentence_A	sentence_B	entailment_label	relatedness_score
1	A group of kids is playing in a yard and an old man is standing	A group of boys in a yard is playing	NEUTRAL	4.5
2	A brown dog is attacking another animal in front	A brown dog is helping another animal	CONTRADICTION	3.2
3	Two dogs are fighting	Two dogs are wrestling and hugging	NEUTRAL	4
4	A person in a black jacket is doing tricks on a motorbike	A man is doing tricks	ENTAILMENT	3.165
"""

SPANISH = """\
Melbourne B-LOC
( O
Australia B-LOC
) O
, O
25 O
may O
( O
EFE B-ORG
) O
. O

El O
Abogado B-PER
General I-PER
del I-PER
Estado I-PER
, O
Daryl B-PER
Williams I-PER
. O
"""

TWEETS = """\
tweet;klasse
@corinnamilborn Liebe Corinna, wir würden dich gerne als Moderatorin gewinnen;OTHER
@Martin28a Sie haben ja auch Recht. Unser Tweet war etwas missverständlich.;OTHER
Deine Mutter ist so dick, sie braucht zwei Postleitzahlen;OFFENSE
Die Straße ist heute für den Verkehr gesperrt;OTHER
"""


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def has_finding(level: str, pattern: str, findings: list[Finding]) -> bool:
    return any(finding.level == level and re.search(pattern, finding.text) for finding in findings)


# name of the file, content, flags, level and pattern of the finding
FINDINGS: list[tuple[str, str | bytes, dict[str, Any], str, str]] = [
    # encodings and separators
    ("bom.csv", b"\xef\xbb\xbf" + sms().encode(), {}, "note", "begins with a byte order mark and is read as UTF-8"),
    ("wide.csv", sms().encode("utf-16"), {}, "note", "begins with a byte order mark and is read as UTF-16"),
    ("wide.csv", sms().encode("utf-16-le"), {}, "error", "looks like UTF-16 without .* with --encoding utf-16-le"),
    ("latin.csv", sms().encode("latin-1"), {}, "error", "line 7 has the byte 0xa3; if '£900' .* --encoding latin-1"),
    ("latin.csv", sms("ham,“so”").encode("cp1252"), {}, "error", "if '£900' is right there, .* --encoding cp1252"),
    ("tweets.csv", TWEETS.encode("latin-1"), {}, "error", "line 2 has the byte 0xfc; if 'würden' is right there"),
    ("tweets.csv", TWEETS, {}, "note", "has semicolons between its columns"),
    ("lost.csv", sms('ham,"it costs 5�"'), {}, "warning", r"has 1 replacement character .*first in line 8"),
    ("SICK.txt", SICK, {"label": "entailment_label"}, "note", "is read as a table with tabs between its columns"),
    ("spam.csv", sms('ham,so,"then",', header="v1,v2,,").replace('"\n', '",,\n'), {}, "warning",
     "1 row of .* .first: line 8. has values in columns without a name"),
    # the header
    ("none.csv", sms("ham,see you").split("\n", 1)[1], {}, "error",
     "first line of .* looks like data and not like a header: its 'ham' is also the value of 4 rows below it"),
    ("none.tsv", "3.5\tA man is here\n1.0\tA dog runs\n2.5\tIt rains\n", {}, "error", "its '3.5' is a number, as the"),
    ("none.csv", sms("ham,see you").split("\n", 1)[1], {}, "error", "name the columns with --columns label,text, or"),
    ("news.tab", "Category\tText\nd\tstring\nclass\tinclude=True\n" + "acq\tthey buy it\nearn\tit grew a lot\n" * 3,
     {}, "note", "lines 2 and 3 of .* hold the types and roles of columns, as Orange writes them"),
    ("long.csv", "how do you like our new shop,label\nit is nice,good\nit is bad,bad\n", {}, "warning",
     "may be data and not a header"),
    # rows that cannot be used
    ("a.csv", sms("ham,", "spam, "), {}, "error", "line 8 of .* has no text in column 'text' .2 such rows in total."),
    ("a.csv", sms(",so it is"), {}, "error", "line 8 of .* has no label in column 'label'"),
    ("a.csv", sms("ham,see you,later"), {}, "error", "line 8 of .* has 3 fields, .*--drop-bad-rows leaves such rows"),
    ("a.csv", sms("ham,nan", "ham,NULL"), {}, "warning", "2 texts in column 'text' .* missing value, such as 'nan' in"),
    ("a.csv", sms("N/A,so it is"), {}, "warning", "the label 'N/A' .1 row. may stand for a missing value"),
    # labels
    ("a.csv", sms("HAM,see you"), {}, "error", "labels 'HAM' .1 row. and 'ham' .4 rows. .* differ only by case or spa"),
    ("a.csv", sms("h am,see you"), {}, "error", "labels 'h am' .1 row. and 'ham' .4 rows. .* differ only by case or s"),
    ("a.csv", sms("ham ,see you"), {}, "note", "different spellings in column 'label' .* 'ham' and 'ham ' as 'ham'"),
    ("a.csv", sms('"ham, spam",see you'), {}, "warning", "1 row .* 'ham, spam'; read them with --label-separator ','"),
    ("quiz.csv", "q,option 1,option 2,right\na,b,c,2\n", {}, "error", "is clearly the label; use --kind multiple_"),
    ("a.csv", "text,label\na b,1\nc d,0\ne f,1.0\n", {"kind": "classification"}, "error",
     "'1' .1 row. and '1.0' .1 row. .* differ only by how a number is written"),
    ("a.csv", "text,label\na b,caf\u00e9\nc d,x\ne f,cafe\u0301\n", {}, "error",
     r"'cafe\\u0301' .1 row. and 'caf\u00e9' .1 row. .* Unicode forms of the same letters"),
    ("a.csv", "text,label\na b,yes\nc d,no\ne f,yes\u200b\n", {}, "error",
     r"'yes' .* and 'yes\\u200b' .* invisible char"),
    ("a.jsonl", '{"text": "a b", "label": 1}\n{"text": "c d", "label": 1.0}\n{"text": "e f", "label": 2}\n',
     {"kind": "classification"}, "note", "'1' and '1.0' as '1'"),
    ("a.csv", sms(*[f"ham,message {i}" for i in range(20)]), {}, "warning",
     "92% of the rows of .* have the label 'ham': look at macro F1 .* --class-weights balanced"),
    ("a.csv", sms(*[f"ham,message {i}" for i in range(60)]), {}, "warning", "1 label has fewer than 5 rows .*spam"),
    ("a.csv", TWEETS.replace("OTHER", "3,5").replace("OFFENSE", "1"), {}, "note",
     "numbers with a decimal comma are read in 'klasse'"),
    ("a.csv", 'text,label\na b,"3,5"\nc d,"1,5"\n', {}, "error",
     "holds 2 numbers with a decimal comma, such as '3,5' in line 2; use --kind regression to read them as numbers"),
    # texts
    ("a.csv", sms(f'ham,"{HAM[1]}"', f'ham," {HAM[2]}"'), {}, "warning",
     "2 rows of .* repeat an earlier row .first: line 8 repeats line 3."),
    ("a.csv", sms(f'spam,"{HAM[1]}"'), {}, "warning",
     "1 text of .* has different labels .* .first: line 3 has 'ham' and line 8 has 'spam'."),
    ("SICK.txt", SICK.replace("A man is doing tricks", "A man") + SICK.splitlines()[3].replace("3\tTwo", "5\tTwo"),
     {"label": "entailment_label"}, "warning", "1 row of .* repeats an earlier row .first: line 6 repeats line 4."),
    # what a name does not say
    ("SMSSpamCollection", sms().replace(",", "\t"), {}, "note", "is read as a table with tabs between its columns"),
    ("sample.xml", "<rows><row>so it is</row></rows>", {}, "error", "looks like an XML or HTML file; save the"),
    ("es.conllu", SPANISH, {}, "error", "has ten columns for each word; keep the word and one of its tags"),
    ("quiz.jsonl", '{"startphrase": "he", "ending0": "goes", "ending1": "go", "label": 0}\n' * 2, {}, "error",
     "use --kind multiple_choice if they are answers to choose from"),
    # tags
    ("es.txt", "El/DA perro/NCS ladra/VMI ./Fp\n\nY/CC 1/2/Z km/h/NCS ./Fp\n", {}, "note", "written word/TAG"),
    ("es.txt", "El/DA perro/NCS ./Fp\n" * 60 + "Y/CC duerme ./Fp\n", {}, "error", "line 61 of .* has 'duerme' without"),
    ("esp.txt", SPANISH.replace("Australia B-LOC", "Australia B_LOC"), {}, "error",
     "1 tag of .*esp.txt is not written as O, B-… or I-…: line 3 has 'B_LOC'"),
    ("esp.conll", SPANISH.replace("General I-PER", "General I-ORG"), {}, "warning",
     "2 tags of .* continue an entity of another type .first: 'I-ORG' after 'B-PER' in line 15."),
    ("esp.iob", SPANISH.encode("latin-1").replace(b"Abogado", "Abogadó".encode("latin-1")), {}, "error", "Abogadó"),
]  # fmt: skip


def test_spellings_of_one_label_are_no_conflict(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", sms("HAM,see you", "ham,see you", "spam,see you"))
    findings = inspect_files(path).findings
    assert has_finding("warning", "1 row of .* repeats an earlier row", findings)
    assert has_finding("warning", "1 text of .* has different labels .* has 'HAM' and .* has 'spam'", findings)


@pytest.mark.parametrize(("name", "content", "flags", "level", "pattern"), FINDINGS, ids=range(len(FINDINGS)))
def test_finding(
    name: str, content: str | bytes, flags: dict[str, Any], level: str, pattern: str, tmp_path: Path
) -> None:
    path = file(tmp_path, name, content)
    findings = inspect_files(path, **flags).findings
    assert has_finding(level, pattern, findings), findings
    if level == "error":
        with pytest.raises(UserError):
            load_files(path, **flags)
    else:
        assert not has_finding("error", "", findings), findings
        assert any(re.search(pattern, note) for note in load_files(path, **flags).notes)


@pytest.mark.parametrize(
    ("name", "content", "flags"),
    [
        ("sms.csv", sms(), {}),
        ("SICK.txt", SICK, {"label": "relatedness_score", "text": "sentence_A", "text_pair": "sentence_B"}),
        ("esp.txt", SPANISH, {}),
        ("tweets.csv", TWEETS, {}),
        ("pandas.csv", "0,1\nit is nice,1\nit is bad,0\nso it is,1\nno more,1\n", {"text": "0", "label": "1"}),
    ],
)
def test_good_files_have_neither_errors_nor_warnings(
    name: str, content: str, flags: dict[str, str], tmp_path: Path
) -> None:
    inspection = inspect_files(file(tmp_path, name, content), **flags)
    assert {finding.level for finding in inspection.findings} <= {"note"}
    assert inspection.data is not None


def test_rows_that_training_and_validation_share_are_counted(tmp_path: Path) -> None:
    train = file(tmp_path, "train.csv", sms())
    dev = file(tmp_path, "dev.csv", f'label,text\nham,"{HAM[0]}"\nspam,win win win\nham,so it is\n')
    test = file(tmp_path, "test.csv", f'text\n"{HAM[1]}"\n"{HAM[2]}"\n')
    findings = inspect_files(train, dev, test).findings
    assert has_finding("warning", r"1 of 3 rows of .*dev.csv is also .* \(first: line 2 is line 2 of .*train", findings)
    assert has_finding("warning", "2 of 2 rows of .*test.csv are also in the training data", findings)
    with pytest.raises(UserError, match="6 of 6 rows of .*train.csv are also .* its scores would say nothing"):
        load_files(train, train)


def test_a_label_that_validation_does_not_have_is_named(tmp_path: Path) -> None:
    train, dev = file(tmp_path, "train.csv", sms()), file(tmp_path, "dev.csv", "label,text\nham,so it is\n")
    assert has_finding("warning", "dev.csv has no row with the label 'spam'", inspect_files(train, dev).findings)


def test_examples_that_are_split_off_and_repeat_training_examples_are_counted(tmp_path: Path) -> None:
    rows = "".join(f"some words {i % 5},{'ab'[i % 2]}\n" for i in range(40))
    data = split_validation(load_files(file(tmp_path, "a.csv", f"text,label\n{rows}")), 0.25)
    assert any("10 of 10 validation examples have the text of a training example" in note for note in data.notes)


def test_texts_that_occur_again_are_not_split_off(tmp_path: Path) -> None:
    rows = "".join(f"some words {min(i, 30)},{'ab'[i % 2]}\n" for i in range(40))  # the last ten are alike
    data = split_validation(load_files(file(tmp_path, "a.csv", f"text,label\n{rows}")), 0.25)
    assert data.train is not None
    assert data.validation is not None
    assert len(data.validation) == 10
    assert not set(data.train["text"]) & set(data.validation["text"])
    assert not any("of a training example" in note for note in data.notes)


def test_all_errors_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    train = file(tmp_path, "train.csv", sms("ham,", "HAM,see you", "ham,a,b", "c", "spam,d,e"))
    dev = file(tmp_path, "dev.csv", "label,text\nspam,\nham,so\n")
    inspection = inspect_files(train, dev, tmp_path / "gone.csv")
    assert len(inspection.errors) == 5, inspection.errors
    assert any("line 10 of" in error and "(3 such rows in total)" in error for error in inspection.errors)
    assert inspection.rows == {"train": 7, "validation": 1}
    with pytest.raises(UserError, match="line 10 of .* has 3 fields, .* .4 more: `attendrop check` lists them.."):
        load_files(train, dev, tmp_path / "gone.csv")


def test_bad_rows_are_dropped_only_on_request_and_each_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", sms("ham,", ",so it is", "ham,see you,later", "ham,bye now"))
    with pytest.raises(UserError, match="line 10 of .* has 3 fields"):
        load_files(path)
    data = load_files(path, options=ReadOptions(drop_bad_rows=True))
    assert data.train is not None
    assert data.train["text"][:] == [*HAM, *SPAM, "bye now"]
    (note,) = [note for note in data.notes if "--drop-bad-rows" in note]
    assert "3 rows" in note
    for where in ("line 8 has no text", "line 9 has no label", "line 10 has 3 fields"):
        assert where in note
    lines = '{"text": "a b", "label": "x"}\n{oops\n3\n{"text": "c d", "label": "y"}\n{"text": 4, "label": "y"}\n'
    jsonl = load_files(file(tmp_path, "a.jsonl", lines), options=ReadOptions(drop_bad_rows=True))
    assert jsonl.train is not None
    assert jsonl.train["text"][:] == ["a b", "c d"]
    with pytest.raises(UserError, match="has no row that can be used"):
        load_files(file(tmp_path, "b.csv", "text,label\n,a\n,b\n"), options=ReadOptions(drop_bad_rows=True))


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", sms().encode("cp1252"), {"encoding": "cp1252"}),
        ("a.csv", sms().encode("utf-16-be"), {"encoding": "utf-16-be"}),
        ("a.csv", b"\xef\xbb\xbf" + sms().encode(), {"encoding": "utf-8"}),
        ("a.csv.gz", gzip.compress(sms().encode()), {}),
        ("a.csv", re.sub(r'^(label|ham|spam),("?)', r"\1|\2", sms(), flags=re.M), {}),
        ("a.csv", re.sub(r'^(label|ham|spam),("?)', r"\1~\2", sms(), flags=re.M), {"separator": "~"}),
        ("a.txt", re.sub(r'^(label|ham|spam),("?)', r"\1\t\2", sms(), flags=re.M), {"separator": "tab"}),
        ("a.txt.gz", gzip.compress(re.sub(r'^(label|ham|spam),("?)', r"\1\t\2", sms(), flags=re.M).encode()), {}),
    ],
    # Not the content: gzip writes the time, and all processes that collect the tests must find the same names.
    ids=["cp1252", "utf-16", "byte order mark", "gzip", "bars", "tildes", "tabs", "gzip with tabs"],
)
def test_every_way_of_writing_a_table_gives_the_same_rows(
    name: str, content: bytes | str, options: dict[str, str], tmp_path: Path
) -> None:
    data = load_files(file(tmp_path, name, content), options=ReadOptions(**options))
    assert data.train is not None
    assert data.train["text"][:] == [*HAM, *SPAM]
    assert [data.task.labels[i] for i in data.train["label"]] == ["ham"] * 4 + ["spam"] * 2


def test_the_first_sheet_of_an_excel_file_is_read(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["text", "score"])
    for text, score, more in (("it is nice", 4.5, None), (None, 3, None), ("it is bad", 1, "so they say")):
        sheet.append([text, score, more])
    book.create_sheet("notes").append(["not", "these"])
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(UserError, match="line 3 of .*a.xlsx has no text in column 'text'"):
        load_files(tmp_path / "a.xlsx")
    data = load_files(tmp_path / "a.xlsx", options=ReadOptions(drop_bad_rows=True))
    assert data.train is not None
    assert data.task.kind == "regression"
    assert data.train["score"][:] == [4.5, 1.0]
    assert any(
        "1 row of" in note and "(first: line 4) has values in columns without a name" in note for note in data.notes
    )
    others = "has 2 sheets ('Sheet', 'notes'), of which the first is read; another one is"
    assert any(others in note for note in data.notes)


# ---- several labels, and multiple choice -----------------------------------------------------------------------------


def test_several_labels_are_lists_or_separated(tmp_path: Path) -> None:
    lines = '{"text": "a red car", "labels": ["red", "car"]}\n{"text": "so", "labels": []}\n{"text": "b c d", '
    lists = load_files(file(tmp_path, "a.jsonl", lines + '"labels": ["car"]}\n'))
    assert (lists.task.kind, lists.task.labels) == ("multilabel", ("car", "red"))
    assert lists.task.metrics == ("micro_f1", "macro_f1", "exact_match")
    assert lists.train is not None
    assert lists.train["labels"][:] == [[1, 0], [], [0]]
    assert any(re.search("1 of 3 rows of .* have none of the labels", note) for note in lists.notes)
    table = file(tmp_path, "a.csv", 'text,tags\na red car,"red, car"\nso,\nb c d,car\n')
    options = ReadOptions(label_separator=",")
    separated = load_files(table, label="tags", options=options)
    assert separated.train is not None
    assert separated.train["tags"][:] == [[1, 0], [], [0]]
    with pytest.raises(UserError, match="holds texts, such as 'red, car', and no lists; .* --label-separator"):
        load_files(table, label="tags", kind="multilabel")
    with pytest.raises(UserError, match="label_separator is ',', and kind is 'classification'"):
        load_files(table, label="tags", kind="classification", options=options)
    tagged = file(tmp_path, "b.jsonl", '{"text": "EU won", "tags": ["B-ORG", "O"]}\n{"text": "so", "tags": ["O"]}\n')
    assert load_files(tagged).task.kind == "token_classification"


@pytest.mark.parametrize(
    ("answers", "labels"), [("0132", ("0", "1", "2", "3")), ("1234", ("1", "2", "3", "4")), ("ABBD", tuple("ABCD"))]
)
def test_multiple_choice_is_read_from_columns_and_from_lists(
    answers: str, labels: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [f"question {i},one {i},two {i},three {i},four {i},{answers[i]}" for i in range(4)]
    table = file(tmp_path, "a.csv", "\n".join(["question,ending0,ending1,ending2,ending3,label", *rows]))
    data = load_files(table, kind="multiple_choice")
    assert data.task.text == ("question", "ending0", "ending1", "ending2", "ending3")
    assert data.task.labels == labels
    assert data.train is not None
    assert [data.task.labels[i] for i in data.train["label"]] == list(answers)
    lines = [
        f'{{"q": "question {i}", "options": ["one {i}", "two {i}", "three {i}", "four {i}"], "label": "{answers[i]}"}}'
        for i in range(4)
    ]
    path = file(tmp_path, "a.jsonl", "\n".join(lines))
    listed = load_files(path, kind="multiple_choice", text="q", choices=["options"])
    assert listed.train is not None
    assert listed.train["options_2"][:] == data.train["ending2"][:]
    assert listed.task.labels == labels
    inputs = load_inputs(path, listed.task)
    assert inputs.test is not None
    assert inputs.test["label"][:] == data.train["label"][:]


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("question,ending0,ending1,label\nq a,x,y,7\n", {}, "the label '7'; a multiple choice of 2 answers needs"),
        ("question,ending0,label\nq a,x,0\n", {}, "a multiple choice needs at least two answers"),
        ("a,b,ending0,ending1,label\nq,r,x,y,0\n", {}, "not clear which of them is the context"),
        ("question,ending0,ending1,label\nq a,x,y,0\n", {"choices": ["wrong"]}, "--choices is 'wrong', but"),
        ("question,ending0,ending1,label\nq a,x,,0\n", {}, "line 2 of .* has no text in column 'ending1'"),
        ("text,label\nq a,0\nb c,1\n", {"kind": None, "choices": ["text"]}, "so use --kind multiple_choice too"),
    ],
)
def test_a_wrong_multiple_choice_is_refused(content: str, flags: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_files(file(tmp_path, "a.csv", content), **{"kind": "multiple_choice", **flags})


# ---- the command -----------------------------------------------------------------------------------------------------


def test_command_prints_what_it_found_and_its_exit_code_says_whether_a_run_would_stop(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = save_encoder(tmp_path / "model", [*HAM, *SPAM])
    good = file(tmp_path, "good.csv", sms(f"ham,{'word ' * 400}", f'ham,"{HAM[0]}"'))
    capfd.readouterr()
    assert run(["check", str(good), "--model", str(model), "--max-length", "64"]) == 0
    out = capfd.readouterr()
    assert "12.5% of the texts of train have more than 64 tokens and are cut" in out.out
    assert "takes 256 tokens, see --max-length" in out.out
    assert re.search(r"ham +6 \(75%\)", out.out)
    assert "0 errors, 2 warnings: `attendrop train` would accept these files" in out.out
    assert out.err == ""
    bad = file(tmp_path, "bad.csv", sms("HAM,see you", "ham,"))
    before = bad.read_bytes()
    assert run(["check", str(bad), str(good)]) == 2
    out = capfd.readouterr()
    assert len(out.err.splitlines()) == 3
    assert all(line.startswith("error: ") for line in out.err.splitlines())
    assert "3 errors" in out.out
    assert bad.read_bytes() == before


def test_a_table_without_a_header_is_read_with_the_names_that_are_given(tmp_path: Path) -> None:
    """All lines are examples then, and the names are used as those of a header."""
    path = file(tmp_path, "none.csv", sms().split("\n", 1)[1])
    data = load_files(path, options=ReadOptions(columns=("label,text",)))
    assert len(data.train) == len(HAM) + len(SPAM)
    assert data.train["text"][0] == HAM[0]
    for names, message in (
        (("text",), "columns is 'text', 1 name, but line 1 of .* has 2 fields; name each of them"),
        (("label", "label"), "columns is 'label,label'; it must be different names"),
    ):
        with pytest.raises(UserError, match=message):
            load_files(path, options=ReadOptions(columns=names))
    with pytest.raises(UserError, match="which line 1 of .* has too; leave --columns out"):
        load_files(file(tmp_path, "a.csv", sms()), options=ReadOptions(columns=("label", "text")))
    with pytest.raises(UserError, match="has names for its columns; leave --columns out"):
        load_files(file(tmp_path, "a.jsonl", '{"text": "a"}'), options=ReadOptions(columns=("text",)))


def test_words_and_tags_of_a_text_are_read(tmp_path: Path) -> None:
    data = load_files(file(tmp_path, "es.txt", "El/DA perro/NCS ./Fp\n\nY/CC 1/2/Z km/h/NCS ./Fp\n"))
    assert data.train["tokens"][:] == [["El", "perro", "."], ["Y", "1/2", "km/h", "."]]
    assert [[data.task.labels[tag] for tag in tags] for tags in data.train["tags"]] == [
        ["DA", "NCS", "Fp"],
        ["CC", "Z", "NCS", "Fp"],
    ]


def test_texts_of_another_language_are_a_warning(tmp_path: Path) -> None:
    line = "the tall man in a red coat walks his small dog past an old house near the river"
    save_encoder(tmp_path / "model", [line])
    tokenizer = load_tokenizer(str(tmp_path / "model"))

    def findings_about(texts: list[str]) -> list[str]:
        task = Task("mine", "classification", ("text",), "label", ("a", "b"))
        data = Data(task, Dataset.from_dict({"text": texts, "label": [0, 1] * (len(texts) // 2)}), None)
        return [finding.text for finding in examine_vocabulary(data, "model", tokenizer)]

    other = "der große Mann im roten Mantel führt seinen kleinen Hund am Fluss entlang"
    assert not findings_about([line] * 10)
    assert not findings_about([line] * 9 + [other])
    (text,) = findings_about([line] * 4 + [other] * 6)
    # The trained vocabulary is not the same each time.
    assert re.match(r"(3|4)\d% of the words of train are unknown to model or split .*, such as '\w+': it may not", text)
    assert "xlm-roberta-base" in text
    assert not findings_about([other] * 2)  # too few words
    (text,) = findings_about(["这部电影非常好看 我很喜欢 今天天气很好 我们去公园玩吧"] * 20)
    assert text.startswith("100% of the words")


def test_letters_of_scripts_without_spaces_may_be_one_piece_each() -> None:
    assert not is_hard("今天天气", [5, 6, 7, 8], 1)
    assert is_hard("今天天气", [5, 6, 1, 8], 1)
    assert is_hard("今天天气", list(range(12)), None)
    assert is_hard("house", [5, 6, 7], 1)
    assert not is_hard("house", [5, 6], 1)
