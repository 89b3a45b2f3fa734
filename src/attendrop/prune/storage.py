"""Saves a pruned model so that both `load` and plain transformers can read it.

The folder holds the weights in the stock layout (stock_layout.py). `load` restores the fast layers, from the list
`attendrop_pruned_layers` in the configuration. The files are safetensors and JSON; there is no remote code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel

from ..model.pooled import pooled_class_named
from ..utils.files import load_json, whole_folder, write_whole
from ..utils.loading import wrong_weights
from ..utils.manifest import check_sealed, seal_model
from .card import pruned_card
from .layer_plan import plan_of, restore
from .measure import Comparison, cost_of
from .stock_layout import PRUNED, REMOVED, TAIL, constants_of, is_exact
from .surgery import Layer, encoder_layers
from .tail import tail_of


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
    is_model = isinstance(model, PreTrainedModel)
    if not is_model or not (constants_of(model) or tail_of(model) is not None or plan_of(model).removed):
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
        model.save_pretrained(draft)
        # Load it as a stock model, as a user might: a folder that cannot be loaded must not be written.
        stock = _load_stock(draft, type(model))
        costs = Comparison(*(cost_of(each, 1, _length(model.config), 0, inputs=batch) for each in (stock, model)))
        card = pruned_card(model, plan_of(model), is_exact(constants_of(model), model.config), costs)
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
    for layer in encoder_layers(model, batch) if numbers else ():
        if layer.site.layer in numbers and not _queries_and_keys_are_zero(layer):
            raise ValueError(
                f"{PRUNED} in {str(path)!r} names layer {layer.site.layer}, whose query and key weights are not zero; "
                "configuration and weights belong to different models."
            )
    restore(model, batch)
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
    if numbers is None and (config.get(TAIL) is not None or config.get(REMOVED)):
        return []
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
