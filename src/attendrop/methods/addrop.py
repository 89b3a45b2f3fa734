"""AD-DROP: drops the attention positions that the prediction depends on most, in every other epoch.

    B = attribution of each attention map          by a probe, without gradients for the weights
    t_i = the entry at index ⌊n(1−p)⌋ of row i of B, sorted ascending over its n valid positions
    S'_ij = −∞ with probability q where B_ij ≥ t_i, before the softmax

Yang et al., "AD-DROP: Attribution-Driven Dropout for Robust Language Model Fine-Tuning", arXiv 2210.05883.

Differs from the paper in: all layers are attributed with one backward instead of one for each (the numbers are the
same); both passes draw the same ordinary dropout; a run ends on a plain epoch unless `end_on` says otherwise; a row
that loses everything becomes uniform over its valid positions; multiple choice, multi-label and span heads, which the
paper does not treat, are attributed by Σ log P of the prediction. In token labels that is the pseudo loss of Eq. 9;
Eq. 10 writes its gradient for the logit of the predicted label alone, and leaves the other logits out. `units="ffn"`
applies the same rule to the inner units of the feed-forwards, which the paper only proposes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ProbesModel
from ..core.hyper import hyper
from ..core.schedule import END_ON, Strength, is_method_epoch, value_at
from ..core.step import Loop, MicroBatch, Step
from ..kernels.attention_mask import KeepForm, as_keep
from ..kernels.attribution_mask import DIRECTIONS, DropRule, SelectedBits, candidates, keep_from_scores
from ..kernels.draws import uniform
from ..model.attention import of_queries
from ..model.attribution import ATTRIBUTIONS, RULES, Attribution, IntegrationRule, attribute_loop_loss, attributions
from ..model.objective import LABEL_SOURCES, POSITIONS, head_of
from ..model.plan import Edit, Plan
from ..model.seams import Seams
from ..model.sites import Layers
from ..model.unit_attribution import unit_scores

UNITS = ("attention", "ffn")


def random_keep_mask(
    shape: tuple[int, ...], valid: Tensor, p: float | Tensor, q: float | Tensor, uniform: Tensor
) -> Tensor:
    """RD, the random control of the paper: each valid position is dropped with probability p · q.

    Args:
        shape: the shape of the map, [B, H, Q, K].
        valid: the positions that the model lets attend.
        p: probability that a position is a candidate.
        q: probability that a candidate is dropped.
        uniform: draws in [0, 1) of the shape of the map.
    """
    return ~((uniform < p * q) & valid).expand(shape)


@dataclass
class ADDrop(ProbesModel):
    """Attribution-driven attention dropout.

    Args:
        p: size of the candidate region, as a share of the row; a number from 0 to 1, or a schedule
        q: probability with which a candidate is dropped; a number from 0 to 1, or a schedule
        layers: the layers: "first", "all", a number, a list or a slice of numbers; in a model with an encoder and a
            decoder also "encoder", "decoder" (self attention) or "cross"
        attribution: "ga" gradient, "iga" integrated gradient, "aa" the attention itself, "rd" random
        label: the attributed output: "pseudo", the model's prediction, or "gold", the label
        positions: of token labels, the positions that are attributed: "all" that are not padding, as in Eq. 9, or the
            "labelled" ones
        direction: "high" drops positions that the prediction depends on most, "low" those that it depends on least
        cross_tuning: True: AD-DROP in every other epoch; False: in every epoch
        end_on: with cross-tuning, the kind of the last epoch: "plain", "method", or "either" (epochs 1, 3, 5 … plain)
        ig_rule: how "iga" integrates: "sum", the paper's, or "gauss"
        ig_steps: gradients for each layer of "iga", a whole number from 1; 20 in the paper's sum, 5 are enough for
            "gauss"
        units: what is dropped: "attention" positions, or "ffn", the inner units of the feed-forwards (exploratory: the
            paper only proposes it)
    """

    name: ClassVar[str] = "addrop"
    measures_plan: ClassVar[bool] = True

    # The grid has 81 points: section 4 of the paper.
    p: Strength = hyper(0.3, high=1, search="0.1..0.9", paper="0.1..0.9:0.1")
    q: Strength = hyper(0.3, high=1, search="0.1..0.9", paper="0.1..0.9:0.1")
    layers: Layers = hyper("first", search="first,all")
    attribution: str = hyper("ga", choices=ATTRIBUTIONS)
    label: str = hyper("pseudo", choices=LABEL_SOURCES)
    positions: str = hyper("all", choices=POSITIONS)
    direction: str = hyper("high", choices=DIRECTIONS)
    cross_tuning: bool = hyper(True)
    end_on: str = hyper("plain", choices=END_ON, paper="either")
    ig_rule: str = hyper("sum", choices=RULES)
    ig_steps: int = hyper(20, low=1)
    units: str = hyper("attention", choices=UNITS)

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        seams.select(self.layers, "ADDrop.layers")
        if self.units == "ffn":
            seams.needs_feed_forward("ADDrop.units 'ffn'")
        if not self.cross_tuning or epochs is None:
            return
        if not any(is_method_epoch(epoch, epochs, self.end_on) for epoch in range(epochs)):
            raise ValueError(
                f"training has {epochs} epoch and ADDrop.end_on is {self.end_on!r}, so that cross-tuning would have no "
                "AD-DROP epoch; train for at least 2 epochs (num_train_epochs or max_steps), or set "
                "ADDrop(cross_tuning=False)."
            )

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        if self.units == "ffn" and loop.calls_model:
            raise ValueError(
                "ADDrop.units is 'ffn', and the loss of this trainer calls the model by itself, so that its "
                "feed-forwards cannot be attributed; units must be 'attention'."
            )
        if self.attribution in ("ga", "iga") and not loop.calls_model:
            head_of(model, {})

    def capture_key(self, step: Step) -> Hashable:
        is_on = self._is_on(step)
        return None if is_on and self.units == "ffn" else is_on  # edits of inner units have not been captured yet

    def probes(self, step: Step) -> bool:
        return self._is_on(step)

    def _is_on(self, step: Step) -> bool:
        """Return whether anything is dropped in this step."""
        progress = step.progress
        if value_at(self.p, progress) == 0 or value_at(self.q, progress) == 0:
            return False
        return not self.cross_tuning or is_method_epoch(progress.epoch, progress.epochs, self.end_on)

    def on_batch(self, batch: MicroBatch) -> None:
        if batch.loop_loss is not None and self._is_on(batch.step):
            sites = batch.step.seams.select(self.layers, "ADDrop.layers")
            attribute_loop_loss(batch.probe(), sites, self.attribution, self.label, self._integration)

    @property
    def _integration(self) -> IntegrationRule:
        return IntegrationRule(self.ig_rule, self.ig_steps)

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if not self._is_on(step):
            return Plan()
        if self.units == "ffn":
            return self._plan_of_units(batch)
        sites = step.seams.select(self.layers, "ADDrop.layers")
        # In float64, in which the rank of the threshold is rounded down.
        p, q = (step.strength(f"{self.name} {name}", getattr(self, name), torch.float64) for name in ("p", "q"))
        keep: dict[int, Tensor | KeepForm] = {}
        of_sites = attributions(batch.probe(), sites, self.attribution, self.label, self._integration, self.positions)
        for site, attribution in of_sites:
            rows, device = len(attribution.record.query), attribution.record.query.device
            rule = DropRule(p, q, batch.key(site, self.name), batch.positions(rows, device), self.direction)
            keep[site] = self._keep(attribution, rule)
            if step.measure:
                label = step.seams.sites[site].label
                for name, value in self._metrics(attribution, rule, keep[site]).items():
                    step.metrics[f"addrop/{name}_{label}"] = value
        return Plan(keep=keep)

    def _plan_of_units(self, batch: MicroBatch) -> Plan:
        """Return the plan that sets inner units of the feed-forwards to zero, by the rule of attention positions."""
        step = batch.step
        p, q = (step.strength(f"{self.name} {name}", getattr(self, name), torch.float64) for name in ("p", "q"))
        inner: dict[int, tuple[Edit, ...]] = {}
        blocks = step.seams.select_blocks(self.layers, "ADDrop.layers")
        of_blocks = unit_scores(batch.probe(), blocks, self.attribution, self.label, self._integration, self.positions)
        for block, activation, scores in of_blocks:
            rows, tokens, units = activation.shape
            valid = torch.ones(rows, 1, 1, units, dtype=torch.bool, device=activation.device)
            key, at = batch.key(block, f"{self.name} ffn"), batch.positions(rows, activation.device)
            if scores is None:
                draws = uniform(key, at, (1, tokens, units), activation.device)
                keep = random_keep_mask((rows, 1, tokens, units), valid, p, q, draws)
            else:
                keep = keep_from_scores(scores.unsqueeze(1), valid, DropRule(p, q, key, at, self.direction))
            keep = keep.squeeze(1)
            inner[block] = (partial(_without_units, keep=keep),)
            if step.measure:
                step.metrics[f"{self.name}/ffn_drop_rate_layer_{block}"] = _share_dropped(keep, batch.inputs)
        return Plan(inner=inner)

    def _keep(self, attribution: Attribution, rule: DropRule) -> Tensor | KeepForm:
        if self.attribution != "rd":
            return attribution.keep(rule)
        record = attribution.record
        shape = (*record.query.shape[:3], record.key.shape[2])
        draws = uniform(rule.key, rule.positions, shape[1:], record.query.device)
        keep = random_keep_mask(shape, record.valid, rule.p, rule.q, draws)
        return attribution.as_stored(keep) if record.uses_bitmask else keep

    def _metrics(self, attribution: Attribution, rule: DropRule, keep: Tensor | KeepForm) -> dict[str, Tensor]:
        """Shares of the valid positions, and the attention that the dropped positions had, as a mean over rows."""
        record = attribution.record
        batch, heads, queries = record.query.shape[:3]
        keys = record.key.shape[2]
        if isinstance(keep, SelectedBits):
            keep = keep.bits()
        at_once = max(1, _MEASURED_AT_ONCE // (batch * heads * keys))
        counts = [
            self._counts(attribution.of_queries(rows), rule, _kept_of_queries(keep, rows), rows.start, queries == keys)
            for rows in (slice(first, first + at_once) for first in range(0, queries, at_once))
        ]
        positions, rows, dropped, mass, region = torch.stack(counts).sum(0)
        metrics = {"drop_rate": dropped / positions, "dropped_mass": mass / rows}
        return {"candidate_share": region / positions, **metrics} if self.attribution != "rd" else metrics

    def _counts(self, attribution: Attribution, rule: DropRule, keep: Tensor, first: int, is_square: bool) -> Tensor:
        """Count valid positions, rows with any, dropped positions, dropped attention mass and candidates.

        `first` is the number of the first query.
        """
        record, scores = attribution.record, attribution.scores()
        counted = record.valid.expand_as(keep)
        if is_square:  # the rows of real tokens: in self attention a real token may attend to itself
            counted = counted & counted.diagonal(first, -2, -1).unsqueeze(-1)
        dropped = ~keep & counted
        region = None if scores is None else candidates(scores, record.valid, rule.p, rule.direction) & counted
        mass = (record.attention() * dropped).sum()
        numbers = (
            counted.sum(),
            counted.any(-1).sum(),
            dropped.sum(),
            mass,
            dropped.new_zeros(()) if region is None else region.sum(),
        )
        return torch.stack([number.float() for number in numbers])


def _share_dropped(keep: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Return the share of units that are dropped, over real tokens where a mask tells them."""
    dropped, mask = (~keep).float().mean(-1), inputs.get("attention_mask")
    if mask is None or mask.shape != dropped.shape:
        return dropped.mean()
    return (dropped * mask).sum() / mask.sum()


def _without_units(x: Tensor, keep: Tensor) -> Tensor:
    return x * keep.to(x.dtype)


# Positions that are measured at a time, which bounds the memory that it takes: a sorted map of them has 12 bytes each.
_MEASURED_AT_ONCE = 1 << 26


def _kept_of_queries(keep: Tensor | KeepForm, rows: slice) -> Tensor:
    return as_keep(of_queries(keep, rows) if isinstance(keep, Tensor) else keep.mapped(lambda x: of_queries(x, rows)))
