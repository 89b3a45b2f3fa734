"""What the model of a run answered on each part that it was scored on, stored beside its record.

predictions/<id>.npz   small arrays: logits in half precision, numbers, classes of words

They make ensembles possible when the runs have ended: the answers of several seeds are averaged and scored.
"""

from __future__ import annotations

import base64
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...utils.files import write_whole
from .. import tasks
from ..tasks.prepare import IGNORED

PREDICTIONS_FOLDER = "predictions"
KINDS = ("classification", "choice", "multilabel", "tokens", "regression", "mlm")  # that can be ensembled

Array = npt.NDArray[Any]


def _nothing() -> Array:
    return np.zeros(0, int)


@dataclass
class Outputs:
    """What a model answered on one part.

    Attributes:
        kind: The kind of the task.
        values: Of each example the logits minus their largest (classification, choice), the logits of the labels
            (multilabel) or the number (regression); of each word that is scored its class (tokens); of each masked
            token the log-likelihood of the right one (mlm).
        gold: What is right, in the same order, as the model's classes.
        labels: The names of the task's labels.
        to_task: For each class of the model, the number of its label.
        lengths: How many words of each example are scored, in tagging.
    """

    kind: str
    values: Array
    gold: Array
    labels: Array = field(default_factory=lambda: np.zeros(0, str))
    to_task: Array = field(default_factory=_nothing)
    lengths: Array = field(default_factory=_nothing)


def outputs_of(task: tasks.Task, prepared: tasks.Prepared, prediction: Any) -> Outputs | None:
    """What the model answered in an evaluation; None for a kind of task that cannot be ensembled.

    Args:
        task: The task.
        prepared: The tokenised data.
        prediction: What the Trainer gives to `compute_metrics`.
    """
    if task.kind not in KINDS:
        return None
    given = prediction.predictions
    values, gold = np.asarray(given[0] if isinstance(given, tuple) else given), np.asarray(prediction.label_ids)
    found = Outputs(task.kind, values, gold, np.array(task.labels, str))
    if prepared.to_task is not None:
        found.to_task = prepared.to_task
    if task.kind in ("tokens", "mlm"):
        is_scored = gold != IGNORED
        found.gold, found.lengths = gold[is_scored], is_scored.sum(-1)
        found.values = (values.argmax(-1) if task.kind == "tokens" else values)[is_scored]
    elif task.kind == "regression":
        found.values, found.gold = values.reshape(-1), gold.reshape(-1)
    elif task.kind != "multilabel":
        # Small gaps below the largest logit keep their precision, so that rounding does not change the prediction.
        found.values = np.maximum(values - values.max(-1, keepdims=True), -60_000)
    return _as_small(found)


def _as_small(outputs: Outputs) -> Outputs:
    """The same in the smallest types that keep what scores need."""
    precise = np.float32 if outputs.kind in ("regression", "mlm") else np.float16
    is_class = outputs.kind == "tokens"
    values = outputs.values.astype(_smallest(outputs.values) if is_class else precise)
    gold = outputs.gold.astype(np.float32 if outputs.kind == "regression" else _smallest(outputs.gold))
    return Outputs(
        outputs.kind, values, gold, outputs.labels, outputs.to_task.astype(np.int32), outputs.lengths.astype(np.int32)
    )


def _smallest(numbers: Array) -> Any:
    """The smallest type for whole numbers from 0 on."""
    return np.min_scalar_type(int(numbers.max(initial=0)))


def pack(parts: Mapping[str, Outputs]) -> bytes:
    """The content of the file of a run: a compressed `.npz`.

    Args:
        parts: What the model answered on each part.
    """
    arrays = {f"{part}/{name}": np.asarray(value) for part, of in parts.items() for name, value in asdict(of).items()}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def as_text(parts: Mapping[str, Outputs]) -> str | None:
    """The same as text, in which a worker hands it to its driver; None if there is nothing."""
    return base64.b64encode(pack(parts)).decode() if parts else None


def write_outputs(folder: str | Path, run_id: str, text: str) -> None:
    """Write the file of a run, whole or not at all.

    Args:
        folder: The folder of the study.
        run_id: The id of the run.
        text: From `as_text`.
    """
    path = _path(folder, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, base64.b64decode(text))


def read_outputs(folder: str | Path, run_id: str) -> dict[str, Outputs]:
    """What the model of a run answered on each part; empty if that was not stored, or the file is broken.

    Args:
        folder: The folder of the study.
        run_id: The id of the run.
    """
    try:
        with np.load(_path(folder, run_id), allow_pickle=False) as file:
            arrays = dict(file)
        names = dict.fromkeys(name.rpartition("/")[0] for name in arrays)
        parts = {part: {f.name: arrays[f"{part}/{f.name}"] for f in fields(Outputs)} for part in names}
        return {part: Outputs(**{**values, "kind": str(values["kind"])}) for part, values in parts.items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def _path(folder: str | Path, run_id: str) -> Path:
    return Path(folder, PREDICTIONS_FOLDER, f"{run_id}.npz")
