"""Several runs of equal shapes as one program: a prototype of studies whose runs train side by side.

The hidden states of S replicas are one batch of S · B rows, the rows of a replica one after the other. So attention,
its masks and the plans of methods stay as they are. Linear layers become batched products over S stacks of weights
(`torch.baddbmm`), norms and biases have their values by replica, and the optimizer goes over the weights of all
replicas. The losses of the replicas are added up, so that each gets its own gradient; each is clipped by its own norm.

On a CPU a replica draws what its run alone draws: ordinary dropout from a generator of its own, and the draws of
methods by the key of its own seed. On a GPU all rows draw from one generator and one key, as one large batch would:
a step costs the same, and is no training run. Kernels that take a key by row would be the first part of building it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attendrop.core.engine import Engine
from attendrop.core.step import MicroBatch, Step
from attendrop.random import as_keys, key_of


class StackedLinear(nn.Module):
    """The linear layers of all replicas. Weights are [S, in, out], so that their gradients come contiguous.

    Args:
        layers: One of each replica.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(_stacked(layers, "weight").detach().mT.contiguous())
        self.bias = _stacked(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        replicas, _, width = self.weight.shape
        rows = x.reshape(replicas, -1, x.shape[-1])
        return torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight).view(*x.shape[:-1], width)


