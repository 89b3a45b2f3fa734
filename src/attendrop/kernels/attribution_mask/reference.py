"""The specification: which attention positions AD-DROP keeps, in plain torch, on any device.

    S = G Vᵀ                                 the attribution of each map, from G = ∂F/∂O, in fp32 at least
    t_i = the entry at index ⌊n(1−p)⌋ of row i of S, sorted ascending over its n valid positions
    keep_ij = not (S_ij ≥ t_i, valid, and u_ij < q)

A NaN ranks above all numbers and is never a candidate. A row without a valid position has no candidates. The Triton
kernels keep every NaN too, and it changes no other row; but they may count it as not valid, so that its own row may
have another threshold. Only a model that is broken already has a NaN there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..draws import uniform


class DropRule(NamedTuple):
    """Which positions of a map of scores are dropped."""

    p: float | Tensor  # size of the candidate region, as a share of the row; a tensor is 0-d and float64
    q: float | Tensor  # probability with which a candidate is dropped
    key: int | Tensor  # of the draws; in a captured graph a 0-d int32 tensor on the device
    positions: Tensor  # of the examples in the global batch, [B]
    direction: str = "high"  # "high" drops the highest scores, "low" the lowest


def scores(gradient: Tensor, value: Tensor) -> Tensor:
    """Return ∂F/∂A from ∂F/∂O [B, Q, H, d] and the values [B, G, K, d]; G < H where heads share them: [B, H, Q, K]."""
    heads = gradient.shape[2]
    if value.shape[1] != heads:
        value = value.repeat_interleave(heads // value.shape[1], dim=1)
    # Half precision would round many entries of a row onto its threshold; and an fp16 gradient comes scaled back, in
    # fp32, which a product in fp16, as autocast would choose, would lose again.
    dtype = torch.promote_types(torch.promote_types(gradient.dtype, value.dtype), torch.float32)
    with torch.autocast(value.device.type, enabled=False):
        return gradient.transpose(1, 2).to(dtype) @ value.to(dtype).transpose(-1, -2)


# 10 · (1 − 0.8) is 1.9999999999999996 in binary: products are rounded to nine decimals before the floor.
ROUNDING = 5e-10


def rank(n: Tensor, p: float | Tensor, direction: str = "high") -> Tensor:
    """Return the index of the threshold in a row of n ascending entries; outside of 0 … n − 1 there is none."""
    high = direction == "high"
    return (n.double() * ((1 - p) if high else p) + ROUNDING).floor().long() - (0 if high else 1)


def candidates(scores: Tensor, valid: Tensor, p: float | Tensor, direction: str = "high") -> Tensor:
    """Return the positions that may be dropped: bool, of the shape of `scores` [B, H, Q, K].

    In each row of n valid entries, "high" takes those at or above the entry at index ⌊n(1−p)⌋ in ascending order,
    "low" those at or below the entry at index ⌊np⌋ − 1. `valid` is broadcastable to `scores`.
    """
    n = valid.sum(-1, keepdim=True)
    index = rank(n, p, direction)
    exists = (index >= 0) & (index < n)
    ascending = scores.masked_fill(~valid, float("nan")).sort(dim=-1).values
    index = index.clamp(0, scores.shape[-1] - 1).expand(*scores.shape[:-1], 1)
    threshold = ascending.gather(-1, index)
    beyond = scores >= threshold if direction == "high" else scores <= threshold
    return beyond & valid & exists


def keep_mask(
    scores: Tensor,
    valid: Tensor,
    p: float | Tensor,
    q: float | Tensor,
    uniform: Tensor | None = None,
    direction: str = "high",
) -> Tensor:
    """Return the AD-DROP mask for a map of scores: bool [B, H, Q, K], True = stays.

    Args:
        scores: the attribution of each attention position, [B, H, Q, K].
        valid: the positions that the model lets attend: bool, broadcastable to `scores`.
        p: size of the candidate region, as a share of the valid positions of a row.
        q: probability with which a candidate is dropped.
        uniform: draws in [0, 1) of the shape of `scores`; a candidate is dropped where its draw is below q. By default
            they are drawn from torch's global generator.
        direction: "high": the candidates are the positions with the highest scores; "low": those with the lowest.

    Positions that are not valid are never candidates and stay True.
    """
    if uniform is None:
        uniform = torch.rand(scores.shape, device=scores.device)
    return ~(candidates(scores, valid, p, direction) & (uniform < q))


def keep_from_scores(scores: Tensor, valid: Tensor, rule: DropRule) -> Tensor:
    """Return the AD-DROP mask with the draws of the rule: bool [B, H, Q, K], True = stays."""
    draws = uniform(rule.key, rule.positions, tuple(scores.shape[1:]), scores.device)
    return keep_mask(scores, valid, rule.p, rule.q, draws, rule.direction)
