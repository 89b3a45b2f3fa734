"""The forward passes of a Trainer's evaluation and prediction, replayed as CUDA graphs.

The batches are the Trainer's own, in its order: `eval_loss` is a mean over batches. Each is padded to one of a few
lengths, and what the model returns for the padding is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from transformers.utils import logging

from ..core.trainer_protocol import TrainerProtocol
from ..random import preserved
from ..utils.batches import batch_size
from .batches import PaddedShapes
from .buckets import BREAK_EVEN_FORWARDS, Buckets, buckets_for, expected_in_order, lengths_of
from .errors import NotCaptured
from .graphs import Graphs

logger = logging.get_logger(__name__)

PredictionStep = Callable[[dict[str, Any]], Any]  # what `Trainer.prediction_step` returns for a batch


class EvaluationShapes(PaddedShapes):
    """Like `PaddedShapes`, for what a model returns: more padding must not change it where there is no padding."""

    def __init__(self, trainer: TrainerProtocol) -> None:
        super().__init__(trainer)
        self.run: PredictionStep | None = None
        self._cuts: list[list[tuple[int, str]]] = []  # for each tensor: the dimensions that are as long as a column

    def _may_be_longer(self, tensors: Mapping[str, Tensor], longer: Mapping[str, Tensor]) -> bool:
        assert self.run is not None
        with preserved(next(self._trainer.model.parameters()).device):
            outputs = [tree_flatten(self.run(dict(batch)))[0] for batch in (tensors, longer)]
        lengths = {name: (x.shape[-1], longer[name].shape[-1]) for name, x in tensors.items() if x.dim()}
        self._cuts = [[] if not isinstance(x, Tensor) else _cuts(x, y, lengths) for x, y in zip(*outputs, strict=True)]
        cut = self.cut(outputs[1], tensors)
        return all(
            x is y or (x.shape == y.shape and bool((x - y).abs().max() <= self._tolerance * x.abs().max().clamp(min=1)))
            for x, y in zip(outputs[0], cut, strict=True)
        )

    def cut(self, outputs: Any, batch: Mapping[str, Tensor]) -> Any:
        """Return the outputs of a model for a padded batch, without those of the padding."""
        leaves, structure = tree_flatten(outputs)
        for number, cuts in enumerate(self._cuts):
            for dim, name in cuts:
                leaves[number] = leaves[number].narrow(dim, 0, batch[name].shape[-1])
        return tree_unflatten(leaves, structure)


def _cuts(exact: Tensor, padded: Tensor, lengths: Mapping[str, tuple[int, int]]) -> list[tuple[int, str]]:
    """Return the dimensions of a result that are longer for the padded batch, and a column that is as long."""
    cuts = []
    for dim, pair in enumerate(zip(exact.shape, padded.shape, strict=True)):
        names = [name for name, both in lengths.items() if both == pair]
        if pair[0] != pair[1] and names:
            cuts.append((dim, names[0]))
    return cuts


class CapturedEvaluation:
    """Captures and replays the evaluation of one Trainer.

    Args:
        trainer: the Trainer.
        graphs: where graphs are captured.
    """

    def __init__(self, trainer: TrainerProtocol, graphs: Graphs) -> None:
        self._trainer, self._graphs = trainer, graphs
        self._shapes: dict[Hashable, EvaluationShapes] = {}  # for each kind of result
        self._now = Buckets()  # of the evaluation that runs
        self._buckets: dict[int, tuple[Any, Buckets]] = {}  # id of a data set -> the data set and its buckets
        self._parameters = list(trainer.model.parameters())
        self._evaluations = 1
        self._gave_up = False

    def begin(self, dataset: Any, evaluations: int) -> None:
        """Call this before an evaluation.

        Args:
            dataset: the evaluation data.
            evaluations: how often this run evaluates on it.
        """
        self._evaluations = evaluations
        if id(dataset) not in self._buckets:
            lengths = lengths_of(dataset)
            buckets = Buckets()
            if lengths is not None:
                once = expected_in_order(lengths, self._trainer.args.eval_batch_size)
                buckets = buckets_for({n: evaluations * uses for n, uses in once.items()}, BREAK_EVEN_FORWARDS)
            self._buckets[id(dataset)] = dataset, buckets
        self._now = self._buckets[id(dataset)][1]

    def step(self, run: PredictionStep, batch: Mapping[str, Any], kind: Hashable) -> Any:
        """Return the result of `run` for a batch; None if it must run eagerly.

        Args:
            run: a prediction step of the Trainer.
            batch: the batch, on the device.
            kind: what else `run` depends on.
        """
        shapes_of = self._shapes.setdefault((kind, *batch), EvaluationShapes(self._trainer))
        shapes_of.run, shapes_of.buckets = run, self._now
        if self._gave_up or not self._is_worth_capturing(batch, shapes_of):
            return None
        try:
            static, shapes = self._graphs.static_batch(batch, shapes_of)
        except NotCaptured as reason:
            self._give_up(str(reason))
            return None
        key = ("evaluation", kind, shapes, self._addresses())
        if self._graphs.is_full and not self._graphs.has(key):
            return None
        outputs = self._graphs.run(key, lambda: run(dict(static)), forward_of=self._trainer.model, may_fail=True)
        if key in self._graphs.failure_of:
            self._give_up(self._graphs.failure_of[key])
        copied = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, outputs)
        return shapes_of.cut(copied, batch) if self._is_padded(batch, static) else copied

    def _is_worth_capturing(self, batch: Mapping[str, Any], shapes: EvaluationShapes) -> bool:
        """Return whether batches of this shape come up often enough.

        The last one may be smaller; it comes once each time.
        """
        if batch_size(batch) != self._trainer.args.eval_batch_size:
            return self._evaluations >= BREAK_EVEN_FORWARDS
        return shapes.is_worth_capturing(batch)

    def _addresses(self) -> tuple[int, ...]:
        """Of the weights: AttendOut evaluates others in the model, which are elsewhere in memory."""
        return tuple(parameter.data_ptr() for parameter in self._parameters)

    def _is_padded(self, batch: Mapping[str, Any], static: Mapping[str, Any]) -> bool:
        return any(isinstance(x, Tensor) and x.shape != static[name].shape for name, x in batch.items())

    def _give_up(self, reason: str) -> None:
        self._gave_up = True
        logger.warning(f"Evaluation is not captured, because {reason}.")
