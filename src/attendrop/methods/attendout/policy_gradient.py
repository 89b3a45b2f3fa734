"""The policy gradient of AttendOut: the actions of a round, and how its generator learns from their reward.

    d ~ Bernoulli(P), P = sigmoid(S)              a pure function of P, the step and the place in the global batch
    ∇ = Σ_t A_t ∇ 1/(layers · n²) Σ log P(d_t)    (Eq. 5), by ∂ log P(d) / ∂S = d − P

The actions are not kept but drawn again. The micro-batches of a round are run together, in chunks of rows that are
padded to one length: a row brings its own keys, place and weight along.
(Not All Attention Is All You Need, arXiv 2104.04692 v2.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...kernels.draws import bernoulli
from ...utils.batches import padded_length
from ...utils.transfer import to_device_async
from .generator import Generator, pairs

# At most so many tokens in a chunk, and positions in the maps of all its layers (about six of fp32 live at once):
# enough to keep a GPU busy, and few enough for the caches of a CPU. A whole micro-batch may be a chunk on a GPU: where
# the model has room for it, so has the generator.
_ROOM = {"cuda": (1 << 13, 1 << 25)}
_ROOM_ELSEWHERE = (1 << 11, 1 << 22)
_TOKENWISE = ("ids", "mask")  # [rows, width]; the rest is [..., rows]
# A CPU draws for so many positions at once, which stay in its cache.
_DRAWN_AT_ONCE = 1 << 20


def probabilities(logits: Tensor) -> Tensor:
    """P(drop) = sigmoid(S), in fp32."""
    return logits.float().sigmoid()


def actions(p: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """d ~ Bernoulli(p), True = drop: [layers, B, L, L], for int32 keys [layers, 1 or B] and the places of the rows.

    The same as hard Gumbel samples. A GPU draws for all layers in one go.
    """
    size = len(p) if p.is_cuda else max(1, _DRAWN_AT_ONCE // max(1, p[0].numel()))
    found = [
        bernoulli(some, some_keys, positions) for some, some_keys in zip(p.split(size), keys.split(size), strict=True)
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def likelihood_gradient(p: Tensor, drop: Tensor, valid: Tensor) -> Tensor:
    """∂/∂S of Σ log P(d) over valid positions: d − P there, and 0 elsewhere. [layers, B, L, L] or broadcastable."""
    return (drop.to(p.dtype) - p) * valid


@dataclass
class Round:
    """The micro-batches since the last update: ids and masks, and the counters that draw their actions again."""

    ids: list[Tensor] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # optimizer step, position of the first row
    labelled: list[dict[str, Tensor]] = field(default_factory=list)  # whole batches, only for reward_on="cached"

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint, which holds the places too."""
        found = {f"round.{place}.ids": ids for place, ids in enumerate(self.ids)}
        found |= {f"round.{place}.mask": mask for place, mask in enumerate(self.masks)}
        return found | {f"labelled.{n}.{k}": x for n, batch in enumerate(self.labelled) for k, x in batch.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], places: Sequence[Sequence[int]], device: torch.device) -> Round:
        """What a checkpoint has kept."""
        found = cls(places=[(at, first) for at, first in places])
        for place in range(len(places)):
            found.ids.append(tensors[f"round.{place}.ids"].to(device))
            found.masks.append(tensors[f"round.{place}.mask"].to(device))
        batches = {name.split(".")[1] for name in tensors if name.startswith("labelled.")}
        for prefix in (f"labelled.{place}." for place in range(len(batches))):
            mine = {name.removeprefix(prefix): x.to(device) for name, x in tensors.items() if name.startswith(prefix)}
            found.labelled.append(mine)
        return found


@dataclass
class Baseline:
    """Moving averages over the rounds: of the rewards, and of the size of what they are above or below that."""

    decay: float
    mean: float | None = None
    size: float = 0.0

    def advantages(self, rewards: Sequence[float], normalize: bool) -> list[float]:
        """r − b for each, with the baseline of the rounds before; divided by the running size where asked to."""
        found = [r - (self.mean or 0.0) for r in rewards]
        mean = sum(rewards) / len(rewards)
        self.mean = mean if self.mean is None else self.decay * self.mean + (1 - self.decay) * mean
        size = math.sqrt(sum(a * a for a in found) / len(found))
        self.size = size if self.size == 0 else self.decay * self.size + (1 - self.decay) * size
        return [a / self.size for a in found] if normalize and self.size > 0 else found