class StackedLayerNorm(nn.Module):
    """The norms of all replicas.

    Args:
        norms: One of each replica.
    """

    def __init__(self, norms: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight, self.bias = _stacked(norms, "weight"), _stacked(norms, "bias")
        self.eps = norms[0].eps
        self.compute: Callable[..., Tensor] = stacked_norm

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        return self.compute(rows, self.weight, self.bias, self.eps).view(x.shape)


def stacked_norm(rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the norms of rows [S, N, H], with weight and bias [S, H]."""
    normal = nn.functional.layer_norm(rows, rows.shape[-1:], eps=eps)
    return torch.addcmul(bias.unsqueeze(1), normal, weight.unsqueeze(1))


class StackedEmbedding(nn.Module):
    """The embeddings of all replicas, as the rows of one matrix.

    Args:
        embeddings: One of each replica.
    """

    def __init__(self, embeddings: Sequence[nn.Embedding]) -> None:
        super().__init__()
        self.weight = _stacked(embeddings, "weight")
        self.padding = embeddings[0].padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        replicas, count, width = self.weight.shape
        first = torch.arange(0, replicas * count, count, device=ids.device).view(-1, 1, 1)
        rows = (ids.view(replicas, -1, ids.shape[-1]) + first).view(ids.shape)
        return nn.functional.embedding(rows, self.weight.view(-1, width))


_KINDS: dict[type[nn.Module], Any] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
    nn.Embedding: StackedEmbedding,
}


def _stacked(modules: Sequence[nn.Module], name: str) -> nn.Parameter:
    return nn.Parameter(torch.stack([getattr(module, name).detach() for module in modules]))


def stack(models: Sequence[Any]) -> Any:
    """Return the models as one; the first of them becomes it.

    Args:
        models: BERT classifiers of equal shapes, whose weights are all in linear layers, norms and embeddings.
    """
    model = models[0]
    for name, module in list(model.named_modules()):
        if type(module) in _KINDS:
            model.set_submodule(name, _KINDS[type(module)]([other.get_submodule(name) for other in models]))
    unstacked = [name for name, p in model.named_parameters() if p.shape[0] != len(models)]
    if unstacked:
        raise ValueError(f"the weights {', '.join(unstacked)} are in no linear layer, norm or embedding.")
    return model


class DropoutByReplica(TorchFunctionMode):
    """Dropout in which the rows of each replica draw from a generator of their own, as a run alone does on a CPU.

    Args:
        seeds: Of the replicas' generators.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not nn.functional.dropout:
            return function(*args, **(kwargs or {}))
        return self._dropout(*args, **(kwargs or {}))

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        noise = torch.empty_like(x)
        for part, generator in zip(noise.chunk(len(self.generators)), self.generators, strict=True):
            part.bernoulli_(1 - p, generator=generator)
        return x * noise.div_(1 - p)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the states of the generators when the block ends, as a probe does with that of a run alone."""
        states = [generator.get_state() for generator in self.generators]
        try:
            yield
        finally:
            for generator, state in zip(self.generators, states, strict=True):
                generator.set_state(state)


@dataclass
class StackedStep(Step):
    """A step whose draws have a key for each replica: int32 [S · B], for all rows of a batch."""

    seeds: tuple[int, ...] = ()
    size: int = 1  # examples of one replica

    def key(self, site: int, stream: str) -> Tensor:
        keys = as_keys([key_of(seed, self.progress.step, site, stream) for seed in self.seeds])
        return keys.repeat_interleave(self.size)


@dataclass(frozen=True)
class StackedMicroBatch(MicroBatch):
    """The rows of all replicas, each at its position in the batch of its own replica."""

    def positions(self, rows: int, device: torch.device) -> Tensor:
        assert isinstance(self.step, StackedStep)
        return torch.arange(rows, device=device) % self.step.size


class StackedEngine(Engine):
    """An engine whose methods draw for each replica as for the run with its seed alone. For a CPU.

    Args:
        model: The stacked model.
        regularizers: The methods.
        seeds: Of the replicas.
        dropout: The ordinary dropout of the passes.
        arguments: Others of `Engine`.
    """

    def __init__(
        self, model: Any, regularizers: Any, seeds: Sequence[int], dropout: DropoutByReplica, **arguments: Any
    ) -> None:
        super().__init__(model, regularizers, **arguments)
        self._seeds, self._dropout = tuple(seeds), dropout

    def begin_micro_batch(self, batch: Mapping[str, Any], *arguments: Any, **more: Any) -> MicroBatch:
        begun = super().begin_micro_batch(batch, *arguments, **more)
        size = begun.size // len(self._seeds)
        step = StackedStep(**_values(begun.step, Step), seeds=self._seeds, size=size)
        self._step = step
        return StackedMicroBatch(**{**_values(begun, MicroBatch), "step": step})

    def planned(self, batch: MicroBatch) -> Any:
        with self._dropout.preserved():
            return super().planned(batch)


def _values(instance: Any, cls: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in fields(cls)}


class StackedAdamW:
    """Clipping by the norm of each replica, and AdamW for all, by torch's fused kernels.

    On a GPU the kernel clips, so that each gradient is read twice, by it and by the norm. There is no decay for biases
    and norms, as in the Trainer.

    Args:
        parameters: Of the stacked model.
        max_norm: Of the gradient of one replica.
        decay: The weight decay.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], max_norm: float = 1.0, decay: float = 0.0) -> None:
        self.parameters, self.max_norm = list(parameters), max_norm
        device, self.replicas = self.parameters[0].device, len(self.parameters[0])
        # As the kernels want them; that of the CPU takes a number, of any precision.
        self.rate = torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
        self.steps = torch.zeros((), device=device, dtype=torch.float32)
        self._moments = [[torch.zeros_like(p) for p in self.parameters] for _ in range(2)]
        decays = [decay if p.dim() == 3 else 0.0 for p in self.parameters]
        self._groups = [(one, [i for i, other in enumerate(decays) if other == one]) for one in sorted({*decays})]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step with the learning rate in `rate`.

        Args:
            gradients: Of the parameters, not clipped; the kernel may write the clipped ones into them.
        """
        of_replicas = [gradient.contiguous().unbind() for gradient in gradients]  # fused kernels ignore strides
        norms = torch.stack(torch._foreach_norm([part for parts in of_replicas for part in parts]))
        norm = torch.linalg.vector_norm(norms.view(len(gradients), self.replicas), dim=0)
        divisors = ((norm + 1e-6) / self.max_norm).clamp(min=1)
        scales: Sequence[Tensor | None] = divisors.unbind()
        if not divisors.is_cuda:  # where the kernel reads the divisor in float32 only
            for replica, divisor in enumerate(divisors):
                torch._foreach_div_([parts[replica] for parts in of_replicas], divisor)
            scales = [None] * self.replicas
        self.steps += 1
        states = [[tensor.unbind() for tensor in tensors] for tensors in (self.parameters, *self._moments)]
        for replica in range(self.replicas):
            for decay, members in self._groups:
                weights, means, squares = ([tensors[i][replica] for i in members] for tensors in states)
                torch._fused_adamw_(
                    weights, [of_replicas[i][replica] for i in members], means, squares, [],
                    [self.steps] * len(members), lr=self.rate, beta1=0.9, beta2=0.999, weight_decay=decay, eps=1e-8,
                    amsgrad=False, maximize=False, grad_scale=scales[replica], found_inf=None,
                )  # fmt: skip


class StackedTraining:
    """Training steps of all replicas.

    Args:
        engine: With the stacked model.
        optimizer: Its optimizer.
    """

    def __init__(self, engine: Engine, optimizer: StackedAdamW) -> None:
        self.engine, self.optimizer = engine, optimizer

    def step(self, batch: dict[str, Tensor], rate: float, dropout: AbstractContextManager[Any]) -> None:
        """Take one step, eagerly.

        Args:
            batch: The rows of all replicas, with "position_ids".
            rate: The learning rate.
            dropout: The ordinary dropout of the passes.
        """
        self.optimizer.rate.fill_(rate)
        with dropout, self.engine.micro_batch(batch) as inputs:
            gradients = self.gradients(inputs)
        self.engine.before_optimizer()
        self.optimizer.step(gradients)
        self.engine.after_optimizer()

    def gradients(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the gradients of all replicas' own losses."""
        model = self.engine.model
        loss = self.engine.loss(model(**inputs)) * self.optimizer.replicas  # a sum of means over equally many rows
        gradients = list(torch.autograd.grad(loss, self.optimizer.parameters))
        places = {parameter: i for i, parameter in enumerate(self.optimizer.parameters)}
        for module in model.modules():
            if isinstance(module, StackedEmbedding) and module.padding is not None:
                gradients[places[module.weight]][:, module.padding].zero_()
        return gradients
