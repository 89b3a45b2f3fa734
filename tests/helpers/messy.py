"""Files in the shapes in which public data sets and colleagues hand them out, and a user who does what is advised.

The sentences are made up. With a folder of real data sets (`texts_of`) they are those of the sets.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import openpyxl

from helpers.cli_tools import attendrop, sentences

_MOST_TRIES = 8
Rows = list[tuple[str, str]]


@dataclass
class Texts:
    """Texts with a class, in a fixed order.

    Attributes:
        folder: A folder with Parquet files of real sets, `arena/<name>/train.parquet`; None = made-up sentences.
    """

    folder: Path | None = None

    def of(self, name: str, rows: int, classes: int) -> Rows:
        """Return texts with the names of their classes, of which there are `classes`."""
        texts = [text for text, _ in sentences(rows, seed=len(name))]
        path = self.folder and self.folder / name / "train.parquet"
        if path and path.is_file():
            import pyarrow.parquet

            texts = [str(text) for text in pyarrow.parquet.read_table(path)["text"].slice(0, rows).to_pylist()]
        return [(" ".join(text.split()), f"{name[-5:]}_{i % classes}") for i, text in enumerate(texts)]


@dataclass(frozen=True)
class Messy:
    """A data set in its original form.

    Attributes:
        name: What it is.
        write: Writes its files into a folder, and returns the training file.
        facts: What whoever has the file knows about it, as flags: which columns hold the texts and the labels.
        rows: The number of rows to be predicted.
    """

    name: str
    write: Callable[[Path, Texts, int], Path]
    facts: dict[str, str] = field(default_factory=dict)


@dataclass
class Walk:
    """What happened from the file to its predictions.

    Attributes:
        commands: What was typed.
        outcomes: The last sentence of each command, an error or what came out.
        asked: The times that the user had to know more than the sentence said.
        predictions: The number of predictions; None if it never came to them.
        form: The suffix of the file of predictions.
    """

    commands: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    asked: int = 0
    predictions: int | None = None
    form: str = ""


def _excel(path: Path, rows: Iterable[Sequence[Any]], title: str = "Sheet1") -> Path:
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def _table(path: Path, rows: Iterable[Sequence[Any]], sign: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=sign).writerows(rows)
    return path


def tickets(folder: Path, texts: Texts, count: int) -> Path:
    """Support tickets from Excel: nine unbalanced groups, a header with line breaks, empty subjects, `_x000D_`."""
    draw, header = random.Random(1), ("Ticket\n#", "Created", "Opened by", "Subject", "Description\n(long)", "Group")
    groups = [f"Group {'ABCDEFGHI'[min(8, int(draw.expovariate(0.5)))]}" for _ in range(count)]
    rows = [
        (
            48_000_000 + 7 * i, f"2023-0{i % 9 + 1}-11 08:{i % 60:02d}", f"user{i % 37}@example.org",
            None if i % 6 == 0 else text[:20], f"Hello,_x000D_\n{text}. {text}_x000D_\nRegards", groups[i],
        )
        for i, (text, _) in enumerate(texts.of("arena/stackoverflow", count, 9))
    ]  # fmt: skip
    return _excel(folder / "tickets.xlsx", [header, *rows])


def banking(folder: Path, texts: Texts, count: int) -> Path:
    rows = sorted(texts.of("arena/trec", count, 7), key=lambda row: row[1])  # sorted by class, as BANKING77 is
    return _table(folder / "train.csv", [("text", "category"), *rows])


def nlu(folder: Path, texts: Texts, count: int) -> Path:
    """NLU++: a list of objects with lists of intents, and slots as nested objects."""
    rows = [
        {"text": text, "intents": sorted({label, f"intent{i % 3}"})[: i % 3], "slots": {"time": {"text": "now"}}}
        for i, (text, label) in enumerate(texts.of("arena/cr", count, 4))
    ]
    (folder / "nlu.json").write_text(json.dumps(rows, indent=2))
    return folder / "nlu.json"


def clinc(folder: Path, texts: Texts, count: int) -> Path:
    rows = [list(row) for row in texts.of("arena/stackoverflow", count, 5)]
    parts = {"val": rows[:20], "train": rows[20:], "oos_val": [["so what", "oos"]] * 3}
    (folder / "data_full.json").write_text(json.dumps(parts))
    return folder / "data_full.json"


def emotions(folder: Path, texts: Texts, count: int) -> Path:
    """GoEmotions as its authors hand it out: a 0/1 column for each emotion behind seven of other kinds."""
    names = ("admiration", "anger", "joy", "neutral")
    header = ("text", "id", "author", "created_utc", "rater_id", "example_very_unclear", *names)
    rows = [
        (text, f"ed{i}x", f"u{i % 9}", f"15{i}.0", i % 11, "FALSE", *(int((i + k) % 4 == 0) for k in range(4)))
        for i, (text, _) in enumerate(texts.of("arena/tweet_emotion", count, 4))
    ]
    return _table(folder / "goemotions_1.tsv", [header, *rows], "\t")


def germeval(folder: Path, texts: Texts, count: int) -> Path:
    """GermEval 2018: three columns with tabs, no header; here as somebody saved it again, in cp1252."""
    rows = [
        (f"Schöne Grüße, {text}", ("OTHER", "OFFENSE")[i % 2], ("OTHER", "INSULT", "OTHER", "ABUSE")[i % 4])
        for i, (text, _) in enumerate(texts.of("arena/tweet_offensive", count, 2))
    ]
    lines = "".join("\t".join(row).replace('"', "'") + "\n" for row in rows)
    (folder / "germeval2018.training.txt").write_text(lines, encoding="cp1252", errors="replace")
    return folder / "germeval2018.training.txt"


def weibo(folder: Path, texts: Texts, count: int) -> Path:
    """Weibo NER: a character and its position in the word, then a tab and the tag."""
    words = ["科0\tB-PER.NAM", "技1\tI-PER.NAM", "全0\tO", "方1\tO", "位2\tO"]
    draw = random.Random(2)
    lines = ["\n".join(draw.choices(words[2:], k=3) + words[:2] + draw.choices(words[2:], k=4)) for _ in range(count)]
    (folder / "weiboNER.train").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return folder / "weiboNER.train"


def swahili(folder: Path, texts: Texts, count: int) -> Path:
    """Swahili NER with one space between word and tag, lines that end as on Windows, and blank lines with spaces."""
    rows = texts.of("arena/subj", count, 2)
    sentences = [[*[f"{word} O" for word in text.split()[:9]], "Nairobi B-LOC"] for text, _ in rows]
    content = " \r\n".join("".join(f"{line}\r\n" for line in sentence) for sentence in sentences)
    (folder / "swa.txt").write_text(content, encoding="utf-8", newline="")
    return folder / "swa.txt"


def sick(folder: Path, texts: Texts, count: int) -> Path:
    header = (
        "pair_ID", "sentence_A", "sentence_B", "entailment_label", "relatedness_score", "entailment_AB",
        "entailment_BA", "SemEval_set",
    )  # fmt: skip
    rows = [
        (
            i + 1, text, f"{text} then", ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")[i % 3], f"{1 + i % 40 / 10}",
            "A_neutral_B", "B_neutral_A", ("TRAIN", "TEST")[i % 2],
        )
        for i, (text, _) in enumerate(texts.of("arena/snli", count, 3))
    ]  # fmt: skip
    return _table(folder / "SICK.txt", [header, *rows], "\t")


def clear(folder: Path, texts: Texts, count: int) -> Path:
    """CLEAR: 10 of its 28 columns, a long excerpt, and ease of reading as a number with many decimals."""
    header = (
        "ID",
        "Author",
        "Title",
        "Source",
        "Pub Year",
        "Category",
        "Excerpt",
        "BT Easiness",
        "s.e.",
        "Flesch-Kincaid",
    )
    rows = [
        (
            400 + i, f"Author {i % 30}", f"A story {i}", "gutenberg", 1900 + i % 90, ("Lit", "Info")[i % 2],
            f"{text}\n{text}. " * 4, round(-3 + i % 47 / 9, 8), 0.46 + i / 1000, round(2 + i % 31 / 3, 2),
        )
        for i, (text, _) in enumerate(texts.of("arena/subj", count, 2))
    ]  # fmt: skip
    path = _excel(folder / "CLEAR_corpus_final.xlsx", [("Legend", "Meaning"), ("ID", "number")], "Legend")
    book = openpyxl.load_workbook(path)
    for row in (header, *rows):
        (book["Data"] if "Data" in book.sheetnames else book.create_sheet("Data")).append(row)
    book.save(path)
    return path


def flesch(folder: Path, texts: Texts, count: int) -> Path:
    """Ease of reading of German texts: semicolons, decimal commas, and the byte order mark of Excel."""
    rows = [
        (i, f"Müde: {text}", f"{30 + i % 45},{i % 10}{i % 7}")
        for i, (text, _) in enumerate(texts.of("arena/cr", count, 2))
    ]
    return _table(folder / "flesch.csv", [("Nr", "Satz", "Flesch"), *rows], ";", "utf-8-sig")


def hate(folder: Path, texts: Texts, count: int) -> Path:
    """Hate speech of Davidson et al.: an index without a name, votes of annotators, the class as a number."""
    header = ("", "count", "hate_speech", "offensive_language", "neither", "class", "tweet")
    rows = [
        (i, 3, int(i % 3 == 0) * 3, int(i % 3 == 1) * 3, int(i % 3 == 2) * 3, i % 3, f"RT @u: {text}\n!")
        for i, (text, _) in enumerate(texts.of("arena/tweet_offensive", count, 3))
    ]
    return _table(folder / "labeled_data.csv", [header, *rows])


def paws(folder: Path, texts: Texts, count: int) -> Path:
    """PAWS: tabs, and texts that some tools wrote as Python's b'…'."""
    rows = [(i + 1, text, f"So {text}", i % 2) for i, (text, _) in enumerate(texts.of("arena/snli", count, 2))]
    return _table(folder / "train.tsv", [("id", "sentence1", "sentence2", "label"), *rows], "\t")


