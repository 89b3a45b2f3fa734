"""Predictions of a run's model on each part that it was scored on, stored beside its record.

predictions/<id>.npz   small arrays: logits in half precision, numbers, classes of words

They make ensembles possible when the runs have ended: the answers of several seeds are averaged and scored.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.files import write_whole
from .. import tasks
from ..tasks.catalogue import RENAMED_KINDS
from ..tasks.kinds.members import Outputs, shrunk

PREDICTIONS_FOLDER = "predictions"


def outputs_of(task: tasks.Task, prepared: tasks.Prepared, prediction: Any) -> Outputs | None:
    """Return the predictions of a model in an evaluation; None for a kind of task that cannot be ensembled.

    Args:
        task: The task.
        prepared: The tokenised data.
        prediction: What the Trainer gives to `compute_metrics`.
    """
    members = tasks.kind_of(task).members
    if members is None:
        return None
    given = prediction.predictions
    values, gold = np.asarray(given[0] if isinstance(given, tuple) else given), np.asarray(prediction.label_ids)
    outputs = Outputs(task.kind, values, gold, np.array(task.labels, str))
    if prepared.to_task is not None:
        outputs.to_task = prepared.to_task
    members.reduce(outputs)
    return shrunk(outputs, members)


def pack(parts: Mapping[str, Outputs]) -> bytes:
    """Return the content of the file of a run: a compressed `.npz`.

    Args:
        parts: The predictions of the model on each part.
    """
    arrays = {f"{part}/{name}": np.asarray(value) for part, of in parts.items() for name, value in asdict(of).items()}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def as_text(parts: Mapping[str, Outputs]) -> str | None:
    """Return the same as text, in which a worker hands it to its driver; None if there is nothing."""
    return base64.b64encode(pack(parts)).decode() if parts else None


def write_outputs(folder: str | Path, run_id: str, text: str) -> str:
    """Write the file of a run, whole or not at all, and return its checksum.

    Args:
        folder: The folder of the study.
        run_id: The id of the run.
        text: From `as_text`.
    """
    path = _path(folder, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = base64.b64decode(text)
    write_whole(path, content)
    return hashlib.sha256(content).hexdigest()


def read_outputs(folder: str | Path, run_id: str, checksum: str = "") -> dict[str, Outputs]:
    """Return the predictions of a run's model on each part; empty if they were not stored, or the file was changed.

    Args:
        folder: The folder of the study.
        run_id: The id of the run.
        checksum: The checksum of the file, from `write_outputs`; empty = it is not verified.
    """
    try:
        content = _path(folder, run_id).read_bytes()
        if checksum and hashlib.sha256(content).hexdigest() != checksum:
            return {}
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = dict(file)
        names = dict.fromkeys(name.rpartition("/")[0] for name in arrays)
        parts: dict[str, dict[str, Any]] = {
            part: {f.name: arrays[f"{part}/{f.name}"] for f in fields(Outputs)} for part in names
        }
        for values in parts.values():
            kind = str(values["kind"])
            values["kind"] = RENAMED_KINDS.get(kind, kind)  # of an old study
        return {part: Outputs(**values) for part, values in parts.items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def _path(folder: str | Path, run_id: str) -> Path:
    return Path(folder, PREDICTIONS_FOLDER, f"{run_id}.npz")
