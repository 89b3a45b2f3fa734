"""What AD-DROP or the generator of a finished run drops on its validation data or on another file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...methods import parse_method
from ...methods.addrop import ADDrop
from ...methods.attendout.generator import GENERATOR_FILE, Generator, load_generator
from .. import tasks
from ..robustness.run_folder import batches_of_run
from .measure import Dropped, measure_dropped
from .tokens import TokenKinds


def dropped_of_run(
    folder: str | Path,
    file: str | Path | None = None,
    *,
    method: str | None = None,
    seed: int = 0,
    max_samples: int | None = None,
    batch_size: int = 32,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Dropped:
    """Measure what is dropped in the model of a finished run, as `attendrop dropped` does.

    Args:
        folder: The folder of a finished run.
        file: A file with the columns of the training file; None = the validation data of the run.
        method: AD-DROP with its fields, as `--method` takes it; None = the generator of the run where it was trained
            with AttendOut, or AD-DROP with its default fields.
        seed: The seed of the sample.
        max_samples: Use at most this number of examples, drawn at random, stratified; None = all.
        batch_size: The number of examples in a batch.
        watch: A function around the batches that may show the progress.
    """
    chosen = _addrop(method)
    run = batches_of_run(folder, file, seed, max_samples, batch_size)
    kind = tasks.kind_of(run.task)
    own: ADDrop | Generator = chosen or ADDrop(cross_tuning=False)
    if chosen is None and Path(folder, GENERATOR_FILE).is_file():
        own = load_generator(folder, run.model)
    if not hasattr(run.tokenizer, "convert_ids_to_tokens"):
        raise UserError(f"{str(folder)!r} is a model of images or sounds; what is dropped is described for texts only.")
    tags = run.task.labels if kind.is_per_word and run.has_labels else ()
    try:
        return measure_dropped(run.model, run.batches, own, TokenKinds(run.tokenizer), tags, watch)
    except ValueError as error:
        raise UserError(str(error)) from None


def _addrop(text: str | None) -> ADDrop | None:
    if text is None:
        return None
    method = parse_method(text)
    if not isinstance(method, ADDrop):
        raise UserError(f"method is {text!r}; it must be addrop, with fields such as 'addrop:p=0.5,layers=all'.")
    return method