SETS = (
    Messy("support tickets (Excel)", tickets, {"--text": "Description (long)", "--label": "Group"}),
    Messy("BANKING77 (CSV)", banking, {"--text": "text", "--label": "category"}),
    Messy("NLU++ (JSON)", nlu, {"--text": "text", "--label": "intents"}),
    Messy("CLINC150 (nested JSON)", clinc, {"--columns": "text,label"}),
    Messy("GoEmotions (0/1 columns)", emotions, {"--text": "text", "--label": "admiration,anger,joy,neutral"}),
    Messy("GermEval 2018 (no header)", germeval, {"--columns": "text,label,fine", "--encoding": "cp1252"}),
    Messy("Weibo NER", weibo),
    Messy("Swahili NER", swahili),
    Messy("SICK (TSV)", sick, {"--text": "sentence_A", "--text-pair": "sentence_B", "--label": "entailment_label"}),
    Messy("CLEAR (Excel, second sheet)", clear, {"--text": "Excerpt", "--label": "BT Easiness"}),
    Messy("Flesch (; and decimal commas)", flesch, {"--text": "Satz", "--label": "Flesch"}),
    Messy("hate speech (CSV)", hate, {"--text": "tweet", "--label": "class"}),
    Messy("PAWS (TSV)", paws, {"--text": "sentence1", "--text-pair": "sentence2", "--label": "label"}),
)

