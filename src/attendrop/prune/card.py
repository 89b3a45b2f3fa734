"""The model card of a pruned model."""

from __future__ import annotations

from typing import Any

from huggingface_hub import ModelCardData

from .layer_plan import LayerPlan
from .measure import Comparison
from .tail import tail_of


def pruned_card(model: Any, plan: LayerPlan, is_exact: bool, costs: Comparison) -> str:
    """Describe the pruned parts, the savings and how to load the model.

    Args:
        model: The pruned model.
        plan: Its plan of layers.
        is_exact: Whether plain transformers gives the same outputs.
        costs: Of the stock model and of the pruned one.
    """
    metadata = ModelCardData(library_name="transformers", tags=["attendrop", "pruned"]).to_yaml()
    name = type(model).__name__
    parts = [
        _CONSTANT.format(layers=", ".join(map(str, plan.constant))) * bool(plan.constant),
        _TAIL.format(blocks=plan.tail) * bool(plan.tail),
        _REMOVED.format(layers=", ".join(map(str, plan.removed))) * bool(plan.removed),
        _EXACT_TAIL * (tail_of(model) is not None and not plan.tail),
    ]
    text = _CARD.format(
        name=name,
        parts="\n".join(filter(None, parts)),
        rows="\n".join(f"| {' | '.join(row)} |" for row in costs.rows()),
        stock=_stock(model, plan, is_exact, name),
    )
    return f"---\n{metadata}\n---\n\n{text}"


def _stock(model: Any, plan: LayerPlan, is_exact: bool, name: str) -> str:
    if is_exact:
        return _STOCK_IS_EXACT.format(name=name)
    if plan.tail:
        return _STOCK_HAS_NO_TAIL.format(name=name)
    return _STOCK_DIFFERS.format(name=name, type=model.config.model_type)


_CARD = """# {name}, pruned

{parts}

Layers are counted from 0, as in the model before.

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

_CONSTANT = """- Layers with constant attention: {layers}. It is 1/n over the valid tokens. Their query and key weights
  are removed; value and output projection are one matrix, applied to the mean of the tokens."""

_TAIL = """- The last {blocks} blocks have constant attention and are computed on a summary of each sequence: the
  mean of its tokens, and the first token where the head reads it."""

_REMOVED = """- Removed layers: {layers}."""

_EXACT_TAIL = """- The last block is computed for the first token alone, which is all that the head reads."""

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

_STOCK_HAS_NO_TAIL = """
**Do not load it with plain transformers.** `{name}.from_pretrained` runs, but computes the last blocks for all tokens
and gives other outputs. Only `attendrop.prune.load` is correct (`attendrop_exact_in_transformers` is false in
config.json).
"""
