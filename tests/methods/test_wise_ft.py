"""WiSE-FT: the interpolated weights, and the coefficient that the development set chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import RegularizedTrainer, WiSEFT
from attendrop.lab.records import Kept
from attendrop.lab.runs import fine_tune
from attendrop.lab.studies.design import RunSpec
from attendrop.lab.studies.splits import SELECTION
from attendrop.lab.studies.worker import Worker
from helpers import zoo
from helpers.cli_tools import save_encoder, sentences, write_csv
from helpers.data import make_arguments, make_examples, pad
from helpers.literal_training import trained, weights_of
from helpers.precision import assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("alpha", [0, 0.3])
def test_final_weights_are_between_the_pretrained_and_the_tuned_ones(alpha: float) -> None:
    pretrained, tuned = weights_of(zoo.make_model("bert", dropout=False)), trained(3, [])
    for name, weight in trained(3, WiSEFT(alpha)).items():
        is_head = name.startswith("classifier")
        expected = tuned[name] if is_head else (1 - alpha) * pretrained[name] + alpha * tuned[name]
        assert_same_numbers(weight, expected)


def test_adapter_change_is_scaled(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    changes = []
    for alpha in (1.0, 0.25):
        torch.manual_seed(0)
        model = peft.get_peft_model(zoo.make_model("bert"), peft.LoraConfig(r=2, target_modules=["query"]))
        layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
        trainer_of(tmp_path, WiSEFT(alpha), model).train()
        changes.append(layer.get_delta_weight("default").detach())
    assert changes[0].any()
    assert torch.allclose(changes[1], 0.25 * changes[0], rtol=1e-5, atol=1e-9)


def trainer_of(folder: Path, method: Any, model: Any = None, **options: Any) -> Any:
    examples = make_examples("bert", 24)
    return RegularizedTrainer(
        model=zoo.make_model("bert") if model is None else model,
        args=make_arguments(folder, **{"num_train_epochs": 2, "learning_rate": 5e-3, **options}),
        train_dataset=examples[:16],
        eval_dataset=examples[16:],
        data_collator=pad,
        regularizers=method,
    )


def scores(history: list[dict[str, Any]], step: int, name: str) -> dict[float, float]:
    """The scores of the values of α that were compared after a step."""
    keys = {f"eval_wise_ft_{value}_{name}": value for value in (0, 0.5, 1)}
    return {
        keys[key]: value for entry in history if entry["step"] == step for key, value in entry.items() if key in keys
    }


def test_each_evaluation_chooses_on_the_development_set_and_changes_no_training(tmp_path: Path) -> None:
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainers = []
    for name, method in (("a", WiSEFT("auto", grid=[0, 0.5, 1])), ("b", [])):
        trainers.append(trainer_of(tmp_path / name, method, **options))
        trainers[-1].train()
    chosen, plain = trainers
    history = chosen.state.log_history
    for step in (4, 8):
        losses = scores(history, step, "loss")
        assert len(losses) == 3
        best = min(losses, key=lambda value: (losses[value], -value))
        assert [e["wise_ft/chosen"] for e in history if "wise_ft/chosen" in e and e["step"] == step] == [best]
        assert [e["eval_loss"] for e in history if "eval_loss" in e and e["step"] == step] == [losses[best]]
        tuned = next(e for e in plain.state.log_history if "eval_loss" in e and e["step"] == step)
        assert losses[1] == tuned["eval_loss"]  # the trained weights are those of plain training, bit for bit
    assert chosen.evaluate()["eval_loss"] == min(e["eval_loss"] for e in history if "eval_loss" in e)


def test_auto_alpha_needs_a_development_set(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, WiSEFT("auto"))
    trainer.eval_dataset = None
    with pytest.raises(ValueError, match="eval_dataset is NoneType, and WiSEFT chooses a coefficient on it; pass one"):
        trainer.train()


def test_runs_and_studies_choose_on_the_same_data_and_record_it(tmp_path: Path) -> None:
    """A run chooses on the validation part; a study with keep="split" on a part of the training data."""
    rows = sentences(40, seed=1)
    save_encoder(tmp_path / "model", [text for text, _ in rows])
    files = {"train_file": write_csv(tmp_path / "train.csv", rows)}
    files |= {f"{part}_file": write_csv(tmp_path / f"{part}.csv", sentences(16, seed)) for part, seed in
              (("validation", 2), ("test", 3))}  # fmt: skip
    settings = {
        "model": str(tmp_path / "model"), **{name: str(path) for name, path in files.items()}, "num_train_epochs": 1,
        "learning_rate": 5e-3, "use_cpu": True, "method": ["wise_ft:alpha=auto,grid=[0,0.5,1]"], "seed": 1,
    }  # fmt: skip
    result = fine_tune(**settings, output_dir=str(tmp_path / "run"))
    kept = result.record.kept
    accuracies = scores(result.record.history, kept.step, "accuracy")
    assert kept.chosen == {"wise_ft": max(accuracies, key=lambda value: (accuracies[value], value))}
    assert kept.sentences[-1] == f"wise_ft chose {kept.chosen['wise_ft']:g} on the validation examples"
    assert result.record.caveats == [
        "wise_ft used validation examples during training, so the scores on them are optimistic."
    ]
    worker, spec = Worker("cpu"), RunSpec(settings, "wise_ft", "train.csv", 1)
    record = worker.run(spec)
    assert record.kept == Kept(rule="last", epoch=1.0, chosen=kept.chosen)
    assert record.scores["validation"]["loss"] == result.scores["validation"]["loss"]
    assert any("optimistic" in note for note in record.notes)
    split = worker.run(RunSpec(settings, "wise_ft", "train.csv", 1, keep="split"))
    assert split.examples[SELECTION] == 4
    assert not any("optimistic" in note for note in split.notes)


@pytest.mark.parametrize(
    "fields", [{"alpha": 1.5}, {"alpha": "best"}, {"grid": [0.5, 2]}, {"grid": []}, {"grid": "0.5"}]
)
def test_fields_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"WiSEFT\.{next(iter(fields))} is .*; it must be .*from 0 to 1"):
        WiSEFT(**fields)
