"""Texts and labels to what a model takes, and a model's outputs back to labels and scores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .catalogue import Task
from .data import Data
from .encode import Encoder
from .hub import quiet
from .metrics import LOWER_IS_BETTER, METRICS

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction

IGNORED = -100


@dataclass
class Prepared:
    """The tokenised parts, with the model's columns and `length` (for length-grouped batches), and what goes with them.

    `compute_metrics` is for the Trainer; `metric` is the one that chooses the best model. `decode(predictions, part)`
    gives one answer for each example of the part: the name of a label, a number, a list of tags, one for each word, the
    number of the ending, or a string.

    Tagging: the first sub-word of a word carries its tag, the others are ignored. A word that was cut off, or left no
    sub-word, is not scored (`notes` say how many), and decoded as `O`, or as `_` where the tags have no `O`.
    """

    train: Dataset | None
    validation: Dataset | None
    test: Dataset | None
    others: dict[str, Dataset]
    collator: Callable[[list[dict[str, Any]]], Any]
    compute_metrics: Callable[[EvalPrediction], dict[str, float]]
    decode: Callable[..., list[Any]]
    metric: str
    greater_is_better: bool
    max_length: int
    notes: list[str] = field(default_factory=list)


@dataclass
class ChoiceCollator:
    """Pads all endings of all examples to the longest: `[B, endings, L]`."""

    tokenizer: Any

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        names = [name for name in self.tokenizer.model_input_names if name in examples[0]]
        endings = len(examples[0]["input_ids"])
        flat = [{name: example[name][i] for name in names} for example in examples for i in range(endings)]
        padded = self.tokenizer.pad(flat, return_tensors="pt")
        batch = {name: value.view(len(examples), endings, -1) for name, value in padded.items()}
        if "labels" in examples[0]:
            batch["labels"] = torch.tensor([example["labels"] for example in examples])
        return batch


def keep_logits(outputs: Any, labels: Any) -> Any:
    """For the Trainer's `preprocess_logits_for_metrics`: leaves hidden states behind, which would fill the memory."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def prepare(
    data: Data, tokenizer: Any, max_length: int | None = None, *, labels: Sequence[str] | None = None
) -> Prepared:
    """Tokenises all parts, in memory.

    `labels` are the names that the model predicts, in its order, where it was trained on another task: HANS knows what
    the labels of MNLI mean. Scores and answers are then in the labels of this task (the loss means little).
    """
    notes: list[str] = []
    task = data.task
    length = _checked_length(task, tokenizer, max_length, notes)
    answers = _Answers(data, tokenizer, labels)
    encoder = Encoder(task, tokenizer, length)
    parts = {}
    with quiet():
        for name, part in data.parts().items():
            parts[name] = answers.encoded(name, part, encoder)
            cut = answers.cut_off(name)
            if cut and name != "train":
                total = sum(map(len, answers.first[name]))
                notes.append(f"{cut:,} of {total:,} words of {name} are cut off at {length} tokens and not scored")
    return Prepared(
        train=parts.get("train"),
        validation=parts.get("validation"),
        test=parts.get("test"),
        others={name: part for name, part in parts.items() if name in data.others},
        collator=_collator(task, tokenizer),
        compute_metrics=answers.compute_metrics,
        decode=answers.decode,
        metric=task.metrics[0],
        greater_is_better=task.metrics[0] not in LOWER_IS_BETTER,
        max_length=length,
        notes=notes,
    )


def _checked_length(task: Task, tokenizer: Any, max_length: int | None, notes: list[str]) -> int:
    length = task.max_length if max_length is None else max_length
    least = tokenizer.num_special_tokens_to_add(pair=len(task.text) > 1) + 1
    if length < least:
        raise UserError(f"max_length is {length}; with the special tokens of this model it must be at least {least}.")
    if length > tokenizer.model_max_length:
        if max_length is not None:
            notes.append(
                f"max_length {length} is above what the tokenizer allows, taken as {tokenizer.model_max_length}"
            )
        length = tokenizer.model_max_length
    if task.kind == "tokens" and tokenizer.padding_side != "right":
        raise UserError("the tokenizer pads on the left, and tagging needs it on the right; load it by load_tokenizer.")
    if tokenizer.pad_token is None:
        raise UserError(
            "the tokenizer has no token to pad with; set tokenizer.pad_token, or load it by load_tokenizer."
        )
    return length


def _collator(task: Task, tokenizer: Any) -> Callable[[list[dict[str, Any]]], Any]:
    import transformers

    return {
        "classification": transformers.DataCollatorWithPadding,
        "regression": transformers.DataCollatorWithPadding,
        "tokens": transformers.DataCollatorForTokenClassification,
        "choice": ChoiceCollator,
        "translation": transformers.DataCollatorForSeq2Seq,
    }[task.kind](tokenizer)


