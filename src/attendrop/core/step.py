"""The objects that a method sees during training: the loop, the optimizer step, the micro-batch.

Loop        the whole training: the optimizer, the processes, where examples can be drawn
Step        one optimizer step: the model, how far training has come, the metrics to log
MicroBatch  one forward and backward pass: the examples, and the random draws that belong to them
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .. import random
from ..kernels.draws import dropout_factors, uniform
from ..model.probe import LoopLoss, Probe
from ..model.seams import Seams
from ..utils.transfer import to_device_async
from .schedule import Progress, Schedule, Strength, value_at

Examples = Callable[[str, int, torch.Generator], Mapping[str, Any]]


class Graphs(Protocol):
    """CUDA graphs that a loop offers to methods for their own work (implemented by `attendrop.capture.graphs`)."""

    device: torch.device

    def static(self, key: Hashable, values: Mapping[str, Tensor]) -> dict[str, Tensor]: ...

    def static_batch(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Hashable]: ...

    def run(
        self,
        key: Hashable,
        function: Callable[[], Any],
        *,
        network: nn.Module | None = None,
        warm_up: bool = True,
        all_scopes: bool = False,
    ) -> Any: ...

    def owns_gradients(self, parameters: list[nn.Parameter]) -> bool: ...

    def static_step(self, step: Step) -> Step: ...

    def run_once(self, key: Hashable, function: Callable[[], Any], step: Step) -> Any: ...


class Loop:
    """The services of a training loop for methods that train their own networks or draw examples.

    Pass one to `Engine(loop=...)`; `RegularizedTrainer` does so by itself. A subclass may override `prepare` and
    `graphs`.

    Args:
        optimizer: the optimizer of the model.
        max_grad_norm: the norm to which the loop clips gradients; 0: it does not.
        world: the number of processes.
        examples: a function (source, count, generator) that returns a batch of `count` examples of "dev", "train" or
            "held_out", drawn with the generator, the same on every process.
        graphs: where work can be captured as CUDA graphs.
        calls_model: whether the loop's loss calls the model by itself, maybe several times in one step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        max_grad_norm: float = 0.0,
        world: int = 1,
        examples: Examples | None = None,
        graphs: Graphs | None = None,
        calls_model: bool = False,
    ) -> None:
        self._optimizer, self._max_grad_norm, self._world = optimizer, max_grad_norm, world
        self._examples, self._graphs, self._calls_model = examples, graphs, calls_model

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the model."""
        return self._optimizer

    @property
    def max_grad_norm(self) -> float:
        """The norm to which the loop clips gradients; 0: it does not."""
        return self._max_grad_norm

    @property
    def world(self) -> int:
        """The number of processes."""
        return self._world

    @property
    def examples(self) -> Examples | None:
        """Draws a batch of examples; None where the loop cannot."""
        return self._examples

    @property
    def graphs(self) -> Graphs | None:
        """Where work can be captured as CUDA graphs; None where steps are eager."""
        return self._graphs

    @property
    def calls_model(self) -> bool:
        """Whether the loop's loss calls the model by itself, maybe several times in one step."""
        return self._calls_model

    @property
    def packs_examples(self) -> bool:
        """Whether one row of a batch may hold several examples, one after the other."""
        return False

    @property
    def replaces_loss(self) -> bool:
        """Whether the loop computes a loss from the predictions, instead of the model's own."""
        return False

    @property
    def arguments(self) -> Any:
        """The training arguments of transformers' Trainer; None in a loop without them."""
        return None

    @property
    def gradient_scale(self) -> float:
        """The factor of all gradients in `on_gradients`, from a loss that is scaled against underflow."""
        return 1.0

    def prepare(self, network: nn.Module) -> nn.Module:
        """Give another network what the loop gave to the model's forward: autocast, for example."""
        return network


