"""The folders of checkpoints: their names, and how a new one gets its place.

A checkpoint is written into another folder, sealed with its manifest when everything is on the disk, and then renamed.
So whatever stops the process, a folder `checkpoint-<step>` has all of its files or is detected as damaged.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from ..utils.manifest import find_problem, flush

STAGING = "unfinished"  # the folder, beside the checkpoints, in which one is written


def move_into_place(staged: Path, target: Path) -> None:
    """Rename a sealed checkpoint to its final name. An older one of that name is deleted after that."""
    older = staged.with_name("replaced")
    if target.exists():  # the run went back to an earlier checkpoint and comes to this step again
        os.rename(target, older)
    os.rename(staged, target)
    flush(target.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return the folders `checkpoint-<step>` of a folder, the newest first, whole or not."""
    checkpoints = {}
    for path in folder.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        if match and path.is_dir():
            checkpoints[int(match[1])] = path
    return [checkpoints[number] for number in sorted(checkpoints, reverse=True)]


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder whose files are all there with their right sizes, or None."""
    return next((path for path in numbered_checkpoints(folder) if find_problem(path, False) is None), None)


def delete_old_checkpoints(folder: Path, limit: int | None, step: int, best: str | None) -> None:
    """Delete the checkpoints beyond a limit. Their steps decide, never the clock, which may have been set back.

    Args:
        folder: the folder of the run.
        limit: how many stay; None or 0 for all.
        step: the step of the latest checkpoint, which stays. Later ones were written before the run went back to an
            earlier checkpoint; they are deleted first.
        best: the path of the best checkpoint, which stays; None if there is none.
    """
    if not limit or limit <= 0:
        return
    kept = {f"checkpoint-{step}", *([Path(best).name] if best else [])}
    ranked = sorted(numbered_checkpoints(folder), key=lambda path: (path.name in kept, *_recency(path, step)))
    for path in ranked[: -max(limit, len(kept))]:
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _recency(checkpoint: Path, step: int) -> tuple[bool, int]:
    number = int(checkpoint.name.rpartition("-")[2])
    return number <= step, number
