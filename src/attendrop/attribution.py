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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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


def of_map(gradient: Tensor, record: Record) -> Tensor:
    """∂F/∂A from ∂F/∂O: [B, H, Q, K]"""
    value = record.value_of_heads()
    # An fp16 gradient comes scaled back, in fp32: a product in fp16, which autocast would choose, would lose it again.
    dtype = torch.promote_types(gradient.dtype, value.dtype)
    with torch.autocast(value.device.type, enabled=False):
        return gradient.transpose(1, 2).to(dtype) @ value.to(dtype).transpose(-1, -2)


def scores(
    probe: Probe,
    sites: Sequence[int],
    method: str = "ga",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
) -> Iterator[tuple[int, Tensor | None, Record]]:
    """For each site its attribution, [B, H, Q, K], higher = leaned on more, and the record of the unscaled pass.

    The probe has ended before the first site is handed out, and each map is made when it is asked for: there need
    never be more than one. For "rd" there is nothing to attribute.
    """
    if method in ("aa", "rd"):
        with probe.untracked(), torch.no_grad():
            _, records = probe.forward(Plan(record=frozenset(sites)))
        for site in sites:
            yield site, records[site].attention() if method == "aa" else None, records[site]
        return
    objective = objective_for(probe.model, probe.batch, label)
    with_labels = needs_labels(head_of(probe.model, probe.batch))
    if method == "ga":
        with probe.untracked():
            gradients, records = probe.gradients(Plan(), objective, sites, with_labels)
    else:
        gradients, records = _integrated(probe, sites, objective, rule or IntegrationRule(), with_labels)
    for site in sites:
        record, score = records[site], of_map(gradients.pop(site), records[site])
        yield site, score if method == "ga" else record.attention() * score, record


def _integrated(
    probe: Probe, sites: Sequence[int], objective: Objective, rule: IntegrationRule, with_labels: bool
) -> tuple[dict[int, Tensor], dict[int, Record]]:
    """Σ_k w_k ∂F/∂O along the path, for each site, and the records of the unscaled pass."""
    found: dict[int, Tensor] = {}
    with probe.untracked(training=False):
        with torch.no_grad():
            outputs, records = probe.forward(Plan(record=frozenset(sites)), with_labels)
            objective(outputs)  # fixes the label
        for site in sites:
            for at, weight in rule.nodes():
                gradients, _ = probe.gradients(Plan(scale={site: at}), objective, [site], with_labels)
                found[site] = gradients[site] * weight + found[site] if site in found else gradients[site] * weight
    return found, records


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
