"""Convert texts and labels to the inputs of a model, and its outputs back to labels and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .data import Data
from .hub import no_progress_bars
from .kinds import kind_of
from .metrics import METRICS
from .modalities import modality_of

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction


@dataclass
class Prepared:
    """The tokenised splits and what a Trainer needs with them.

    In masked language modelling, validation and test examples have fixed masks; `collator` draws those of the training
    examples, and its `set_epoch` must be called at the beginning of each epoch.

    In tagging, the first sub-word of a word carries its tag and the other sub-words are ignored. A word that was
    truncated, or has no sub-word, is not scored, and is decoded as `O`, or as `_` if there is no tag `O`.

    Attributes:
        train: The training split, with the input columns of the model and `length` (for length-grouped batches).
        validation: The validation split.
        test: The test split.
        others: All other splits, by name.
        collator: Makes a batch of examples; the Trainer's `data_collator`.
        compute_metrics: Computes the metrics of the task; the Trainer's `compute_metrics`.
        reduce_outputs: Keeps what the metrics need of the outputs; the Trainer's `preprocess_logits_for_metrics`.
        decode: `decode(predictions, split)` returns one prediction for each example of the split: a label name, a
            number, a list of tags (one for each word) or of labels, the ending as the labels name it, or a string.
        values: `values(predictions, split)` returns the outputs in the order of the task: logits of each class for each
            example, or for every word of a tagging split; the numbers of a regression; the texts of a translation. None
            if the model predicts other labels than those of the task.
        word_starts: Of a tagging split, the position of the first sub-word of each word of each example, or -1 if the
            word is not scored.
        metric: The name of the metric that selects the best model.
        greater_is_better: Whether a greater value of that metric is better.
        max_length: The maximum length, of texts in tokens, of sounds in seconds.
        keeps_columns: Whether the collator reads columns that the model does not take, so that the Trainer needs
            `remove_unused_columns=False`.
        notes: What was changed or truncated, as sentences for the user.
        to_task: For each class that the model predicts, the number of the task's label; None where classes have no
            names.
        quality: How good the answer to each example is, of the predictions of an evaluation, for paired tests: true
            where it is right, or a number; None for a kind whose answers are not compared one by one.
    """

    train: Dataset | None
    validation: Dataset | None
    test: Dataset | None
    others: dict[str, Dataset]
    collator: Callable[[list[dict[str, Any]]], Any]
    compute_metrics: Callable[[EvalPrediction], dict[str, float]]
    reduce_outputs: Callable[[Any, Any], Any] | None
    decode: Callable[..., list[Any]]
    values: Callable[..., Any]
    word_starts: dict[str, list[list[int]]]
    metric: str
    greater_is_better: bool
    max_length: int
    keeps_columns: bool = False
    notes: list[str] = field(default_factory=list)
    to_task: np.ndarray | None = None
    quality: Callable[[EvalPrediction], np.ndarray | None] | None = None


def prepare(
    data: Data,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    labels: Sequence[str] | None = None,
    seed: int = 42,
    mlm_probability: float = 0.15,
) -> Prepared:
    """Tokenise all splits, in memory. Images and sounds are read when a batch of them is made.

    Args:
        data: The data of a task.
        tokenizer: The tokenizer of the model, or its image processor or feature extractor.
        max_length: The maximum length, of texts in tokens, of sounds in seconds; None = that of the task.
        labels: The label names that the model predicts, in its order, if it was trained on another task. HANS, for
            example, can score a model with the labels of MNLI. Scores and predictions then use the labels of this task;
            the loss has little meaning.
        seed: The seed of the masks of the training examples, for masked language modelling.
        mlm_probability: The share of the words that is masked, for masked language modelling.

    Example:
        ```python
        data = load_task("glue/rte")
        prepared = prepare(data, load_tokenizer("roberta-base"))
        trainer = Trainer(
            model=load_model("roberta-base", data.task),
            args=args,
            train_dataset=prepared.train,
            eval_dataset=prepared.validation,
            data_collator=prepared.collator,
            compute_metrics=prepared.compute_metrics,
        )
        ```
    """
    notes: list[str] = []
    task = data.task
    modality = modality_of(task)
    length = modality.length_limit(task, tokenizer, max_length, notes)
    collator = modality.collator(task, tokenizer, length, seed, mlm_probability)
    kind = kind_of(task)
    codec = kind.codec(data, tokenizer, labels, collator)
    encoder = modality.encoder(task, tokenizer, length)
    splits = {}
    with no_progress_bars():
        for name, split in data.splits().items():
            splits[name] = codec.encode(name, split, encoder)
            if len(splits[name]) > len(split):
                notes.append(
                    f"texts of {name} with more than {length} tokens are divided: {len(splits[name]):,} examples"
                )
            starts = codec.word_starts.get(name, [])
            truncated = sum(start < 0 for of_example in starts for start in of_example)
            if truncated and name != "train":
                total = sum(map(len, starts))
                notes.append(
                    f"{truncated:,} of {total:,} words of {name} are truncated at {length} tokens and not scored"
                )
    return Prepared(
        train=splits.get("train"),
        validation=splits.get("validation"),
        test=splits.get("test"),
        others={name: split for name, split in splits.items() if name in data.others},
        collator=collator,
        compute_metrics=codec.compute_metrics,
        reduce_outputs=kind.reduction(),
        decode=codec.decode,
        values=codec.values,
        word_starts=codec.word_starts,
        metric=task.metrics[0],
        greater_is_better=METRICS[task.metrics[0]].greater_is_better,
        max_length=length,
        keeps_columns=modality.reads_files or kind.is_masked,
        notes=notes,
        to_task=codec.to_task,
        quality=codec.quality if codec.compares_examples else None,
    )
