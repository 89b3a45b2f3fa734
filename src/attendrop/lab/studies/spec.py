"""The specification of one run of a study. Importing this module loads neither torch nor transformers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...utils.manifest import digest_once
from ...utils.model_files import model_checksums

_FILES = ("train_file", "validation_file", "test_file")
KEEP = ("last", "split", "dev")
SCORE_ON = ("validation", "rest")
# Fields that older studies lack, which keep their ids where these are as they were.
_SINCE: dict[str, Any] = {"head_seed": None, "code": {}, "score_on": "validation", "score_epochs": 1}
FROZEN = "frozen"  # the linear model of the frozen features, which is not fine-tuned
# Fields that do not decide the result of a run: they belong to one invocation of the study.
NOT_IN_RUN_ID = ("trial", "details", "only_check", "models_folder", "plan")


@dataclass(frozen=True)
class RunSpec:
    """One run of a study.

    Attributes:
        settings: The settings of `attendrop train`, for `make_config`, without `output_dir`. `method` and `seed` are
            among them.
        method: The contender that the run belongs to: the method as the user wrote it, or `plain`.
        task: The name of the task, or of the training file.
        size: The amount of training data: "all", "fraction=0.1" or "shots=16".
        seed: The seed of the head, of the order of examples and of all draws.
        keep: Which epoch is scored: "last"; "split", the best on a part of the training data that is not trained on;
            "dev", the best on the validation data itself, as papers often do.
        resample: Whether the seed also selects the training examples.
        fold: Number of a random stratified split of the training data. The run is then scored on the part that is
            split off, and never sees the validation data. None = no such split.
        score_on: What is scored: "validation", the validation examples, or "rest", these and all training examples that
            were not drawn.
        score_epochs: The number of last epochs whose mean score is the score.
        head_seed: The seed of the weights that are new, such as the head, if it is not `seed`.
        trial: Number of the trial of a tuning study.
        details: Whether the record holds texts and attention maps too.
        only_check: Whether to stop before training, after all checks.
        plan: The hash of the plan of the study.
        models_folder: Folder in which the trained model is kept, in a folder with the id of the run. None = it is not.
        code: The content of the files of the user's own methods, by the names in `method`. Workers need no file.
    """

    settings: Mapping[str, Any]
    method: str
    task: str
    seed: int
    size: str = "all"
    keep: str = "last"
    resample: bool = False
    fold: int | None = None
    head_seed: int | None = None
    trial: int | None = field(default=None, compare=False)
    details: bool = field(default=False, compare=False)
    only_check: bool = field(default=False, compare=False)
    models_folder: str | None = field(default=None, compare=False)
    plan: str | None = field(default=None, compare=False)
    code: Mapping[str, str] = field(default_factory=dict)
    score_on: str = "validation"
    score_epochs: int = 1

    @property
    def is_frozen(self) -> bool:
        """Whether the run is the linear model of the frozen features, without a step of training."""
        return self.method.partition("@")[0].strip() == FROZEN

    @property
    def id(self) -> str:
        """The name of the run: a hash of everything that determines its result."""
        values = {name: value for name, value in asdict(self).items() if name not in NOT_IN_RUN_ID}
        values = {name: value for name, value in values.items() if name not in _SINCE or value != _SINCE[name]}
        text = json.dumps(values, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_absolute_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose model and files have absolute paths, so that every path to them is the same setting.

    Args:
        settings: Settings of `attendrop train`.
    """
    return {
        name: _absolute(value) if name in ("model", "data_dir", *_FILES) else value for name, value in settings.items()
    }


def _absolute(value: Any) -> Any:
    path = Path(str(value or "")).expanduser()
    return os.path.abspath(path) if value and path.exists() else value


def checksums_of_data(each: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the checksum of each file of examples, and of each folder of images or sounds, for study.json.

    Args:
        each: Settings of `attendrop train`, from `with_absolute_paths`.
    """
    paths = {path for settings in each for path in (*_files_of(settings).values(), *_files_of_tasks(settings))}
    return {str(path): digest for path in sorted(paths) if (digest := digest_of(path))}


def digest_of(path: Path) -> str | None:
    """Return the checksum of a file, or of the files and their classes in a folder; None if there is neither."""
    if not path.is_dir():
        return digest_once(path) if path.is_file() else None
    from ..tasks.modalities import read_source

    files = [path.parent / file for file in read_source(path).columns["file"]]
    digests = [(file.relative_to(path).as_posix(), digest_once(file)) for file in files]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def _files_of(settings: Mapping[str, Any]) -> dict[str, Path]:
    return {name: Path(str(settings[name])) for name in _FILES if settings.get(name)}


def _files_of_tasks(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files in `data_dir` of the task and of those of `also_eval`."""
    if not settings.get("data_dir"):
        return []
    from ..tasks.data import files_of_task

    names = [name for name in (settings.get("task"), *(settings.get("also_eval") or ())) if name]
    return [path for name in names for path in files_of_task(str(name), Path(str(settings["data_dir"])))]


def without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with checksums of the model and of the files, which are the same on another machine.

    Args:
        settings: From `with_absolute_paths`.
    """
    contents: dict[str, Any] = {name: digest_of(path) or path.name for name, path in _files_of(settings).items()}
    if settings.get("data_dir"):
        contents["data_dir"] = [digest_once(path) for path in _files_of_tasks(settings)]
    model = settings.get("model")
    return {**settings, **contents, "model": model_checksums(str(model)) or model}
