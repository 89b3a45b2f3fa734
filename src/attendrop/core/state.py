"""Files of the methods beside a model: their configuration, and their state in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..utils.files import load_json, write_whole
from .capabilities import KeepsState
from .regularizer import Regularizer

CONFIG_FILE = "regularizers.json"
TRAINED_FILE = "trained_weights.safetensors"


def save_regularizers(regularizers: Sequence[Regularizer], folder: str | Path, **extra: Any) -> None:
    """Write the configuration of all methods into `regularizers.json`, with `extra` values beside it."""
    record = {**extra, "regularizers": [regularizer.to_dict() for regularizer in regularizers]}
    write_whole(Path(folder, CONFIG_FILE), json.dumps(record, indent=2) + "\n", flush=False)


def save_state(regularizers: Sequence[Regularizer], folder: str | Path, rank: int) -> None:
    """Write the state of the methods that a resumed run needs. Every process calls it, with the same folder.

    The first process writes everything, the others only the tensors that differ between processes.
    """
    for regularizer in (r for r in regularizers if isinstance(r, KeepsState)):
        tensors, values = regularizer.state()
        if tensors or values:
            path = _state_file(folder, regularizer, rank)
            local = regularizer.local_state
            mine = {name: x for name, x in tensors.items() if rank == 0 or name.startswith(local)}
            save_file({name: tensor.detach().contiguous().clone() for name, tensor in mine.items()}, path)
            write_whole(path.with_suffix(".json"), json.dumps(values) + "\n", flush=False)


def find_missing_state(regularizers: Sequence[Regularizer], folder: str | Path, rank: int) -> str | None:
    """Return the name of a method that keeps a state, of which `save_state` has written none here, or None."""
    for regularizer in (r for r in regularizers if isinstance(r, KeepsState)):
        if not _state_file(folder, regularizer, rank if regularizer.local_state else 0).is_file():
            return regularizer.name
    return None


def load_state(regularizers: Sequence[Regularizer], folder: str | Path, rank: int) -> None:
    """Load what `save_state` wrote into the methods."""
    for regularizer in (r for r in regularizers if isinstance(r, KeepsState)):
        path, mine = (_state_file(folder, regularizer, process) for process in (0, rank))
        if path.is_file():
            tensors = load_file(path)
            if mine != path and mine.is_file():
                shared = {name: x for name, x in tensors.items() if not name.startswith(regularizer.local_state)}
                path, tensors = mine, shared | load_file(mine)
            regularizer.load_state(tensors, load_json(path.with_suffix(".json")))


def save_trained_weights(model: nn.Module, names: Iterable[str], folder: str | Path) -> None:
    """Write the weights that are trained, where the model in the checkpoint has averaged ones in their place."""
    weights = dict(model.named_parameters())
    save_file({name: weights[name].detach().contiguous().clone() for name in names}, Path(folder, TRAINED_FILE))


def load_trained_weights(folder: str | Path) -> dict[str, Tensor]:
    """Return what `save_trained_weights` wrote; empty where it wrote nothing."""
    path = Path(folder, TRAINED_FILE)
    return load_file(path) if path.is_file() else {}


def _state_file(folder: str | Path, regularizer: Regularizer, rank: int) -> Path:
    return Path(folder, f"{regularizer.name}{f'_rank{rank}' if rank else ''}.safetensors")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer as named tensors: "<number of the parameter>.<name>"."""
    return {
        f"{number}.{name}": value
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_tensors` returned into an optimizer with the same parameters."""
    state_dict = optimizer.state_dict()
    states: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        states.setdefault(int(number), dict(state_dict["state"].get(int(number), {})))[key] = value
    optimizer.load_state_dict({**state_dict, "state": states})
