"""The rewards of AttendOut: attacker and defender are scored on the same examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...capture.forward_patches import capturable
from ...model.modes import evaluating
from ...model.objective import example_scores
from ...utils.distributed import gather_objects


class Rewards(NamedTuple):
    """The rewards of a round, on the CPU."""

    values: Tensor  # one for each example, [examples]
    attacker: Tensor  # the mean score of the attacker
    defender: Tensor  # the mean score of the defender
    steps: Tensor | None = None  # the step of the round that trained on each example; None: the examples are fresh


def scores_of(networks: Sequence[nn.Module], batch: Mapping[str, Any], metric: bool, graphs: Any) -> Tensor:
    """Return the score of each network, in eval mode, on each example: [networks, B].

    Args:
        networks: the networks.
        batch: the examples.
        metric: whether the score is the share of correct labels; otherwise it is the mean log-likelihood.
        graphs: where the work is captured as CUDA graphs; None: it runs eagerly.
    """

    def score(examples: Mapping[str, Any]) -> Tensor:
        scores = []
        for network in networks:
            with evaluating(network), nullcontext() if graphs is None else capturable(network):
                outputs = network(**examples)
            scores.append(example_scores(network, examples, outputs)[int(metric)])
        return torch.stack(scores)

    if graphs is None:
        return score(batch)
    static, key = graphs.static_batch(batch)
    return graphs.run(("attendout scores", key), lambda: score(static)).clone()  # the next replay overwrites it


def noisy(batch: Mapping[str, Any], share: float, vocabulary: int, draws: torch.Generator) -> dict[str, Any]:
    """Return the batch with a share of its tokens replaced by random ones."""
    ids = batch["input_ids"]
    is_replaced = torch.rand(ids.shape, generator=draws) < share
    replacements = torch.randint(0, vocabulary, ids.shape, generator=draws)
    return {**batch, "input_ids": torch.where(is_replaced.to(ids.device), replacements.to(ids.device), ids)}


def of_all_processes(values: Sequence[Tensor], world: int) -> list[Tensor]:
    """Return the values of the batches of all processes, in the order in which one process would see them."""
    # Cloned, because pickling a view would send the whole tensor behind it.
    processes = gather_objects([value.clone() for value in values], world)
    return [value for batches in zip(*processes, strict=True) for value in batches]


def rewards_of_steps(rewards: Rewards, steps: int, paired: bool) -> list[float]:
    """Return the reward of each step of a round.

    Args:
        rewards: the rewards of the round.
        steps: the number of steps.
        paired: False: every step gets the mean of all examples; True: a step gets the mean of the examples that it was
            trained on or, where the examples are fresh, the mean of one of `steps` equal groups of them.
    """
    values = rewards.values
    if not paired:
        return [values.mean().item()] * steps
    if rewards.steps is not None:
        own = [values[rewards.steps == t] for t in range(steps)]
        return [(group if len(group) else values).mean().item() for group in own]
    groups = [group.mean().item() for group in values.chunk(steps)]
    return [groups[t % len(groups)] for t in range(steps)]


def mean_and_error(rewards: Tensor) -> tuple[float, float]:
    """Return the mean and its standard error, which is 0 for a single reward."""
    error = rewards.std().item() / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
    return rewards.mean().item(), error


def attacker_probability(rewards: Tensor) -> float:
    """Return the probability that the attacker is selected: the normal CDF of the mean reward over its standard error.

    Rewards that are all equal leave no doubt: it is 1 where they are positive, 0 where they are negative and ½ where
    they are 0. A single reward has no standard error, and its own size is used instead: it is 0.84 or 0.16 by its sign.
    """
    mean, error = mean_and_error(rewards)
    error = abs(mean) if len(rewards) == 1 else error
    if error == 0:
        return 0.5 if mean == 0 else float(mean > 0)
    return 0.5 * (1 + math.erf(mean / error / math.sqrt(2)))
