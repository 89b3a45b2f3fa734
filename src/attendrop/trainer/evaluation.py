"""Evaluation and prediction of a Trainer with regularisers."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..capture.kept_batches import KeptBatches
from .parts import TrainerParts


class Evaluation(TrainerParts):
    """Evaluates with averaged weights where a method keeps an average, and scores the values of `choices`.

    Forward passes are captured where possible.
    """

    data_collator: Any

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        is_own = not args and kwargs.get("eval_dataset") is None and "metric_key_prefix" not in kwargs
        if self.engine is not None and self.is_in_train and is_own:
            self.choice.make(self._evaluate_once)
        metrics = self._evaluate_once(*args, **kwargs)
        if self.engine is not None and self.is_in_train and "metric_key_prefix" not in kwargs:
            self.networks.evaluate(super().evaluate, *args, **kwargs)
        return metrics

    def _evaluate_once(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self._evaluated_weights(), self.capture.loading_ahead():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._evaluated_weights(), self.capture.loading_ahead():
            return super().predict(*args, **kwargs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Like the Trainer's. Where forward passes may be captured, its batches are made once."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        kept, collator = self.capture.kept_batches(dataset), self.data_collator
        if kept is None:
            return super().get_eval_dataloader(eval_dataset)
        self.data_collator = kept.collate
        try:
            return super().get_eval_dataloader(kept)
        finally:
            self.data_collator = collator

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        dataset = getattr(dataloader, "dataset", None)
        with self.capture.evaluating(dataset.examples if isinstance(dataset, KeptBatches) else dataset):
            return super().evaluation_loop(dataloader, *args, **kwargs)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        step = super().prediction_step

        def run(batch: Any) -> Any:
            return step(model, batch, prediction_loss_only, ignore_keys=ignore_keys)

        if not self.capture.is_evaluating:
            return run(inputs)
        inputs = self._prepare_inputs(inputs)
        captured = self.capture.evaluation_step(run, inputs, (prediction_loss_only, tuple(ignore_keys or ())))
        return run(inputs) if captured is None else captured
