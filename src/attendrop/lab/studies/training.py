"""Trains one run of a study: monitors its evaluations, keeps the epoch selected by the study, and scores it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ...core.networks import TrainsNetworks
from ...trainer.choice import chosen_at
from ..evaluation.evaluator import scores_of
from ..evaluation.outputs import Outputs
from ..evaluation.scorer import Scorer
from ..records import ClassPredictions, Cost, Kept, Scores
from ..runs.best import is_better, score_key
from ..runs.run import Run
from .spec import RunSpec
from .splits import SELECTION

SIGN_AFTER = 10.0  # seconds of training without a report, after which a run sends a heartbeat

Progress = Callable[[dict[str, Any]], bool]


def named_tensors(model: Any) -> list[tuple[str, Tensor]]:
    """Return all weights and buffers of a model by name."""
    return [*model.named_parameters(), *model.named_buffers()]


class Training(TrainerCallback):
    """Trains one run, monitors its evaluations, and scores the kept epoch."""

    def __init__(self, spec: RunSpec, run: Run, trainer: Any, scorer: Scorer, progress: Progress | None) -> None:
        self.spec, self.run, self.trainer, self.progress = spec, run, trainer, progress
        self.scorer = scorer  # the Trainer's `compute_metrics`
        self.outputs: dict[str, Outputs] = {}  # of the kept epoch, by part
        self.was_stopped = False
        self.kept_epoch: float | None = None
        self._best: Mapping[str, Any] | None = None  # metrics of the best evaluation
        self._reported = time.monotonic()
        self._weights: dict[str, Tensor] = {}  # of the best epoch
        self._validation: list[dict[str, Any]] = []  # scores of each evaluation
        self._is_inside = False  # an evaluation in an evaluation
        trainer.add_callback(self)

    def train(self, head_seconds: float = 0.0) -> None:
        """Train the model, unless its head is the linear model of its frozen features.

        Args:
            head_seconds: How long it took to fit this linear model, which is then the time of training.
        """
        clock = time.perf_counter()
        if self.spec.is_frozen:
            self._seconds, self._evaluating, self.kept_epoch = head_seconds, 0.0, 0.0
            return
        self.trainer.train()
        if self.trainer.args.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.args.device)
        self._seconds = time.perf_counter() - clock
        self._evaluating = self._time_of_evaluations()
        if self.spec.keep == "last" or self.kept_epoch is None:
            self.kept_epoch = self.trainer.state.epoch

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        name = f"eval_{self.run.prepared.metric}"
        if self._is_inside or metrics is None or name not in metrics or not self.trainer.is_in_train:
            return
        score, chosen_by = metrics[name], metrics
        if self.spec.keep == "split":
            self._is_inside = True
            try:
                metrics = self.trainer.evaluate(self.run.prepared.validation, metric_key_prefix="eval_validation")
            finally:
                self._is_inside = False
            metrics = {key.replace("eval_validation_", "eval_", 1): value for key, value in metrics.items()}
        self._validation.append({"epoch": state.epoch, "step": state.global_step, **scores_of(metrics)})
        self._follow(chosen_by, state.epoch)
        if self._report(state, score=score):
            self.was_stopped = control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send a heartbeat, so that a long epoch is not mistaken for a hang."""
        if time.monotonic() - self._reported > SIGN_AFTER:
            self._report(state)

    on_substep_end = on_prediction_step = on_step_end

    def _report(self, state: Any, **more: float) -> bool:
        """Report the progress of the run, and return whether it should stop."""
        self._reported = time.monotonic()
        return self.progress is not None and self.progress(
            {
                "id": self.spec.id, "epoch": state.epoch, "epochs": state.num_train_epochs,
                "step": state.global_step, "steps": state.max_steps, **more,
            }
        )  # fmt: skip

    def _follow(self, metrics: Mapping[str, Any], epoch: float) -> None:
        """Remember the weights of the best epoch, where the study keeps the best one."""
        if self.spec.keep == "last" or math.isnan(metrics[score_key(self.trainer.args)]):
            return
        if self._best is None or is_better(metrics, self._best, self.trainer.args):
            self._best, self.kept_epoch = dict(metrics), epoch
            self._weights = {name: tensor.detach().clone() for name, tensor in named_tensors(self.trainer.model)}

    @torch.no_grad()
    def scores(self) -> tuple[Scores, dict[str, ClassPredictions]]:
        """Return the scores of the kept epoch on every part, and its predictions on the validation data."""
        last = self._validation[-1] if self._validation else None
        has_networks = any(isinstance(method, TrainsNetworks) for method in self.trainer.regularizers)
        is_current = last is not None and last["step"] == self.trainer.state.global_step and not has_networks
        if self._weights and self.kept_epoch != self.trainer.state.epoch:
            for name, tensor in named_tensors(self.trainer.model):
                tensor.copy_(self._weights[name])
            is_current = False
        prepared = self.run.prepared
        if is_current and last is not None:
            validation = {name: value for name, value in last.items() if name not in ("epoch", "step")}
        else:
            validation = scores_of(self.trainer.evaluate(prepared.validation))
        if self.spec.score_epochs > 1 and self._validation:
            validation = _mean_scores([*self._validation[-self.spec.score_epochs : -1], validation])
        scores = {"validation": validation}
        predictions = {"validation": self.scorer.predictions} if self.scorer.predictions else {}
        self._keep_outputs("validation", self.scorer)
        for name, split in prepared.others.items():
            if not name.startswith("test") and name != SELECTION:
                scores[name] = scores_of(self.trainer.evaluate(split))
                self._keep_outputs(name, self.scorer)
        for name, (data, other) in self.run.others.items():
            scorer = Scorer(other, data.task, measures_calibration=False)
            scores[name] = scores_of(self.trainer.score(other.validation, scorer))
            self._keep_outputs(name, scorer)
        return scores, predictions

    def _keep_outputs(self, part: str, scorer: Scorer) -> None:
        """Store the outputs of the model in the last evaluation."""
        if scorer.outputs is not None:
            self.outputs[part] = scorer.outputs

    def kept(self) -> Kept:
        """Return the kept epoch, its selection rule, and values chosen by methods."""
        chosen = chosen_at(self.trainer.state.log_history, "epoch", self.kept_epoch)
        return Kept(epoch=self.kept_epoch, rule=self.spec.keep, chosen=chosen)

    def curves(self) -> list[dict[str, Any]]:
        """Return the scores of each evaluation, and the mean training loss since the one before it."""
        losses = [(entry["step"], entry["loss"]) for entry in self.trainer.state.log_history if "loss" in entry]
        rows, before = [], 0
        for row in self._validation:
            since = [loss for step, loss in losses if before < step <= row["step"]]
            rows.append({**row, "train_loss": sum(since) / len(since) if since else None})
            before = row["step"]
        return rows

    def method_metrics(self) -> dict[str, list[list[float]]]:
        """Return the metrics that the methods logged: name -> [step, value] pairs."""
        usual = {"loss", "grad_norm", "learning_rate", "epoch", "step"}
        metrics: dict[str, list[list[float]]] = {}
        for entry in self.trainer.state.log_history:
            if "loss" in entry:
                for name, value in entry.items():
                    if name not in usual and isinstance(value, (int, float)):
                        metrics.setdefault(name, []).append([entry["step"], value])
        return metrics

    def _time_of_evaluations(self) -> float:
        """Return the seconds that all evaluations took so far."""
        values = (pair for entry in self.trainer.state.log_history for pair in entry.items())
        return sum(value for name, value in values if name.startswith("eval_") and name.endswith("_runtime"))

    def cost(self, device: torch.device) -> Cost:
        """Return the cost of the run so far."""
        after = self._time_of_evaluations() - self._evaluating  # of the kept epoch, once it is trained
        is_gpu = device.type == "cuda"
        return Cost(
            seconds=round(self._seconds - self._evaluating, 3),
            total_seconds=round(self._seconds + after, 3),
            evaluation_seconds=round(self._evaluating + after, 3),
            steps=self.trainer.state.global_step,
            peak_memory_mib=round(torch.cuda.max_memory_allocated(device) / 2**20) if is_gpu else None,
            captured=self.trainer.capture.were_captured,
        )


def _mean_scores(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score over evaluations; the last row says which scores there are."""
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[-1]}
