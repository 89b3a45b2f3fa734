"""What the first run of a method records for the report: validation texts, and attention maps of a few of them."""

from __future__ import annotations

from typing import Any

from torch import nn

from .. import tasks
from ..report.explorer import explore
from .scoring import MAX_PREDICTIONS

TEXT_LENGTH = 300  # characters of a validation text that a record holds
EXAMPLES, TOKENS = 3, 16  # of the attention maps: 2 MB in a record of a model with 12 layers and 12 heads


def details_of(model: nn.Module, tokenizer: Any, data: tasks.Data) -> dict[str, Any]:
    """The texts and the attention maps.

    Args:
        model: The trained model.
        tokenizer: Its tokenizer.
        data: The data of the run.
    """
    assert data.validation is not None
    first = data.validation.select(range(min(MAX_PREDICTIONS, len(data.validation))))
    columns = [first[name] for name in data.task.text if name in first.column_names]
    rows = [tuple(map(str, row)) for row in zip(*columns, strict=True)]
    labels = first[data.task.label] if data.task.label in first.column_names else None
    return {
        "texts": [" ‖ ".join(row)[:TEXT_LENGTH] for row in rows],
        "explorer": _attention(model, tokenizer, rows, labels) if data.task.kind == "classification" else None,
    }


def _attention(model: nn.Module, tokenizer: Any, rows: list[tuple[str, ...]], labels: Any) -> dict[str, Any] | None:
    """The maps of the examples that come closest to the number of tokens which can be shown whole."""
    lengths = {i: len(tokenizer(*row)["input_ids"]) for i, row in enumerate(rows[:200])}
    fitting = [i for i, length in lengths.items() if length <= TOKENS] or list(lengths)
    chosen = sorted(fitting, key=lambda i: abs(lengths[i] - TOKENS))[:EXAMPLES]
    texts = [row[0] if len(row) == 1 else (row[0], row[1]) for row in (rows[i] for i in chosen)]
    gold = [int(labels[i]) for i in chosen] if labels is not None else None
    try:
        return explore(model, tokenizer, texts, gold=gold, max_examples=EXAMPLES, max_tokens=TOKENS)
    except (ValueError, TypeError, RuntimeError):  # a model without maps; the run itself has succeeded
        return None
