"""Structure masks: in training a token attends only where the user's own matrix allows it (the edges of a parse tree).

    S'_ij = −∞ where M_ij is False         M: boolean, [L, L] for each example, a column of the training set

As in Zhang et al., "SG-Net: Syntax-Guided Machine Reading Comprehension", arXiv 1908.05147, where a token attends to
its ancestors in the parse tree.
Differs from the paper in: the mask acts on the layers of the model and only in training, where SG-Net adds a masked
layer; a token for which M has no True attends uniformly to all valid tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ..core.capabilities import ReadsColumns
from ..core.step import MicroBatch, Step
from ..kernels.bitmask_attention import stored
from ..model.plan import Plan
from ..model.seams import Seams
from ..model.sites import Layers, map_shape

Collator = Callable[[list[dict[str, Any]]], Any]


def collate_structure(collator: Collator, column: str = "structure_mask") -> Collator:
    """Return a data collator that also pads and stacks the matrices of `column`.

    The matrix of an example with n tokens is [n, n]; the batch gets one tensor [B, L, L]. It is True where there is
    padding, on the left or on the right: the model's own mask takes care of padding.

    Args:
        collator: the collator for all other columns.
        column: the name of the column; examples without it are passed on as they are.

    Example:
        trainer = RegularizedTrainer(
            model=model, args=args, train_dataset=train, regularizers=[StructureMask()],
            data_collator=collate_structure(DataCollatorWithPadding(tokenizer)),
        )
    """
    return functools.partial(_collate, collator, column)


def _collate(collator: Collator, column: str, examples: Sequence[Mapping[str, Any]]) -> Any:
    rows = [dict(example) for example in examples]
    if column not in rows[0]:
        return collator(rows)
    matrices = [torch.as_tensor(row.pop(column)).bool() for row in rows]
    for matrix, row in zip(matrices, rows, strict=True):
        n = len(row["input_ids"])
        if tuple(matrix.shape) != (n, n):
            raise ValueError(
                f"column {column!r} has a matrix of shape {list(matrix.shape)} for an example of {n} tokens; it must "
                f"be [{n}, {n}], special tokens included."
            )
    batch = collator(rows)
    length = batch["input_ids"].shape[-1]
    masks = torch.ones(len(rows), length, length, dtype=torch.bool)
    for i, matrix in enumerate(matrices):
        # The index of the first token that is not padding: padding may be on the left.
        first = int(batch["attention_mask"][i].to(torch.uint8).argmax()) if "attention_mask" in batch else 0
        masks[i, first : first + len(matrix), first : first + len(matrix)] = matrix
    batch[column] = masks
    return batch


@dataclass
class StructureMask(ReadsColumns):
    """Attention masks that the user supplies.

    Args:
        column: the name of the column of the training set with a boolean matrix for each example, True where a token
            (row) may attend to another (column)
        layers: the layers: "first", "all", a number, a list or a slice of numbers; in a model with an encoder and a
            decoder, of the encoder alone, which "encoder" selects too
    """

    name: ClassVar[str] = "structure_mask"

    column: str = "structure_mask"
    layers: Layers = "all"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise ValueError(f"StructureMask.column is {self.column!r}; it must be the name of a column.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        self._sites(seams)

    def _sites(self, seams: Seams) -> list[int]:
        """Return the selected self attention over the input: that of the only stack, or of the encoder."""
        selected = seams.select(self.layers, "StructureMask.layers")
        over_input = [site for site in selected if seams.sites[site].is_over_input(seams.sites)]
        if not over_input:
            raise ValueError(
                f"StructureMask.layers is {self.layers!r}, which selects no self attention over the input."
            )
        return over_input

    def capture_key(self, step: Step) -> Hashable:
        return True

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        sites = self._sites(step.seams)
        rows, queries, keys = map_shape(step.seams.sites[sites[0]], batch.examples)
        mask = torch.as_tensor(batch.examples[self.column])
        if mask.dim() < 3 or mask.shape[-2:] != (queries, keys) or mask.numel() != rows * queries * keys:
            raise ValueError(
                f"column {self.column!r} (StructureMask) has shape {list(mask.shape)}; it must be "
                f"[{rows}, {queries}, {keys}] for this batch, as attendrop.collate_structure makes it."
            )
        keep = mask.bool().reshape(rows, 1, queries, keys)
        # Without a mask the model may take a faster kernel. A captured plan cannot look at its values.
        is_empty = not step.is_captured and bool(keep.all())
        return Plan() if is_empty else Plan(keep=dict.fromkeys(sites, stored(keep)))
