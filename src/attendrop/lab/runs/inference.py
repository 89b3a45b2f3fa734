"""Run a model over a tokenised split: batches of similar length, nothing computed in Python for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from ...capture.graphs import Graphs
from ...capture.prediction import CapturedPrediction
from .. import tasks


class Rows:
    """The input columns of a tokenised split as flat arrays, from which padded batches are cut.

    Args:
        columns: For each column, the tokens of all rows one after the other, and what it is padded with.
        lengths: The number of tokens of each row.
        endings: The number of rows of an example.
        pads_left: Whether padding comes before the tokens.
    """

    can_be_widened = True  # to the length of another batch, so that one graph serves both

    def __init__(
        self,
        columns: dict[str, tuple[np.ndarray, int]],
        lengths: np.ndarray,
        endings: int = 1,
        pads_left: bool = False,
    ) -> None:
        self.columns, self.lengths, self.endings, self.pads_left = columns, lengths, endings, pads_left
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        self.order = np.argsort(-self.lengths.reshape(-1, self.endings).max(-1), kind="stable")  # the longest first

    @classmethod
    def of_split(cls, split: Any, tokenizer: Any, has_endings: bool = False) -> Rows:
        """Return the rows of a split.

        Args:
            split: The tokenised split.
            tokenizer: The tokenizer, which says how to pad.
            has_endings: Whether an example has one list of tokens for each answer to choose from.
        """
        padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        columns, lengths = {}, np.zeros(0, np.int64)
        for name in [name for name in tokenizer.model_input_names if name in split.column_names]:
            column = split.data.table.column(name).combine_chunks()
            column = column.flatten() if has_endings else column
            columns[name] = column.flatten().to_numpy(zero_copy_only=False), padding.get(name, 0)
            lengths = np.asarray(column.value_lengths(), dtype=np.int64)
        endings = len(split[0]["input_ids"]) if has_endings else 1
        return cls(columns, lengths, endings, tokenizer.padding_side == "left")

    @classmethod
    def of_lists(cls, encoded: Mapping[str, list[Any]], tokenizer: Any, has_endings: bool = False) -> Rows:
        """Return the rows of a few encoded examples.

        Args:
            encoded: What an encoder returned: a list of tokens for each example, or one for each answer.
            tokenizer: The tokenizer, which says how to pad.
            has_endings: Whether an example has one list of tokens for each answer to choose from.
        """
        padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        columns, lengths = {}, np.zeros(0, np.int64)
        for name in [name for name in tokenizer.model_input_names if name in encoded]:
            rows = list(chain.from_iterable(encoded[name])) if has_endings else encoded[name]
            columns[name] = np.fromiter(chain.from_iterable(rows), np.int64), padding.get(name, 0)
            lengths = np.array([len(row) for row in rows], np.int64)
        endings = len(encoded["input_ids"][0]) if has_endings else 1
        return cls(columns, lengths, endings, tokenizer.padding_side == "left")

    def length(self, examples: np.ndarray) -> int:
        """Return the length of the longest of some examples."""
        return int(self.lengths[self._rows(examples)].max())

    def _rows(self, examples: np.ndarray) -> np.ndarray:
        return (examples[:, None] * self.endings + np.arange(self.endings)).reshape(-1)

    def batch(self, examples: np.ndarray, width: int) -> dict[str, torch.Tensor]:
        """Return the padded inputs of some examples.

        Args:
            examples: Their numbers.
            width: The length of the result.
        """
        rows = self._rows(examples)
        lengths = self.lengths[rows]
        place = np.arange(width)[None, :] - (width - lengths[:, None] if self.pads_left else 0)
        is_token = (place >= 0) & (place < lengths[:, None])
        source = np.where(is_token, self.starts[rows][:, None] + place, 0)
        shape = (len(examples), self.endings, width) if self.endings > 1 else (len(examples), width)
        return {
            name: torch.from_numpy(np.where(is_token, values[source], padding).astype(np.int64).reshape(shape))
            for name, (values, padding) in self.columns.items()
        }


class CollatedRows:
    """Batches that the collator of a task makes, for examples that are read from files when they are needed.

    Args:
        split: The encoded split.
        collator: Makes a batch.
    """

    can_be_widened = pads_left = False

    def __init__(self, split: Any, collator: Callable[[list[Any]], dict[str, torch.Tensor]]) -> None:
        self.split = split.remove_columns([name for name in split.column_names if name == "labels"])
        self.collator = collator
        self.lengths = np.asarray(split["length"][:])
        self.order = np.argsort(-self.lengths, kind="stable")  # the longest first

    def length(self, examples: np.ndarray) -> int:
        """Return the length of the longest of some examples."""
        return int(self.lengths[examples].max())

    def batch(self, examples: np.ndarray, width: int) -> dict[str, torch.Tensor]:
        """Return the inputs of some examples, as wide as the collator makes them.

        Args:
            examples: Their numbers.
            width: Not used.
        """
        return self.collator([self.split[int(example)] for example in examples])


@torch.inference_mode()
def run_model(
    model: Any,
    rows: Rows | CollatedRows,
    tokenizer: Any,
    task: tasks.Task,
    batch_size: int,
    max_length: int,
    progress: Callable[[int], None] | None = None,
    word_starts: list[list[int]] | None = None,
    graphs: Graphs | None = None,
) -> Any:
    """Return the outputs of a model for every example of a split, in the order of the split.

    On a GPU the forward passes are replayed as CUDA graphs, where enough batches have about the same length.

    Args:
        model: The model, on its device.
        rows: The split.
        tokenizer: The tokenizer of the model.
        task: The task.
        batch_size: The number of examples in a batch.
        max_length: The maximum length of a translation in tokens.
        progress: Called with the number of examples after each batch.
        word_starts: Those of the split from `Prepared`, in tagging.
        graphs: Where forward passes are captured; by default on the GPU of the model.

    Returns:
        The logits of each example, or of each word in tagging, or the texts of a translation; labels are in the order
        of the model.
    """
    device = model.device
    model.eval()
    words = _Words(word_starts) if word_starts is not None else None
    outputs: list[torch.Tensor] = []
    places: list[np.ndarray] = []
    texts: list[str] = []
    batches = [rows.order[first : first + batch_size] for first in range(0, len(rows.order), batch_size)]
    lengths = [rows.length(examples) for examples in batches]
    full = [length for length, examples in zip(lengths, batches, strict=True) if len(examples) == batch_size]
    is_generated = tasks.kind_of(task).is_generated
    is_captured = rows.can_be_widened and not is_generated
    forwards = CapturedPrediction(model, full if is_captured else [], not rows.pads_left, graphs)
    for examples, length in zip(batches, lengths, strict=True):
        is_full, count = len(examples) == batch_size, len(examples)
        batch = rows.batch(examples, forwards.width(length) if is_full else length)
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        if is_generated:
            ids = model.generate(**inputs, max_length=max_length)
            texts += [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
        else:
            logits = forwards.logits(inputs, length, is_full) if is_captured else model(**inputs).logits
            if words is not None:
                row, position, examples = words.of(examples)
                logits = logits[torch.from_numpy(row).to(device), torch.from_numpy(position).to(device)]
            outputs.append(logits.float())  # stays on the device: copying would wait for the batch
        places.append(examples)
        if progress is not None:
            progress(count)
    order = np.argsort(np.concatenate(places))
    if is_generated:
        return [texts[place] for place in order]
    return torch.cat(outputs).cpu().numpy()[order]


class _Words:
    """The words of all examples, numbered in order."""

    def __init__(self, word_starts: list[list[int]]) -> None:
        self.lengths = np.array([len(starts) for starts in word_starts])
        self.first = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        flat = (start for starts in word_starts for start in starts)
        self.starts = np.maximum(np.fromiter(flat, np.int64, self.lengths.sum()), 0)

    def of(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the words of some examples: the row in the batch, the position, and the number of the word."""
        lengths = self.lengths[examples]
        rows = np.repeat(np.arange(len(examples)), lengths)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        numbers = self.first[examples][rows] + within
        return rows, self.starts[numbers], numbers
