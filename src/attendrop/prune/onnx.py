"""Exports a model to ONNX or as a program of torch.export, for batches of any size and length.

ONNX needs attendrop[onnx]. `quantize_onnx` makes the weights of an ONNX file int8; activations are quantised at each
forward, with a scale of their own (dynamic quantisation), so that no data is needed.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..model.probe import LABELS
from ..utils.files import whole_file
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
    inputs, options = _inputs_and_options(model, batch)
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


def _inputs_and_options(model: Any, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    inputs = {name: value for name, value in batch.items() if name not in LABELS and isinstance(value, Tensor)}
    # The export would treat a batch size of 1 as a constant.
    inputs = {name: torch.cat([value] * 2) if len(value) == 1 else value for name, value in inputs.items()}
    # A cache for generation is not a tensor, and requesting one changes what is traced.
    options = {"use_cache": False} if getattr(model.config, "is_encoder_decoder", False) else {}
    return inputs, options


def _dynamic_axes(value: Tensor) -> dict[int, Any]:
    """Return the batch and, except for images, the length."""
    axes = (0,) if value.is_floating_point() else (0, value.dim() - 1)
    return dict.fromkeys(axes, torch.export.Dim.DYNAMIC)


def quantize_onnx(path: str | Path, output: str | Path, *, reduce_range: bool = False) -> Path:
    """Write an ONNX model with int8 weights, one scale for each output channel.

    Args:
        path: The file that `export_onnx` wrote.
        output: The file to write.
        reduce_range: Whether weights have 7 bits. Processors without VNNI add products of 8 bits in 16, which may
            overflow.

    Returns:
        The path of the new file.
    """
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ValueError("quantize_onnx needs onnx and onnxruntime; pip install 'attendrop[onnx]'.") from error
    model: Any = onnx.load(str(path))
    model.graph.ClearField("value_info")  # shapes from the export, which those of the quantised graph contradict
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it recommends a preparation that is not needed
    try:
        quantize_dynamic(model, str(output), per_channel=True, reduce_range=reduce_range, weight_type=QuantType.QInt8)
    finally:
        logging.root.setLevel(level)
    return Path(output)


def export_program(model: Any, path: str | Path, batch: Mapping[str, Tensor]) -> Path:
    """Export a model with torch.export, for batches of any size and length; images keep their size.

    `torch.export.load(path).module()` is a function of the inputs by position that returns a tuple.

    Args:
        model: A transformers model.
        path: The file to write. Its folder is created.
        batch: Example inputs; labels are ignored.

    Returns:
        The path.
    """
    path = Path(path)
    inputs, options = _inputs_and_options(model, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    with isolated_eval(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            _TensorInterface(model, list(inputs), options),
            tuple(inputs.values()),
            dynamic_shapes={"values": tuple(_dynamic_axes(value) for value in inputs.values())},
            strict=False,
        )
    with whole_file(path) as file:
        torch.export.save(program, file)
    return path
