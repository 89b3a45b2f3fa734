"""How much the prediction depends on each attention position: GA, IGA, AA and RD.

    GA    ∂F/∂A
    IGA   A ⊙ Σ_k w_k ∂F(α_k A)/∂A, one layer scaled at a time, in eval mode, the label taken from the unscaled pass
    AA    A
    RD    nothing: every position counts the same

`O = A V`, so `∂F/∂A = (∂F/∂O) Vᵀ`: one backward gives the gradients of the outputs of all layers, no map is kept in
memory, and any attention kernel works. Scaling A of a layer scales its O, so the same identity covers the integrated
path.
(AD-DROP, arXiv 2210.05883, Eq. 2–4 and 8–10.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..kernels import attribution_mask as kernel
from ..kernels.attention_mask import KeepForm, mask_of
from ..kernels.mask_bits import combined, pack
from ..utils.batches import batch_size, tiled
from .objective import Objective, TokenObjective, head_of, needs_labels, objective_for, predicts_class
from .plan import Plan
from .probe import Probe, Probed
from .seams import Record, bound
from .sites import Layers

ATTRIBUTIONS = ("ga", "iga", "aa", "rd")
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
    """The attribution of one site. The map itself is computed only when it is needed."""

    method: str
    record: Record  # of the unscaled pass
    gradient: Tensor | None = None  # ∂F/∂O, [B, Q, H, d]; for "iga" its mean along the path

    def of_queries(self, rows: slice) -> Attribution:
        """Return the attribution of these queries alone."""
        gradient = None if self.gradient is None else self.gradient[:, rows]
        return replace(self, record=self.record.of_queries(rows), gradient=gradient)

    def scores(self) -> Tensor | None:
        """[B, H, Q, K], higher: the prediction depends on it more; None for "rd"."""
        if self.method == "aa":
            return self.record.attention()
        if self.gradient is None:
            return None
        scores = kernel.scores(self.gradient, self.record.value)
        return scores if self.method == "ga" else self.record.attention() * scores

    def keep(self, rule: kernel.DropRule) -> Tensor | KeepForm:
        """Return the keep mask of AD-DROP, in the form of `as_stored`."""
        record = self.record
        if self.method == "ga" and self.gradient is not None:
            if record.uses_bitmask:
                of_valid, blocks = record.valid_bits
                return kernel.bits_from_gradient(self.gradient, record.value, record.valid, of_valid, blocks, rule)
            return self.as_stored(kernel.keep_from_gradient(self.gradient, record.value, record.valid, rule))
        scores = self.scores()
        assert scores is not None, "nothing is attributed at random"
        return self.as_stored(kernel.keep_from_scores(scores, record.valid, rule))

    def as_stored(self, keep: Tensor) -> Tensor | KeepForm:
        """Return a keep mask as the attention kernel takes it: as bits, as a bias on a GPU, or as it is.

        Computed here, that replaces the keep mask in memory; computed in its layer, it would come on top of it.
        """
        record = self.record
        if record.uses_bitmask:
            return combined(pack(keep), record.valid_bits[0], in_place=True)
        is_plain = record.query.is_cuda and record.bias is None
        return mask_of(keep, record.valid, record.query.dtype) if is_plain else keep


def attributions(
    probe: Probe,
    sites: Sequence[int],
    method: str = "ga",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
    positions: str = "all",
) -> Iterator[tuple[int, Attribution]]:
    """Yield each site with its attribution. The probe has ended before the first one is yielded."""
    gradients, records = _probed(probe, sites, method, label, rule or IntegrationRule(), positions)
    for site in sites:
        if site in records:  # a block that the model has skipped by itself has no attribution
            yield site, Attribution(method, records[site], gradients.pop(site, None))


def _probed(
    probe: Probe, sites: Sequence[int], method: str, label: str, rule: IntegrationRule, positions: str
) -> Probed:
    """∂F/∂O of the sites, where the method needs it, and their records."""
    if method in ("aa", "rd"):
        with probe.untracked(), torch.no_grad():
            return {}, probe.forward(Plan(record=frozenset(sites), like_masked=frozenset(sites)))[1]
    if _attributes_loss(probe, method, label):
        return _of_loop_loss(probe, sites, method, rule)
    objective = objective_for(probe.model, probe.batch, label, positions)
    with_labels = needs_labels(head_of(probe.model, probe.batch))
    if method == "ga":
        with probe.untracked():
            return probe.gradients(Plan(like_masked=frozenset(sites)), objective, sites, with_labels)
    return _integrated(probe, sites, objective, rule, with_labels)


def _attributes_loss(probe: Probe, method: str, label: str) -> bool:
    """Return whether the loop's loss is attributed: it calls the model, which predicts no class by itself."""
    is_by_gradient = method in ("ga", "iga") and probe.loop_loss is not None
    return is_by_gradient and (label == "gold" or not predicts_class(probe.model))


