"""Writes a model as ONNX, with the number and the length of the sequences left open. Needs attendrop[onnx]."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..model.probe import LABELS
from .measure import undisturbed
from .surgery import parameters_of

# A protobuf holds at most 2 GiB; above that the weights go into a file of their own beside it.
_LARGEST = 1 << 30


class _Tensors(nn.Module):
    """The model from tensors to tensors, without names, and without caches in its outputs."""

    def __init__(self, model: nn.Module, names: list[str], options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.model(**dict(zip(self.names, values, strict=True)), **self.options)).values())


def _tensors(outputs: Any) -> dict[str, Tensor]:
    return {name: value for name, value in outputs.items() if isinstance(value, Tensor)}


def export_onnx(model: Any, path: str | Path, batch: Mapping[str, Tensor]) -> Path:
    """Writes `model` to `path`, for inputs like those of `batch` (labels are left out) in any number and length.

    Inputs and outputs carry the names that they have in transformers. Images keep their size. Nothing is left behind
    where something goes wrong.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("export_onnx needs onnx and onnxscript; pip install 'attendrop[onnx]'.") from error
    path = Path(path)
    inputs = {name: value for name, value in batch.items() if name not in LABELS and isinstance(value, Tensor)}
    # A size of 1 would be taken for a constant.
    inputs = {name: torch.cat([value] * 2) if len(value) == 1 else value for name, value in inputs.items()}
    # A cache for generation is no tensor, and asking for one changes what is traced.
    options = {"use_cache": False} if getattr(model.config, "is_encoder_decoder", False) else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary, undisturbed(model):
        outputs = list(_tensors(model(**inputs, **options)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Tensors(model, list(inputs), options),
                tuple(inputs.values()),
                str(Path(temporary) / path.name),
                dynamic_shapes={"values": tuple(_open_axes(value) for value in inputs.values())},
                input_names=list(inputs),
                output_names=outputs,
                dynamo=True,
                external_data=4 * parameters_of(model) > _LARGEST,
                verbose=False,
            )
        for file in Path(temporary).iterdir():
            shutil.move(file, path.parent / file.name)
    return path


def _open_axes(value: Tensor) -> dict[int, Any]:
    automatic = torch.export.Dim.DYNAMIC
    if value.is_floating_point():  # an image
        return {0: automatic}
    return {0: automatic, value.dim() - 1: automatic}
