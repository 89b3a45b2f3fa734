"""A worker as the product works: a tenth of the training examples chooses the epoch and the temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendrop.lab.evaluation.scorer import Scorer
from attendrop.lab.records import ClassPredictions, Scores
from attendrop.lab.statistics.calibration import fit_temperature, log_loss, softmax
from attendrop.lab.studies.splits import SELECTION
from attendrop.lab.studies.training import Training
from attendrop.lab.studies.worker import Worker


class OnATenth(Training):
    """Scores the test examples once, with the epoch and the temperature that the tenth has chosen."""

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if metrics is None or "eval_loss" not in metrics or not self.trainer.is_in_train:
            return
        self._follow(metrics, state.epoch)
        self.was_stopped = control.should_training_stop = self._report(state, score=metrics["eval_loss"])

    def scores(self) -> tuple[Scores, dict[str, ClassPredictions]]:
        scores, predictions = super().scores()
        outputs, prepared = self.outputs.get("validation"), self.run.prepared
        if outputs is None or self.run.data.task.kind != "classification":
            return scores, predictions
        tenth = Scorer(prepared, self.run.data.task)
        self.trainer.score(prepared.others[SELECTION], tenth)
        assert tenth.outputs is not None
        temperature = fit_temperature(tenth.outputs.values, tenth.outputs.gold)
        scores["tenth"] = {
            "temperature": temperature, "loss": log_loss(softmax(outputs.values, temperature), outputs.gold),
            "examples": float(len(tenth.outputs.gold)),
        }  # fmt: skip
        return scores, predictions


class TenthWorker(Worker):
    """A worker with such runs."""

    training = OnATenth
