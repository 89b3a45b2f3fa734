"""What an entry needs that is not there: data and models, each in one sentence, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..tasks import find_task
from .entry import Entry

_EVALUATED = "validation"  # the split of other tasks that is scored


def check_data(entry: Entry, tasks: Sequence[str], scale: str, data_dir: str | None) -> None:
    """Refuse an entry whose data are not all in the folder.

    Args:
        entry: The entry.
        tasks: Its tasks.
        scale: "paper" or "small".
        data_dir: The folder of the data; None = they are loaded from the Hub.
    """
    if data_dir is None:
        return
    root = Path(data_dir).expanduser()
    if not root.is_dir():
        raise UserError(f"data is {data_dir!r}, which is not a folder; {_needs(entry, tasks, scale)}.")
    wanted = [(name, split) for name in tasks for split in ("train", "validation")]
    wanted += [(name, _EVALUATED) for task in tasks for name in entry.also_of(task, scale)]
    for name, split in wanted:
        if name == "imdb" and split == "validation":
            continue  # it has none: a tenth of its training data is split off
        if problem := _missing(root, name, split):
            raise UserError(f"{entry.name} cannot be run: {str(root)!r} {problem}; {_needs(entry, tasks, scale)}.")


def _missing(root: Path, name: str, split: str) -> str:
    """Return what is missing of a split of a task in a folder; empty if it is there."""
    task = find_task(name)
    folder = next((root / place for place in task.folders if (root / place).is_dir()), None)
    if folder is None:
        return f"has no folder {' or '.join(task.folders)} for {task.name}"
    for stem in (task.splits.get(split, split), split):
        if _has(folder, stem):
            return ""
    return f"has no {split} data of {task.name} ({task.splits.get(split, split)}.parquet in {folder.name})"


def _has(folder: Path, stem: str) -> bool:
    patterns = (f"{stem}.parquet", f"{stem}_subset.parquet", f"{stem}-*-of-*.parquet")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _needs(entry: Entry, tasks: Sequence[str], scale: str) -> str:
    every = dict.fromkeys([*tasks, *(name for task in tasks for name in entry.also_of(task, scale))])
    text = f"it needs the training and validation data of {', '.join(tasks)}"
    others = [name for name in every if name not in tasks]
    return text + (f", and the validation data of {', '.join(others)}" if others else "")


def check_model(entry: Entry, name: str, config: Any) -> None:
    """Refuse a model that cannot do the task of an entry.

    Args:
        entry: The entry.
        name: The model, as the user wrote it.
        config: Its configuration.
    """
    translates = bool(getattr(config, "is_encoder_decoder", False))
    if entry.family == "translation" and not translates:
        raise UserError(
            f"{entry.name} cannot be run with {name!r}: its family {config.model_type!r} does not translate; it needs "
            f"an encoder-decoder such as {' or '.join(entry.models)}."
        )
    if entry.family == "encoder" and translates:
        raise UserError(
            f"{entry.name} cannot be run with {name!r}: its family {config.model_type!r} is an encoder-decoder; it "
            f"needs an encoder such as {' or '.join(entry.models)}."
        )


def layers_of(config: Any) -> tuple[int, int]:
    """Return the number of layers of a model, and its width."""
    layers = getattr(config, "num_hidden_layers", None) or getattr(config, "encoder_layers", None) or 0
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", None) or 0
    return layers, width


def is_model_of(entry: Entry, name: str) -> str | None:
    """Return the model of the paper that a model is, by its name or folder; None if it is another one.

    Args:
        entry: The entry.
        name: The model, as the user wrote it.
    """
    own = Path(name).name.lower()
    return next((model for model in entry.models if model.rpartition("/")[2].lower() == own), None)
