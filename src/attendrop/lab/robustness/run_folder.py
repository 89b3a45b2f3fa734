"""Robustness of the model of a finished run: its score while attention positions are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ...errors import UserError
from .. import tasks
from ..records import FolderRecord
from ..runs.data import data_of_run
from ..runs.folder import read_record
from .measure import RATES, Robustness, measure_robustness


def robustness_of_run(
    folder: str | Path,
    file: str | Path | None = None,
    *,
    rates: Sequence[float] = RATES,
    layers: Any = "all",
    attribution: str = "ga",
    label: str = "pseudo",
    seed: int = 0,
    max_samples: int | None = None,
    batch_size: int = 32,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Robustness:
    """Measure the robustness of the model of a finished run, as `attendrop robustness` does.

    Args:
        folder: The folder of a finished run.
        file: A file with labels and the columns of the training file; None = the validation data of the run.
        rates: The drop rates, from 0 to 1.
        layers: The layers, as in `measure_robustness`.
        attribution: "ga", "iga" or "aa".
        label: "pseudo", the model's own prediction, or "gold".
        seed: The seed of the random positions, and of the sample.
        max_samples: Use at most this number of examples, drawn at random, stratified; None = all.
        batch_size: The number of examples in a batch.
        watch: A function around the batches that may show the progress.
    """
    run = batches_of_run(folder, file, seed, max_samples, batch_size)
    if not run.has_labels:
        raise UserError(f"{file} has no labels, and without them there is no score.")
    # Scores of other kinds need a text that the model generates, or log-likelihoods: their score is token accuracy
    by_tokens = not tasks.kind_of(run.task).is_scored_from_logits
    try:
        return measure_robustness(
            run.model, watch(run.batches), rates=rates, layers=layers, attribution=attribution, label=label, seed=seed,
            compute_metrics=None if by_tokens else run.prepared.compute_metrics,
            metric=None if by_tokens else run.prepared.metric,
        )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from None


class RunBatches(NamedTuple):
    """The model of a finished run, and examples in batches as it takes them.

    Attributes:
        model: The model, on the GPU where there is one.
        batches: The batches.
        has_labels: Whether they have labels.
        prepared: The prepared data.
        task: The task.
        tokenizer: The tokenizer or processor.
    """

    model: Any
    batches: DataLoader[Any]
    has_labels: bool
    prepared: tasks.Prepared
    task: tasks.Task
    tokenizer: Any


def batches_of_run(
    folder: str | Path, file: str | Path | None, seed: int, max_samples: int | None, batch_size: int
) -> RunBatches:
    """Load the model of a finished run, and the examples of a file or the validation data of the run.

    Args:
        folder: The folder of a finished run.
        file: A file with the columns of the training file; None = the validation data of the run.
        seed: The seed of the sample.
        max_samples: Use at most this number of examples, drawn at random, stratified; None = all.
        batch_size: The number of examples in a batch.
    """
    record = read_record(folder)
    data = _evaluated_data(folder, record, file)
    if max_samples is not None:
        data = tasks.at_most(data, "test", max_samples, seed)
    tokenizer = tasks.load_processor(str(folder), data.task)
    prepared = tasks.prepare(data, tokenizer, record.max_length)
    assert prepared.test is not None
    model = tasks.load_model(str(folder), data.task, tokenizer=tokenizer, is_finished=True)
    columns = [name for name in prepared.test.column_names if name in (*tokenizer.model_input_names, "labels")]
    loader = DataLoader(
        prepared.test if prepared.keeps_columns else prepared.test.select_columns(columns),
        batch_size=batch_size,
        collate_fn=prepared.collator,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return RunBatches(model.to(device), loader, "labels" in prepared.test.column_names, prepared, data.task, tokenizer)


def _evaluated_data(folder: str | Path, record: FolderRecord, file: str | Path | None) -> tasks.Data:
    """Return the examples to evaluate, as `Data.test`: those of the file, or the validation data of the run."""
    task = tasks.Task.from_dict(record.task_definition)
    if file is not None:
        return tasks.load_inputs(file, task)
    return tasks.Data(task, None, None, data_of_run(folder, record).validation)
