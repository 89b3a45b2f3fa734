"""The floor of a training step: its matrix products, in multiples of a plain step.

Almost all time of a large model is in matrix products. A forward counts 1, a backward to the activations 1 and a
backward to the weights 1, so a plain step is 3, and everything here is in thirds of a plain step until `floor_of`
divides by 3. With LoRA the pretrained weights get no gradient: a plain step is 2 there, and floors are multiples of
that. Draws, penalties, averages of weights and the optimizer count nothing; where they are not free, a measured
multiple is above the floor. It may be below as well, because the optimizer of a plain step is not in its floor either.

Some methods read or write a number for each weight in every step. `weight_passes_of` counts how often. Such a pass over
the 125 million float32 weights of RoBERTa-base moves half a gigabyte: about 0.12 ms of an H200's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLAIN = 3.0


def passes(trained: float = 1, probes: float = 0, forwards: float = 0) -> float:
    """Matrix products of a step, in thirds of a plain one.

    Args:
        trained: forwards with a backward to all weights; an example in two views counts twice.
        probes: forwards with a backward to the activations alone.
        forwards: forwards without a backward.
    """
    return 3 * trained + 2 * probes + forwards


def _addrop(method: Any, layers: int) -> float:
    if method.attribution != "iga":
        return passes(probes=1)
    # One forward, and for each node the blocks above the site, forward and backward: for a site in each block these
    # are (n + 1) / 2 forwards and as many backwards.
    nodes = method.ig_steps * (layers + 1 if method.layers == "all" else 2)
    return passes(forwards=1) + nodes


# name of a method -> thirds of a plain step, for the method and the number of blocks; all others cost one plain step
_THIRDS: dict[str, Callable[[Any, int], float]] = {
    "addrop": _addrop,
    # The model, the defender, and the generator: once in each step, and once more with its backward in the update.
    "attendout": lambda method, layers: passes(trained=2 + 4 / 9),
    "headmask": lambda method, layers: passes(probes=method.by == "importance"),
    "hiddencut": lambda method, layers: passes(trained=2, probes=method.by == "gradient"),
    "scal": lambda method, layers: passes(trained=2, probes=1),
    "rdrop": lambda method, layers: passes(trained=2),
    "r3f": lambda method, layers: passes(trained=2),
    "hiddenkey": lambda method, layers: passes(trained=2),
    "cutoff": lambda method, layers: passes(trained=2),
    "sam": lambda method, layers: passes(trained=2),
    "asam": lambda method, layers: passes(trained=2),
    "freelb": lambda method, layers: passes(trained=method.steps),
    "lora_dropout": lambda method, layers: passes(trained=method.samples),
    # Two views; the prediction that the perturbation moves away from, a probe for each ascent step, and the teacher.
    "smart": lambda method, layers: passes(trained=3, probes=method.steps, forwards=2),
    "deni": lambda method, layers: passes(trained=method.models),  # of a step in which the copies are trained
    "freeze": lambda method, layers: 1 + 2 * (1 - method.blocks / layers),
    "lp_ft": lambda method, layers: passes(trained=0, forwards=1),  # of a step that trains the head alone
}


def floor_of(method: Any = None, layers: int = 12) -> float:
    """The floor of a step with this method, in multiples of a plain step.

    Args:
        method: the method; None: a plain step.
        layers: the number of blocks of the model.
    """
    thirds = _THIRDS.get(method.name) if method is not None else None
    return thirds(method, layers) / PLAIN if thirds else 1.0


# name of a method -> how often a step reads or writes a number for each weight, beside what a plain step does
_WEIGHT_PASSES: dict[str, int] = {
    "ema": 3,  # reads the weights and the average, writes the average
    "swa": 3,
    "l2_sp": 4,  # reads the weights, their first values and the gradients, writes the gradients
    "sam": 7,  # the norm reads g; the ascent reads W and g and writes W and a copy of it, which is written back
    "asam": 8,  # the norm reads W too
}


def weight_passes_of(method: str) -> int:
    """How often a step with this method reads or writes a number for each weight, beside what a plain step does.

    Args:
        method: the method as the command line names it, with or without settings.
    """
    return _WEIGHT_PASSES.get(method.partition(":")[0], 0)


def floor_as_published(layers: int = 12) -> float:
    """The floor of AD-DROP as in the authors' code: one backward for each block.

    Args:
        layers: the number of blocks of the model.
    """
    return (passes(forwards=1) + (layers + 1) / 2) / PLAIN
