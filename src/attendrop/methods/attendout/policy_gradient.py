"""The policy gradient of AttendOut: the actions of a round, and how the generator learns from their reward.

    d ~ Bernoulli(P), P = sigmoid(S)              a pure function of P, the step and the position in the global batch
    ∇ = Σ_t A_t ∇ 1/(layers · n²) Σ log P(d_t)    (Eq. 5), with ∂ log P(d) / ∂S = d − P

The sum is over the valid positions, of which a row of n tokens has n². In a causal model positions above the diagonal
have no effect and are not valid: n² becomes n(n+1)/2.

The actions are not stored but drawn again. All micro-batches of a round run through the generator together, in chunks
of rows that are padded to one length. Each row has its own keys, position and weight.
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
from .generator import Generator, count_pairs, pairs

# The most tokens in a chunk, and the most positions in the maps of all its layers (about six maps of fp32 exist at the
# same time): enough to keep a GPU busy, and few enough for the caches of a CPU. On a GPU a chunk may always hold a
# whole micro-batch, since the model itself needs more memory for it.
_CHUNK_LIMITS = {"cuda": (1 << 13, 1 << 25)}
_OTHER_CHUNK_LIMITS = (1 << 11, 1 << 22)
_ROWWISE = ("ids", "mask")  # [rows, width], or pixels [rows, C, H, W]; all others are [..., rows]
_CPU_DRAWS = 1 << 20  # a CPU draws for so many positions at a time, which fit in its cache


def probabilities(logits: Tensor) -> Tensor:
    """P(drop) = sigmoid(S), in fp32."""
    return logits.float().sigmoid()


def actions(p: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Draw d ~ Bernoulli(p), True = drop: [layers, B, L, L]. The distribution is that of hard Gumbel samples.

    Args:
        p: P(drop), [layers, B, L, L].
        keys: int32 [layers, 1], or [layers, B] where rows have their own keys.
        positions: of the rows in the global batch, [B].
    """
    size = len(p) if p.is_cuda else max(1, _CPU_DRAWS // max(1, p[0].numel()))
    parts = [
        bernoulli(part, part_keys, positions) for part, part_keys in zip(p.split(size), keys.split(size), strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def likelihood_gradient(p: Tensor, drop: Tensor, valid: Tensor) -> Tensor:
    """∂/∂S of Σ log P(d) over valid positions: d − P there, and 0 elsewhere. [layers, B, L, L] or broadcastable."""
    return (drop.to(p.dtype) - p) * valid


@dataclass
class CachedBatch:
    """A micro-batch of the current round, with what is needed to draw its actions again."""

    step: int  # its optimizer step
    first_row: int  # the position of its first row in the global batch
    ids: Tensor  # [rows, L], or pixels [rows, C, H, W]
    mask: Tensor  # [rows, L]
    examples: dict[str, Tensor] = field(default_factory=dict)  # the whole batch, only for reward_on="cached"


def cache_tensors(cache: Sequence[CachedBatch]) -> dict[str, Tensor]:
    """Return the tensors of a round by name, for a checkpoint."""
    tensors = {f"round.{n}.ids": batch.ids for n, batch in enumerate(cache)}
    tensors |= {f"round.{n}.mask": batch.mask for n, batch in enumerate(cache)}
    return tensors | {f"labelled.{n}.{name}": x for n, batch in enumerate(cache) for name, x in batch.examples.items()}


def load_cache(
    tensors: Mapping[str, Tensor], counters: Sequence[Sequence[int]], device: torch.device
) -> list[CachedBatch]:
    """Return the round that `cache_tensors` has saved; `counters` are the step and the first row of each batch."""
    cache = []
    for n, (step, first_row) in enumerate(counters):
        prefix = f"labelled.{n}."
        examples = {name.removeprefix(prefix): x.to(device) for name, x in tensors.items() if name.startswith(prefix)}
        ids, mask = (tensors[f"round.{n}.{name}"].to(device) for name in ("ids", "mask"))
        cache.append(CachedBatch(step, first_row, ids, mask, examples))
    return cache


@dataclass
class Baseline:
    """Moving averages over the rounds: of the mean reward, and of the size of the advantages."""

    decay: float
    mean: float | None = None
    size: float = 0.0

    def advantages(self, rewards: Sequence[float], normalize: bool) -> list[float]:
        """Return r − b of each reward, with the baseline b of the earlier rounds, and update both averages.

        Args:
            rewards: the reward of each step of the round.
            normalize: whether to divide by the moving average of the advantages' root mean square.
        """
        advantages = [r - (self.mean or 0.0) for r in rewards]
        mean = sum(rewards) / len(rewards)
        self.mean = mean if self.mean is None else self.decay * self.mean + (1 - self.decay) * mean
        size = math.sqrt(sum(a * a for a in advantages) / len(advantages))
        self.size = size if self.size == 0 else self.decay * self.size + (1 - self.decay) * size
        return [a / self.size for a in advantages] if normalize and self.size > 0 else advantages


def reinforce(
    generator: Generator,
    cache: Sequence[CachedBatch],
    keys: Mapping[int, Tensor],
    weights: Mapping[int, Sequence[float]],
    graphs: Any,
    shifts: Mapping[int, Sequence[float]] | None = None,
) -> Tensor:
    """Add the gradient of −Σ_t Σ_layer weight · mean over rows of 1/n² Σ log P(d_t) to that of the generator.

    Args:
        generator: the generator.
        cache: the micro-batches of the round. A step of several micro-batches has the mean of their gradients.
        keys: the keys of the draws of each optimizer step, int32 [layers, 1] on the CPU.
        weights: one for each layer, of each optimizer step.
        graphs: where the work is captured as CUDA graphs; None: it runs eagerly.
        shifts: what was added to the logits of each layer when the actions of each step were drawn; None: nothing.

    Returns:
        P(drop) of each layer without the shifts, the mean over micro-batches: [layers].
    """
    device = generator.device
    total = torch.zeros(generator.layers, device=device)
    if not cache:
        return total
    # Sorted by length, so that rows of similar length share a chunk and little of it is padding.
    batches = sorted(cache, key=lambda batch: -_padded_width(generator, batch.mask.shape[1], graphs))
    widths = [_padded_width(generator, batch.mask.shape[1], graphs) for batch in batches for _ in batch.ids]
    rows = _stack_rows(batches, keys, weights, widths[0], generator.causal, device)
    if shifts is not None:
        of_rows = torch.tensor([shifts[batch.step] for batch in batches for _ in batch.ids])
        rows["shifts"] = to_device_async(of_rows.T.contiguous(), device)
    least = max(len(batch.ids) for batch in batches) if device.type == "cuda" else 1
    for start, stop in _chunks(generator, widths, device.type, least):
        width = widths[start]
        chunk = {name: _narrowed(rows[name][start:stop], width) for name in _ROWWISE}
        chunk |= {name: x[..., start:stop] for name, x in rows.items() if name not in _ROWWISE}
        if graphs is None:
            p = _backward(generator, **chunk)
        else:
            height = min(padded_length(stop - start), _rows_per_chunk(generator, width, device.type, least))
            static = graphs.static(key := ("attendout reinforce", height, width), _with_empty_rows(chunk, height))
            p = graphs.run(key, partial(_backward, generator, **static), network=generator)
        total = total + p
    return total


def _backward(
    generator: Generator,
    ids: Tensor,
    mask: Tensor,
    keys: Tensor,
    positions: Tensor,
    weights: Tensor,
    shares: Tensor,
    shifts: Tensor | None = None,
) -> Tensor:
    """Run the backward of one chunk of rows and return the sum of P(drop).

    Args:
        generator: the generator, whose gradients grow.
        ids: token ids, [rows, width], or pixels, [rows, C, H, W].
        mask: the padding mask, [rows, width].
        keys: of the draws, int32 [layers, rows].
        positions: of the rows in the global batch, [rows].
        weights: of Σ log P(d), [layers, rows].
        shares: of each row in the returned mean, [rows].
        shifts: of the logits when the actions were drawn, [layers, rows]; None: 0.

    Returns:
        Σ shares · Σ P(drop) without the shifts: [layers].
    """
    logits = generator(ids, mask)
    with torch.no_grad():
        valid = pairs(mask, generator.causal)
        p = learned = probabilities(logits)
        if shifts is not None:
            p = probabilities(logits + shifts[..., None, None])
        gradient = likelihood_gradient(p, actions(p, keys, positions), valid).mul_(-weights[..., None, None])
        mean = (learned.mul_(valid).sum((2, 3)) * shares).sum(1)
    logits.backward(gradient.to(logits.dtype))
    return mean


def _stack_rows(
    batches: Sequence[CachedBatch],
    keys: Mapping[int, Tensor],
    weights: Mapping[int, Sequence[float]],
    width: int,
    causal: bool,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return all rows of these micro-batches, padded to `width`, as the arguments of `_backward`."""
    sizes = [len(batch.ids) for batch in batches]
    batches_of_step = Counter(batch.step for batch in batches)
    scaled = [
        [w / batches_of_step[batch.step] / size for w in weights[batch.step]]
        for batch, size in zip(batches, sizes, strict=True)
    ]
    batch_of_row = torch.arange(len(batches)).repeat_interleave(torch.tensor(sizes))
    positions = torch.cat([batch.first_row + torch.arange(size) for batch, size in zip(batches, sizes, strict=True)])
    rows = {
        "ids": _empty_like(batches[0].ids, len(batch_of_row), width),
        "mask": torch.zeros(len(batch_of_row), width, dtype=torch.bool, device=device),
        "keys": to_device_async(torch.cat([keys[batch.step] for batch in batches], 1)[:, batch_of_row], device),
        "positions": to_device_async(positions, device),
        "weights": to_device_async(torch.tensor(scaled).T[:, batch_of_row], device),
    }
    for batch, ids, mask in zip(batches, rows["ids"].split(sizes), rows["mask"].split(sizes), strict=True):
        _narrowed(ids, batch.mask.shape[1]).copy_(batch.ids)
        mask[:, : batch.mask.shape[1]] = batch.mask
    counts = count_pairs(rows["mask"], causal)
    batch_of_row = to_device_async(batch_of_row, device)
    batch_counts = torch.zeros(len(batches), dtype=counts.dtype, device=device).index_add_(0, batch_of_row, counts)
    rows["weights"] = rows["weights"] / counts.clamp(min=1)
    rows["shares"] = 1 / (batch_counts.clamp(min=1) * len(batches))[batch_of_row]
    return rows


def _empty_like(inputs: Tensor, rows: int, width: int) -> Tensor:
    """Return zeros for the ids of `rows` rows of this width, or for their pixels."""
    return inputs.new_zeros((rows, *inputs.shape[1:]) if _is_image(inputs) else (rows, width))


def _narrowed(inputs: Tensor, width: int) -> Tensor:
    """Return the first `width` columns of ids or of a mask. Images have one size."""
    return inputs if _is_image(inputs) else inputs[:, :width]


def _is_image(inputs: Tensor) -> bool:
    return inputs.ndim == 4


def _chunks(generator: Generator, widths: Sequence[int], device: str, least: int) -> Iterator[tuple[int, int]]:
    """Yield where chunks of rows start and stop.

    `widths` are in descending order; a chunk has the width of its first row.
    """
    start = 0
    while start < len(widths):
        stop = min(len(widths), start + _rows_per_chunk(generator, widths[start], device, least))
        # Rows with position embeddings and rows with sinusoids cannot share a chunk.
        kind = generator.has_positions_for(widths[start])
        stop = next((i for i in range(start, stop) if generator.has_positions_for(widths[i]) != kind), stop)
        yield start, stop
        start = stop


def _rows_per_chunk(generator: Generator, width: int, device: str, least: int) -> int:
    """Return the most rows of this width that a chunk may have."""
    tokens, positions = _CHUNK_LIMITS.get(device, _OTHER_CHUNK_LIMITS)
    return max(least, min(tokens // width, positions // (generator.layers * width * width)))


def _padded_width(generator: Generator, length: int, graphs: Any) -> int:
    """Return the width to which rows of this length are padded. For graphs there are few widths."""
    width = length if graphs is None or generator.patches is not None else padded_length(length)
    # Padding must not change whether a row uses position embeddings or sinusoids.
    return width if generator.has_positions_for(width) == generator.has_positions_for(length) else length


def _with_empty_rows(chunk: Mapping[str, Tensor], height: int) -> dict[str, Tensor]:
    """Return the chunk with `height` rows. The added rows have no valid position and no weight."""
    missing = height - len(chunk["ids"])

    def padded(name: str, x: Tensor) -> Tensor:
        further = x.ndim - 1 if name in _ROWWISE else 0  # dimensions behind that of the rows
        return functional.pad(x, (0, 0) * further + (0, missing))

    return {name: padded(name, x) for name, x in chunk.items()}
