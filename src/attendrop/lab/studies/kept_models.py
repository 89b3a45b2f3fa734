"""The trained models of a study, if kept: `models/<id>/` in its folder."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.files import UNFINISHED
from ...utils.manifest import check_sealed, seal_model
from .. import tasks
from ..runs.lora import merged
from ..runs.settings import RunConfig

MODELS_FOLDER = "models"


def size_of(model: Any) -> int:
    """Return the bytes that the weights of a model take on the disk.

    Args:
        model: The model.
    """
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def check_space(folder: Path, size: int, runs: int) -> str:
    """Raise if the models do not fit on the disk; return a sentence with their size.

    Args:
        folder: The folder of the study.
        size: The bytes of one model.
        runs: The largest number of models.
    """
    need, free = size * runs, shutil.disk_usage(folder).free
    amount = f"the models of {runs} runs take about {_bytes(need)} ({_bytes(size)} each)"
    if need > free:
        raise UserError(
            f"keep_models is on, and {amount}, but the disk has {_bytes(free)} left; use fewer seeds or another disk."
        )
    return f"{amount} in {folder / MODELS_FOLDER}"


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def keep_model(folder: str | Path, run_id: str, model: Any, config: RunConfig, task: tasks.Task) -> None:
    """Write the model of a run, whole or not at all. Adapters are added to the weights, in a copy.

    Args:
        folder: The folder of all models.
        run_id: The id of the run.
        model: The trained model.
        config: The configuration of the run.
        task: The task.
    """
    place = Path(folder, run_id)
    unfinished = place.with_name(run_id + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    whole = merged(copy.deepcopy(model), config, task) if config.lora else model
    whole.save_pretrained(unfinished)
    seal_model(unfinished, {"run": run_id})
    shutil.rmtree(place, ignore_errors=True)  # of an earlier attempt
    unfinished.rename(place)


def load_kept(place: Path, task: tasks.Task) -> Any:
    """Load the model of a run.

    Args:
        place: Its folder, with the id of the run as its name.
        task: The task.

    Raises:
        UserError: It is damaged, or that of another run.
    """
    if (owner := check_sealed(place).get("run", place.name)) != place.name:
        raise UserError(f"{str(place)!r} holds the model of run {owner}; copy the models of the study again.")
    return tasks.load_model(place, task, is_finished=True)
