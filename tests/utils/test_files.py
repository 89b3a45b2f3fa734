"""The one writer: files and folders are whole or as they were, and links are never followed."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from attendrop.errors import UserError
from attendrop.utils.files import is_no_space, read_json, whole_file, whole_folder, write_whole


def in_fork(act: Callable[[], None]) -> int:
    """Runs a function in a forked process, and returns its exit code."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_failed_or_killed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    path.chmod(0o640)
    with suppress(RuntimeError), whole_file(path, is_text=True) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.csv"]

    def killed() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(killed) == -signal.SIGKILL
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="a.bin") as caught:
            write_whole(path, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_no_space(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_links_at_the_name_of_an_unfinished_file_or_folder_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "a.json.unfinished").symlink_to(precious)
    write_whole(tmp_path / "a.json", "{}")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("mine")
    (tmp_path / "b.unfinished").symlink_to(tmp_path / "kept")
    with whole_folder(tmp_path / "b") as draft:
        (draft / "new").write_text("new")
    assert precious.read_text() == "mine"
    assert os.listdir(tmp_path / "kept") == ["file"]
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b", "kept", "precious"]
    assert not (tmp_path / "b").is_symlink()


def old_folder(place: Path) -> Path:
    folder = place / "model"
    (folder / "sub").mkdir(parents=True)
    for name in ("config.json", "model-00001-of-2.safetensors", "notes.txt", "sub/deep.txt"):
        (folder / name).write_text("old")
    (folder / "link").symlink_to("notes.txt")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_new(draft: Path) -> None:
    (draft / "config.json").write_text("new")
    (draft / "model.safetensors").write_text("new")


NEW = {"config.json": "new", "link": "old", "model.safetensors": "new", "notes.txt": "old", "sub/deep.txt": "old"}


@pytest.mark.parametrize("is_used", [False, True])
def test_a_folder_is_replaced_and_other_files_stay(
    tmp_path: Path, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = old_folder(tmp_path)
    monkeypatch.chdir(folder if is_used else tmp_path)  # a folder in which somebody works keeps its identity
    number = folder.stat().st_ino
    with whole_folder("." if is_used else "model", is_stale=lambda name: ".safetensors" in name) as draft:
        assert draft.name == "model"
        write_new(draft)
        assert content(folder)["config.json"] == "old"
    assert content(folder) == NEW
    assert (folder.stat().st_ino == number) == is_used
    assert (folder / "link").is_symlink()
    assert os.listdir(tmp_path) == ["model"]


def test_a_failed_or_killed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    folder = old_folder(tmp_path)
    before = content(folder)
    with suppress(RuntimeError), whole_folder(folder) as draft:
        write_new(draft)
        raise RuntimeError
    assert content(folder) == before
    assert os.listdir(tmp_path) == ["model"]

    def killed() -> None:
        with whole_folder(folder) as draft:
            write_new(draft)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(killed) == -signal.SIGKILL
    assert content(folder) == before
    with whole_folder(folder) as draft:  # it removes what the killed process left
        write_new(draft)
    assert content(folder)["config.json"] == "new"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": 1} x', "\udcff"])
def test_damaged_json_raises_one_line_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"^'.*record.json' is damaged \(.*\); copy it again"):
        read_json(path)