def attribute_loop_loss(
    probe: Probe, sites: Sequence[int], method: str = "ga", label: str = "pseudo", rule: IntegrationRule | None = None
) -> None:
    """Attribute the loop's loss, if it is attributed, to all calls of the model, for `attributions` to read.

    It is called before the loss that is trained begins; the arguments are those of `attributions`.
    """
    if _attributes_loss(probe, method, label):
        _of_loop_loss(probe, sites, method, rule or IntegrationRule())


def _of_loop_loss(probe: Probe, sites: Sequence[int], method: str, rule: IntegrationRule) -> Probed:
    """∂F/∂O of one call of the model, where F is −loss of the loop; for "iga" its mean along the path of this call."""
    if method == "ga":
        gradients, records = probe.gradients_of_loop_loss(sites)
    else:
        gradients, records = probe.of_this_call(("iga", *sites, rule), lambda: _integrated_loss(probe, sites, rule))
    return dict(gradients), records


def _integrated_loss(probe: Probe, sites: Sequence[int], rule: IntegrationRule) -> list[Probed]:
    """Σ_k w_k ∂F/∂O along the path of each site in each call, one at a time, and the records of the unscaled pass."""
    results: list[Probed] = []
    with probe.untracked(training=False):
        with torch.no_grad():
            calls = probe.gradients_of_calls(sites)
        for call, (_, records) in enumerate(calls):
            totals: dict[int, Tensor] = {}
            for site in records:
                for at, weight in rule.nodes():
                    gradients, _ = probe.gradients_of_calls([site], call, Plan(scale={site: at}))[call]
                    part = gradients[site] * weight
                    totals[site] = totals[site] + part if site in totals else part
            results.append((totals, records))
    return results


def scores(
    probe: Probe,
    sites: Sequence[int],
    method: str = "ga",
    label: str = "pseudo",
    rule: IntegrationRule | None = None,
    positions: str = "all",
) -> Iterator[tuple[int, Tensor | None, Record]]:
    """Yield each site with its map of scores and the record of the unscaled pass: one map in memory at a time."""
    for site, attribution in attributions(probe, sites, method, label, rule, positions):
        yield site, attribution.scores(), attribution.record


def _integrated(
    probe: Probe, sites: Sequence[int], objective: Objective, rule: IntegrationRule, with_labels: bool
) -> Probed:
    """Σ_k w_k ∂F/∂O along the path, for each site, and the records of the unscaled pass.

    The nodes of a path are copies of the batch in one pass, as many as memory allows. Scaling a layer changes nothing
    below it, so the blocks below do not run: they return what they returned in the unscaled pass.
    """
    totals: dict[int, Tensor] = {}
    with probe.untracked(training=False):
        with torch.no_grad(), _results(probe, max(probe.seams.sites[site].block for site in sites)) as results:
            plan = Plan(record=frozenset(sites), like_masked=frozenset(sites))
            outputs, records = probe.forward(plan, with_labels)
            objective(outputs)  # fixes the label
        for site in sites:
            below = results[: probe.seams.sites[site].block]
            for nodes in _passes(rule.nodes(), records[site]):
                gradient = _along(probe, site, objective, nodes, below, len(records[site].query), with_labels)
                totals[site] = totals[site] + gradient if site in totals else gradient
    return totals, records


