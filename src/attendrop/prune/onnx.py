"""Exports a model to ONNX, for batches of any size and length. Needs attendrop[onnx]."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..model.probe import LABELS
from .evaluation import isolated_eval
from .surgery import parameters_of

# A protobuf holds at most 2 GiB. Larger weights are written to a second file next to it.
_MAX_INLINE_BYTES = 1 << 30


class _TensorInterface(nn.Module):
    """The model as a function of tensors, by position, that returns a tuple of tensors: no dictionary, no cache."""

    def __init__(self, model: nn.Module, names: list[str], options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.model(**dict(zip(self.names, values, strict=True)), **self.options)).values())


def _tensors(outputs: Any) -> dict[str, Tensor]:
    return {name: value for name, value in outputs.items() if isinstance(value, Tensor)}


def export_onnx(model: Any, path: str | Path, batch: Mapping[str, Tensor]) -> Path:
    """Export a model to ONNX, for batches of any size and length; images keep their size.

    Inputs and outputs have the same names as in transformers. If the export fails, no file is written.

    Args:
        model: A transformers model.
        path: The file to write. Its folder is created.
        batch: Example inputs; labels are ignored.

    Returns:
        The path.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("export_onnx needs onnx and onnxscript; pip install 'attendrop[onnx]'.") from error
    path = Path(path)
    inputs = {name: value for name, value in batch.items() if name not in LABELS and isinstance(value, Tensor)}
    # The export would treat a batch size of 1 as a constant.
    inputs = {name: torch.cat([value] * 2) if len(value) == 1 else value for name, value in inputs.items()}
    # A cache for generation is not a tensor, and requesting one changes what is traced.
    options = {"use_cache": False} if getattr(model.config, "is_encoder_decoder", False) else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary, isolated_eval(model):
        outputs = list(_tensors(model(**inputs, **options)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _TensorInterface(model, list(inputs), options),
                tuple(inputs.values()),
                str(Path(temporary) / path.name),
                dynamic_shapes={"values": tuple(_dynamic_axes(value) for value in inputs.values())},
                input_names=list(inputs),
                output_names=outputs,
                dynamo=True,
                external_data=4 * parameters_of(model) > _MAX_INLINE_BYTES,
                verbose=False,
            )
        for file in sorted(Path(temporary).iterdir(), key=lambda file: file.name == path.name):  # the weights first
            file.replace(path.parent / file.name)
    return path


def _dynamic_axes(value: Tensor) -> dict[int, Any]:
    """Return the batch and, except for images, the length."""
    axes = (0,) if value.is_floating_point() else (0, value.dim() - 1)
    return dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
