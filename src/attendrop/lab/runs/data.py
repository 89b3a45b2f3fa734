"""Load the data of a run according to its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UserError
from .. import tasks
from ..records import FolderRecord
from ..tasks.catalogue import RENAMED_KINDS
from .folder import CONFIG_FILE
from .run_yaml import read_yaml
from .settings import RunConfig, make_config

EVALUATION_SEED = 42  # of `max_eval_samples`


def load_data(config: RunConfig, seed: int, sample_seed: int | None = None, scores_rest: bool = False) -> tasks.Data:
    """Load the task or the files, make a validation split if there is none, and draw samples as configured.

    Args:
        config: The configuration.
        seed: The seed of the validation split, and of samples of the training data.
        sample_seed: The seed of samples of the training data, if it differs.
        scores_rest: Whether the training examples that are not drawn are validation examples too.
    """
    sample_seed = seed if sample_seed is None else sample_seed
    if config.task:
        data = tasks.load_task(config.task, config.data_dir)
        if {config.kind, data.task.kind} & set(tasks.kinds_that("is_masked")):
            data = tasks.as_corpus(data)
    else:
        assert config.train_file is not None
        data = tasks.load_files(
            config.train_file, config.validation_file, config.test_file,
            text=config.text, text_pair=config.text_pair, label=config.label, kind=config.kind,
            choices=config.choices, options=config.read_options(),
        )  # fmt: skip
    data = tasks.split_validation(data, config.validation_share, seed)
    whole = data
    if config.max_train_samples is not None:
        data = tasks.at_most(data, "train", config.max_train_samples, sample_seed)
    if config.shots is not None:
        data = tasks.few_shots(data, config.shots, sample_seed)
    if config.fraction is not None:
        data = tasks.fraction(data, config.fraction, sample_seed)
    if scores_rest:
        data = tasks.with_rest(data, whole)
    return _with_fewer_to_evaluate(data, config)


def data_of_run(folder: str | Path, record: FolderRecord) -> tasks.Data:
    """Load the data of a finished run again, split as they were.

    Args:
        folder: The folder of the run.
        record: Its record.
    """
    settings = read_yaml(Path(folder, CONFIG_FILE))
    settings["kind"] = RENAMED_KINDS.get(str(settings.get("kind")), settings.get("kind"))  # of an old run
    return load_data(make_config(settings), record.seed)


def load_other_tasks(
    config: RunConfig, data: tasks.Data, tokenizer: Any, max_length: int
) -> dict[str, tuple[tasks.Data, tasks.Prepared]]:
    """Load and check the tasks of --also-eval, which are evaluated at the end of training."""
    prepared = {}
    for name in config.also_eval:
        other = tasks.load_task(name, config.data_dir, evaluation=True)
        if (other.task.kind, other.task.modality) != (data.task.kind, data.task.modality):
            raise UserError(
                f"also_eval is {name!r}, which is {other.task.modality} {other.task.kind}, but {data.task.name} is "
                f"{data.task.modality} {data.task.kind}; both must be of the same kind."
            )
        if data.task.is_encoded_apart:
            other = other.encoded_apart()
        other.train, other.test, other.others = None, None, {}
        other = _with_fewer_to_evaluate(other, config)
        prepared[name] = other, tasks.prepare(other, tokenizer, max_length, labels=data.task.labels)
    return prepared


def _with_fewer_to_evaluate(data: tasks.Data, config: RunConfig) -> tasks.Data:
    """Reduce the parts that are evaluated to `max_eval_samples`. All seeds are scored on the same examples."""
    if config.max_eval_samples is not None:
        for part in [name for name in data.splits() if name != "train"]:
            data = tasks.at_most(data, part, config.max_eval_samples, EVALUATION_SEED)
    return data
