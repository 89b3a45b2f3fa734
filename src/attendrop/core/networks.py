"""Networks that a method trains beside the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from .capabilities import HasParameters
from .regularizer import Regularizer
from .step import Loop


class TrainsNetworks(Regularizer):
    """The base class of methods that train their own networks beside the model.

    Where `competes` is True, the Trainer scores these networks at every evaluation, and at the end of training the best
    one on the development set becomes the model.
    """

    competes: ClassVar[bool] = True

    @property
    def held_out(self) -> float:
        """The share of the training set that this method needs for itself."""
        return 0.0

    @property
    def draws_from(self) -> str | None:
        """The data set from which this method draws examples: "dev", "train" or "held_out"; None: from none."""
        return None

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        if loop.calls_model or loop.packs_examples:
            reason = "the loss calls the model by itself" if loop.calls_model else "rows hold several examples"
            raise ValueError(
                f"{type(self).__name__} trains a second network and scores it on single examples, and in this trainer "
                f"{reason}; use another method."
            )

    def refuses(self, other: Regularizer) -> str | None:
        if not isinstance(other, HasParameters):
            return None
        return (
            f"of which {type(self).__name__} trains networks beside the model, and the parameters "
            f"that {type(other).__name__} learns belong to one network; choose one of them."
        )

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks, by name. There are none before the first step."""
        return {}

    def record(self) -> list[dict[str, Any]]:
        """Return the results of this method's training, one JSON-serialisable entry for each round."""
        return []

    def save(self, folder: Path) -> None:
        """Write further files of what this method learned beside a saved model. Checkpoints have its state instead.

        Args:
            folder: the folder of the model.
        """


def networks_of(regularizers: Sequence[Regularizer], competing: bool = False) -> dict[str, nn.Module]:
    """Return the networks that these methods train beside the model, by name.

    Args:
        regularizers: the methods.
        competing: only networks that may become the model.
    """
    methods = (r for r in regularizers if isinstance(r, TrainsNetworks) and (r.competes or not competing))
    return {name: network for method in methods for name, network in method.networks().items()}


@torch.no_grad()
def exchange(a: nn.Module, b: nn.Module) -> None:
    """Exchange the weights and buffers of two networks."""
    for x, y in zip([*a.parameters(), *a.buffers()], [*b.parameters(), *b.buffers()], strict=True):
        x.data, y.data = y.data, x.data


@contextmanager
def exchanged(a: nn.Module, b: nn.Module) -> Iterator[None]:
    """Exchange the weights and buffers of two networks for the duration of the block."""
    exchange(a, b)
    try:
        yield
    finally:
        exchange(a, b)
