"""Data sets and metrics: load a task or the user's files for a Trainer, and decode its outputs to labels and scores.

data = split_validation(load_files("reviews.csv"))
tokenizer = load_tokenizer("roberta-base")
model = load_model("roberta-base", data.task, tokenizer=tokenizer)
prepared = prepare(data, tokenizer)
"""

from .catalogue import TASKS, Task, find_task
from .data import Data, as_corpus, content_of, load_task
from .describe import Description, Lengths, describe
from .files import ReadOptions
from .findings import Finding
from .kinds import KINDS, Kind, kind_of, kinds_that
from .kinds.base import keep_logits
from .max_length import check_length, examine_lengths, note_length, saved_with_length
from .metrics import METRICS, Metric
from .modalities import modality_of
from .models import load_config, load_model, load_processor, load_tokenizer
from .origin import without_rows
from .pooling import with_pairs
from .predictions import as_text, write_predictions, write_submission
from .prepare import Prepared, prepare
from .split import at_most, few_shots, fraction, split_validation, with_rest
from .user_files import Inspection, inspect_files, load_files, load_inputs, load_rows
from .vocabulary import examine_vocabulary

__all__ = [
    "KINDS",
    "METRICS",
    "TASKS",
    "Data",
    "Description",
    "Finding",
    "Inspection",
    "Kind",
    "Lengths",
    "Metric",
    "Prepared",
    "ReadOptions",
    "Task",
    "as_corpus",
    "as_text",
    "at_most",
    "check_length",
    "content_of",
    "describe",
    "examine_lengths",
    "examine_vocabulary",
    "few_shots",
    "find_task",
    "fraction",
    "inspect_files",
    "keep_logits",
    "kind_of",
    "kinds_that",
    "load_config",
    "load_files",
    "load_inputs",
    "load_model",
    "load_processor",
    "load_rows",
    "load_task",
    "load_tokenizer",
    "modality_of",
    "note_length",
    "prepare",
    "saved_with_length",
    "split_validation",
    "with_pairs",
    "with_rest",
    "without_rows",
    "write_predictions",
    "write_submission",
]
