"""Saves a pruned model so that both `load` and plain transformers can read it.

The folder holds the weights in the stock layout. For a pruned layer

    W_Q = W_K = 0,  W_V = W,  W_O = I        W = W_O W_V of the original layer, the biases in the output projection

so that stock attention is uniform too, but as slow as before. `load` restores the fast layers, from the list
`attendrop_pruned_layers` in the configuration. Where a position bias is added to the scores (T5, MPNet), zero queries
do not give uniform attention, and only `load` is correct: `attendrop_exact_in_transformers` is then false in the
configuration, and the card says so. The files are safetensors and JSON; there is no remote code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..model.pooled import pooled_class_named
from ..utils.files import load_json, whole_folder, write_whole
from ..utils.loading import wrong_weights
from ..utils.manifest import check_sealed, seal_model
from .card import pruned_card
from .constant_attention import ConstantAttention
from .measure import Comparison, cost_of
from .surgery import Layer, encoder_layers, prune_layers

PRUNED = "attendrop_pruned_layers"
EXACT = "attendrop_exact_in_transformers"


def save(model: Any, folder: str | Path, overwrite: bool = False, batch: Mapping[str, Any] | None = None) -> Path:
    """Write a pruned model, its configuration and a card. If something fails, nothing is written.

    Args:
        model: A transformers model with pruned layers.
        folder: Where to write; new or empty, unless `overwrite`.
        overwrite: Whether to replace files of the same names and to delete older weights in the folder.
        batch: Inputs on which the FLOPs for the card are counted. Models of text and images need none.

    Returns:
        The folder.
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
    # transformers might load older shards
    with whole_folder(folder, is_stale=lambda name: name.startswith("model") and ".safetensors" in name) as draft:
        model.save_pretrained(draft, state_dict=_stock_state(model, constants))
        _extend_config(draft / "config.json", constants)
        # Load it as a stock model, as a user might: a folder that cannot be loaded must not be written.
        stock = _load_stock(draft, type(model))
        costs = Comparison(*(cost_of(each, 1, _length(model.config), 0, inputs=batch) for each in (stock, model)))
        card = pruned_card(model, _numbers_of(constants), _is_exact(constants), costs)
        write_whole(draft / "README.md", card)
        seal_model(draft, {"versions": {"transformers": transformers.__version__}})
    return folder


def load(folder: str | Path, batch: Mapping[str, Any] | None = None) -> Any:
    """Load a model that `save` wrote, with the fast layers, in eval mode.

    Args:
        folder: The folder that `save` wrote.
        batch: Inputs for the dry run that finds the layers. Models of text and images need none.
    """
    folder = Path(folder)
    path = folder / "config.json"
    check_sealed(folder)
    config = _read_config(path)
    numbers = _pruned_layers(config, path)
    model = _load_stock(folder, _model_class(config, path))
    for layer in encoder_layers(model, batch):
        if layer.site.layer in numbers and not _queries_and_keys_are_zero(layer):
            raise ValueError(
                f"{PRUNED} in {str(path)!r} names layer {layer.site.layer}, whose query and key weights are not zero; "
                "configuration and weights belong to different models."
            )
    prune_layers(model, numbers, PRUNED, batch)
    return model


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"folder is {str(path.parent)!r}, which has no config.json; it must be one that save() wrote.")
    try:
        return dict(load_json(path))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is not a configuration: {error}.") from error


def _pruned_layers(config: Mapping[str, Any], path: Path) -> list[int]:
    numbers = config.get(PRUNED)
    if not isinstance(numbers, list) or not numbers or not all(type(number) is int for number in numbers):
        raise ValueError(
            f"{PRUNED} in {str(path)!r} is {numbers!r}; in a folder that save() wrote it is a list of layer numbers."
        )
    return numbers


def _model_class(config: Mapping[str, Any], path: Path) -> type[PreTrainedModel]:
    name = (config.get("architectures") or [None])[0]
    cls = pooled_class_named(str(name)) or getattr(transformers, str(name), None)
    if not isinstance(cls, type) or not issubclass(cls, PreTrainedModel):
        raise ValueError(
            f"architectures in {str(path)!r} names {name!r}, which is not a model of transformers "
            f"{transformers.__version__}."
        )
    return cls


def _constants_of(model: nn.Module) -> dict[str, ConstantAttention]:
    return {name: module for name, module in model.named_modules() if isinstance(module, ConstantAttention)}


def _numbers_of(constants: Mapping[str, ConstantAttention]) -> list[int]:
    return sorted(number for constant in constants.values() for number in constant.layers)


def _is_exact(constants: Mapping[str, ConstantAttention]) -> bool:
    return not any(constant.layout.position_bias for constant in constants.values())


def _stock_state(model: nn.Module, constants: Mapping[str, ConstantAttention]) -> dict[str, Tensor]:
    """Return the weights of the model, under the names that a stock model has for them."""
    state = dict(model.state_dict())
    for path, constant in constants.items():
        for name in constant.project.state_dict():
            del state[f"{path}.project.{name}"]
        state |= _stock_projections(path, constant)
    return state


@torch.no_grad()
def _stock_projections(path: str, constant: ConstantAttention) -> dict[str, Tensor]:
    """Return the weights of a stock attention module that has the same output as the pruned layer at `path`."""
    layout = constant.layout
    project: Any = constant.project
    like = next(project.parameters())
    weights = {f"{path}.{name}": like.new_zeros(shape) for name, shape in constant.shapes.items()}
    v, o = f"{path}.{layout.v}", layout.output_path(path)
    weights |= {f"{o}.{name}": like.new_zeros(shape) for name, shape in constant.output_shapes.items()}
    inner = weights[f"{o}.weight"].shape[1]
    start = 2 * inner if layout.fused else 0
    if isinstance(project, nn.Sequential):
        value, output = project
        rows = slice(start, start + inner)
        for name, weight in output.state_dict().items():
            weights[f"{o}.{name}"].copy_(weight)
    else:
        # Where the heads are wider than the model, the other rows and the columns that read them stay zero.
        value, rows = project, slice(start, start + like.shape[0])
        weights[f"{o}.weight"].fill_diagonal_(1)
    weights[f"{v}.weight"][rows] = value.weight
    if value.bias is not None and value is project and f"{o}.bias" in weights:
        weights[f"{o}.bias"].copy_(value.bias)
    elif value.bias is not None:
        weights[f"{v}.bias"][rows] = value.bias
    return weights


def _extend_config(path: Path, constants: Mapping[str, ConstantAttention]) -> None:
    config = load_json(path)
    config |= {PRUNED: _numbers_of(constants), EXACT: _is_exact(constants)}
    write_whole(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def _load_stock(folder: Path, cls: Any) -> Any:
    """Load the folder as a stock model and check that no weight is missing or left over."""
    try:
        model, info = cls.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype="auto", ignore_mismatched_sizes=True,
            output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # transformers raises many classes of errors for a file that cannot be loaded
        raise ValueError(f"{str(folder)!r} does not load as {cls.__name__}: {error}") from error
    if problem := wrong_weights(info):
        raise ValueError(f"the weights in {str(folder)!r} are not those of its config.json: {problem}.")
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
    """128 tokens, or half of what the model takes if that is less: RoBERTa reserves some positions for padding."""
    return min(128, (getattr(config, "max_position_embeddings", None) or 256) // 2)
