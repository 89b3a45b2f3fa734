"""The model card of a pruned model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huggingface_hub import ModelCardData

from .measure import Comparison


def pruned_card(model: Any, layers: Sequence[int], is_exact: bool, costs: Comparison) -> str:
    """Describe the pruned parts, the savings and how to load the model.

    Args:
        model: The pruned model.
        layers: The numbers of the pruned layers.
        is_exact: Whether plain transformers gives the same outputs.
        costs: Of the stock model and of the pruned one.
    """
    metadata = ModelCardData(library_name="transformers", tags=["attendrop", "pruned"]).to_yaml()
    name = type(model).__name__
    text = _CARD.format(
        name=name,
        layers=", ".join(map(str, layers)),
        rows="\n".join(f"| {' | '.join(row)} |" for row in costs.rows()),
        stock=(_STOCK_IS_EXACT if is_exact else _STOCK_DIFFERS).format(name=name, type=model.config.model_type),
    )
    return f"---\n{metadata}\n---\n\n{text}"


_CARD = """# {name}, attention pruned

Pruned encoder layers, counted from 0: {layers}. Their attention is the constant 1/n over the valid tokens. Their query
and key weights are removed; value and output projection are one matrix, applied to the mean of the tokens.

| | before | after | ratio |
|---|---|---|---|
{rows}

FLOPs are those of the matrix products of one forward. The file holds the weights in the stock layout, zeros included,
so it is as large as before; the model in memory is smaller.

## Load

```python
from attendrop import prune

model = prune.load("path/to/this/folder")
```
{stock}"""

_STOCK_IS_EXACT = """
Plain transformers gives the same outputs, at the speed of the model before pruning: queries and keys of the pruned
layers are zero, so their attention is uniform.

```python
from transformers import {name}

model = {name}.from_pretrained("path/to/this/folder")
```
"""

_STOCK_DIFFERS = """
**Do not load it with plain transformers.** `{name}.from_pretrained` runs, but gives other outputs: {type} adds a bias
for relative positions to the scores, so zero queries and keys do not give uniform attention. Only
`attendrop.prune.load` is correct (`attendrop_exact_in_transformers` is false in config.json).
"""
