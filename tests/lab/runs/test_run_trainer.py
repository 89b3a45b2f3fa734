"""The Trainer of a run scores any part of the data with the metrics that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attendrop.lab.runs.trainer import RunTrainer
from helpers.data import make_arguments, make_examples, pad
from helpers.zoo import make_model


def test_run_trainer_scores_a_part_with_its_own_metrics(tmp_path: Path) -> None:
    def usual(prediction: Any) -> dict[str, float]:
        return {"usual": float(len(prediction.predictions))}

    def own(prediction: Any) -> dict[str, float]:
        return {"own": float(len(prediction.predictions))}

    def broken(prediction: Any) -> dict[str, float]:
        raise ZeroDivisionError

    examples, part = make_examples("bert", 6), make_examples("bert", 4, seed=1)
    args = make_arguments(tmp_path)
    trainer = RunTrainer(
        model=make_model("bert"), args=args, eval_dataset=examples, data_collator=pad, compute_metrics=usual
    )
    given = trainer.compute_metrics
    assert trainer.evaluate()["eval_usual"] == 6
    scores = trainer.score(part, own)
    assert scores["eval_own"] == 4
    assert "eval_usual" not in scores
    with pytest.raises(ZeroDivisionError):
        trainer.score(part, broken)
    assert trainer.evaluate()["eval_usual"] == 6
    assert trainer.compute_metrics == given