class _Answers:
    """From labels to the numbers that the model learns, and from the model's numbers back to answers and scores."""

    def __init__(self, data: Data, tokenizer: Any, labels: Sequence[str] | None) -> None:
        self.data, self.task, self.tokenizer = data, data.task, tokenizer
        self.labels = tuple(self.task.labels if labels is None else labels)
        self.first: dict[str, list[list[int]]] = {}
        self.targets: dict[str, Any] = {}
        self.cut_tag = "O" if "O" in self.labels else "_"
        if self.task.kind in ("classification", "tokens"):
            names = [self.task.synonyms.get(name, name) for name in self.labels]
            if set(names) != set(self.task.labels):
                raise UserError(
                    f"{self.task.name} has the labels {', '.join(self.task.labels)} and cannot score a model that "
                    f"predicts {', '.join(self.labels) or 'none'}."
                )
            self.to_task = np.array([self.task.labels.index(name) for name in names])
            self.to_model = [names.index(name) for name in self.task.labels]

    def encoded(self, name: str, part: Dataset, encoder: Encoder) -> Dataset:
        kind, label = self.task.kind, self.task.label

        def encode(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
            found = encoder(batch)
            if label is None or label not in batch:
                return found
            if kind == "tokens":
                found["labels"] = [
                    self._spread(tags, first, len(ids))
                    for tags, first, ids in zip(batch[label], found["first"], found["input_ids"], strict=True)
                ]
            elif kind == "classification":
                found["labels"] = [self.to_model[value] for value in batch[label]]
            else:
                found["labels"] = [float(value) if kind == "regression" else value for value in batch[label]]
            return found

        # A fingerprint of its own: there is no cache to find again, and hashing a tokenizer takes a while.
        result = part.map(
            encode,
            batched=True,
            remove_columns=part.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
            new_fingerprint=uuid.uuid4().hex,
        )
        if kind == "tokens":
            self.first[name] = result["first"][:]
            result = result.remove_columns("first")
        if kind == "translation" and "labels" in result.column_names and name != "train":
            self.targets[name] = result["labels"]
        return result

    def _spread(self, tags: list[int], first: list[int], length: int) -> list[int]:
        """The tag of each word at its first sub-word, nothing anywhere else."""
        spread = [IGNORED] * length
        for tag, place in zip(tags, first, strict=True):
            if place >= 0:
                spread[place] = self.to_model[tag]
        return spread

    def cut_off(self, name: str) -> int:
        return sum(place < 0 for places in self.first.get(name, []) for place in places)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        predicted, gold = self._numbers(prediction.predictions), np.asarray(prediction.label_ids)
        answers: Any
        references: Any
        if self.task.kind == "translation":
            answers, references = self._strings(predicted), self._references(gold)
        elif self.task.kind == "tokens":
            counted = gold != IGNORED
            names = np.array(self.task.labels, dtype=object)[self.to_task]
            answers = [list(names[p[c]]) for p, c in zip(predicted, counted, strict=True)]
            references = [list(names[g[c]]) for g, c in zip(gold, counted, strict=True)]
        elif self.task.kind == "classification":
            answers, references = self.to_task[predicted], self.to_task[gold]
        else:
            answers, references = predicted, gold.reshape(-1)
        return {name: METRICS[name](answers, references) for name in self.task.metrics}

    def decode(self, predictions: Any, part: str = "test") -> list[Any]:
        predicted = self._numbers(predictions)
        if self.task.kind == "translation":
            return self._strings(predicted)
        if self.task.kind == "tokens":
            names = [self.task.labels[place] for place in self.to_task]
            return [
                [self.cut_tag if place < 0 else names[row[place]] for place in places]
                for row, places in zip(predicted, self.first[part], strict=True)
            ]
        if self.task.kind == "classification":
            return [self.task.labels[place] for place in self.to_task[predicted]]
        return [float(x) if self.task.kind == "regression" else int(x) for x in predicted]

    def _numbers(self, predictions: Any) -> np.ndarray:
        """What the model says: values, ids of tokens, or the best of its logits."""
        found = np.asarray(predictions[0] if isinstance(predictions, (tuple, list)) else predictions)
        if self.task.kind == "translation":
            if found.ndim != 2:
                raise UserError(
                    "a translation is scored by what the model writes; evaluate with predict_with_generate."
                )
            return found
        return found.reshape(-1) if self.task.kind == "regression" else found.argmax(-1)

    def _strings(self, ids: np.ndarray) -> list[str]:
        padded = np.where(ids < 0, self.tokenizer.pad_token_id, ids)
        return [text.strip() for text in self.tokenizer.batch_decode(padded, skip_special_tokens=True)]

    def _references(self, ids: np.ndarray) -> list[str]:
        """The targets as they were written: their ids may be cut off, or lack what the tokenizer does not know."""
        written = self._written()
        decoded = self._strings(ids)
        return [written.get(tuple(row[row >= 0].tolist()), text) for row, text in zip(ids, decoded, strict=True)]

    @cache  # noqa: B019 (lives as long as the run)
    def _written(self) -> dict[tuple[int, ...], str]:
        found: dict[tuple[int, ...], str] = {}
        parts = self.data.parts()
        for name, targets in self.targets.items():
            for ids, text in zip(targets, parts[name][self.task.text[1]], strict=True):
                found.setdefault(tuple(ids), text)
        return found
