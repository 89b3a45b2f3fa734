"""Work on a GPU that is recorded once as a CUDA graph and replayed: the host launches it with one call.

A graph reads and writes fixed addresses. Whatever changes from step to step is therefore written into tensors that
stay: batches (`Graphs.static`), the keys of local draws (`Draws`), gradients (`Graphs.run(..., network=...)`).
Ordinary dropout goes on drawing from the global generator: a replay takes its state as it finds it and moves it on.
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.regularizer import Step
from ..kernels.draws.reference import signed
from ..random import all_preserved

_SLOTS = 4096  # keys that one run may ask for


class NotCaptured(Exception):
    """Why something cannot be a graph: the end of a sentence."""


def rounded(length: int) -> int:
    """Up to a multiple of 16, and of an eighth of the length or so where it is long."""
    unit = 16 if length <= 128 else 32 if length <= 256 else 64 if length <= 1024 else 256
    return -(-length // unit) * unit


class Draws:
    """The keys of local draws and the place of the micro-batch, in device memory."""

    def __init__(self, device: torch.device) -> None:
        self._table = torch.zeros(_SLOTS, dtype=torch.int32, device=device)
        self._slots: dict[tuple[int, str], int] = {}
        self._now: Step | None = None
        self._written: tuple[int, int, int] | None = None

    def key(self, site: int, stream: str) -> Tensor:
        slot = self._slots.get((site, stream))
        if slot is None:
            slot = self._slots[site, stream] = 1 + len(self._slots)
            if slot == _SLOTS:
                raise NotCaptured(f"it draws for more than {_SLOTS} sites")
            if self._now is not None and not (self._table.is_cuda and torch.cuda.is_current_stream_capturing()):
                self._table[slot].fill_(signed(int(self._now.key(site, stream))))
        return self._table[slot]

    def first_position(self) -> Tensor:
        return self._table[0]

    def write(self, step: Step) -> None:
        """Before a replay: all that was ever asked for, as `step` has it. What is asked for later follows it too."""
        self._now = step
        now = (step.progress.step, step.first_position, len(self._slots))
        if now == self._written:
            return
        keys = (step.key(site, stream) for site, stream in self._slots)
        words = torch.tensor([step.first_position, *(signed(int(key)) for key in keys)], dtype=torch.int32)
        if self._table.is_cuda:
            words = words.pin_memory()
        self._table[: len(words)].copy_(words, non_blocking=True)
        self._written = now


@dataclass
class StaticStep(Step):
    """The step that a graph is told about: its draws take their keys from device memory."""

    draws: Draws | None = None

    @classmethod
    def of(cls, step: Step, draws: Draws) -> StaticStep:
        told = {f.name: getattr(step, f.name) for f in fields(Step)}
        return cls(**told | {"measure": False, "metrics": {}, "draws": draws})

    def key(self, site: int, stream: str) -> Tensor:
        assert self.draws is not None
        return self.draws.key(site, stream)

    def keys(self, sites: Sequence[int], stream: str, device: torch.device) -> Tensor:
        return torch.stack([self.key(site, stream) for site in sites]).unsqueeze(1)

    def positions(self, rows: int, device: torch.device) -> Tensor:
        assert self.draws is not None
        return self.draws.first_position() * (rows // self.batch_size) + torch.arange(rows, device=device)


@dataclass
class _Graph:
    graph: Any
    outputs: Any
    pairs: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)  # with the gradient that it writes


class Graphs:
    """The graphs of one training run. They share their memory, and so must never run at the same time."""

    def __init__(self, device: torch.device, limit: int = 64) -> None:
        self.device, self.limit = device, limit
        self.draws = Draws(device)
        self.failure: str | None = None  # why nothing is captured any more: the end of a sentence
        self._graphs: dict[Hashable, _Graph] = {}
        self._static: dict[Hashable, dict[str, Tensor]] = {}
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._parameters: dict[nn.Module, list[nn.Parameter]] = {}  # walking over a model in every step takes a while
        # a batch in tensors that stay, its lengths rounded up, and its key: what `CapturedSteps` lends
        self.batch: Callable[[Mapping[str, Any]], tuple[dict[str, Any], Hashable]] = self._unpadded
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool: Any = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def is_full(self) -> bool:
        return len(self._graphs) >= self.limit

    def static(
        self,
        key: Hashable,
        values: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        fill: Mapping[str, int] | None = None,
    ) -> dict[str, Tensor]:
        """The values, in tensors that stay where they are; where `shapes` has longer rows, `fill` is behind them."""
        if key not in self._static:
            self._static[key] = {
                name: torch.empty(
                    tuple(value.shape) if shapes is None else shapes[name], dtype=value.dtype, device=self.device
                )
                for name, value in values.items()
            }
        found = self._static[key]
        for name, value in values.items():
            length, buffer = value.shape[-1] if value.dim() else 0, found[name]
            if buffer.shape == value.shape:
                buffer.copy_(value, non_blocking=True)
            else:
                assert fill is not None
                buffer[..., :length].copy_(value, non_blocking=True)
                buffer[..., length:].fill_(fill[name])
        return found

    def _unpadded(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Hashable]:
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        key = tuple(sorted((name, tuple(value.shape), str(value.dtype)) for name, value in tensors.items()))
        return {**batch, **self.static(("batch", key), tensors)}, key

    def told(self, step: Step) -> StaticStep:
        """What a function that is recorded is told of `step`."""
        return StaticStep.of(step, self.draws)

    def run(
        self,
        key: Hashable,
        function: Callable[[], Any],
        step: Step | None = None,
        network: nn.Module | None = None,
        rehearse: bool = True,
    ) -> Any:
        """What `function` returns, in tensors that the next run with the same key overwrites.

        The first run with a key records it. Where that fails, it and all that comes after it just runs, and `failure`
        says why. Local draws are those of `step`. With `network` the function ends in a backward, and its gradients
        are added to those of the network's parameters, as a backward does. A function that may not run more often than
        it is asked for is not rehearsed before it is recorded.
        """
        if step is not None:
            self.draws.write(step)
        if self.failure is not None:
            return function()
        adds = any(parameter.grad is not None for parameter in self._trained(network))
        if network is not None:
            key = (key, adds)
        if key not in self._graphs:
            try:
                with self._no_trace(network):
                    self._graphs[key] = self._record(function, network, adds, rehearse)
            except NotCaptured as reason:
                self.failure = str(reason)
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                self.failure = f"it failed ({type(error).__name__}: {lines[0]})"
            return self.run(key[0] if network is not None else key, function, step, network, rehearse)  # type: ignore[index]
        found = self._graphs[key]
        if adds:
            self._collect(found)
        found.graph.replay()
        for parameter, gradient in found.pairs:
            parameter.grad = gradient
        return found.outputs

    def owns_gradient(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter's gradient is where graphs write it."""
        return parameter.grad is not None and parameter.grad is self._gradients.get(parameter)

    def _trained(self, network: nn.Module | None) -> list[nn.Parameter]:
        if network is None:
            return []
        if network not in self._parameters:
            self._parameters[network] = [p for p in network.parameters() if p.requires_grad]
        return self._parameters[network]

    def _collect(self, graph: _Graph) -> None:
        """What an eager micro-batch has left as gradients moves to where the graph adds to."""
        for parameter, gradient in graph.pairs:
            if parameter.grad is None:
                gradient.zero_()
            elif parameter.grad is not gradient:
                gradient.copy_(parameter.grad)

    def _record(self, function: Callable[[], Any], network: nn.Module | None, adds: bool, rehearse: bool) -> _Graph:
        def forget_gradients() -> list[tuple[nn.Parameter, Tensor]]:
            found = []
            for parameter in self._trained(network):
                if parameter.grad is not None:
                    found.append((parameter, parameter.grad))
                    parameter.grad = None
            return found

        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            if rehearse:
                function()  # lazy initialisation, workspaces, kernels that are compiled at their first call
            for parameter, gradient in forget_gradients():
                if parameter not in self._gradients:
                    self._gradients[parameter] = torch.empty_like(gradient)
            before = _host_states()
            # other threads, such as the one that pins batches, may go on
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                outputs = function()
                found = forget_gradients()
                pairs = [(parameter, self._gradients[parameter]) for parameter, _ in found]
                if found:
                    into, new = [gradient for _, gradient in pairs], [gradient for _, gradient in found]
                    (torch._foreach_add_ if adds else torch._foreach_copy_)(into, new)
                del found
            if _host_states() != before:
                raise NotCaptured("its forward draws random numbers on the host")
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return _Graph(graph, outputs, pairs)

    @contextmanager
    def _no_trace(self, network: nn.Module | None) -> Iterator[None]:
        """Recording changes neither random states nor gradients; where it fails, all is as if it had not been tried."""
        gradients = [(parameter, parameter.grad) for parameter in self._trained(network)]
        for parameter, _ in gradients:
            parameter.grad = None
        stream = torch.cuda.current_stream(self.device)
        try:
            with all_preserved(self.device):
                try:
                    yield
                except BaseException:
                    torch.cuda.set_stream(stream)
                    self._mend()
                    raise
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _mend(self) -> None:
        """After a capture that failed torch takes the generator and the allocator to be capturing still."""
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        for mend in (
            lambda: torch.cuda.synchronize(self.device),
            lambda: torch._C._cuda_endAllocateToPool(index, self._pool),
            lambda: generator.graphsafe_set_state(generator.clone_state()),
        ):
            with suppress(RuntimeError):  # where it was not capturing
                mend()

    def clear(self) -> None:
        """Gives the memory back. Gradients that a parameter still has stay its own."""
        self._graphs, self._static, self._gradients, self._parameters = {}, {}, {}, {}


def _host_states() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), python_random.getstate(), np.asarray(keys).tobytes(), tuple(rest)
