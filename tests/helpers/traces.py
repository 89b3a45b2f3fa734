"""A check that attendrop leaves nothing on a model after training or after an error."""

from __future__ import annotations

from typing import Any


def traces(model: Any) -> list[str]:
    """Lists the attributes, classes and attention functions of attendrop that are still on `model`."""
    remaining = []
    for name, module in model.named_modules():
        remaining += [f"{name}.{a}" for a in vars(module) if "attendrop" in a]
        if hasattr(type(module), "_attendrop_original"):
            remaining.append(f"{name} is of class {type(module)}")
        config = getattr(module, "config", None)
        if "attendrop" in str(getattr(config, "_attn_implementation", "")):
            remaining.append(f"{name}.config")
    return remaining
