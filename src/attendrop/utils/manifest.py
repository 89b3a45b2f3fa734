"""The manifest of a folder: the size and the SHA-256 of its files. The folder is whole if they are right."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST_FILE = "attendrop_manifest.json"

_THREADS = 4  # one hashes while the others wait for the disk
_WEIGHTS = re.compile(r"(?:pytorch_|adapter_)?model(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?")
_LOADED = (".safetensors", ".bin", ".pt", ".pth")  # files that the Trainer would load if it found them


class NoManifest(ValueError):
    """A checkpoint has no manifest: an older version wrote it, or a plain Trainer."""


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Flush all files of a folder to the disk, and write its manifest when that is done.

    Args:
        folder: a checkpoint that is written and not renamed yet.
        facts: what else the manifest holds, as JSON-serialisable values.
    """
    names = sorted(_files(folder))
    paths = [folder / name for name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        flushed = [pool.submit(flush, path) for path in paths]
        digests = list(pool.map(_digest, paths))
        for future in flushed:
            future.result()
    files = {
        name: {"size": path.stat().st_size, "sha256": digest}
        for name, path, digest in zip(names, paths, digests, strict=True)
    }
    content = {**facts, "files": files}
    manifest = folder / MANIFEST_FILE
    manifest.write_text(json.dumps({**content, "sha256": _digest_of(content)}, indent=1) + "\n", encoding="utf-8")
    flush(manifest)
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        flush(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises `NoManifest` where there is none, and a `ValueError` where it is damaged.
    """
    try:
        content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        digest = content.pop("sha256")
    except FileNotFoundError:
        raise NoManifest(
            f"it has no {MANIFEST_FILE}, so its files cannot be verified (a plain Trainer or an older version wrote "
            "it, or the file was deleted)"
        ) from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{MANIFEST_FILE} cannot be read") from None
    if digest != _digest_of(content):
        raise ValueError(f"{MANIFEST_FILE} was changed")
    return content


def find_problem(folder: Path, with_checksums: bool = True, may_be_resaved: bool = False) -> str | None:
    """Return the problem of the files of a checkpoint, or None. The text continues a sentence.

    Args:
        folder: the checkpoint.
        with_checksums: whether the content of the files is compared too, and not only their sizes.
        may_be_resaved: whether the user may have put other files of weights, such as shards, in the place of those
            that were written.
    """
    try:
        files: dict[str, dict[str, Any]] = read_manifest(folder)["files"]
    except ValueError as error:
        return str(error)
    added = _files(folder) - set(files)
    resaved = {name for name in added if _WEIGHTS.fullmatch(name)}
    if may_be_resaved and resaved and not any((folder / name).is_file() for name in files if _WEIGHTS.fullmatch(name)):
        files = {name: entry for name, entry in files.items() if not _WEIGHTS.fullmatch(name)}
        added -= resaved
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size:,} bytes and was written with {entry['size']:,}"
    for name in added:
        if name.endswith(_LOADED):
            return f"{name} was added later"
    if not with_checksums:
        return None
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            digests = list(pool.map(_digest, (folder / name for name in files)))
        except OSError as error:
            return f"{Path(error.filename or '').name} cannot be read"
    for (name, entry), digest in zip(files.items(), digests, strict=True):
        if digest != entry["sha256"]:
            return f"the content of {name} was changed"
    return None


def _files(folder: Path) -> set[str]:
    """Return the files of a folder and of the folders in it, without the manifest. Under FSDP there are folders."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return names - {MANIFEST_FILE}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def flush(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)
