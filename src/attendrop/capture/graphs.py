"""GPU work that is captured once as a CUDA graph and replayed, so that the CPU launches it with one call.

A graph reads and writes fixed addresses. Whatever changes from step to step is therefore written into tensors that
stay at their addresses: batches (`Graphs.static_batch`), the keys of local draws (`DrawKeys`), gradients
(`Graphs.run(..., network=...)`). Ordinary dropout still draws from the global generator: a replay starts from its
current state and advances it.
"""

from __future__ import annotations

import operator
import random as python_random
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.step import MicroBatch, Step
from ..random import all_preserved, cuda_generator
from .batches import ExactShapes
from .draws import DrawKeys, StaticMicroBatch, StaticStep
from .errors import NotCaptured
from .forward_patches import Contexts, capturable
from .half_weights import LinearCopies, Trial, write_gradients
from .host_ops import HostOps, draws_only, repeat
from .recomputation import RecomputedDraws

_Work = Callable[..., Any]  # work(contexts), with those of `capturable`


@dataclass
class _Graph:
    graph: Any
    outputs: Any
    gradients: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)  # where it writes that of each parameter
    cpu_draws: list[tuple[Any, ...]] = field(
        default_factory=list
    )  # numbers drawn on the CPU whose values do not matter
    recomputed: RecomputedDraws | None = None


