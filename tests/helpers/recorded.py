"""Captured steps on a CPU: the operations of a function are recorded once and replayed, as a CUDA graph does.

A replay runs the recorded operations again on the same tensors, and no Python. What Python decided while they were
recorded stays as it was, and whatever a CUDA graph could not do is an error: reading a value of a tensor, a result
whose shape depends on values, a new constant from the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import masking_utils

from attendrop.capture import graphs, optimizers, step_capture
from attendrop.capture.host_ops import HostOps
from attendrop.kernels.attribution_mask import api as attribution_mask
from attendrop.kernels.attribution_mask import reference as attribution_reference
from attendrop.kernels.draws import api as draws
from attendrop.kernels.draws.reference import uniform_torch
from attendrop.random import all_preserved

FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2", "lift_fresh", "equal")


class Tape(TorchDispatchMode):
    """Records the operations that run inside, and refuses those that a CUDA graph cannot have."""

    is_recording = False

    def __enter__(self) -> Any:
        Tape.is_recording = True
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Tape.is_recording = False
        super().__exit__(*error)

    def __init__(self) -> None:
        super().__init__()
        self._of_cpu: set[int] = set()  # numbers that are drawn on the CPU also where the model is on a GPU
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        is_of_cpu = name == "rand" or any(id(x) in self._of_cpu for x in args)
        if name in FORBIDDEN and not is_of_cpu and not (name == "lift_fresh" and args[0].numel() < 2):
            raise RuntimeError(f"{name} is not allowed during a capture")
        if any(isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for x in _indices(name, args)):
            raise RuntimeError(f"{name} with a boolean index is not allowed during a capture")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        if is_of_cpu:
            self._of_cpu.add(id(result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, before in self.calls:
            after = func(*args, **kwargs)
            for old, new in zip(tree_flatten(before)[0], tree_flatten(after)[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.detach().copy_(new)


def _indices(name: str, args: Any) -> list[Any]:
    return [x for x in args[1] if x is not None] if name in ("index", "index_put", "index_put_") else []


class RecordedGraphs(graphs.Graphs):
    """`Graphs` whose graphs are tapes."""

    recorded = 0  # how many, in all objects

    def _capture(self, work: Callable[..., Any], network: nn.Module | None, adds: bool, warm_up: bool) -> Any:
        RecordedGraphs.recorded += 1
        assert warm_up, "a recording runs its function, which must not run twice here"
        copies = self._run_before_capture(work, network)
        before = {parameter: gradient.clone() for parameter, gradient in self._gradients.items()}
        with Tape() as tape:
            with HostOps(self.device) as host, copies:
                outputs = work()
            gradients = self._write_gradients(network, copies, adds)
        for parameter, gradient in before.items():
            self._gradients[parameter].copy_(gradient)
        # dropout draws on the CPU here, and the tape repeats it; a draw of which nothing is recorded does not matter
        assert self.ignores_cpu_draws or not host.draws
        return graphs._Graph(tape, outputs, gradients)

    def run_once(self, key: Any, function: Callable[[], Any], step: Any = None) -> Any:
        """As of `Graphs`: the first run is eager. The second is recorded; on a CPU that runs the function too."""
        if step is not None:
            self._draw_keys.write(step)
        if key not in self._loaded:
            self._loaded.add(key)
            return function()
        if key not in self._graphs:
            with Tape() as tape:
                outputs = function()
            self._graphs[key] = graphs._Graph(tape, outputs)
            return outputs
        self._graphs[key].graph.replay()
        return self._graphs[key].outputs

    @contextmanager
    def _restored(self, network: nn.Module | None) -> Iterator[None]:
        gradients = [(parameter, parameter.grad) for parameter in self._trained(network)]
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            with all_preserved(self.device):
                yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


class TorchDraws:
    """The draws of a CPU in torch."""

    @staticmethod
    def uniform(key: Any, positions: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return uniform_torch(key, positions, shape, "cpu")

    @staticmethod
    def rows_below(key: Any, p: Any, rows: int, n: int) -> torch.Tensor:
        return uniform_torch(key, torch.arange(rows), (n,), "cpu") < p


@pytest.fixture
def recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers with capture="captured" record and replay on the CPU."""
    monkeypatch.setattr(step_capture, "reason_against", lambda trainer: None)
    monkeypatch.setattr(step_capture, "Graphs", RecordedGraphs)
    monkeypatch.setattr(step_capture.StepCapture, "may_capture", property(lambda self: self._mode != "eager"))
    monkeypatch.setattr(step_capture, "replaying_steps", lambda *_: nullcontext())
    monkeypatch.setattr(optimizers, "allows_capture", lambda optimizer: False)
    # numpy is not recorded; torch gives the same numbers
    monkeypatch.setattr(draws, "cpu", TorchDraws)
    monkeypatch.setattr(attribution_mask, "cpu", attribution_reference)
    # transformers asks whether a CUDA stream is capturing, and then reads no mask
    monkeypatch.setattr(masking_utils, "is_tracing", lambda *_: Tape.is_recording)
