"""The output folder of a run: the names of its files, and the checks that nothing of the user's is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..errors import UserError
from .checkpoints import last_checkpoint
from .settings import RunConfig

CONFIG_FILE, METRICS_FILE, RECORD_FILE = "run.yaml", "metrics.json", "record.json"


def check_folder(config: RunConfig) -> Path | None:
    """Check the output folder, and return the checkpoint to resume from.

    A folder that is not empty is refused, unless the user asked to resume, or to overwrite an earlier run in it.
    """
    folder = config.output_dir
    if folder.is_file():
        raise UserError(f"output_dir is {str(folder)!r}, which is a file; it must be a folder.")
    if config.resume or config.training.get("resume_from_checkpoint"):
        return _checkpoint(config)
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
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
    return None


def _checkpoint(config: RunConfig) -> Path:
    named = config.training.get("resume_from_checkpoint")
    if named and not Path(named).is_dir():
        raise UserError(f"resume_from_checkpoint is {str(named)!r}, which is not a folder; it must be a checkpoint.")
    checkpoint = Path(named) if named else last_checkpoint(config.output_dir)
    if checkpoint is None:
        raise UserError(f"there is no checkpoint in {str(config.output_dir)!r} to resume from; train without --resume.")
    return checkpoint


def clear_folder(folder: Path) -> None:
    """Delete everything in a folder that `check_folder` has accepted."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def read_record(folder: str | Path) -> dict[str, Any]:
    """Return the record of a finished run."""
    path = Path(folder, RECORD_FILE)
    if not path.is_file():
        raise UserError(f"{str(folder)!r} has no {RECORD_FILE}; it must be the folder of a finished `attendrop train`.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is not JSON; copy it again, or repeat the run.") from None


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
