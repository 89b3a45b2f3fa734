"""Caveats about the scores of a run."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.capabilities import ChoosesOnDevelopment
from ...core.networks import TrainsNetworks
from ...core.regularizer import Regularizer
from .settings import RunConfig


def caveats_of(config: RunConfig, regularizers: Sequence[Regularizer]) -> list[str]:
    """Return the sentences for the model card.

    Args:
        config: The configuration of the run.
        regularizers: Its methods.
    """
    caveats = [f"{sentence}." for sentence in optimistic_scores(regularizers)]
    if config.max_eval_samples is not None:
        caveats.append(f"At most {config.max_eval_samples:,} examples of each split were evaluated, drawn at random.")
    return caveats


def optimistic_scores(regularizers: Sequence[Regularizer]) -> list[str]:
    """Return one sentence, without its full stop, for each method that learns or chooses from validation examples.

    Args:
        regularizers: The methods of a run.
    """
    return [
        f"{method.name} used validation examples during training, so the scores on them are optimistic"
        for method in regularizers
        if (isinstance(method, ChoosesOnDevelopment) and method.choices)
        or (isinstance(method, TrainsNetworks) and method.draws_from == "dev")
    ]
