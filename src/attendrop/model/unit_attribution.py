"""How much the prediction depends on each inner unit of the feed-forwards: GA, IGA and the activation itself.

    GA    ∂F/∂Z
    IGA   Z ⊙ Σ_k w_k ∂F(α_k Z)/∂Z, one block scaled at a time, in eval mode, the label taken from the unscaled pass
    AA    Z
    RD    nothing: every unit counts the same

Z is the inner activation of a feed-forward, [B, L, d_ff], the input of its last linear layer. This is the attribution
of AD-DROP (arXiv 2210.05883) with Z in the place of the attention map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .attribution import IntegrationRule
from .objective import Objective, head_of, needs_labels, objective_for
from .probe import Probe


def unit_scores(
    probe: Probe,
    blocks: Sequence[int],
    method: str = "ga",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
    positions: str = "all",
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Yield each block with its inner activations and their scores, [B, L, d_ff] both; no scores with "rd".

    Args:
        probe: the probe. It has ended before the first block is yielded.
        blocks: the numbers of the blocks.
        method: "ga", "iga", "aa" or "rd".
        label: "pseudo", the model's own prediction, or "gold".
        rule: where on the path "iga" takes gradients.
        positions: of token labels, "all" that are not padding, or the "labelled" ones.
    """
    if method in ("aa", "rd"):
        with probe.untracked(), torch.no_grad():
            _, activations = probe.inner_gradients(lambda outputs: outputs, blocks)
        scores = activations if method == "aa" else {}
    else:
        objective = objective_for(probe.model, probe.batch, label, positions)
        with_labels = needs_labels(head_of(probe.model, probe.batch))
        if method == "ga":
            with probe.untracked(), torch.enable_grad():
                scores, activations = probe.inner_gradients(objective, blocks, with_labels)
        else:
            scores, activations = _integrated(probe, blocks, objective, rule or IntegrationRule(), with_labels)
    for block, activation in activations.items():
        if activation.dim() != 3:
            raise ValueError(
                f"units is 'ffn', and the feed-forward of block {block} has an inner activation of the shape "
                f"{tuple(activation.shape)}; it must be one of [batch, tokens, units]."
            )
        yield block, activation, scores.get(block)


def _integrated(
    probe: Probe, blocks: Sequence[int], objective: Objective, rule: IntegrationRule, with_labels: bool
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Return Z ⊙ Σ_k w_k ∂F/∂Z along the path, for each block, and the unscaled Z."""
    totals: dict[int, Tensor] = {}
    with probe.untracked(training=False):
        with torch.no_grad():
            _, activations = probe.inner_gradients(objective, blocks, with_labels)  # fixes the label
        for block, activation in activations.items():
            total = torch.zeros_like(activation)
            for at, weight in rule.nodes():
                with torch.enable_grad():
                    gradients, _ = probe.inner_gradients(objective, [block], with_labels, {block: at})
                total = total + gradients[block] * weight
            totals[block] = activation * total
    return totals, activations
