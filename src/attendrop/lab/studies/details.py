"""Details in the record of one run of each method: validation texts and attention maps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ...core.regularizer import Regularizer
from ...errors import UserError
from ...methods.addrop import ADDrop
from ...prune import prune, score_layers
from .. import tasks
from ..report.explorer import explore

TEXT_LENGTH = 300  # characters of a validation text that a record holds
EXAMPLES = 3  # texts whose attention maps a record holds
_POOL = 200  # texts of which the shortest ones are taken


def texts_of(data: tasks.Data, count: int) -> list[str]:
    """Return the beginnings of the first validation texts, for a report that shows single examples.

    Args:
        data: The data of the run.
        count: The number of texts.
    """
    return [" ‖ ".join(parts)[:TEXT_LENGTH] for parts in _rows(data, count)]


def explorer_of(
    data: tasks.Data, model: Any, tokenizer: Any, regularizers: Sequence[Regularizer]
) -> dict[str, Any] | None:
    """Return the attention explorer of a trained classifier; None for other models, and where no method is AD-DROP.

    Args:
        data: The data of the run.
        model: The trained model.
        tokenizer: Its tokenizer.
        regularizers: The methods of the run.
    """
    method = next((method for method in regularizers if isinstance(method, ADDrop)), None)
    is_shown = tasks.kind_of(data.task).has_one_class and data.task.modality == "text" and data.validation is not None
    if method is None or method.attribution == "rd" or not is_shown or data.task.is_encoded_apart:
        return None
    assert data.validation is not None
    rows = _rows(data, _POOL)
    chosen = sorted(range(len(rows)), key=lambda i: (sum(map(len, rows[i])), i))[:EXAMPLES]
    gold = [data.task.labels[data.validation[i][str(data.task.label)]] for i in chosen]
    texts = [rows[i][0] if len(rows[i]) == 1 else (rows[i][0], rows[i][1]) for i in chosen]
    try:
        return explore(model, tokenizer, texts, method, gold, _half_pruned(model, tokenizer, texts))
    except (UserError, ValueError):  # a model whose attention cannot be shown
        return None


def _half_pruned(model: Any, tokenizer: Any, texts: Sequence[Any]) -> Any:
    """Return a copy of the model with half of its attention layers pruned; None where that is not possible."""
    pairs = [text if isinstance(text, tuple) else (text,) for text in texts]
    batch = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, truncation=True, return_tensors="pt")
    pruned = copy.deepcopy(model)
    try:
        scores = score_layers(pruned, [batch.to(model.device)])
        order = sorted(range(len(scores)), key=lambda layer: -scores[layer])
        prune(pruned, order[: len(order) // 2])
    except ValueError:
        return None
    return pruned


def _rows(data: tasks.Data, count: int) -> list[tuple[str, ...]]:
    assert data.validation is not None
    first = data.validation.select(range(min(count, len(data.validation))))
    columns = [first[name] for name in data.task.text if name in first.column_names]
    return [tuple(map(str, row)) for row in zip(*columns, strict=True)]
