"""The plan of the layers of a compressed encoder: which have constant attention, which are removed, and the tail.

The plan is in the configuration of the model, so that whatever saves the model saves it, and `restore` makes the fast
layers again after the stock model was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .depth import drop_layers
from .stock_layout import PRUNED, REMOVED, TAIL
from .surgery import prune_layers
from .tail import FIRST, MEAN, add_exact_tail, add_summary_tail, encoder_blocks, head_reads, remove_tail, tail_of

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class LayerPlan:
    """What is done with each layer. Layers have the numbers of the model that was compressed, from 0.

    Attributes:
        tail: How many of the last remaining blocks are a summary tail.
        constant: The layers with constant attention before the tail.
        removed: The layers that are removed.
    """

    tail: int = 0
    constant: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"the last {self.tail} blocks on a summary" if self.tail > 1 else "the last block on a summary",
            f"constant attention in {_listed(self.constant)}",
            f"without {_listed(self.removed)}",
        ]
        chosen = [
            part for part, is_there in zip(parts, (self.tail, self.constant, self.removed), strict=True) if is_there
        ]
        return ", ".join(chosen) or "nothing but the exact tail"

    def with_edit(self, edit: Edit) -> LayerPlan:
        """Return the plan with one more edit.

        Args:
            edit: The edit.
        """
        if edit.way == "tail":
            return LayerPlan(self.tail + 1, tuple(n for n in self.constant if n != edit.layer), self.removed)
        if edit.way == "constant":
            return LayerPlan(self.tail, tuple(sorted({*self.constant, edit.layer})), self.removed)
        constant = tuple(n for n in self.constant if n != edit.layer)
        return LayerPlan(self.tail, constant, tuple(sorted({*self.removed, edit.layer})))


@dataclass(frozen=True)
class Edit:
    """One step from a plan to a faster one.

    Attributes:
        way: "tail", the tail begins at this layer; "constant", its attention is constant; "remove".
        layer: Its number in the model that was compressed.
    """

    way: str
    layer: int

    def __str__(self) -> str:
        return {"tail": "tail from layer", "constant": "constant attention in layer", "remove": "without layer"}[
            self.way
        ] + f" {self.layer}"


def _listed(layers: tuple[int, ...]) -> str:
    return f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"


def plan_of(model: Any) -> LayerPlan:
    """Return the plan of a model, from its configuration.

    Args:
        model: A transformers model.
    """
    config = model.config
    removed = tuple(getattr(config, REMOVED, None) or ())
    tail = (getattr(config, TAIL, None) or {}).get("blocks", 0)
    pruned = getattr(config, PRUNED, None) or []
    numbers = remaining_layers(config, removed)
    in_tail = numbers[len(numbers) - tail :]
    return LayerPlan(tail, tuple(numbers[n] for n in pruned if numbers[n] not in in_tail), removed)


def remaining_layers(config: Any, removed: tuple[int, ...]) -> list[int]:
    """Return the numbers of the layers of a model, in that which was compressed.

    Args:
        config: The configuration of the model.
        removed: The numbers of the layers that were removed.
    """
    text = config.get_text_config()
    depth = text.num_hidden_layers + len(removed)
    return [number for number in range(depth) if number not in removed]


def apply_plan(model: Any, plan: LayerPlan, batch: Batch | None = None, is_final: bool = True) -> None:
    """Make the layers of a model what a plan says, in place.

    Args:
        model: A transformers model that is not bound, whose own plan is a part of this one.
        plan: The plan.
        batch: Inputs for the dry run that finds the layers. Models of text and images need none.
        is_final: Whether the model will not be changed further, so that it gets its exact tail.
    """
    own, numbers = plan_of(model), remaining_layers(model.config, plan_of(model).removed)
    left = [number for number in numbers if number not in plan.removed]
    if not plan.tail < len(left):
        raise ValueError(f"tail is {plan.tail}; it must be below {len(left)}, the number of remaining blocks.")
    constant = {*plan.constant, *left[len(left) - plan.tail :]}
    if (
        not {*own.removed} <= {*plan.removed}
        or not {*own.constant} <= {*constant, *plan.removed}
        or own.tail > plan.tail
    ):
        raise ValueError(f"plan is {plan}, and the model has {own}; a plan may only add to that of the model.")
    reads = head_reads(model, batch)
    if plan.tail and reads is None:
        raise ValueError(
            f"tail is {plan.tail}, but the head of {type(model).__name__} reads more than the first token or the mean; "
            "for such heads there is constant attention."
        )
    if tail_of(model) is not None:
        remove_tail(model)
    if left != numbers:
        drop_layers(model, keep=[n for n, number in enumerate(numbers) if number in left], batch=batch)
        setattr(model.config, REMOVED, list(plan.removed))
    pruned = set(getattr(model.config, PRUNED, None) or [])
    if new := [n for n, number in enumerate(left) if number in constant and n not in pruned]:
        prune_layers(model, new, "plan", batch)
    if plan.tail:
        assert reads is not None
        add_summary_tail(model, plan.tail, reads, batch)
    elif is_final:
        add_exact_tail(model, reads, batch)


def restore(model: Any, batch: Batch | None = None) -> None:
    """Make the layers of a stock model that was just loaded what its configuration says, in place.

    Args:
        model: The model, with the weights in the stock layout.
        batch: Inputs for the dry run that finds the layers. Models of text and images need none.
    """
    numbers, tail = getattr(model.config, PRUNED, None), tail_of(model)
    if tail is not None:
        depth = len(encoder_blocks(model, batch))
        _check_tail(tail, depth)
        setattr(model.config, TAIL, None)
    if numbers:
        prune_layers(model, numbers, PRUNED, batch)
    if tail is not None and tail["blocks"]:
        add_summary_tail(model, tail["blocks"], tail["reads"], batch)
    elif tail is not None:
        add_exact_tail(model, tail["reads"], batch)


def _check_tail(tail: Any, depth: int) -> None:
    is_mapping = isinstance(tail, Mapping) and tail.keys() == {"blocks", "reads"}
    if (
        not is_mapping
        or type(tail["blocks"]) is not int
        or not 0 <= tail["blocks"] < depth
        or (tail["reads"] not in (FIRST, MEAN))
    ):
        raise ValueError(
            f"{TAIL} in the configuration is {tail!r}; it must have blocks from 0 to {depth - 1} and reads, 'first' or "
            "'mean'."
        )
