"""Chooses the next edit of a plan: a longer tail, one more layer with constant attention, or one block less.

top           the last layer that is left
similarity, gradient, gate    the layer with the highest score (`score_layers`), at the present state of pruning
greedy        the edit with the smallest growth of the divergence from the teacher for each millisecond that it saves,
              tried without training
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from .criteria import CRITERIA, Gate, score_layers
from .distillation import Teacher, divergence_of, inputs_of
from .layer_plan import Edit, LayerPlan, apply_plan, plan_of, remaining_layers

TOP, GREEDY = "top", "greedy"
CHOICES = (TOP, GREEDY, *CRITERIA)
WAYS = ("tail", "constant", "remove")

Batch = Mapping[str, Any]


def ways_of(by: str) -> tuple[str, ...]:
    """Return the ways that are allowed where none is named: a tail has one next layer, and criteria choose among them.

    Args:
        by: One of `CHOICES`.
    """
    return ("tail", "constant") if by in (TOP, GREEDY) else ("constant",)


def possible_edits(model: Any, ways: Sequence[str]) -> list[Edit]:
    """Return the edits that a model allows, in the order of `ways`, the last layers first.

    Args:
        model: The model.
        ways: The ways that are allowed.
    """
    plan = plan_of(model)
    numbers = remaining_layers(model.config, plan.removed)
    before = numbers[: len(numbers) - plan.tail]
    edits = []
    for way in ways:
        if way == "tail" and len(before) > 1:
            edits.append(Edit("tail", before[-1]))
        elif way == "constant":
            edits += [Edit("constant", number) for number in reversed(before) if number not in plan.constant]
        elif way == "remove" and len(before) > 1:
            edits += [Edit("remove", number) for number in reversed(before)]
    return edits


@dataclass
class Chooser:
    """Chooses edits.

    Attributes:
        ways: The ways that are allowed, those to use first in front.
        by: One of `CHOICES`.
        teacher: The teacher.
        batches: A few batches, with labels for "gradient".
        savings: Way -> the milliseconds that one edit saves.
        generator: Only for "gate".
        threshold: Only for "gate": layers whose drop probability is not above it keep their attention; None = all may
            be pruned.
    """

    ways: Sequence[str]
    by: str
    teacher: Teacher
    batches: Sequence[Batch]
    savings: Mapping[str, float]
    generator: Gate | None = None
    threshold: float | None = None
    _outputs: list[Tensor] | None = None

    def next(self, model: Any) -> Edit | None:
        """Return the next edit; None if none is left.

        Args:
            model: The model in its present state, without an exact tail.
        """
        edits = possible_edits(model, self.ways)
        if self.threshold is not None:
            above = self._gates(model)
            edits = [edit for edit in edits if above[edit.layer] > self.threshold]
        if not edits:
            return None
        first = [edit for edit in edits if edit.way == edits[0].way]
        if self.by == GREEDY:
            return self._greedy(model, edits)
        if self.by == TOP or len(first) == 1:
            return first[0]
        scores = score_layers(model, self.batches, self.by, self.generator)
        numbers = remaining_layers(model.config, plan_of(model).removed)
        return max(first, key=lambda edit: scores[numbers.index(edit.layer)])

    def _gates(self, model: Any) -> dict[int, float]:
        """Return the drop probability of each layer that is left; that of one with constant attention is infinite."""
        scores = score_layers(model, self.batches, "gate", self.generator)
        numbers = remaining_layers(model.config, plan_of(model).removed)
        return {number: inf if score == -inf else score for number, score in zip(numbers, scores, strict=True)}

    def _greedy(self, model: Any, edits: Sequence[Edit]) -> Edit:
        if len(edits) == 1:
            return edits[0]
        if self._outputs is None:
            with torch.inference_mode():
                self._outputs = [self.teacher.model(**inputs_of(x, model.device)).logits for x in self.batches]
        now = divergence_of(model, self.teacher, self.batches, self._outputs)

        def price(edit: Edit) -> float:
            tried = copy.deepcopy(model)
            apply_plan(tried, plan_of(tried).with_edit(edit), is_final=False)
            growth = divergence_of(tried, self.teacher, self.batches, self._outputs) - now
            # an edit that brings the model nearer to its teacher is taken by how near, whatever it saves
            return growth / max(self.savings.get(edit.way, 1.0), 1e-3) if growth > 0 else growth

        return min(edits, key=price)


def fastest_plan(model: Any, ways: Sequence[str], most_removed: int | None = None) -> LayerPlan:
    """Return the fastest plan that some ways allow.

    Args:
        model: The uncompressed model.
        ways: The ways.
        most_removed: How many blocks may be removed at most; None = all but one.
    """
    layers = remaining_layers(model.config, ())
    if "remove" in ways:
        return LayerPlan(removed=tuple(layers[-(most_removed or len(layers) - 1) :]))
    tail = len(layers) - 1 if "tail" in ways else 0
    constant = tuple(layers[: len(layers) - tail]) if "constant" in ways else ()
    return LayerPlan(tail, constant)


Score = Callable[[Any], float]
