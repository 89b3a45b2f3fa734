"""The rewards of AttendOut: attacker and defender on the same examples, and what follows from the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...model.modes import evaluating
from ...model.objective import example_scores
from ...utils.distributed import gather_objects


def scores_of(networks: Sequence[nn.Module], batch: Mapping[str, Any], metric: bool, graphs: Any) -> Tensor:
    """Of each network, in eval mode, for each example: the score, or with `metric` what is right. [networks, B]"""

    def each(examples: Mapping[str, Any]) -> Tensor:
        found = []
        for network in networks:
            with evaluating(network):
                outputs = network(**examples)
            found.append(example_scores(network, examples, outputs)[int(metric)])
        return torch.stack(found)

    if graphs is None:
        return each(batch)
    static, key = graphs.static_batch(batch)
    return graphs.run(("attendout scores", key), lambda: each(static)).clone()  # the next run overwrites it


def noisy(batch: Mapping[str, Any], share: float, vocabulary: int, draws: torch.Generator) -> dict[str, Any]:
    """The batch with a share of its tokens replaced at random."""
    ids = batch["input_ids"]
    swap = torch.rand(ids.shape, generator=draws) < share
    others = torch.randint(0, vocabulary, ids.shape, generator=draws)
    return {**batch, "input_ids": torch.where(swap.to(ids.device), others.to(ids.device), ids)}


def of_all_processes(values: Sequence[Tensor], world: int) -> list[Tensor]:
    """The values of all processes, in the order in which one process would have seen the batches."""
    # Cloned, because pickling a view would send the whole tensor behind it.
    processes = gather_objects([value.clone() for value in values], world)
    return [value for batches in zip(*processes, strict=True) for value in batches]


def credited(rewards: Tensor, steps: int, paired: bool) -> list[float]:
    """The reward of each step of a round: that of all is the mean, or the rewards are dealt out in groups."""
    if not paired:
        return [rewards.mean().item()] * steps
    groups = [group.mean().item() for group in rewards.chunk(steps)]
    return [groups[t % len(groups)] for t in range(steps)]


def mean_and_error(rewards: Tensor) -> tuple[float, float]:
    """The mean and its standard error; 0 where that cannot be known."""
    error = rewards.std().item() / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
    return rewards.mean().item(), error


def chance_of_attacker(rewards: Tensor) -> float:
    """That it goes on. It follows the evidence: the normal CDF of the mean reward in units of its standard error."""
    mean, error = mean_and_error(rewards)
    error = error if len(rewards) > 1 else abs(mean)
    return 0.5 if error == 0 else 0.5 * (1 + math.erf(mean / error / math.sqrt(2)))
