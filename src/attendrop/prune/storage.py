"""Saves a pruned model so that both `load` and plain transformers can read it.

The folder holds the weights in the stock layout. For a pruned layer

    W_Q = W_K = 0,  W_V = W,  W_O = I        W = W_O W_V of before, the biases in the output projection

so that stock attention is uniform too, at the price of doing all the work. `load` puts the fast layers back, from the
list `attendrop_pruned_layers` in the configuration. Where positions add a bias to the scores (T5, MPNet), zero queries
are not uniform attention, and only `load` is right: `attendrop_exact_in_transformers` is false, and the card says so.
Safetensors and JSON alone; no remote code.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from .measure import Comparison, cost_of
from .surgery import ConstantAttention, Layer, encoder_layers, path_of_o, prune_layers

PRUNED = "attendrop_pruned_layers"
EXACT = "attendrop_exact_in_transformers"


def save(model: Any, folder: str | Path, overwrite: bool = False, batch: Mapping[str, Any] | None = None) -> Path:
    """Writes a pruned model, its configuration and a card. Nothing is left behind where something goes wrong.

    A folder that has files in it is refused, unless `overwrite`; then files of the same names, and older weights, go.
    `batch` is an example on which the card's costs are counted; text and image models need none.
    """
    folder = Path(folder)
    constants = _constants_of(model)
    if not isinstance(model, PreTrainedModel) or not constants:
        raise ValueError(
            f"model is a {type(model).__name__} without pruned layers; it must be a transformers model on which "
            "attendrop.prune.prune was called."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder is {str(folder)!r}, which is a file; it must be a folder, empty or new.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(
            f"folder is {str(folder)!r}, which has files in it; it must be empty or new (or overwrite=True)."
        )
    nearest = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=nearest, prefix=f".{folder.name}-") as temporary:
        draft = Path(temporary)
        model.save_pretrained(draft, state_dict=_stock_state(model, constants))
        _note_in_config(draft / "config.json", constants)
        # Read back as everyone will read it: a folder that does not load is never moved to its place.
        stock = _read(draft, type(model))
        before, after = (cost_of(each, 1, _length(model.config), rounds=0, inputs=batch) for each in (stock, model))
        (draft / "README.md").write_text(_card(model, constants, Comparison(before, after)), encoding="utf-8")
        _move(draft, folder)
    return folder


def load(folder: str | Path, batch: Mapping[str, Any] | None = None) -> Any:
    """The fast model that `save` wrote, in eval mode. `batch`: as for `prune`."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"folder is {str(folder)!r}, which has no config.json; it must be one that save() wrote.")
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(folder / 'config.json')!r} is not a configuration: {error}.") from error
    numbers = config.get(PRUNED)
    if not isinstance(numbers, list) or not numbers or not all(type(number) is int for number in numbers):
        raise ValueError(
            f"{PRUNED} in {str(folder / 'config.json')!r} is {numbers!r}; in a folder that save() wrote it is a list "
            "of layer numbers."
        )
    name = (config.get("architectures") or [None])[0]
    cls = getattr(transformers, str(name), None)
    if not isinstance(cls, type) or not issubclass(cls, PreTrainedModel):
        raise ValueError(
            f"architectures in {str(folder / 'config.json')!r} names {name!r}, which is not a model of transformers "
            f"{transformers.__version__}."
        )
    model = _read(folder, cls)
    for layer in encoder_layers(model, batch):
        if layer.site.layer in numbers and not _queries_and_keys_are_zero(layer):
            raise ValueError(
                f"{PRUNED} in {str(folder / 'config.json')!r} names layer {layer.site.layer}, whose query and key "
                "weights are not zero; configuration and weights are not of the same pruned model."
            )
    prune_layers(model, numbers, PRUNED, batch)
    return model


def _constants_of(model: nn.Module) -> dict[str, ConstantAttention]:
    return {name: module for name, module in model.named_modules() if isinstance(module, ConstantAttention)}


def _layers_of(constants: Mapping[str, ConstantAttention]) -> list[int]:
    return sorted(number for constant in constants.values() for number in constant.layers)


def _is_exact(constants: Mapping[str, ConstantAttention]) -> bool:
    return not any(constant.layout.position_bias for constant in constants.values())


def _stock_state(model: nn.Module, constants: Mapping[str, ConstantAttention]) -> dict[str, Tensor]:
    """The weights under the names that a stock model has for them."""
    state = dict(model.state_dict())
    for path, constant in constants.items():
        for name in constant.project.state_dict():
            del state[f"{path}.project.{name}"]
        state |= _stock_projections(path, constant)
    return state


