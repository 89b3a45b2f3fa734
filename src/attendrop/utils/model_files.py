"""Checksums of the files of a pretrained model: two models are the same if these are, wherever they are stored."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .manifest import digest_once, is_model_file

_CONFIGURATION = ("config.json", "generation_config.json", "modules.json", "sentence_bert_config.json")


def model_checksums(name: str | Path) -> dict[str, str]:
    """Return a checksum of the weights, of the configuration and of the tokenizer of a model.

    The content of the files decides, not their place: a copy of the model, or another path to it, has the same ones.

    Args:
        name: a folder, or the name of a model on the Hub that was loaded before.

    Returns:
        Nothing if there is no such folder, and no such model in the cache of the Hub.
    """
    folder = _folder_of(name)
    if folder is None:
        return {}
    parts: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).as_posix()
        if is_model_file(inner) and path.is_file():
            parts.setdefault(_part_of(path.name), []).append((inner, digest_once(path)))
    return {part: hashlib.sha256(repr(files).encode()).hexdigest()[:16] for part, files in sorted(parts.items())}


def _part_of(name: str) -> str:
    if name in _CONFIGURATION:
        return "configuration"
    return "weights" if name.startswith("model") else "tokenizer"


def _folder_of(name: str | Path) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import HFValidationError

    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    try:
        cached = try_to_load_from_cache(str(name), "config.json")
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None
