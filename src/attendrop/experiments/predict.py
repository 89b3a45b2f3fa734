"""Predictions of a finished run, for a few texts or a whole file."""

from __future__ import annotations

import json
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
from ..errors import UserError
from .run import RECORD_FILE


@dataclass
class Predictions:
    path: Path
    rows: int
    metrics: dict[str, float] = field(default_factory=dict)  # where the file has labels


def predict_texts(folder: str | Path, texts: Sequence[str], batch_size: int = 32) -> Iterator[tuple[str, Any]]:
    """Each text, or pair, with its answer."""
    task, max_length = _read_record(folder)
    width = len(task.text) if task.kind != "translation" else 1
    if len(texts) % width:
        raise UserError(f"{len(texts)} texts are given, and one example of {task.name} takes {width}.")
    rows = [list(texts[i : i + width]) for i in range(0, len(texts), width)]
    columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(task.text[:width])}
    if task.kind == "tokens":
        columns = {name: [text.split() for text in values] for name, values in columns.items()}
    answers, _ = _predict(folder, tasks.Data(task, None, None, Dataset.from_dict(columns)), max_length, batch_size)
    for row, answer in zip(rows, answers, strict=True):
        yield " | ".join(row), " ".join(answer) if isinstance(answer, list) else answer


def predict_file(
    folder: str | Path, file: str | Path, output: str | Path | None, batch_size: int = 32, overwrite: bool = False
) -> Predictions:
    """Writes the file's columns with a prediction for each row; scores them where the file has labels."""
    task, max_length = _read_record(folder)
    path = Path(output) if output else Path(file).with_name(f"{Path(file).stem}_predictions.csv")
    if path.exists() and not overwrite:
        raise UserError(f"output is {str(path)!r}, which exists; choose another with --output or give --overwrite.")
    data = tasks.load_inputs(file, task)
    answers, metrics = _predict(folder, data, max_length, batch_size)
    assert data.test is not None
    tasks.write_predictions(path, data.test, answers, task)
    return Predictions(path, len(answers), metrics)


def _read_record(folder: str | Path) -> tuple[tasks.Task, int]:
    path = Path(folder, RECORD_FILE)
    if not path.is_file():
        raise UserError(f"{str(folder)!r} holds no {RECORD_FILE}; it must be a folder that `attendrop train` finished.")
    record = json.loads(path.read_text(encoding="utf-8"))
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record["task"].items()}
    return tasks.Task(**fields), record["max_length"]


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