@dataclass
class Step:
    """One optimizer step.

    Args:
        model: the model that is trained, not wrapped by DDP.
        seams: the places in the model that a `Plan` changes.
        progress: how far training has come.
        seed: the seed of all draws.
        measure: whether the metrics of this step will be logged. Expensive metrics are measured only then.
        loop: the services of the training loop.
        metrics: name -> value; methods write here the metrics to log.
        views: copies of each example in the tracked pass, one after the other: [views · B, ...].
        columns: columns of the batch that methods read and the model does not get.
        reads_gradients: whether a method needs gradients of hidden states in the tracked pass.
    """

    model: nn.Module
    seams: Seams
    progress: Progress
    seed: int = 0
    measure: bool = False
    loop: Loop = field(default_factory=Loop)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    views: int = 1
    columns: frozenset[str] = frozenset()
    reads_gradients: bool = False

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def shared_generator(self, name: str) -> torch.Generator:
        """Return a generator for draws that are the same on every process; `name` distinguishes those of one step."""
        return random.shared_generator(self.seed, self.progress.step, name)

    def key(self, site: int, stream: str) -> int | Tensor:
        """Return the key of a site's draws. In a captured step it is a 0-d int32 tensor on the device."""
        return random.key_of(self.seed, self.progress.step, site, stream)

    def keys(self, sites: Sequence[int], stream: str, device: torch.device) -> Tensor:
        """Return the keys of several sites, int32 [sites, 1], for `attendrop.kernels.draws` to draw for all at once."""
        words = [random.key_of(self.seed, self.progress.step, site, stream) for site in sites]
        return to_device_async(random.as_keys(words).unsqueeze(1), device)

    @property
    def is_captured(self) -> bool:
        """Whether what reads this step is captured: it must not branch on what changes from step to step."""
        return False

    def number(
        self, name: Hashable, function: Callable[[Step], float], dtype: torch.dtype = torch.float32
    ) -> float | Tensor:
        """Return a number that Python computes and that may change from step to step.

        Args:
            name: distinguishes the numbers of a run. Equal names have equal functions.
            function: computes it from the step. It depends on nothing else that changes.
            dtype: the precision of a captured step's number.

        Returns:
            The number itself; in a captured step a 0-d tensor on the device, into which the number is
            written before each replay.
        """
        return function(self)

    def strength(self, name: Hashable, strength: Strength, dtype: torch.dtype = torch.float32) -> float | Tensor:
        """Return the value of a strength in this step, as `number` returns it where it is a schedule."""
        if not isinstance(strength, Schedule):
            return strength
        return self.number(name, lambda step: value_at(strength, step.progress), dtype)

    def values(self, name: Hashable, function: Callable[[Step], Tensor]) -> Tensor:
        """Like `number`, for a small tensor that is computed on the CPU: float32, on the device of the model."""
        return to_device_async(function(self).float(), self.device)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True)
class MicroBatch:
    """The examples of one forward and backward pass.

    Args:
        step: the optimizer step that it belongs to.
        examples: the batch as the data loader gave it, with the columns that the method reads.
        inputs: the inputs of the model in the tracked pass: all views, without the methods' columns.
        first_position: the position of the first example in the global batch of the step, over all processes.
        size: the number of examples.
        backward: forward, loss and backward of another network on the same inputs, as the loop does it for the model;
            the other methods act on it too. None: no engine has opened the micro-batch.
        loop_loss: the loss of the micro-batch, where the loop's loss calls the model by itself, maybe several times.
            Then `examples` and `inputs` are those of one call.
        call: the number of that call.
    """

    step: Step
    examples: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    first_position: int = 0
    size: int = 1
    backward: Callable[[nn.Module], Any] | None = None
    loop_loss: LoopLoss | None = None
    call: int = 0

    def probe(self) -> Probe:
        """Ask the model about the examples before the pass that trains it."""
        columns = self.step.columns
        inputs = {k: v for k, v in self.examples.items() if k not in columns}
        return Probe(self.step.model, self.step.seams, inputs, self.loop_loss, self.call)

    def uniform(self, site: int, shape: tuple[int, int, int, int], device: torch.device, stream: str) -> Tensor:
        """Return draws in [0, 1), the same however the global batch is divided among processes and micro-batches.

        Args:
            site: the number of the attention site (or block) that they are for.
            shape: [B, H, Q, K].
            device: where they are needed.
            stream: a name that distinguishes the draws of one site.
        """
        return uniform(self.key(site, stream), self.positions(shape[0], device), shape[1:], device)

    def uniform_of_views(
        self, site: int, shape: tuple[int, int, int, int], device: torch.device, stream: str
    ) -> Tensor:
        """Like `uniform`, with other draws for each view: [views · B, H, Q, K], where `shape` is that of one view."""
        return _joined([self.uniform(site, shape, device, name) for name in self._streams_of_views(stream)])

    def dropout_of_views(
        self, site: int, shape: tuple[int, int, int, int], device: torch.device, stream: str, p: float | Tensor
    ) -> Tensor:
        """Like `uniform_of_views`, for dropout: 0 where a draw is below p, else 1 / (1 − p); at p = 1 all 0."""
        positions = self.positions(shape[0], device)
        keys = [self.key(site, name) for name in self._streams_of_views(stream)]
        return _joined([dropout_factors(p, key, positions, shape[1:], device) for key in keys])

    def _streams_of_views(self, stream: str) -> list[str]:
        return [stream, *(f"{stream}/{view}" for view in range(1, self.step.views))]

    def key(self, site: int, stream: str) -> int | Tensor:
        """Like `Step.key`, with separate draws for each call of the model."""
        return self.step.key(site, self._stream(stream))

    def keys(self, sites: Sequence[int], stream: str, device: torch.device) -> Tensor:
        """Like `Step.keys`, with separate draws for each call of the model."""
        return self.step.keys(sites, self._stream(stream), device)

    def _stream(self, stream: str) -> str:
        return f"{stream}/call {self.call}" if self.call else stream

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """Return the positions of the rows in the global batch.

        A multiple-choice example has one row for each choice.
        """
        return self.first_position * -(-rows // self.size) + torch.arange(rows, device=device)
