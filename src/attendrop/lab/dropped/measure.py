"""The probability that attention positions are dropped, by the distance of query and key and by the token of the key.

    AD-DROP      q for the candidates of a row, and 0 for all others; the mean over the heads
    AttendOut    P(drop) of its generator

Only positions between two real tokens count. Distances and kinds of tokens overlap: every position has one of each.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.schedule import Schedule
from ...kernels.attribution_mask.reference import candidates
from ...methods.addrop import ADDrop
from ...methods.attendout.generator import Generator, ids_and_mask, pairs
from ...model.attribution import scores
from ...model.modes import evaluating
from ...model.probe import Probe
from ...model.seams import Seams, bound
from ...utils.files import whole_file
from .tokens import KINDS, TokenKinds

DISTANCES = {"0": 0, "1": 1, "2 to 3": 2, "4 to 7": 4, "8 to 15": 8, "16 to 31": 16, "32 or more": 32}  # the least
DISTANCE, TOKEN, TAG = "distance", "token", "tag"


@dataclass(frozen=True)
class DropShare:
    """How often the positions of a group are dropped in a layer.

    Args:
        layer: The layer, such as "layer_3".
        by: What the group is of: "distance", "token" or "tag".
        group: The group, such as "2 to 3", "punctuation" or the name of a tag.
        positions: The number of positions.
        share: The mean probability that they are dropped.
        ratio: This probability as a multiple of that of all positions of the layer; nan where nothing is dropped.
    """

    layer: str
    by: str
    group: str
    positions: int
    share: float
    ratio: float


@dataclass(frozen=True)
class Dropped:
    """What is dropped. `attendrop.lab.dropped.figure.plot_dropped` draws it.

    Args:
        shares: One for each layer and group that has positions.
        source: What drops: "AD-DROP, p = 0.3, q = 0.3" or "AttendOut's generator".
        examples: The number of examples, or of their rows where one has several.
    """

    shares: tuple[DropShare, ...]
    source: str
    examples: int

    @property
    def layers(self) -> list[str]:
        """The layers, in the order of the model."""
        return list(dict.fromkeys(share.layer for share in self.shares))

    def of(self, by: str) -> dict[str, list[DropShare]]:
        """Return the groups of one kind, each with its shares by layer.

        Args:
            by: "distance", "token" or "tag".
        """
        groups: dict[str, list[DropShare]] = {}
        for share in self.shares:
            if share.by == by:
                groups.setdefault(share.group, []).append(share)
        return groups

    def write_csv(self, path: str | Path) -> Path:
        """Write one line for each layer and group.

        Args:
            path: The file to write.
        """
        with whole_file(path, is_text=True) as file:
            writer = csv.DictWriter(file, [f.name for f in fields(DropShare)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, self.shares))
        return Path(path)


Masks = Iterator[tuple[str, Tensor, Tensor]]  # of each layer: its name, P(drop) and the valid positions, [rows, L, L]


def measure_dropped(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    method: ADDrop | Generator,
    tokens: TokenKinds,
    tags: Sequence[str] = (),
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Dropped:
    """Return how often the positions of each group are dropped in each layer. The model is not changed.

    Args:
        model: A transformers model with a head that reads token ids.
        batches: Batches as the model takes them.
        method: AD-DROP, whose p and q are numbers, or a trained generator of AttendOut.
        tokens: The kinds of the tokens.
        tags: Names of the labels of token classification, by which keys are grouped as well; none = not.
        watch: A function around the batches that may show the progress.
    """
    device = next(model.parameters()).device
    batches = [{name: x.to(device) for name, x in batch.items() if isinstance(x, Tensor)} for batch in batches]
    if not batches:
        raise ValueError("batches is empty; there is nothing to measure.")
    if "input_ids" not in batches[0]:
        raise ValueError(f"the model reads {', '.join(batches[0])}, not tokens; only their attention can be described.")
    counts = sum(tokens.count(*ids_and_mask(batch)) for batch in batches)
    tally, rows = _Tally(), 0
    with bound(model) as seams, evaluating(model):
        of_batch = _masks_of(method, model, seams)
        for batch in watch(batches):
            ids = ids_and_mask(batch)[0]
            of_keys: dict[str, tuple[Sequence[str], Tensor]] = {TOKEN: (KINDS, tokens.of(ids, counts))}
            if tags:
                of_keys[TAG] = (tuple(tags), batch["labels"])
            for layer, p, valid in of_batch(batch):
                tally.add(layer, p, valid, of_keys)
            rows += len(ids)
    return Dropped(tally.shares(), _name(method), rows)


def _name(method: ADDrop | Generator) -> str:
    return f"AD-DROP, p = {method.p}, q = {method.q}" if isinstance(method, ADDrop) else "AttendOut's generator"


def _masks_of(method: ADDrop | Generator, model: nn.Module, seams: Seams) -> Callable[[Mapping[str, Any]], Masks]:
    """Return a function that yields the masks of the layers of a batch."""
    over_input = [site for site in seams.sites if site.is_over_input(seams.sites)]
    if isinstance(method, Generator):

        def of_generator(batch: Mapping[str, Any]) -> Masks:
            ids, mask = method.read(batch)
            with torch.no_grad():
                p = method(ids, mask).sigmoid().double()
            for site, of_layer in zip(over_input, p, strict=True):
                yield site.label, of_layer, pairs(mask, method.causal)

        return of_generator
    p, q = method.p, method.q
    if isinstance(p, Schedule) or isinstance(q, Schedule):
        raise ValueError(f"AD-DROP has p={p} and q={q}; to describe what it drops both must be numbers.")
    if method.attribution == "rd":
        raise ValueError("AD-DROP has attribution='rd', which drops at random; there is nothing to describe.")
    inside = {site.index for site in over_input}
    sites = [site for site in seams.select(method.layers, "ADDrop.layers") if site in inside]

    def of_addrop(batch: Mapping[str, Any]) -> Masks:
        real = ids_and_mask(batch)[1].bool()
        for site, scored, record in scores(Probe(model, seams, batch), sites, method.attribution, method.label):
            assert scored is not None  # only random attribution has no scores
            region = candidates(scored, record.valid, p, method.direction)
            valid = record.valid.expand(len(scored), -1, *scored.shape[2:])[:, 0] & real.unsqueeze(2)
            yield seams.sites[site].label, region.double().mean(1) * q, valid

    return of_addrop


class _Tally:
    """Sums over batches: of the positions of each group, and of their P(drop)."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str, str], list[float]] = {}
        self.of_layers: dict[str, list[float]] = {}

    def add(self, layer: str, p: Tensor, valid: Tensor, of_keys: Mapping[str, tuple[Sequence[str], Tensor]]) -> None:
        """Add the positions of one layer of a batch.

        Args:
            layer: The layer.
            p: P(drop), [rows, L, L].
            valid: The positions that count, [rows, L, L].
            of_keys: For each kind of groups the names of its groups, and the group of each key, [rows, L]; below 0 =
                none.
        """
        place = torch.arange(p.shape[1], device=p.device)
        distance = (place[:, None] - place[None]).abs()
        least = torch.tensor(list(DISTANCES.values()), device=p.device)
        bins = torch.bucketize(distance, least, right=True) - 1
        self._add(layer, DISTANCE, tuple(DISTANCES), bins.expand_as(p), p, valid)
        for by, (names, groups) in of_keys.items():
            self._add(layer, by, names, groups.unsqueeze(1).expand_as(p), p, valid)
        total = self.of_layers.setdefault(layer, [0.0, 0.0])
        total[0] += int(valid.sum())
        total[1] += float((p * valid).sum())

    def _add(self, layer: str, by: str, names: Sequence[str], groups: Tensor, p: Tensor, valid: Tensor) -> None:
        counted = valid & (groups >= 0)
        positions = torch.bincount(groups[counted], minlength=len(names))
        dropped = torch.bincount(groups[counted], weights=p[counted], minlength=len(names))
        for name, count, share in zip(names, positions.tolist(), dropped.tolist(), strict=True):
            total = self.sums.setdefault((layer, by, name), [0, 0.0])
            total[0] += count
            total[1] += share

    def shares(self) -> tuple[DropShare, ...]:
        shares = []
        for (layer, by, name), (count, dropped) in self.sums.items():
            positions, all_dropped = self.of_layers[layer]
            mean = all_dropped / positions
            if count:
                share = dropped / count
                shares.append(DropShare(layer, by, name, int(count), share, share / mean if mean else float("nan")))
        return tuple(shares)