def reinforce(
    generator: Generator, cache: Round, keys: Mapping[int, Tensor], weights: Mapping[int, Sequence[float]], graphs: Any
) -> Tensor:
    """Adds the gradient of −Σ_t Σ_layer weight · mean over examples of 1/n² Σ log P(d_t) to the generator's.

    `keys` (int32 [layers, 1], on the host) and `weights` (one for each layer) are those of an optimizer step; a step of
    several micro-batches has their mean. Returns P(drop) of each layer, the mean over micro-batches: [layers]
    """
    device = generator.tokens.device
    total = torch.zeros(generator.layers, device=device)
    if not cache.ids:
        return total
    widths = [_width(generator, ids.shape[1], graphs) for ids in cache.ids]
    # Sorted by length, so that rows of similar length share a chunk and little of it is padding.
    order = sorted(range(len(widths)), key=lambda m: -widths[m])
    rows = _rows(cache, order, keys, weights, max(widths), device)
    of_rows = [widths[m] for m in order for _ in cache.ids[m]]
    least = max(map(len, cache.ids)) if device.type == "cuda" else 1
    for start, stop in _chunks(generator, of_rows, device.type, least):
        width = of_rows[start]
        chunk = {name: x[start:stop, :width] for name, x in rows.items() if name in _TOKENWISE}
        chunk |= {name: x[..., start:stop] for name, x in rows.items() if name not in _TOKENWISE}
        if graphs is None:
            found = _backward(generator, **chunk)
        else:
            height = min(padded_length(stop - start), _most(generator, width, device.type, least))
            static = graphs.static(key := ("attendout reinforce", height, width), _filled(chunk, height))
            found = graphs.run(key, partial(_backward, generator, **static), network=generator)
        total = total + found
    return total


def _backward(
    generator: Generator, ids: Tensor, mask: Tensor, keys: Tensor, positions: Tensor, weights: Tensor, shares: Tensor
) -> Tensor:
    """One chunk: the weights [layers, rows] are of Σ log P(d); the P(drop) that it returns is Σ shares · Σ P."""
    logits = generator(ids, mask)
    with torch.no_grad():
        valid = pairs(mask)
        p = probabilities(logits)
        gradient = likelihood_gradient(p, actions(p, keys, positions), valid).mul_(-weights[..., None, None])
        found = (p.mul_(valid).sum((2, 3)) * shares).sum(1)
    logits.backward(gradient.to(logits.dtype))
    return found


def _rows(
    cache: Round,
    order: Sequence[int],
    keys: Mapping[int, Tensor],
    weights: Mapping[int, Sequence[float]],
    width: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """All rows of the round, as `_backward` takes them, the micro-batches in this order."""
    steps, firsts = zip(*(cache.places[m] for m in order), strict=True)
    sizes = [len(cache.ids[m]) for m in order]
    parts = Counter(steps)
    scaled = [[w / parts[at] / size for w in weights[at]] for at, size in zip(steps, sizes, strict=True)]
    batch = torch.arange(len(order)).repeat_interleave(torch.tensor(sizes))  # the micro-batch of a row
    places = torch.cat([first + torch.arange(size) for first, size in zip(firsts, sizes, strict=True)])
    found = {
        "ids": torch.zeros(len(batch), width, dtype=torch.long, device=device),
        "mask": torch.zeros(len(batch), width, dtype=torch.bool, device=device),
        "keys": to_device_async(torch.cat([keys[at] for at in steps], 1)[:, batch], device),
        "positions": to_device_async(places, device),
        "weights": to_device_async(torch.tensor(scaled).T[:, batch], device),
    }
    for ids, mask, here, too in zip(
        (cache.ids[m] for m in order), (cache.masks[m] for m in order),
        found["ids"].split(sizes), found["mask"].split(sizes), strict=True,
    ):  # fmt: skip
        here[:, : ids.shape[1]] = ids
        too[:, : mask.shape[1]] = mask
    squares = found["mask"].sum(1).square()  # n², the valid positions of a row
    batch = to_device_async(batch, device)
    of_batches = torch.zeros(len(order), dtype=squares.dtype, device=device).index_add_(0, batch, squares)
    found["weights"] = found["weights"] / squares.clamp(min=1)
    found["shares"] = 1 / (of_batches.clamp(min=1) * len(order))[batch]
    return found


def _chunks(generator: Generator, widths: Sequence[int], device: str, least: int) -> Iterator[tuple[int, int]]:
    """Where chunks of rows start and stop. The widths fall; a chunk has that of its first row."""
    start = 0
    while start < len(widths):
        stop = min(len(widths), start + _most(generator, widths[start], device, least))
        alike = generator.looks_up(widths[start])
        stop = next((i for i in range(start, stop) if generator.looks_up(widths[i]) != alike), stop)
        yield start, stop
        start = stop


def _most(generator: Generator, width: int, device: str, least: int) -> int:
    """How many rows of this width there is room for in a chunk."""
    tokens, positions = _ROOM.get(device, _ROOM_ELSEWHERE)
    return max(least, min(tokens // width, positions // (generator.layers * width * width)))


def _width(generator: Generator, length: int, graphs: Any) -> int:
    """What rows of this length are padded to. Graphs have few widths; but no row may get other positions."""
    wide = length if graphs is None else padded_length(length)
    return wide if generator.looks_up(wide) == generator.looks_up(length) else length


def _filled(chunk: Mapping[str, Tensor], height: int) -> dict[str, Tensor]:
    """With so many rows, of which those added have no valid position and no weight."""
    missing = height - len(chunk["ids"])
    return {n: functional.pad(x, (0, 0, 0, missing) if n in _TOKENWISE else (0, missing)) for n, x in chunk.items()}
