"""The manifest of a folder, its seal: the size and the SHA-256 of its files. The folder is whole if they are right.

Checkpoints, the folders of finished runs, the models that a study keeps, and pruned models are sealed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import flush_to_disk, load_json, write_whole

MANIFEST_FILE = "attendrop_manifest.json"

_THREADS = 4  # one hashes while the others wait for the disk
_WEIGHTS = re.compile(r"(?:pytorch_|adapter_)?model(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?")
_LOADED = (".safetensors", ".bin", ".pt", ".pth")  # files that the Trainer would load if it found them

# What is written with a model and its tokenizer, image processor or feature extractor, and read when it is loaded.
MODEL_FILES = (
    r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|(generation_)?config\.json",
    r"modules\.json|sentence_bert_config\.json",  # model/sentence_files.py
    r"(pre)?processor_config\.json",
    r"tokenizer(_config)?\.json|special_tokens_map\.json|added_tokens\.json|chat_template\.jinja|merges\.txt",
    r"(entity_)?vocab\.(txt|json)|bpe\.codes|(spiece|sentencepiece\.bpe|tokenizer)\.model|(source|target)\.spm",
)


class NoManifest(ValueError):
    """A folder has no manifest: an older version wrote it, or a plain Trainer."""


def seal(
    folder: Path,
    facts: Mapping[str, Any],
    names: Iterable[str] | None = None,
    coming: Mapping[str, bytes] | None = None,
) -> None:
    """Flush files of a folder to the disk, and write the manifest when that is done.

    Args:
        folder: the folder, which is not renamed yet or not yet marked as finished.
        facts: what else the manifest holds, as JSON-serialisable values.
        names: the files; None for all of them.
        coming: name -> content of files that are written after the manifest, as marks that the folder is finished.
    """
    names = sorted(_files(folder) if names is None else names)
    paths = [folder / name for name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        flushed = [pool.submit(flush_to_disk, path) for path in paths]
        digests = list(pool.map(_digest, paths))
        for future in flushed:
            future.result()
    files = {
        name: {"size": path.stat().st_size, "sha256": digest}
        for name, path, digest in zip(names, paths, digests, strict=True)
    }
    for name, data in (coming or {}).items():
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content = {**facts, "files": files}
    manifest = folder / MANIFEST_FILE
    write_whole(manifest, json.dumps({**content, "sha256": _digest_of(content)}, indent=1) + "\n")
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        flush_to_disk(path)


def seal_model(folder: Path, facts: Mapping[str, Any], coming: Mapping[str, bytes] | None = None) -> None:
    """Seal the files that are read when a model is loaded. Users may edit all other files, such as the model card.

    Args:
        folder: the folder of a model.
        facts: as in `seal`.
        coming: as in `seal`.
    """
    seal(folder, facts, filter(is_model_file, _files(folder)), coming)


def check_sealed(folder: str | Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the manifest of a folder; raise a `UserError` if a sealed file has changed.

    A folder without a manifest passes: another program wrote it, an older version, or the user deleted the manifest.

    Args:
        folder: the folder of a model.
        names: the files that are about to be read; None for those of the model.
    """
    folder = Path(folder)
    try:
        manifest = read_manifest(folder)
        problem = _sealed_problem(folder, manifest["files"], names)
    except NoManifest:
        return {}
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise UserError(
            f"{str(folder)!r} is not as it was written: {problem}; copy the folder again, or, if you changed it on "
            f"purpose, delete {MANIFEST_FILE} in it, and it is read without this check."
        )
    return manifest


def is_model_file(name: str) -> bool:
    """Return whether a file is read when a model is loaded.

    Args:
        name: its path in the folder of the model.
    """
    inner = re.sub(r"^\d+_\w+/", "", name)  # model/sentence_files.py
    return any(re.fullmatch(pattern, inner) for pattern in (*MODEL_FILES, r"adapter_config\.json"))


def _sealed_problem(folder: Path, files: Mapping[str, Any], names: Iterable[str] | None) -> str | None:
    if names is None:
        added = (path.name for path in folder.iterdir() if path.name not in files and is_model_file(path.name))
        if (name := min(added, default=None)) is not None:
            return f"{name} was added later"
        names = filter(is_model_file, files)
    return _difference(folder, {name: files[name] for name in names if name in files}, digest_once)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises `NoManifest` where there is none, and a `ValueError` where it is damaged.
    """
    try:
        content = load_json(folder / MANIFEST_FILE)
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
    problem = _difference(folder, files, _digest if with_checksums else None)
    loaded = (name for name in sorted(added) if name.endswith(_LOADED))
    return next((f"{name} was added later" for name in loaded), problem)


def _difference(
    folder: Path, files: Mapping[str, Mapping[str, Any]], digest: Callable[[Path], str] | None
) -> str | None:
    """Return how the first file that differs from its entry does so, or None."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size:,} bytes and was written with {entry['size']:,}"
    if digest is None:
        return None
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            digests = list(pool.map(digest, (folder / name for name in files)))
        except OSError as error:
            return f"{Path(error.filename or '').name} cannot be read"
    for (name, entry), value in zip(files.items(), digests, strict=True):
        if value != entry["sha256"]:
            return f"the content of {name} was changed"
    return None


def _files(folder: Path) -> set[str]:
    """Return the files of a folder and of the folders in it, without the manifest. Under FSDP there are folders."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return names - {MANIFEST_FILE}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_once(path: Path) -> str:
    """Return the digest of a file, and remember it as long as the file is the same."""
    stat = path.stat()
    return _remembered(path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(1024)
def _remembered(path: Path, *_: int) -> str:
    return _digest(path)


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
