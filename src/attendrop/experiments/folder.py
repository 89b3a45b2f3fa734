"""The output folder of a run: the names of its files, and the checks that nothing of the user's is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..trainer.manifest import numbered_checkpoints
from ..utils.lock import LOCK_FILE
from .settings import RunConfig

CONFIG_FILE, METRICS_FILE, RECORD_FILE = "run.yaml", "metrics.json", "record.json"


def check_folder(config: RunConfig) -> None:
    """Check the output folder.

    A folder that is not empty is refused, unless the user asked to resume, or to overwrite an earlier run in it.
    """
    folder = config.output_dir
    if folder.is_file():
        raise UserError(f"output_dir is {str(folder)!r}, which is a file; it must be a folder.")
    if config.resume or config.training.get("resume_from_checkpoint"):
        _check_checkpoint(config)
        return
    if not folder.is_dir() or not any(path.name != LOCK_FILE for path in folder.iterdir()):
        return
    if not config.overwrite:
        raise UserError(
            f"output_dir is {str(folder)!r}, which is not empty; choose another with --output-dir, continue with "
            "--resume or replace the run with --overwrite."
        )
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(
            f"output_dir is {str(folder)!r}, which has no {CONFIG_FILE} and therefore no earlier run; nothing is "
            "overwritten."
        )


def _check_checkpoint(config: RunConfig) -> None:
    """Refuse what has no checkpoint. Its files are verified later, by the Trainer."""
    named = config.training.get("resume_from_checkpoint")
    if named and not Path(named).is_dir():
        raise UserError(f"resume_from_checkpoint is {str(named)!r}, which is not a folder; it must be a checkpoint.")
    if not named and not numbered_checkpoints(config.output_dir):
        raise UserError(f"there is no checkpoint in {str(config.output_dir)!r} to resume from; train without --resume.")


def clear_folder(folder: Path) -> None:
    """Delete everything in a folder that `check_folder` has accepted."""
    for path in folder.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
    unfinished.replace(path)
