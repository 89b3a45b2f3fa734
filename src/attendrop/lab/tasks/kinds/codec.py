"""Encode labels as the numbers that a model learns, and decode the outputs of a Trainer to predictions and scores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import UserError
from ..metrics import METRICS

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction

    from ..data import Data

IGNORED = -100  # the label that the loss ignores


class Codec:
    """Labels and outputs of a task whose labels the model learns as they are.

    A kind overrides the hooks: `encode_labels`, `after_encoding`, `predicted`, `for_metrics`, `decode` and `values`.

    Args:
        data: The data of a task.
        tokenizer: The tokenizer of the model.
        labels: The label names that the model predicts, in its order; None = those of the task.
        collator: Makes batches of the encoded examples.

    Attributes:
        to_task: For each class that the model predicts, the number of the task's label; None where classes have no
            names.
        word_starts: Of each split, the position of the first sub-word of each word of each example (tagging).
    """

    to_task: np.ndarray | None = None
    compares_examples = False  # whether `quality_of` says how good each answer is

    def __init__(self, data: Data, tokenizer: Any, labels: Sequence[str] | None, collator: Any = None) -> None:
        self.data, self.task, self.tokenizer, self.collator = data, data.task, tokenizer, collator
        self.labels = tuple(self.task.labels if labels is None else labels)
        self.word_starts: dict[str, list[list[int]]] = {}

    def encode(self, name: str, split: Dataset, encoder: Callable[[Mapping[str, list[Any]]], Any]) -> Dataset:
        """Tokenise a split and add the column `labels` if the split has labels.

        Args:
            name: The name of the split.
            split: The split as it was loaded.
            encoder: Makes the input columns of a batch.
        """

        def encode_batch(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
            encoded: dict[str, list[Any]] = encoder(batch)
            if self.task.label is not None and self.task.label in batch:
                encoded["labels"] = self.encode_labels(batch[self.task.label], encoded)
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
        return self.after_encoding(name, result)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of the task, for the Trainer."""
        pair = self.for_metrics(self.predicted(first_of(prediction.predictions)), np.asarray(prediction.label_ids))
        return {name: METRICS[name](*pair) for name in self.task.metrics}

    def quality(self, prediction: EvalPrediction) -> np.ndarray:
        """Return how good the answer to each example is, for paired tests."""
        return self.quality_of(self.predicted(first_of(prediction.predictions)), np.asarray(prediction.label_ids))

    # ---- what a kind overrides -------------------------------------------------------------------------------------

    def encode_labels(self, values: list[Any], encoded: Mapping[str, list[Any]]) -> list[Any]:
        """Return the labels of a batch as the model learns them.

        Args:
            values: The labels of the examples, as `Data` has them.
            encoded: The encoded examples.
        """
        return list(values)

    def after_encoding(self, name: str, split: Dataset) -> Dataset:
        """Keep or change what else the encoder returned."""
        return split

    def predicted(self, outputs: np.ndarray) -> np.ndarray:
        """Return the prediction of each item, as numbers: by default the index of the largest logit."""
        return np.asarray(outputs.argmax(-1))

    def for_metrics(self, predicted: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
        """Return predictions and references as `METRICS` takes them."""
        return predicted, gold.reshape(-1)

    def quality_of(self, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Return how good each answer is: true where it is right, or a number that is greater if it is better.

        Args:
            predicted: From `predicted`.
            gold: The labels as the model learns them.
        """
        return predicted == gold.reshape(-1)

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        """Return one prediction for each example of a split, as users write labels; see `Prepared.decode`."""
        decoded: list[Any] = self.predicted(first_of(predictions)).tolist()
        return decoded

    def values(self, predictions: Any, split: str = "test") -> Any:
        """Return the outputs for each example or word, in the order of the task's labels; see `Prepared.values`."""
        return first_of(predictions)


class ClassCodec(Codec):
    """Labels with names, for which the head has one output each. The model may have them in another order."""

    compares_examples = True

    def __init__(self, data: Data, tokenizer: Any, labels: Sequence[str] | None, collator: Any = None) -> None:
        super().__init__(data, tokenizer, labels, collator)
        names = [self.task.synonyms.get(name, name) for name in self.labels]
        if set(names) != set(self.task.labels):
            raise UserError(
                f"{self.task.name} has the labels {', '.join(self.task.labels)} and cannot score a model that "
                f"predicts {', '.join(self.labels) or 'none'}."
            )
        # From indices of the model's labels to indices of the task's labels, and back.
        self.to_task: np.ndarray = np.array([self.task.labels.index(name) for name in names])
        self.to_model = [names.index(name) for name in self.task.labels]

    def encode_labels(self, values: list[Any], encoded: Mapping[str, list[Any]]) -> list[Any]:
        return [self.to_model[value] for value in values]

    def for_metrics(self, predicted: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
        return self.to_task[predicted], self.to_task[gold]

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        return [self.task.labels[index] for index in self.to_task[self.predicted(first_of(predictions))]]

    def values(self, predictions: Any, split: str = "test") -> Any:
        outputs = first_of(predictions)
        return outputs[..., self.to_model] if len(self.to_model) == len(self.labels) else None


def first_of(predictions: Any) -> np.ndarray:
    """Return the logits, which are the first of the outputs."""
    return np.asarray(predictions[0] if isinstance(predictions, (tuple, list)) else predictions)
