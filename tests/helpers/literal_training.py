"""Training written from the equations, one weight at a time, and the same through an `Engine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attendrop import Engine, Loop

from . import zoo

RATE, DECAY = 1e-3, 0.1


class LiteralAdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101)."""

    def __init__(self) -> None:
        self.state: dict[str, tuple[int, Any, Any]] = {}

    @torch.no_grad()
    def step(self, model: Any, rate: Callable[[str], float | None]) -> None:
        """One step. `rate` is the learning rate of a weight; None: it is not trained."""
        for name, weight in model.named_parameters():
            eta, gradient = rate(name), weight.grad
            if eta is not None and gradient is not None:
                t, m, v = self.state.get(name, (0, 0.0, 0.0))
                t, m, v = t + 1, 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
                self.state[name] = t, m, v
                weight -= eta * DECAY * weight
                weight -= eta * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
            weight.grad = None


def schedule(step: int, steps: int) -> float:
    return 1 - step / steps


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def literally_trained(steps: int, rate: Callable[[str, int], float | None]) -> dict[str, Tensor]:
    """The weights of a BERT without dropout after some steps.

    Args:
        steps: the number of steps.
        rate: the factor of the learning rate of a weight in a step; None: the weight is not trained.
    """
    model, optimizer = zoo.make_model("bert", dropout=False).train(), LiteralAdamW()
    for step in range(steps):
        model(**zoo.make_batch("bert", seed=step)).loss.backward()

        def own(name: str, step: int = step) -> float | None:
            factor = rate(name, step)
            return None if factor is None else RATE * schedule(step, steps) * factor

        optimizer.step(model, own)
    return weights_of(model)


def trained(steps: int, methods: Any, each_step: Callable[[Any], None] = lambda model: None) -> dict[str, Tensor]:
    """The same model, trained by torch's AdamW and an `Engine`. `each_step` is called before the optimizer's step."""
    model = zoo.make_model("bert", dropout=False).train()
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors}], lr=RATE, weight_decay=DECAY)
    with Engine(model, methods, steps_per_epoch=steps, loop=Loop(optimizer=optimizer)) as engine:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, steps))
        for step in range(steps):
            with engine.micro_batch(zoo.make_batch("bert", seed=step)) as inputs:
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            each_step(model)
            optimizer.step()
            scheduler.step()
            engine.after_optimizer()
            optimizer.zero_grad()
        engine.finish()
    assert len(optimizer.param_groups) == 2
    return weights_of(model)
