"""Convert texts and labels to the inputs of a model, and its outputs back to labels and scores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from .catalogue import Task
from .data import Data
from .hub import no_progress_bars
from .metrics import METRICS
from .modalities import modality_of
from .modalities.base import Encoder
from .models import NAMED_LABELS

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction

IGNORED = -100  # the label that the loss ignores


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


def keep_logits(outputs: Any, labels: Any) -> Any:
    """Keep the logits only, for the Trainer's `preprocess_logits_for_metrics`: hidden states would fill the memory.

    Args:
        outputs: The outputs of the model: the logits, or a tuple that begins with them.
        labels: Not used.
    """
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


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
    codec = _Codec(data, tokenizer, labels, getattr(collator, "fix", None))
    encoder = modality.encoder(task, tokenizer, length)
    splits = {}
    with no_progress_bars():
        for name, split in data.splits().items():
            splits[name] = codec.encode(name, split, encoder)
            if len(splits[name]) > len(split):
                notes.append(
                    f"texts of {name} with more than {length} tokens are divided: {len(splits[name]):,} examples"
                )
            truncated = codec.truncated_words(name)
            if truncated and name != "train":
                total = sum(map(len, codec.word_starts[name]))
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
        reduce_outputs=_reduction(task),
        decode=codec.decode,
        values=codec.values,
        word_starts=codec.word_starts,
        metric=task.metrics[0],
        greater_is_better=METRICS[task.metrics[0]].greater_is_better,
        max_length=length,
        keeps_columns=modality.reads_files or task.kind == "mlm",
        notes=notes,
        to_task=getattr(codec, "to_task", None),
    )


def _reduction(task: Task) -> Callable[[Any, Any], Any] | None:
    if task.kind == "mlm":
        from .masking import log_likelihoods

        return log_likelihoods
    return None if task.kind == "translation" else keep_logits


class _Codec:
    """Encode labels as the numbers that the model learns, and decode its outputs to predictions and scores."""

    def __init__(
        self,
        data: Data,
        tokenizer: Any,
        labels: Sequence[str] | None,
        fix_masks: Callable[[Dataset], Dataset] | None = None,
    ) -> None:
        self.data, self.task, self.tokenizer = data, data.task, tokenizer
        self.fix_masks = fix_masks  # of a split for evaluation, in masked language modelling
        self.labels = tuple(self.task.labels if labels is None else labels)
        self.word_starts: dict[str, list[list[int]]] = {}  # of each split, see `Encoder`
        self.target_ids: dict[str, Any] = {}  # of each split of a translation that is evaluated
        self.truncated_tag = "O" if "O" in self.labels else "_"
        if self.task.kind in NAMED_LABELS:
            names = [self.task.synonyms.get(name, name) for name in self.labels]
            if set(names) != set(self.task.labels):
                raise UserError(
                    f"{self.task.name} has the labels {', '.join(self.task.labels)} and cannot score a model that "
                    f"predicts {', '.join(self.labels) or 'none'}."
                )
            # From indices of the model's labels to indices of the task's labels, and back.
            self.to_task = np.array([self.task.labels.index(name) for name in names])
            self.to_model = [names.index(name) for name in self.task.labels]

    def encode(self, name: str, split: Dataset, encoder: Encoder) -> Dataset:
        """Tokenise a split and add the column `labels` if the split has labels."""

        def encode_batch(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
            encoded = encoder(batch)
            if self.task.label is not None and self.task.label in batch:
                encoded["labels"] = self._encode_labels(batch[self.task.label], encoded)
            return encoded

        result = split.map(
            encode_batch,
            batched=True,
            remove_columns=split.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
            # Nothing is cached, and computing the fingerprint of a tokenizer is slow.
            new_fingerprint=uuid.uuid4().hex,
        )
        if self.fix_masks is not None:
            result = result.add_column("example", list(range(len(result))))
            result = result if name == "train" else self.fix_masks(result)
        if self.task.kind == "tokens":
            self.word_starts[name] = result["word_starts"][:]
            result = result.remove_columns("word_starts")
        if self.task.kind == "translation" and "labels" in result.column_names and name != "train":
            self.target_ids[name] = result["labels"]
        return result

    def _encode_labels(self, values: list[Any], encoded: Mapping[str, list[Any]]) -> list[Any]:
        if self.task.kind == "tokens":
            rows = zip(values, encoded["word_starts"], encoded["input_ids"], strict=True)
            return [self._align(tags, starts, len(ids)) for tags, starts, ids in rows]
        if self.task.kind == "classification":
            return [self.to_model[value] for value in values]
        if self.task.kind == "multilabel":
            present = np.zeros((len(values), len(self.labels)))
            for row, indices in enumerate(values):
                present[row, [self.to_model[index] for index in indices]] = 1
            return present.tolist()
        return [float(value) if self.task.kind == "regression" else value for value in values]

    def _align(self, tags: list[int], starts: list[int], length: int) -> list[int]:
        """Put the tag of each word at its first sub-word; all other positions are ignored."""
        aligned = [IGNORED] * length
        for tag, start in zip(tags, starts, strict=True):
            if start >= 0:
                aligned[start] = self.to_model[tag]
        return aligned

    def truncated_words(self, name: str) -> int:
        return sum(start < 0 for starts in self.word_starts.get(name, []) for start in starts)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        predicted, gold = self._predicted(prediction.predictions), np.asarray(prediction.label_ids)
        predictions: Any
        references: Any
        if self.task.kind == "translation":
            predictions, references = self._strings(predicted), self._references(gold)
        elif self.task.kind == "tokens":
            scored = gold != IGNORED
            names = np.array(self.task.labels, dtype=object)[self.to_task]
            predictions = [list(names[row[mask]]) for row, mask in zip(predicted, scored, strict=True)]
            references = [list(names[row[mask]]) for row, mask in zip(gold, scored, strict=True)]
        elif self.task.kind == "classification":
            predictions, references = self.to_task[predicted], self.to_task[gold]
        elif self.task.kind == "multilabel":
            predictions, references = predicted[:, self.to_model], gold[:, self.to_model].astype(int)
        elif self.task.kind == "mlm":
            scored = gold != IGNORED
            predictions, references = predicted[scored], gold[scored]
        else:
            predictions, references = predicted, gold.reshape(-1)
        return {name: METRICS[name](predictions, references) for name in self.task.metrics}

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        predicted = self._predicted(predictions)
        if self.task.kind == "translation":
            return self._strings(predicted)
        if self.task.kind == "tokens":
            names = [self.task.labels[index] for index in self.to_task]
            return [
                [self.truncated_tag if start < 0 else names[row[start]] for start in starts]
                for row, starts in zip(predicted, self.word_starts[split], strict=True)
            ]
        if self.task.kind == "classification":
            return [self.task.labels[index] for index in self.to_task[predicted]]
        if self.task.kind == "multilabel":
            return [[self.task.labels[i] for i in np.flatnonzero(row)] for row in predicted[:, self.to_model]]
        if self.task.kind == "choice":
            chosen = [self.task.labels[index] for index in predicted]
            return [int(name) if name.isdigit() else name for name in chosen]
        return predicted.tolist()

    def values(self, predictions: Any, split: str = "test") -> Any:
        outputs = np.asarray(predictions[0] if isinstance(predictions, (tuple, list)) else predictions)
        if self.task.kind == "translation":
            return self._strings(outputs)
        if self.task.kind == "regression":
            return outputs.reshape(-1)
        if self.task.kind == "tokens":
            lengths = [len(starts) for starts in self.word_starts[split]]
            positions = np.fromiter(chain.from_iterable(self.word_starts[split]), int, sum(lengths))
            outputs = outputs[np.repeat(np.arange(len(lengths)), lengths), np.maximum(positions, 0)]
        if self.task.kind == "choice":
            return outputs
        return outputs[..., self.to_model] if len(self.to_model) == len(self.labels) else None

    def _predicted(self, predictions: Any) -> np.ndarray:
        """The numbers of a regression, the token ids of a translation, the log-likelihoods of masked tokens, 1 for each
        label that a multi-label head predicts, otherwise the indices of the largest logits."""
        outputs = np.asarray(predictions[0] if isinstance(predictions, (tuple, list)) else predictions)
        if self.task.kind == "translation":
            if outputs.ndim != 2:
                raise UserError(
                    "a translation is scored by the text that the model generates; evaluate with predict_with_generate."
                )
            return outputs
        if self.task.kind == "mlm":
            return outputs
        if self.task.kind == "multilabel":
            return (outputs > 0).astype(int)
        return outputs.reshape(-1) if self.task.kind == "regression" else outputs.argmax(-1)

    def _strings(self, ids: np.ndarray) -> list[str]:
        padded = np.where(ids < 0, self.tokenizer.pad_token_id, ids)
        return [text.strip() for text in self.tokenizer.batch_decode(padded, skip_special_tokens=True)]

    def _references(self, ids: np.ndarray) -> list[str]:
        """The original targets: their token ids may be truncated, or contain unknown tokens."""
        decoded = self._strings(ids)
        return [
            self._target_texts.get(tuple(row[row >= 0].tolist()), text) for row, text in zip(ids, decoded, strict=True)
        ]

    @cached_property
    def _target_texts(self) -> dict[tuple[int, ...], str]:
        """Token ids of a target -> its text."""
        texts: dict[tuple[int, ...], str] = {}
        splits = self.data.splits()
        for name, targets in self.target_ids.items():
            for ids, text in zip(targets, splits[name][self.task.text[1]], strict=True):
                texts.setdefault(tuple(ids), text)
        return texts
