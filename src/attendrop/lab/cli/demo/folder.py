"""The output folder of a demo: the files that it writes; nothing else in the folder is changed."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....utils.files import whole_file, write_json
from ...runs.folder import check_writable
from ..console import console
from .options import RUNS, DemoOptions

DEMO_FILE = "demo.json"  # options and scores; a folder without it holds no demo
_WRITTEN = (DEMO_FILE, "train.csv", "dev.csv", "runs.png", "attendout.png", "sentence.png", "comparison", *RUNS)

Reviews = list[tuple[str, str]]  # text and label


def check_folder(options: DemoOptions) -> None:
    """Refuse a folder that holds anything but an earlier demo that may be replaced."""
    folder = options.output_dir
    check_writable(folder, "output_dir", folder, may_create=True)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / DEMO_FILE).is_file():
        raise UserError(
            f"output_dir is {str(folder)!r}, which holds no earlier demo; choose another with --output-dir."
        )
    if not options.overwrite:
        raise UserError(
            f"output_dir is {str(folder)!r}, which holds an earlier demo; replace it with --overwrite, or choose "
            "another with --output-dir."
        )


@contextmanager
def created_folder(options: DemoOptions) -> Iterator[None]:
    """Create the folder, without the files of an earlier demo. If the demo fails, its files are removed."""
    is_new = not options.output_dir.exists()
    _remove_demo(options.output_dir)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    try:
        write_demo_file(options)
        yield
    except BaseException as error:
        _remove_demo(options.output_dir)
        if is_new:
            options.output_dir.rmdir()
        if isinstance(error, KeyboardInterrupt):
            console.print("Stopped; the files of this demo were removed.")
        raise


def _remove_demo(folder: Path) -> None:
    for name in _WRITTEN:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_demo_file(options: DemoOptions, scores: dict[str, Any] | None = None) -> None:
    """Write the options, and the scores of the runs once they are known."""
    settings = {**asdict(options), "output_dir": str(options.output_dir)}
    write_json(options.output_dir / DEMO_FILE, {"options": settings, "scores": scores or {}})


def write_reviews(path: Path, reviews: Reviews) -> None:
    """Write a CSV file with the columns text and label."""
    with whole_file(path, is_text=True) as file:
        csv.writer(file).writerows([("text", "label"), *reviews])
