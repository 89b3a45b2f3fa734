"""The files with which sentence-transformers loads a classifier: `encode` gives its logits.

modules.json                which modules there are: the encoder (the folder itself), 1_Pooling, 2_Dense
1_Pooling/config.json       how the hidden states are pooled
2_Dense/                    the head: a linear layer, into which the scale and the shift of a regression are folded
sentence_bert_config.json   the maximum length in tokens, where it is known
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..utils.files import write_whole
from .pooled_config import LENGTH_FIELD

MODULES_FILE, LENGTH_FILE = "modules.json", "sentence_bert_config.json"
POOLING_FOLDER, HEAD_FOLDER = "1_Pooling", "2_Dense"

LIBRARY = "sentence-transformers"
SNIPPET = """from sentence_transformers import SentenceTransformer

logits = SentenceTransformer("FOLDER").encode(["a text", "another one"])"""

# These names are understood by all versions of sentence-transformers.
_MODULES = (("Transformer", ""), ("Pooling", POOLING_FOLDER), ("Dense", HEAD_FOLDER))


def write_sentence_files(model: Any, folder: Path, pooling: str, state: Mapping[str, Tensor]) -> None:
    """Write the files beside the weights of a model.

    Args:
        model: A model of a class that `pooled_class` makes.
        folder: Where its weights are.
        pooling: Which pooling the head reads.
        state: Weights that take the place of those in the model.
    """
    head, config = _folded_head(model, state), model.config
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(_MODULES)
    ]
    _write(folder / MODULES_FILE, modules)
    width = config.hidden_size
    modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("cls_token", "mean_tokens")}
    unused = {f"pooling_mode_{mode}": False for mode in ("max_tokens", "mean_sqrt_len_tokens")}
    _write(folder / POOLING_FOLDER / "config.json", {"word_embedding_dimension": width, **modes, **unused})
    dense = {
        "in_features": width,
        "out_features": config.num_labels,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    _write(folder / HEAD_FOLDER / "config.json", dense)
    save_file(head, folder / HEAD_FOLDER / "model.safetensors")
    if (length := getattr(config, LENGTH_FIELD, None)) is not None:
        _write(folder / LENGTH_FILE, {"max_seq_length": length, "do_lower_case": False})


@torch.no_grad()
def _folded_head(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = dict(model.pooled_head.named_parameters(prefix="pooled_head")) | dict(model.named_buffers(recurse=False))
    weight, bias, scale, shift = (
        None if name not in own else state.get(name, own[name]).detach().cpu()
        for name in ("pooled_head.weight", "pooled_head.bias", "output_scale", "output_shift")
    )
    assert weight is not None
    assert bias is not None
    if scale is not None and shift is not None:
        weight, bias = weight * scale, bias * scale + shift
    return {"linear.weight": weight.contiguous(), "linear.bias": bias.contiguous()}


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2) + "\n", flush=False)
