"""A folder of images or sounds with one sub-folder for each class, as `datasets` calls it, an image folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ....errors import UserError
from ..files import Table
from ..findings import WARNING, Finding, plural
from .media import FILE, Media

LABEL = "label"
_SPLITS = {"train", "training", "validation", "valid", "val", "dev", "test", "testing"}


def read_folder(path: Path, media: tuple[Media, ...]) -> Table:
    """Read the names of the files in a folder; the class of a file is the name of the sub-folder that it is in.

    A folder without sub-folders has no classes, which is enough to predict.

    Args:
        path: The folder.
        media: The modalities whose files are looked for.
    """
    for name in ("metadata.csv", "metadata.jsonl", "metadata.parquet"):
        if (path / name).is_file():
            raise UserError(f"{path} is a folder with a table of its files; give {path / name}.")
    files = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    kinds = {medium: [file for file in files if file.suffix.lower() in medium.suffixes] for medium in media}
    present = [medium for medium, of_it in kinds.items() if of_it]
    if not present:
        raise UserError(f"{path} is a folder; give the file itself, or a folder of images or sounds.")
    if len(present) > 1:
        counts = " and ".join(plural(len(kinds[medium]), medium.noun) for medium in present)
        raise UserError(f"{path} is a folder with {counts}; it must have either images or sounds.")
    return _table(path, kinds[present[0]], len(files))


def _table(path: Path, files: list[Path], count: int) -> Table:
    parts = [file.relative_to(path).parts for file in files]
    classes = Counter(part[0] for part in parts if len(part) > 1)
    if classes and {name.lower() for name in classes} <= _SPLITS:
        first = path / min(classes, key=lambda name: not name.lower().startswith("train"))
        raise UserError(
            f"the folders of {path} are {' and '.join(classes)}, which are splits and not classes; use --train-file "
            f"{first}, and --validation-file and --test-file for the others."
        )
    findings = []
    kept = [place for place, part in enumerate(parts) if len(part) > 1 or not classes]
    if loose := len(files) - len(kept):
        findings.append(Finding(WARNING, f"not used: {plural(loose, 'file')} of {path} in no folder of a class"))
    if others := count - len(files):
        findings.append(Finding(WARNING, f"not used: {plural(others, 'file')} of {path} of another type"))
    columns = {FILE: [str(files[place].relative_to(path.parent)) for place in kept]}
    if classes:
        columns[LABEL] = [parts[place][0] for place in kept]
    return Table(path, columns, findings=findings)
