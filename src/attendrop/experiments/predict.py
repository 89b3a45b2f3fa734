"""Predict with the model of a finished run: a few texts, or a whole file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from transformers.trainer_callback import PrinterCallback

from .. import tasks
from ..errors import UserError, on_one_line
from ..utils.checks import check_choice, check_whole
from .folder import RECORD_FILE, check_writable, read_record


@dataclass
class Predictions:
    """The predictions for a file.

    Attributes:
        path: The file that was written.
        rows: The number of predictions.
        metrics: The scores, if the file has labels.
    """

    path: Path
    rows: int
    metrics: dict[str, float] = field(default_factory=dict)


def predict_texts(folder: str | Path, texts: Sequence[str], batch_size: int = 32) -> Iterator[tuple[str, Any]]:
    """Predict texts, and yield each text (or pair of texts) with its prediction.

    Args:
        folder: The folder of a finished run.
        texts: The texts; for a task of text pairs, two for each example.
        batch_size: The number of examples in a batch.
    """
    check_whole("batch_size", batch_size, 1)
    task, max_length = _read_task(folder)
    width = len(task.text) if task.kind != "translation" else 1
    if len(texts) % width:
        raise UserError(f"{len(texts)} texts are given, but one example of {task.name} has {width}.")
    for number, text in enumerate(texts, 1):
        if not text.strip() or "\0" in text:
            problem = "has a NUL character" if "\0" in text else "is empty"
            raise UserError(f"text {number} of {len(texts)} {problem}; give a text with at least one word.")
    rows = [list(texts[i : i + width]) for i in range(0, len(texts), width)]
    columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(task.text[:width])}
    if task.kind == "tokens":
        columns = {name: [text.split() for text in values] for name, values in columns.items()}
    data = tasks.Data(task, None, None, Dataset.from_dict(columns))
    predictions, _ = _predict(folder, data, max_length, batch_size)
    for row, prediction in zip(rows, predictions, strict=True):
        yield " | ".join(row), tasks.as_text(task, prediction)


def predict_file(
    folder: str | Path,
    file: str | Path,
    output: str | Path | None,
    batch_size: int = 32,
    overwrite: bool = False,
    options: tasks.ReadOptions | None = None,
) -> Predictions:
    """Write the columns of a file with a prediction for each row, and compute the scores if the file has labels.

    Args:
        folder: The folder of a finished run.
        file: The file to predict, with the columns of the training file.
        output: The CSV or TSV file to write; None = `<file>_predictions.csv` next to `file`.
        batch_size: The number of examples in a batch.
        overwrite: Whether `output` may be replaced.
        options: The encoding and the separator of `file`.
    """
    check_whole("batch_size", batch_size, 1)
    task, max_length = _read_task(folder)
    path = Path(output) if output else Path(file).with_name(f"{Path(file).stem}_predictions.csv")
    _check_output(path, Path(file), overwrite)
    data = tasks.load_inputs(file, task, options)
    predictions, metrics = _predict(folder, data, max_length, batch_size)
    assert data.test is not None
    tasks.write_predictions(path, data.test, predictions, task)
    return Predictions(path, len(predictions), metrics)


def _read_task(folder: str | Path) -> tuple[tasks.Task, int]:
    """The task and the maximum length of a finished run."""
    record = read_record(folder)
    try:
        task, max_length = tasks.Task.from_dict(record["task"]), record["max_length"]
        check_choice("kind", task.kind, tasks.KINDS)
        check_whole("max_length", max_length, 1)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        path = str(Path(folder, RECORD_FILE))
        raise UserError(
            f"{path!r} is damaged ({type(error).__name__}: {on_one_line(error)}); copy it again, or train again."
        ) from None
    if task.kind == "mlm":
        raise UserError(
            f"{str(folder)!r} holds a masked language model, which has no labels to predict; fine-tune it first with "
            "`attendrop train --model`."
        )
    return task, max_length


def _check_output(path: Path, file: Path, overwrite: bool) -> None:
    """Refuse a file that cannot or must not be written, before anything is predicted."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise UserError(f"output is {str(path)!r}; it must end in .csv or .tsv.")
    if path.is_dir():
        raise UserError(f"output is {str(path)!r}, which is a folder; it must be a file.")
    if path.exists() and file.exists() and path.samefile(file):
        raise UserError(f"output is {str(path)!r}, which is the input file; choose another with --output.")
    if path.exists() and not overwrite:
        raise UserError(f"output is {str(path)!r}, which exists; choose another with --output or use --overwrite.")
    check_writable(path.parent, "output", path, may_create=False)


def _predict(
    folder: str | Path, data: tasks.Data, max_length: int, batch_size: int
) -> tuple[list[Any], dict[str, float]]:
    tokenizer = tasks.load_tokenizer(str(folder))
    prepared = tasks.prepare(data, tokenizer, max_length)
    translates = data.task.kind == "translation"
    with tempfile.TemporaryDirectory() as scratch:
        arguments = Seq2SeqTrainingArguments(
            scratch, per_device_eval_batch_size=batch_size, disable_tqdm=True, report_to="none",
            dataloader_pin_memory=torch.cuda.is_available(),
            predict_with_generate=translates, generation_max_length=data.task.max_length if translates else None,
        )  # fmt: skip
        trainer = (Seq2SeqTrainer if translates else Trainer)(
            model=tasks.load_model(str(folder), data.task, tokenizer=tokenizer),
            args=arguments,
            processing_class=tokenizer,
            data_collator=prepared.collator,
            compute_metrics=prepared.compute_metrics,
        )
        trainer.remove_callback(PrinterCallback)
        output = trainer.predict(prepared.test)
    scores = {
        name.removeprefix("test_"): value
        for name, value in (output.metrics or {}).items()
        if name.removeprefix("test_") in data.task.metrics
    }
    return prepared.decode(output.predictions, "test"), scores
