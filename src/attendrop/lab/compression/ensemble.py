"""The seeds of a study as one teacher: the mean of their probabilities, or of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from ...prune.distillation import CLASSES, LABELLED, Teacher, inputs_of
from .. import tasks
from ..records import FolderRecord
from ..studies.kept_models import MODELS_FOLDER, load_kept
from ..studies.soup import choose_records

_LEAST = 1e-7  # of a probability, so that its logarithm is finite


def ensemble_targets(
    study: str | Path,
    record: FolderRecord,
    task: tasks.Task,
    batches: Sequence[Mapping[str, Any]],
    device: torch.device,
    method: str | None = None,
) -> tuple[list[Tensor], int]:
    """Return the outputs of the ensemble for each batch, and the number of its members.

    Args:
        study: The folder of a comparison with kept models.
        record: The record of the run that is compressed: the members must read the same tokens and have its labels.
        task: The task of the run.
        batches: The batches.
        device: Where the members run.
        method: The method whose runs are members; None = the only one.
    """
    records = choose_records(study, method, record.task if _has_several_tasks(study, record) else None, None)
    first = records[0]
    if first.settings.get("model") != record.settings.get("model"):
        raise UserError(
            f"teacher is {str(study)!r}, whose runs began with {first.settings.get('model')}, and the run began with "
            f"{record.settings.get('model')}; both must read the same tokens."
        )
    if first.labels and list(first.labels) != list(task.labels):
        raise UserError(f"teacher is {str(study)!r}, whose labels are {', '.join(first.labels)}; the run has others.")
    total: list[Tensor] = []
    outputs = CLASSES
    for each in records:
        model = load_kept(Path(study, MODELS_FOLDER, each.id), task).to(device)
        outputs = Teacher.of(model).outputs
        with torch.inference_mode():
            values = [_averaged(model(**inputs_of(batch, device)).logits.float(), outputs).cpu() for batch in batches]
        total = [a + b for a, b in zip(total, values, strict=True)] if total else values
        del model
    return [_logits(value / len(records), outputs).clone() for value in total], len(records)


def _has_several_tasks(study: str | Path, record: FolderRecord) -> bool:
    from ..studies.records import read_records

    return len({each.task for each in read_records(study).values()}) > 1


def _averaged(logits: Tensor, outputs: str) -> Tensor:
    return logits.softmax(-1) if outputs == CLASSES else logits.sigmoid() if outputs == LABELLED else logits


def _logits(mean: Tensor, outputs: str) -> Tensor:
    if outputs == CLASSES:
        return mean.clamp(min=_LEAST).log()
    return mean.clamp(_LEAST, 1 - _LEAST).logit() if outputs == LABELLED else mean
