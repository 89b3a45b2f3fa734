"""The weights of a pruned model under the names and in the shapes of the stock model.

For a pruned layer

    W_Q = W_K = 0,  W_V = W,  W_O = I        W = W_O W_V of the original layer, the biases in the output projection

so that stock attention is uniform too, but as slow as before. `state_dict()` of a pruned model is in this layout and
`load_state_dict` takes it, so that whatever saves the model (`save_pretrained`, the Trainer, a checkpoint) writes a
folder that can be loaded. Where a position bias is added to the scores (T5, MPNet), zero queries do not give uniform
attention, and only `prune.load` is correct: `attendrop_exact_in_transformers` is then false in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .constant_attention import ConstantAttention

PRUNED = "attendrop_pruned_layers"
EXACT = "attendrop_exact_in_transformers"
TAIL = "attendrop_tail"  # {"blocks": how many, 0 = an exact tail, "reads": what the head reads}, see tail.py
REMOVED = "attendrop_removed_layers"  # their numbers in the model that was compressed


def constants_of(model: nn.Module) -> dict[str, ConstantAttention]:
    """Return the pruned layers by their paths."""
    return {name: module for name, module in model.named_modules() if isinstance(module, ConstantAttention)}


def numbers_of(constants: Mapping[str, ConstantAttention]) -> list[int]:
    """Return the numbers of pruned layers."""
    return sorted(number for constant in constants.values() for number in constant.layers)


def is_exact(constants: Mapping[str, ConstantAttention], config: Any = None) -> bool:
    """Return whether plain transformers computes the same with these weights.

    Its attention must be uniform, and no summary tail may take the mean of a block's input for that of its output.

    Args:
        constants: The pruned layers.
        config: The configuration of the model, which names its tail.
    """
    tail = getattr(config, TAIL, None) or {"blocks": 0, "reads": ""}
    is_same_tail = not tail["blocks"] or (tail["blocks"] == 1 and tail["reads"] == "first")
    biased = (constant.layout.position_bias for constant in constants.values())
    prenorm = (constant.layout.prenorm and constant.reads_summary for constant in constants.values())
    return is_same_tail and not any(biased) and not any(prenorm)


def store_in_stock_layout(model: Any) -> None:
    """Let a pruned model save and load its weights in the stock layout. Its configuration names the pruned layers."""
    constants = constants_of(model)
    if hasattr(model, "config"):
        setattr(model.config, PRUNED, numbers_of(constants))
        setattr(model.config, EXACT, is_exact(constants, model.config))
    if _to_stock not in model._state_dict_hooks.values():
        model.register_state_dict_post_hook(_to_stock)
        model.register_load_state_dict_pre_hook(_from_stock)


def _to_stock(model: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    for path, constant in constants_of(model).items():
        for name in constant.project.state_dict():
            del state[f"{prefix}{path}.project.{name}"]
        state.update(_stock_projections(prefix + path, constant))


def _from_stock(
    model: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any, strict: bool, *args: list[str]
) -> None:
    for path, constant in constants_of(model).items():
        layout, at = constant.layout, prefix + path
        v, o = f"{at}.{layout.v}", layout.output_path(at)
        if f"{v}.weight" not in state or f"{o}.weight" not in state:
            continue
        names = [*(f"{at}.{name}" for name in constant.shapes), *(f"{o}.{name}" for name in constant.output_shapes)]
        given = {name: state.pop(name) for name in names if name in state}
        value = {name: given[f"{v}.{name}"] for name in ("weight", "bias") if f"{v}.{name}" in given}
        output = {name: given[f"{o}.{name}"] for name in ("weight", "bias") if f"{o}.{name}" in given}
        if layout.fused:
            value = {name: tensor.chunk(3)[2] for name, tensor in value.items()}
        weights = _joined(value, output) if isinstance(constant.project, nn.Linear) else _both(value, output)
        state.update({f"{at}.project.{name}": tensor for name, tensor in weights.items()})


def _both(value: Mapping[str, Tensor], output: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of two projections, one after the other."""
    parts = enumerate((value, output))
    return {f"{number}.{name}": tensor for number, part in parts for name, tensor in part.items()}


def _joined(value: Mapping[str, Tensor], output: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return W_O W_V and W_O b_V + b_O."""
    like = value["weight"]
    wide = torch.float32 if like.device.type == "mps" else torch.float64
    matrix = output["weight"].to(wide)
    weights = {"weight": (matrix @ value["weight"].to(wide)).to(like.dtype)}
    biases = [output["bias"].to(wide)] if "bias" in output else []
    if "bias" in value:
        biases.append(matrix @ value["bias"].to(wide))
    return {**weights, "bias": sum(biases[1:], biases[0]).to(like.dtype)} if biases else weights


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
