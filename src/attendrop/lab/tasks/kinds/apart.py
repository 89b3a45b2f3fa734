"""Two texts that the model encodes apart: an example has one row of tokens for each of them, as for multiple choice."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from .base import Kind
from .encoder import Encoder
from .multiple_choice import ChoiceCollator


class ApartEncoder(Encoder):
    """Tokenise each text of an example by itself: one row for each; `length` is that of the longest."""

    def encode(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        texts = [self.texts(batch, column) for column in self.task.text]
        flat = self.tokenizer([text for example in zip(*texts, strict=True) for text in example], **self.options)
        n = len(texts)
        encoded = {name: [ids[i : i + n] for i in range(0, len(ids), n)] for name, ids in flat.items()}
        encoded["length"] = [max(map(len, ids)) for ids in encoded["input_ids"]]
        return encoded


class _Apart:
    """What differs from the kind."""

    has_endings = True
    encoder = ApartEncoder

    def collator(self, tokenizer: Any, seed: int, mlm_probability: float) -> Any:
        return ChoiceCollator(tokenizer)

    def example_inputs(self, ids: Any) -> dict[str, Any]:
        return {"input_ids": ids[:, None].repeat(1, 2, 1)}


@functools.cache
def apart(kind: Kind) -> Kind:
    """Return a kind of task whose two texts are encoded apart.

    Args:
        kind: The kind of the task.
    """
    made: Kind = type(f"Apart{type(kind).__name__}", (_Apart, type(kind)), {})()
    return made