_PROPOSED = re.compile(r"(?=\b(?:perhaps|with|use) (--[a-z].*))")  # the last one in a sentence is the most exact
_PART = re.compile(r"'([^']+::[^']+)'")


def walk(messy: Messy, folder: Path, model: Path, texts: Texts, count: int, settings: Sequence[str]) -> Walk:
    """Go from the file to predictions, doing what the sentences advise, and else what the owner of the file knows.

    Args:
        messy: The set.
        folder: An empty folder.
        model: The model to train.
        texts: The source of the sentences.
        count: The number of rows.
        settings: Further words of `attendrop train`.
    """
    file, flags, seen = str(messy.write(folder, texts, count)), dict[str, str](), Walk()

    def typed(*words: str) -> tuple[int, str]:
        seen.commands.append(shlex.join(["attendrop", *words]).replace(f"{folder}/", ""))
        done = attendrop(*words)
        text = " ".join(f"{done.out} {done.err}".replace(f"{folder}/", "").split())
        errors = re.findall(r"error: .*?(?= error: | warning: | note: |$)", text)
        seen.outcomes.append(errors[0] if errors else text[-160:])
        return done.code, text

    for _ in range(_MOST_TRIES):
        given = [word for flag, value in flags.items() for word in (flag, value)]
        code, text = typed("check", file, *given)
        wrong = {flag: known for flag, known in messy.facts.items() if flag in flags and flags[flag] != known}
        if code == 0 and _is_understood(messy, flags, text):
            break
        advice = "" if code == 0 else seen.outcomes[-1]
        new = _advised(advice)
        part = _PART.search(advice) or (None if new or code == 0 else _PART.search(text))
        if part and part[1].rpartition("::")[0] == Path(file.rpartition("::")[0] or file).name:
            file = str(folder / part[1])
        if not new and not part:
            seen.asked += 1
            new = dict(messy.facts)
        new |= {flag: known for flag, known in wrong.items() if flag not in new}
        if not part and all(flags.get(flag) == value for flag, value in new.items()):
            return seen  # the advice has been followed, and nothing has changed
        flags |= new
    else:
        return seen
    given = [word for flag, value in flags.items() for word in (flag, value)]
    words = ["train", "--model", str(model), "--train-file", file, "--output-dir", str(folder / "run"), *given]
    if typed(*words, *settings)[0] != 0:
        return seen
    reading = [word for flag in ("--columns", "--encoding") if flag in flags for word in (flag, flags[flag])]
    code, text = typed("predict", str(folder / "run"), "--file", file, *reading)
    match = re.search(r"([\d,]+) predictions? (?:are|is) in", text)
    if code == 0 and match:
        seen.predictions = int(match[1].replace(",", ""))
        seen.form = next(path.name for path in folder.iterdir() if "_predictions" in path.name)
    return seen


def _advised(text: str) -> dict[str, str]:
    """Return the flags that a sentence proposes with their values."""
    proposal = next(reversed(_PROPOSED.findall(text)), "")
    proposal = re.split(r", or |[;.](?: |$)", proposal)[0]
    try:
        words = shlex.split(proposal)
    except ValueError:
        return {}
    pairs = pairwise(words)
    given = {flag: value.strip(",") for flag, value in pairs if flag.startswith("--") and not value.startswith("--")}
    return {flag: value for flag, value in given.items() if value not in ("and", "if", "or")}


def _is_understood(messy: Messy, flags: dict[str, str], text: str) -> bool:
    """Return whether the columns that `check` reads are those that the owner means."""
    label = messy.facts.get("--label")
    chosen = {**dict.fromkeys(("--text", "--label")), **flags}
    return label is None or chosen["--label"] == label or f"column '{label}' as the label" in text
