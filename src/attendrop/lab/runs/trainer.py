"""The Trainers of runs: length-grouped or balanced batches, ties between epochs, and scores of any part of the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import SequentialSampler, Subset
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer

from ...trainer import RegularizerMixin
from .best import evaluation_at, is_better
from .keeping import Decision, Keeping, Quality
from .masked_lm import MaskedLMTrainer
from .sampler import LengthGroupedSampler

Metrics = Callable[[Any], dict[str, float]]  # of the predictions and labels of an evaluation
SAVE_SECONDS = 30.0  # between checkpoints, where some are skipped
BEST_WEIGHTS = "best.safetensors"  # in a checkpoint: the weights of the best evaluation, if it had none of its own


class RunTrainerMixin(RegularizerMixin):
    """Duties of a run's Trainer besides training with methods; comes before the Trainer in the bases of a class.

    - Batches are drawn by `LengthGroupedSampler`, and evaluations read the examples in their order.
    - Of two epochs with the same score, the one with the smaller validation loss is the best.
    - With `quality`, the best epoch is loaded at the end only if it is significantly better than the last one.
    - With `skips_checkpoints`, an evaluation is followed by a checkpoint only if it is the last one, or if the last
      checkpoint is `SAVE_SECONDS` old: with few examples, writing one takes longer than an epoch. The best weights are
      kept in memory until then. A run that is killed and resumed repeats this time, and ends with the same model.
    - `score` evaluates any part of the data with the metrics of its own task.

    Args:
        compute_metrics: Computes the metrics of evaluations during training.
        is_balanced: Whether equally many examples of each class are drawn.
        quality: How good the answer to each example is, of the predictions of an evaluation; None = the best epoch is
            kept for its score alone.
        skips_checkpoints: Whether not every evaluation is followed by a checkpoint. Several processes skip none.
        averages_over_batch: Whether the model averages the loss over its batch and ignores `num_items_in_batch`, the
            count of the whole step. If the Trainer passed it, it would also multiply the loss by the number of
            processes and of accumulated batches.

    Attributes:
        decision: Which epoch is kept, once training has ended.
    """

    decision = Decision(keeps_best=True)
    _keeping: Keeping | None = None
    control: Any  # the Trainer's
    _skips_checkpoints = False
    _best_weights: dict[str, Tensor] | None = None  # of an evaluation without a checkpoint

    def __init__(
        self,
        *args: Any,
        compute_metrics: Metrics | None = None,
        is_balanced: bool = False,
        quality: Quality | None = None,
        skips_checkpoints: bool = False,
        averages_over_batch: bool = False,
        **kwargs: Any,
    ) -> None:
        self.is_balanced = is_balanced
        self._skips_checkpoints, self._last_saved = skips_checkpoints, time.monotonic()
        if quality is not None:
            self._keeping = Keeping(quality)
        self._usual_metrics = compute_metrics
        self._metrics_of_part: Metrics | None = None  # inside of `score`
        super().__init__(*args, compute_metrics=self._metrics if compute_metrics else None, **kwargs)
        if averages_over_batch:
            self.model_accepts_loss_kwargs = False

    def score(self, split: Any, metrics: Metrics) -> dict[str, float]:
        """Evaluate a part of the data, and return what `evaluate` returns.

        Args:
            split: The tokenised part.
            metrics: Computes its metrics, in the place of `compute_metrics`.
        """
        self._metrics_of_part = metrics
        try:
            return self.evaluate(split)
        finally:
            self._metrics_of_part = None

    def _metrics(self, prediction: Any) -> dict[str, float]:
        metrics = self._metrics_of_part or self._usual_metrics
        assert metrics is not None
        if self._keeping is not None and self._metrics_of_part is None:
            self._keeping.see(prediction)
        return metrics(prediction)

    def _evaluate_once(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = super()._evaluate_once(*args, **kwargs)
        if self._keeping is not None and "metric_key_prefix" not in kwargs:
            self._keeping.evaluated()
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        is_best = self._is_best(metrics, trial)
        if self._keeping is not None:
            self._keeping.remember(self.state, is_best)
        is_kept = is_best and self.args.load_best_model_at_end
        if is_kept:
            self._best_weights = None
        if self._skips_checkpoints and not self._is_due() and (not is_kept or self._can_hold_weights()):
            self.control.should_save = False
            if is_kept:
                self._best_weights = self._copied_weights()
        return is_best

    def _is_due(self) -> bool:
        is_last = self.control.should_training_stop or self.state.global_step >= self.state.max_steps
        return is_last or self.args.world_size > 1 or time.monotonic() - self._last_saved > SAVE_SECONDS

    def _can_hold_weights(self) -> bool:
        """Return whether the weights can be copied and loaded again: not those of adapters or of a quantised model."""
        return isinstance(self.model, PreTrainedModel) and not getattr(self.model, "is_quantized", False)

    def _copied_weights(self) -> dict[str, Tensor]:
        with self.capture.saving(), self._evaluated_weights():
            return {name: weight.detach().cpu().clone() for name, weight in self.model.state_dict().items()}

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        self._last_saved = time.monotonic()

    def _save_more(self, checkpoint: Path) -> None:
        super()._save_more(checkpoint)
        if self._best_weights is not None:
            save_file(self._best_weights, checkpoint / BEST_WEIGHTS)
            self._best_weights = None
            self.state.best_model_checkpoint = str(Path(self.args.output_dir, checkpoint.name))

    def _load_best_model(self) -> None:
        if self._keeping is not None:
            self.decision = self._keeping.decide(self.state, self.args)
        if not self.decision.keeps_best:
            return
        weights = Path(self.state.best_model_checkpoint, BEST_WEIGHTS)
        if not weights.exists():
            super()._load_best_model()
        else:
            self.checkpoints.check_best()
            self.model.load_state_dict(load_file(weights))

    def _is_best(self, metrics: dict[str, float], trial: Any) -> bool:
        if super()._determine_best_metric(metrics=metrics, trial=trial):  # type: ignore[misc]
            return True
        best = evaluation_at(self.state.log_history, self.state.best_global_step)
        if best is None or not is_better(metrics, best, self.args):
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        grouped = self.args.train_sampling_strategy == "group_by_length"
        if self.train_dataset is None or not (grouped or self.is_balanced):
            return super()._get_train_sampler(train_dataset)  # type: ignore[misc]
        batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        lengths = _column(self.train_dataset, "length")
        classes = _column(self.train_dataset, "labels") if self.is_balanced else None
        return LengthGroupedSampler(lengths, batch_size, seed, classes, grouped)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return the examples in their order. The Trainer would group them by length, and mix the predictions up."""
        if eval_dataset is None or self.args.world_size > 1:  # accelerate divides batches among the processes
            return None
        return SequentialSampler(eval_dataset)


class RunTrainer(RunTrainerMixin, Trainer):
    """The Trainer of most runs."""


class TranslationRunTrainer(RunTrainerMixin, Seq2SeqTrainer):
    """The Trainer of translation, whose evaluation generates texts."""


class MaskedLMRunTrainer(RunTrainerMixin, MaskedLMTrainer):
    """The Trainer of masked language modelling."""


def _column(dataset: Any, name: str) -> list[int]:
    if isinstance(dataset, Subset):  # a method holds out the other examples
        values = _column(dataset.dataset, name)
        return [values[i] for i in dataset.indices]
    return list(dataset[name])
