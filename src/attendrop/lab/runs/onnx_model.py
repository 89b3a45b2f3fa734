"""An exported model in the place of a model of transformers, for `predict`, `evaluate` and `serve`.

`attendrop export` writes the files into the folder of the run, and `export.json` with the checksum of each and that of
the record: a file that belongs to another state of the run is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError, on_one_line
from ...utils.checks import check_choice
from ...utils.files import load_json
from .folder import RECORD_FILE

TORCH, ONNX, ONNX_INT8 = "torch", "onnx", "onnx-int8"
FILES = {ONNX: "model.onnx", ONNX_INT8: "model.int8.onnx", "program": "model.pt2"}
ENGINES = (TORCH, ONNX, ONNX_INT8)
EXPORT_FILE = "export.json"


class OnnxModel:
    """A session of onnxruntime that is called as a model of transformers is.

    Args:
        path: The ONNX file.
        config: The configuration of the model.
    """

    device = torch.device("cpu")

    def __init__(self, path: str | Path, config: Any) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UserError("engine is 'onnx', which needs onnxruntime: pip install 'attendrop[onnx]'.") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.force_spinning_stop", "1")  # idle threads leave the processor
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises its own classes
            raise UserError(f"{str(path)!r} cannot be loaded ({on_one_line(error)}); export it again.") from None
        self.config = config
        self._inputs = [value.name for value in self.session.get_inputs()]

    def eval(self) -> OnnxModel:
        """Do nothing: there is no other mode."""
        return self

    def __call__(self, **inputs: Tensor) -> Any:
        arrays = {name: inputs[name].numpy() for name in self._inputs}
        return SimpleNamespace(logits=torch.from_numpy(self.session.run(["logits"], arrays)[0]))


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 of a file.

    Args:
        path: The file.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def exported_files(folder: str | Path) -> dict[str, Any]:
    """Return what `export.json` says about the files that were exported from the present state of a run.

    Args:
        folder: The folder of the run.
    """
    path = Path(folder, EXPORT_FILE)
    content = load_json(path) if path.is_file() else {}
    files = content.get("files") if isinstance(content, Mapping) else None
    if not isinstance(files, Mapping) or content.get("record") != digest_of(Path(folder, RECORD_FILE)):
        return {}
    return dict(files)


def load_exported(folder: str | Path, engine: str) -> OnnxModel:
    """Load a file that `attendrop export` wrote.

    Args:
        folder: The folder of the run.
        engine: "onnx" or "onnx-int8".
    """
    from transformers import AutoConfig

    check_choice("engine", engine, ENGINES)
    path = Path(folder, FILES[engine])
    command = f"attendrop export {folder}{' --int8' * (engine == ONNX_INT8)}"
    if not path.is_file():
        raise UserError(f"{str(folder)!r} has no {path.name}, which engine {engine!r} needs; write it with: {command}.")
    known = exported_files(folder).get(path.name)
    if not isinstance(known, Mapping) or known.get("sha256") != digest_of(path):
        raise UserError(f"{str(path)!r} is not what was exported from this run; write it again with: {command}.")
    return OnnxModel(path, AutoConfig.from_pretrained(folder))
