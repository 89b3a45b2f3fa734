"""How much the prediction leans on each attention position: GA, IGA, AA and RD.

    GA    ∂F/∂A
    IGA   A ⊙ Σ_k w_k ∂F(α_k A)/∂A, one layer scaled at a time, in eval mode, the label taken from the unscaled pass
    AA    A
    RD    nothing: every position counts the same

`O = A V`, so `∂F/∂A = (∂F/∂O) Vᵀ`: the outputs of all layers are asked for at once, no map is kept, any kernel will
do. Scaling A of a layer is scaling its O, so the same identity serves the integrated path.
(AD-DROP, arXiv 2210.05883, Eq. 2–4 and 8–10.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..kernels import attribution_mask as kernel
from ..kernels.attention_mask import Mask, mask_of
from .objective import Objective, head_of, needs_labels, objective_for
from .plan import Plan
from .probe import Probe
from .seams import Record, Seams, bind
from .sites import Layers

METHODS = ("ga", "iga", "aa", "rd")
RULES = ("sum", "gauss")


@dataclass(frozen=True)
class IntegrationRule:
    """Where on the path from 0 to A the gradient is taken, and with which weight.

    "sum" is the paper's right-hand sum at 1/m, 2/m … 1 (m = 20); "gauss" is Gauss–Legendre, for which 4 to 6 nodes
    are as accurate.
    """

    rule: str = "sum"
    steps: int = 20

    def nodes(self) -> list[tuple[float, float]]:
        if self.rule == "sum":
            return [((k + 1) / self.steps, 1 / self.steps) for k in range(self.steps)]
        at, weight = np.polynomial.legendre.leggauss(self.steps)
        return [((float(a) + 1) / 2, float(w) / 2) for a, w in zip(at, weight, strict=True)]


@dataclass
class Attribution:
    """The attribution of one site, as what it is made of: the map itself is only made where it is asked for."""

    method: str
    record: Record  # of the unscaled pass
    gradient: Tensor | None = None  # ∂F/∂O, [B, Q, H, d]; for "iga" its mean along the path

    def scores(self) -> Tensor | None:
        """[B, H, Q, K], higher = leaned on more; None for "rd"."""
        if self.method == "aa":
            return self.record.attention()
        if self.gradient is None:
            return None
        scores = kernel.scores(self.gradient, self.record.value)
        return scores if self.method == "ga" else self.record.attention() * scores

    def keep(self, p: float, q: float, key: int | Tensor, positions: Tensor, direction: str = "high") -> Tensor | Mask:
        """What AD-DROP keeps; on a GPU as the attention kernel takes it, where the model adds nothing to its scores."""
        record, draws = self.record, (p, q, key, positions, direction)
        if self.method == "ga" and self.gradient is not None:
            keep = kernel.keep_from_gradient(self.gradient, record.value, record.valid, *draws)
        else:
            scores = self.scores()
            assert scores is not None, "nothing is attributed at random"
            keep = kernel.keep_from_scores(scores, record.valid, *draws)
        # worked out here, it takes the keep mask's place in memory; in its layer it would come on top
        is_plain = record.query.is_cuda and record.bias is None
        return mask_of(keep, record.valid, record.query.dtype) if is_plain else keep


def attributions(
    probe: Probe,
    sites: Sequence[int],
    method: str = "ga",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
) -> Iterator[tuple[int, Attribution]]:
    """For each site its attribution. The probe has ended before the first one is handed out."""
    gradients: dict[int, Tensor] = {}
    if method in ("aa", "rd"):
        with probe.untracked(), torch.no_grad():
            _, records = probe.forward(Plan(record=frozenset(sites)))
    else:
        objective = objective_for(probe.model, probe.batch, label)
        with_labels = needs_labels(head_of(probe.model, probe.batch))
        if method == "ga":
            with probe.untracked():
                gradients, records = probe.gradients(Plan(), objective, sites, with_labels)
        else:
            gradients, records = _integrated(probe, sites, objective, rule or IntegrationRule(), with_labels)
    for site in sites:
        yield site, Attribution(method, records[site], gradients.pop(site, None))


def scores(
    probe: Probe,
    sites: Sequence[int],
    method: str = "ga",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
) -> Iterator[tuple[int, Tensor | None, Record]]:
    """For each site its map of scores and the record of the unscaled pass. There need never be more than one map."""
    for site, found in attributions(probe, sites, method, label, rule):
        yield site, found.scores(), found.record


def _integrated(
    probe: Probe, sites: Sequence[int], objective: Objective, rule: IntegrationRule, with_labels: bool
) -> tuple[dict[int, Tensor], dict[int, Record]]:
    """Σ_k w_k ∂F/∂O along the path, for each site, and the records of the unscaled pass.

    The nodes of a path are copies of the batch in one pass, as many as there is room for. Scaling a layer changes
    nothing below it, so the blocks below do not run: they return what they returned in the unscaled pass.
    """
    found: dict[int, Tensor] = {}
    with probe.untracked(training=False):
        with torch.no_grad(), _results(probe, max(probe.seams.sites[site].block for site in sites)) as results:
            outputs, records = probe.forward(Plan(record=frozenset(sites)), with_labels)
            objective(outputs)  # fixes the label
        for site in sites:
            below = results[: probe.seams.sites[site].block]
            for nodes in _passes(rule.nodes(), records[site]):
                gradient = _along(probe, site, objective, nodes, below, len(records[site].query), with_labels)
                found[site] = found[site] + gradient if site in found else gradient
    return found, records


# Tokens in one pass along a path: so many that a GPU is busy. On a CPU more than a batch is no gain.
_TOKENS = {"cuda": 16384}


def _passes(nodes: list[tuple[float, float]], record: Record) -> Iterator[list[tuple[float, float]]]:
    """The nodes of a path, in as few passes as there is room for."""
    tokens = record.query.shape[0] * max(record.query.shape[2], record.key.shape[2])
    size = max(1, _TOKENS.get(record.query.device.type, 0) // tokens)
    for start in range(0, len(nodes), size):
        yield nodes[start : start + size]


def _along(
    probe: Probe,
    site: int,
    objective: Objective,
    nodes: list[tuple[float, float]],
    below: list[Any],
    rows: int,
    with_labels: bool,
) -> Tensor:
    """Σ_k w_k ∂F/∂O of one site over these nodes, in one pass: [B, Q, H, d]"""
    copies, size = len(nodes), _size(probe.batch)
    device = next(probe.model.parameters()).device
    factor = torch.cat([torch.full((rows, 1, 1, 1), at, device=device) for at, _ in nodes])
    plan = Plan(
        scale={site: factor}, instead={block: partial(_copied, x, copies, rows) for block, x in enumerate(below)}
    )

    def of_all(outputs: Any) -> Tensor:
        parts = ({name: _part(x, k, copies, size) for name, x in outputs.items()} for k in range(copies))
        return torch.stack([objective(part) for part in parts]).sum()

    many = Probe(probe.model, probe.seams, _copied(dict(probe.batch), copies, size))
    gradients, _ = many.gradients(plan, of_all, [site], with_labels)
    parts = gradients[site].unflatten(0, (copies, rows)).unbind()
    total = parts[0].to(torch.promote_types(parts[0].dtype, torch.float32)) * nodes[0][1]
    for part, (_, weight) in zip(parts[1:], nodes[1:], strict=True):
        total = total + part * weight
    return total


def _copied(x: Any, copies: int, size: int) -> Any:
    """Copies laid one after the other, of every tensor in `x` that has `size` rows."""
    if isinstance(x, Tensor):
        return torch.cat([x] * copies) if x.dim() > 0 and x.shape[0] == size else x
    if isinstance(x, tuple):
        return tuple(_copied(y, copies, size) for y in x)
    if isinstance(x, dict):
        return {name: _copied(y, copies, size) for name, y in x.items()}
    return x


def _part(x: Any, number: int, copies: int, size: int) -> Any:
    """One of the copies. The loss is that of all of them: the mean, and so the sum of one for each is right."""
    is_copied = isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == copies * size
    return x[number * size : (number + 1) * size] if is_copied else x


def _size(batch: Mapping[str, Any]) -> int:
    return next(x.shape[0] for x in batch.values() if isinstance(x, Tensor) and x.dim() > 0)


@contextmanager
def _results(probe: Probe, count: int) -> Iterator[list[Any]]:
    """What the first `count` blocks return, in calling order, of a pass inside."""
    found: list[Any] = []

    def keep(module: nn.Module, args: Any, result: Any) -> None:
        if len(found) < count:
            found.append(result)

    hooks = [probe.model.get_submodule(name).register_forward_hook(keep) for name in dict.fromkeys(probe.seams.blocks)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def attribute(
    model: nn.Module,
    batch: Mapping[str, Any],
    method: str = "ga",
    layers: Layers = "all",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
) -> dict[int, Tensor]:
    """How much the prediction of `model` on `batch` leans on each attention position.

    Returns {layer: [B, H, Q, K]}; where a model has several stacks the keys count its attention calls in order
    (`bind(model).sites` names them). The model is left as it was found.
    """
    if method not in METHODS or method == "rd":
        raise ValueError(f"method is {method!r}; it must be 'ga', 'iga' or 'aa'.")
    seams = Seams.of(model)
    bound_here = seams is None
    if seams is None:
        seams = bind(model)
    try:
        found = scores(Probe(model, seams, batch), seams.select(layers), method, label, rule)
        return {site: score for site, score, _ in found if score is not None}
    finally:
        if bound_here:
            seams.unbind()