class Graphs:
    """The CUDA graphs of one training run. They share memory, so only one may run at a time.

    Args:
        device: the GPU.
        shapes: which shapes the buffers of batches have.
        limit: the largest number of graphs; further work runs eagerly.
    """

    def __init__(self, device: torch.device, shapes: ExactShapes | None = None, limit: int = 64) -> None:
        self.device, self.limit = device, limit
        self.failure: str | None = None  # why nothing is captured any more
        self.failure_of: dict[Hashable, str] = {}  # why functions that may fail were not captured, by their keys
        self.ignores_cpu_draws = False  # whether numbers that a forward draws on the CPU have no effect
        self._shapes = shapes or ExactShapes()
        self._draw_keys = DrawKeys(device)
        self._draw_keys_of: dict[Hashable, DrawKeys] = {
            None: self._draw_keys
        }  # scope -> keys and numbers of its methods
        self._scope: Hashable = None
        self._graphs: dict[tuple[Hashable, Hashable, bool], _Graph] = {}  # scope, key, whether it adds to gradients
        self._loaded: set[Hashable] = set()  # keys of `run_once` whose kernels are loaded
        self._static: dict[Hashable, dict[str, Tensor]] = {}
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._parameters: dict[nn.Module, list[nn.Parameter]] = {}  # cached: walking through a model takes a while
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool: Any = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return len(self._graphs) >= self.limit

    def has(self, key: Hashable) -> bool:
        """Return whether there is a graph for this key."""
        return any((self._scope, key, adds) in self._graphs for adds in (False, True))

    def begin_run(self, shapes: ExactShapes, scope: Hashable) -> None:
        """Call this when another run begins to use these graphs.

        Args:
            shapes: which shapes the buffers of batches have in this run.
            scope: graphs of other scopes are not used in this run. It names what is fixed in a graph and is not part
                of the keys: the methods and the training arguments.
        """
        self.failure, self._shapes, self._scope = None, shapes, scope
        if scope not in self._draw_keys_of:
            self._draw_keys_of[scope] = DrawKeys(self.device)
        self._draw_keys = self._draw_keys_of[scope]
        self._draw_keys.forget()

    def drop_scope(self) -> None:
        """Free the graphs of the current scope."""
        del self._draw_keys_of[self._scope]
        self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] != self._scope}

    # ---- tensors that stay at their addresses ------------------------------------------------------------------

    def static(
        self,
        key: Hashable,
        values: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        fill: Mapping[str, int] | None = None,
    ) -> dict[str, Tensor]:
        """Copy the values into the buffers of `key`, which are created by the first call with it.

        Args:
            key: names the buffers.
            values: the tensors.
            shapes: the shapes of the buffers, by default those of the values; their last dimension may be larger.
            fill: the padding value of a larger buffer.
        """
        if key not in self._static:
            self._static[key] = {
                name: torch.empty(
                    tuple(value.shape) if shapes is None else shapes[name], dtype=value.dtype, device=self.device
                )
                for name, value in values.items()
            }
        buffers = self._static[key]
        for name, value in values.items():
            length, buffer = value.shape[-1] if value.dim() else 0, buffers[name]
            if buffer.shape == value.shape:
                buffer.copy_(value, non_blocking=True)
            else:
                assert fill is not None
                buffer[..., :length].copy_(value, non_blocking=True)
                buffer[..., length:].fill_(fill[name])
        return buffers

    def static_batch(
        self, batch: Mapping[str, Any], shapes_of: ExactShapes | None = None
    ) -> tuple[dict[str, Any], Hashable]:
        """Return the batch in buffers, its lengths rounded up; and a key that batches of the same shapes share.

        Args:
            batch: the batch.
            shapes_of: which shapes the buffers have, by default those of the run.
        """
        shapes_of = shapes_of or self._shapes
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        rest = {name: value for name, value in batch.items() if name not in tensors}
        if not all(isinstance(value, (bool, int, float, str, type(None))) for value in rest.values()):
            raise NotCaptured("batches hold other things than tensors")
        shapes = shapes_of.shapes(tensors)
        described = sorted((name, shapes[name], str(value.dtype)) for name, value in tensors.items())
        key = (tuple(described), tuple(sorted(rest.items())))
        return {**self.static(("batch", key), tensors, shapes, shapes_of.fill()), **rest}, key

    def static_micro_batch(self, batch: MicroBatch) -> StaticMicroBatch:
        """Return the micro-batch for a plan that is captured: its draws read their keys from device memory."""
        return StaticMicroBatch.of(batch, self._draw_keys)

    def static_step(self, step: Step) -> StaticStep:
        """Return the step for work that is captured: it reads keys and numbers from device memory."""
        return StaticStep.of(step, self._draw_keys)

    # ---- capture and replay ------------------------------------------------------------------------------------

    def run(
        self,
        key: Hashable,
        function: Callable[[], Any],
        *,
        batch: MicroBatch | Step | None = None,
        network: nn.Module | None = None,
        forward_of: nn.Module | None = None,
        warm_up: bool = True,
        all_scopes: bool = False,
        may_fail: bool = False,
    ) -> Any:
        """Return the result of `function`, in tensors that the next run with the same key overwrites.

        The first run with a key captures the function. If that fails, this and all later functions run eagerly, and
        `failure` says why.

        Args:
            key: names the graph.
            function: the work. It reads tensors that stay at their addresses.
            batch: the micro-batch or step whose draws and numbers the function reads.
            network: the network whose backward the function runs. The gradients are added to those of its parameters.
            forward_of: the model whose forward the function runs; it is made `capturable`.
            warm_up: run the function once before it is captured; not for a function whose effects must not repeat.
            all_scopes: use this graph in runs of all scopes (`begin_run`).
            may_fail: whether other functions are captured even if this one cannot be. The caller must not pass such a
                function again; `failure_of` says why it failed.
        """

        def work(contexts: Contexts | None = None) -> Any:
            with nullcontext() if forward_of is None else capturable(forward_of, contexts):
                return function()

        if batch is not None:
            self._draw_keys.write(batch)
        if self.failure is not None:
            return work()
        adds = any(parameter.grad is not None for parameter in self._trained(network))
        name = (None if all_scopes else self._scope, key, adds)
        graph = self._graphs.get(name)
        if graph is None:
            graph = self._try_to_capture(work, network, adds, warm_up)
            if graph is None:
                if may_fail:
                    self.failure_of[key], self.failure = str(self.failure), None
                return work()
            self._graphs[name] = graph
            if batch is not None:
                self._draw_keys.write(batch)  # the capture has added keys
        if adds:
            self._collect_gradients(graph)
        if graph.recomputed is not None:
            graph.recomputed.prepare_replay()
        graph.graph.replay()
        repeat(graph.cpu_draws)
        for parameter, gradient in graph.gradients:
            parameter.grad = gradient
        return graph.outputs

    def run_once(self, key: Hashable, function: Callable[[], Any], step: Step | None = None) -> Any:
        """Like `run`, for a function whose effects must not repeat, such as one that multiplies gradients.

        The first run with a key is eager, which loads the kernels; the second is captured.

        Args:
            key: names the graph.
            function: the work. It reads tensors that stay at their addresses.
            step: the step whose draws and numbers the function reads, if it reads any.
        """
        if key in self._loaded and not (self.is_full and not self.has(key)):
            return self.run(key, function, batch=step, warm_up=False)
        self._loaded.add(key)
        if step is not None:
            self._draw_keys.write(step)
        return function()

    def owns_gradients(self, parameters: list[nn.Parameter]) -> bool:
        """Return whether the gradients of these parameters (all have one) are the tensors into which graphs write them.

        It is called twice in every step, so it loops over the parameters in C.
        """
        return all(map(operator.is_, map(self._gradients.get, parameters), [p.grad for p in parameters]))

    def _trained(self, network: nn.Module | None) -> list[nn.Parameter]:
        if network is None:
            return []
        if network not in self._parameters:
            self._parameters[network] = list(network.parameters())
        return [p for p in self._parameters[network] if p.requires_grad]  # another run may freeze other weights

    def _collect_gradients(self, graph: _Graph) -> None:
        """Move gradients of an eager micro-batch into the tensors to which the graph adds."""
        for parameter, gradient in graph.gradients:
            if parameter.grad is None:
                gradient.zero_()
            elif parameter.grad is not gradient:
                gradient.copy_(parameter.grad)

    def _try_to_capture(self, work: _Work, network: nn.Module | None, adds: bool, warm_up: bool) -> _Graph | None:
        """Return the graph; None where it cannot be captured, and then `failure` says why."""
        try:
            with self._restored(network):
                return self._capture(work, network, adds, warm_up)
        except NotCaptured as reason:
            self.failure = str(reason)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            self.failure = f"it failed ({type(error).__name__}: {lines[0]})"
        return None

    def _capture(self, work: _Work, network: nn.Module | None, adds: bool, warm_up: bool) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            host, recomputed, copies = HostOps(self.device), RecomputedDraws(self.device), LinearCopies()
            if warm_up:
                with recomputed.counting() as contexts:
                    copies = self._run_before_capture(partial(work, contexts), network)
                copies.load_kernels()
            before = _cpu_random_states()
            recomputed.register(graph)
            # Other threads, such as the one that pins batches, may use CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                with host, copies:
                    outputs = work(recomputed.capturing())
                gradients = self._write_gradients(network, copies, adds)
            self._check_cpu_draws(host, before)
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return _Graph(graph, outputs, gradients, host.draws, recomputed)

    def _run_before_capture(self, function: Callable[[], Any], network: nn.Module | None) -> LinearCopies:
        """Run the function: lazy initialisation, workspaces, kernels that are compiled on their first call.

        Returns copies from which its linear layers can read.
        """
        with HostOps(self.device), Trial() as trial:
            function()
        for parameter, gradient in self._take_gradients(network).items():
            if parameter not in self._gradients:
                self._gradients[parameter] = torch.empty_like(gradient)
        return trial.usable(self._trained(network))

    def _take_gradients(self, network: nn.Module | None) -> dict[nn.Parameter, Tensor]:
        taken = {}
        for parameter in self._trained(network):
            if parameter.grad is not None:
                taken[parameter] = parameter.grad
                parameter.grad = None
        return taken

    def _write_gradients(
        self, network: nn.Module | None, copies: LinearCopies, adds: bool
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """Write the gradients that a function has left to where the optimizer reads them."""
        of_weights, of_copies = self._take_gradients(network), copies.take_gradients()
        for parameter in of_weights.keys() & of_copies.keys():  # it is used in a way that the trial does not see
            of_weights[parameter] = of_weights[parameter] + of_copies.pop(parameter)
        write_gradients(self._gradients, of_weights, adds)
        write_gradients(self._gradients, of_copies, adds)
        return [(parameter, self._gradients[parameter]) for parameter in (*of_weights, *of_copies)]

    def _check_cpu_draws(self, host: HostOps, before: tuple[Any, ...]) -> None:
        """Refuse work that draws random numbers on the CPU, unless their values do not matter."""
        state, *others = _cpu_random_states()
        is_same = others == list(before[1:]) and (state == before[0] or (self.ignores_cpu_draws and host.draws))
        if not is_same or (state != before[0] and not draws_only(host.draws, _as_state(before[0]))):
            raise NotCaptured("its forward draws random numbers on the CPU")

    @contextmanager
    def _restored(self, network: nn.Module | None) -> Iterator[None]:
        """Restore random states and gradients after a capture; after a failed one, the state of torch too."""
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
                    self._end_failed_capture()
                    raise
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _end_failed_capture(self) -> None:
        """After a failed capture, the allocator and the generator of torch still assume that they are capturing."""
        generator: Any = cuda_generator(self.device)
        for repair in (
            lambda: torch.cuda.synchronize(self.device),
            lambda: torch._C._cuda_endAllocateToPool(generator.device.index, self._pool),
            lambda: generator.graphsafe_set_state(generator.clone_state()),
        ):
            with suppress(RuntimeError):  # where it was not capturing
                repair()

    def clear(self) -> None:
        """Free the memory. A gradient that a parameter still has stays valid."""
        self._graphs, self._static, self._gradients, self._parameters = {}, {}, {}, {}
        self._loaded = set()


def _cpu_random_states() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), python_random.getstate(), np.asarray(keys).tobytes(), tuple(rest)


def _as_state(state: bytes) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