# Tokens in one pass along a path: enough to keep a GPU busy. On a CPU more than one copy of the batch gains nothing.
_TOKENS = {"cuda": 16384}


def _passes(nodes: list[tuple[float, float]], record: Record) -> Iterator[list[tuple[float, float]]]:
    """Divide the nodes of a path into as few passes as memory allows."""
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
    """Return Σ_k w_k ∂F/∂O of one site over these nodes, in one pass: [B, Q, H, d]."""
    copies, size = len(nodes), batch_size(probe.batch)
    device = next(probe.model.parameters()).device
    factor = torch.cat([torch.full((rows, 1, 1, 1), at, device=device) for at, _ in nodes])
    plan = Plan(scale={site: factor}, instead={block: partial(tiled, x, copies, rows) for block, x in enumerate(below)})

    def of_all(outputs: Any) -> Tensor:
        parts = ({name: _part(x, k, copies, size) for name, x in outputs.items()} for k in range(copies))
        return torch.stack([objective(part) for part in parts]).sum()

    many = Probe(probe.model, probe.seams, tiled(dict(probe.batch), copies, size))
    of_copies = objective.repeated(copies) if isinstance(objective, TokenObjective) else of_all
    gradients, _ = many.gradients(plan, of_copies, [site], with_labels)
    parts = gradients[site].unflatten(0, (copies, rows)).unbind()
    total = parts[0].to(torch.promote_types(parts[0].dtype, torch.float32)) * nodes[0][1]
    for part, (_, weight) in zip(parts[1:], nodes[1:], strict=True):
        total = total + part * weight
    return total


def _part(x: Any, number: int, copies: int, size: int) -> Any:
    """Return one of the copies.

    A loss is the mean over all copies: one loss for each copy keeps their sum correct.
    """
    is_copied = isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == copies * size
    return x[number * size : (number + 1) * size] if is_copied else x


@contextmanager
def _results(probe: Probe, count: int) -> Iterator[list[Any]]:
    """Collect what the first `count` blocks return, in calling order, in a pass inside."""
    results: list[Any] = []

    def keep(module: nn.Module, args: Any, result: Any) -> None:
        if len(results) < count:
            results.append(result)

    hooks = [probe.model.get_submodule(name).register_forward_hook(keep) for name in dict.fromkeys(probe.seams.blocks)]
    try:
        yield results
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
    positions: str = "all",
) -> dict[int, Tensor]:
    """Return how much the prediction of `model` on `batch` depends on each attention position.

    Several threads may ask for the same model: one waits for the other.

    Args:
        model: a transformers model. It is not changed.
        batch: the inputs, with labels where `label="gold"` or the head is a regression.
        method: "ga" gradient, "iga" integrated gradient, or "aa", the attention itself.
        layers: "all", "first", a layer number, a list or a slice of them, "encoder", "decoder" or "cross".
        label: "pseudo", the model's own prediction, or "gold".
        rule: where on the path "iga" takes gradients; by default the paper's 20 steps.
        positions: of token labels, "all" that are not padding, or the "labelled" ones.

    Returns:
        {layer: map [B, H, Q, K]}. In a model with several stacks the keys count its attention calls in order
        (`bind(model).sites` lists them).

    Example:
        maps = attribute(model, tokenizer("The film is not bad.", return_tensors="pt"))
    """
    if method not in ATTRIBUTIONS or method == "rd":
        raise ValueError(f"method is {method!r}; it must be 'ga', 'iga' or 'aa'.")
    with bound(model) as seams:
        maps = scores(Probe(model, seams, batch), seams.select(layers), method, label, rule, positions)
        return {site: score for site, score, _ in maps if score is not None}