@torch.no_grad()
def _stock_projections(path: str, constant: ConstantAttention) -> dict[str, Tensor]:
    layout = constant.layout
    project: Any = constant.project
    like = next(project.parameters())
    found = {f"{path}.{name}": like.new_zeros(shape) for name, shape in constant.shapes.items()}
    v, o = f"{path}.{layout.v}", path_of_o(path, layout)
    found |= {f"{o}.{name}": like.new_zeros(shape) for name, shape in constant.output_shapes.items()}
    inner = found[f"{o}.weight"].shape[1]
    start = 2 * inner if layout.fused else 0
    if isinstance(project, nn.Sequential):
        value, output = project
        rows = slice(start, start + inner)
        _fill(found, o, output)
    else:
        # More rows than the product has stay zero, and so do the columns that would read them.
        value, rows = project, slice(start, start + like.shape[0])
        found[f"{o}.weight"].fill_diagonal_(1)
    found[f"{v}.weight"][rows] = value.weight
    if value.bias is not None and value is project and f"{o}.bias" in found:
        found[f"{o}.bias"].copy_(value.bias)
    elif value.bias is not None:
        found[f"{v}.bias"][rows] = value.bias
    return found


def _fill(found: dict[str, Tensor], name: str, linear: Any) -> None:
    for key, value in linear.state_dict().items():
        found[f"{name}.{key}"].copy_(value)


def _note_in_config(path: Path, constants: Mapping[str, ConstantAttention]) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {PRUNED: _layers_of(constants), EXACT: _is_exact(constants)}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read(folder: Path, cls: Any) -> Any:
    """The folder as a stock model, all of whose weights are there."""
    try:
        model, info = cls.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype="auto", output_loading_info=True
        )
    except Exception as error:  # transformers raises many kinds, for what is one thing to the user
        raise ValueError(f"{str(folder)!r} does not load as {cls.__name__}: {error}") from error
    odd = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(odd.values()):
        listed = "; ".join(f"{kind.replace('_', ' ')}: {', '.join(keys[:4])}" for kind, keys in odd.items() if keys)
        raise ValueError(f"the weights in {str(folder)!r} are not those of its config.json: {listed}.")
    return model


def _queries_and_keys_are_zero(layer: Layer) -> bool:
    layout = layer.layout
    if layout is None:
        return False
    for name in {layout.q, layout.k}:
        for tensor in layer.module.get_submodule(name).state_dict().values():
            if (tensor[: len(tensor) // 3 * 2] if layout.fused else tensor).any():
                return False
    return True


def _length(config: Any) -> int:
    """128 tokens, or what a model made for fewer surely takes: RoBERTa spends some positions on padding."""
    return min(128, (getattr(config, "max_position_embeddings", None) or 256) // 2)


def _move(draft: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors*"):  # of another number of shards: transformers might read them
        old.unlink()
    for file in draft.iterdir():
        shutil.move(file, folder / file.name)


def _card(model: Any, constants: Mapping[str, ConstantAttention], costs: Comparison) -> str:
    layers = ", ".join(map(str, _layers_of(constants)))
    name = type(model).__name__
    if _is_exact(constants):
        plain = f"""
Plain transformers gives the same outputs, at the speed of the model before pruning: queries and keys of the pruned
layers are zero, so that their attention is uniform.

```python
from transformers import {name}

model = {name}.from_pretrained("path/to/this/folder")
```
"""
    else:
        plain = f"""
**Do not load it with plain transformers.** `{name}.from_pretrained` runs, and gives other outputs:
{model.config.model_type} adds a bias for relative positions to the scores, so that zero queries and keys are not
uniform attention. Only `attendrop.prune.load` is right (`{EXACT}` is false in config.json).
"""
    rows = "\n".join(f"| {row[0]} | {row[1]} | {row[2]} | {row[3]} |" for row in costs.rows())
    return f"""---
library_name: transformers
tags:
- attendrop
- pruned
---

# {name}, attention pruned

Pruned encoder layers, counted from 0: {layers}. Their attention is the constant 1/n over the valid tokens. Their query
and key weights are gone; value and output projection are one matrix, applied to the mean of the tokens.

| | before | after | ratio |
|---|---|---|---|
{rows}

FLOPs are those of the matrix products of one forward. The file holds the weights in the stock layout, zeros included,
so it is not smaller than before; the model in memory is.

## Load

```python
from attendrop import prune

model = prune.load("path/to/this/folder")
```
{plain}"""
