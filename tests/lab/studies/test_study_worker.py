"""A worker runs many runs in one process: each gives the scores of `attendrop train`, whatever ran before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import RegularizedTrainer
from attendrop.capture.persistent_graphs import PersistentGraphs, holds_tensors
from attendrop.errors import UserError
from attendrop.lab.records import Kept
from attendrop.lab.runs import fine_tune, make_config
from attendrop.lab.runs.losses import LabelLoss
from attendrop.lab.studies.design import Design, RunSpec, make_design, parse_contender
from attendrop.lab.studies.splits import SELECTION, split_for
from attendrop.lab.studies.worker import Worker, _settings_key
from attendrop.methods import parse_method
from helpers import zoo
from helpers.cli_tools import save_encoder, sentences, write_csv
from helpers.data import make_arguments, make_examples, pad, same_bits, weights_of

pytestmark = pytest.mark.xdist_group("study_worker")

ADDROP = "addrop:p=0.5,q=0.5,layers=all"
SHORT = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "use_cpu": True}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("worker")
    rows = sentences(72, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    train = write_csv(folder / "train.csv", rows)
    dev = write_csv(folder / "dev.csv", sentences(24, seed=2))
    return {"model": str(folder / "model"), "train_file": str(train), "validation_file": str(dev), **SHORT}


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker("cpu")


def spec_of(settings: dict[str, Any], method: str = "plain", seed: int = 0, **more: Any) -> RunSpec:
    contender = parse_contender(method)
    return RunSpec({**settings, "method": contender.methods, "seed": seed}, method, "train.csv", seed, **more)


def test_scores_are_those_of_attendrop_train_in_any_order_of_runs(
    worker: Worker, settings: dict[str, Any], tmp_path: Path
) -> None:
    order = [
        ("plain", 3), (ADDROP, 3), ("mixout:p=0.5", 3), ("plain", 4), (ADDROP, 3), ("llrd:decay=0.5", 3),
        ("freeze:blocks=1", 3), ("plain", 3),
    ]  # fmt: skip
    records = [worker.run(spec_of(settings, method, seed)) for method, seed in order]
    assert records[0].scores == records[7].scores
    assert records[1].scores == records[4].scores
    assert records[0].scores != records[3].scores != records[1].scores
    assert records[5].scores != records[0].scores != records[6].scores
    for record in (*records[4:], records[2]):
        expected = fine_tune(
            **settings, method=record.settings.get("method", []), seed=3, output_dir=str(tmp_path / record.id),
            save_strategy="no", load_best_model_at_end=False,
        )  # fmt: skip
        scores = expected.scores["validation"]
        assert {name: record.scores["validation"][name] for name in scores} == scores


def test_a_record_holds_what_a_study_needs(worker: Worker, settings: dict[str, Any]) -> None:
    spec = spec_of({**settings, "logging_steps": 2}, ADDROP, seed=1, details=True)
    reports: list[dict[str, Any]] = []
    record = worker.run(spec, lambda report: reports.append(report))  # type: ignore[func-returns-value, arg-type]
    assert record.id == spec.id
    assert (record.status, record.method, record.seed, record.size) == ("finished", ADDROP, 1, "all")
    assert record.examples == {"train": 72, "validation": 24}
    assert [row["epoch"] for row in record.curves] == [1.0, 2.0] == [report["epoch"] for report in reports]
    assert record.curves[-1]["accuracy"] == record.scores["validation"]["accuracy"]
    predictions = record.predictions["validation"]
    right = [p == g for p, g in zip(predictions.predicted, predictions.gold, strict=True)]
    assert sum(right) / 24 == pytest.approx(record.scores["validation"]["accuracy"])
    assert set(record.scores["validation"]) == {
        "loss", "accuracy", "macro_f1", "brier", "ece", "scaled_loss", "scaled_ece", "majority",
    }  # fmt: skip
    assert len(record.texts) == 24
    layers = record.explorer["examples"][0]["layers"]
    assert {"attention", "attribution", "candidates", "dropped"} <= set(layers[0]["heads"][0])
    assert record.explorer["examples"][0]["pruned"] is not None
    assert record.cost.steps == 18
    assert record.cost.seconds > 0 <= record.cost.overhead_seconds
    assert record.method_metrics


def test_the_frozen_contender_is_the_linear_model_of_frozen_features(
    worker: Worker, settings: dict[str, Any], tmp_path: Path
) -> None:
    before = worker.run(spec_of(settings))
    record = worker.run(spec_of(settings, "frozen", details=True))
    assert (record.status, record.cost.steps, record.kept.epoch) == ("finished", 0, 0.0)
    assert record.cost.seconds > 0
    result = fine_tune(**settings, output_dir=str(tmp_path / "run"), seed=5)
    assert result.record.baselines.scores["frozen"] == record.scores["validation"]["accuracy"]
    assert worker.run(spec_of(settings, "frozen", seed=1)).scores == record.scores  # nothing in it is drawn
    assert worker.run(spec_of(settings)).scores == before.scores


def test_a_run_stops_when_the_study_asks_for_it(worker: Worker, settings: dict[str, Any]) -> None:
    record = worker.run(spec_of(settings), lambda report: True)
    assert record.status == "stopped"
    assert record.cost.steps == 9


def test_the_kept_epoch_is_the_last_one_or_the_best_on_a_split_or_on_dev(
    worker: Worker, settings: dict[str, Any]
) -> None:
    longer = {**settings, "num_train_epochs": 4, "learning_rate": 5e-3}
    last, dev, split = (worker.run(spec_of(longer, seed=2, keep=keep)) for keep in ("last", "dev", "split"))
    assert last.kept == Kept(rule="last", epoch=4.0)
    best = max(row["accuracy"] for row in dev.curves)
    assert dev.scores["validation"]["accuracy"] == best
    kept = next(row for row in dev.curves if row["epoch"] == dev.kept.epoch)
    assert kept["accuracy"] == best
    assert kept["loss"] == pytest.approx(dev.scores["validation"]["loss"])
    assert split.examples == {"train": 65, "validation": 24, SELECTION: 7}
    kept = next(row for row in split.curves if row["epoch"] == split.kept.epoch)
    assert kept["loss"] == pytest.approx(split.scores["validation"]["loss"])
    assert SELECTION not in split.scores


def test_all_examples_that_are_not_trained_on_can_be_scored_and_the_mean_of_the_last_epochs(
    worker: Worker, settings: dict[str, Any]
) -> None:
    rows = sentences(72, seed=1)
    repeated = {**settings, "max_train_samples": 30, "num_train_epochs": 4}
    first, second = (
        worker.run(spec_of(repeated, seed=seed, resample=True, score_on="rest", score_epochs=3)) for seed in (2, 3)
    )
    assert len({text for text, _ in rows}) == 72
    assert first.examples == second.examples == {"train": 30, "validation": 24 + 42}
    assert first.data["validation"] != second.data["validation"]
    for name, value in first.scores["validation"].items():
        assert value == pytest.approx(sum(row[name] for row in first.curves[-3:]) / 3)
    assert len({row["loss"] for row in first.curves}) == 4
    fewer = worker.run(spec_of({**repeated, "max_eval_samples": 40}, seed=2, resample=True, score_on="rest"))
    assert fewer.examples == {"train": 30, "validation": 40}
    assert fewer.data["train"] == first.data["train"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_train_epochs": 2}, "score_epochs is 3, and plain has num_train_epochs 2; it must be at most"),
        ({"max_steps": 30}, "score_epochs is 3, and plain has max_steps 30 and eval_strategy 'epoch'"),
        ({"eval_strategy": "no"}, "plain has max_steps -1 and eval_strategy 'no'"),
    ],
)
def test_fewer_epochs_than_are_scored_are_refused_before_training(
    worker: Worker, settings: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        worker.run(spec_of({**settings, **changes}, score_epochs=3, only_check=True))


def test_of_epochs_with_the_same_score_the_one_with_the_smallest_loss_is_kept_as_in_train(
    worker: Worker, settings: dict[str, Any], tmp_path: Path
) -> None:
    """With a tiny learning rate no prediction changes, and the loss falls from epoch to epoch."""
    slow = {**settings, "num_train_epochs": 3, "learning_rate": 1e-6, "head_start": "random"}
    record = worker.run(spec_of(slow, seed=2, keep="dev"))
    assert len({row["accuracy"] for row in record.curves}) == 1
    losses = {row["epoch"]: row["loss"] for row in record.curves}
    assert record.kept.epoch == min(losses, key=lambda epoch: losses[epoch]) != 1
    trained = fine_tune(**slow, seed=2, output_dir=str(tmp_path / "run"))
    assert trained.record.kept.epoch == record.kept.epoch


def test_runs_can_share_the_new_head_and_differ_in_everything_else(
    worker: Worker, settings: dict[str, Any], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    short = {
        **settings,
        "num_train_epochs": 1,
        "head_start": "random",
        "learning_rate": 1e-9,
        "logging_steps": 2,
    }  # the head stays as it was initialised
    heads = []
    for seed, head_seed in ((3, None), (4, None), (4, 3)):
        spec = spec_of(short, seed=seed, head_seed=head_seed, models_folder=str(tmp_path))
        losses = [row["train_loss"] for row in worker.run(spec).curves]
        heads.append((load_file(tmp_path / spec.id / "model.safetensors")["pooled_head.weight"], losses))
    assert torch.allclose(heads[0][0], heads[2][0], atol=1e-6)
    assert not torch.allclose(heads[0][0], heads[1][0], atol=1e-6)
    assert heads[0][1] != heads[2][1]  # another order and other dropout


def test_a_fold_never_sees_the_validation_data(worker: Worker, settings: dict[str, Any]) -> None:
    records = [worker.run(spec_of(settings, seed=1, fold=fold)) for fold in (0, 1)]
    assert all(record.examples == {"train": 58, "validation": 14} for record in records)
    assert records[0].data["validation"] != records[1].data["validation"]
    whole = worker.run(spec_of(settings, seed=1))
    assert whole.data["validation"] not in {record.data["validation"] for record in records}


def test_resampling_draws_other_examples_with_each_seed_and_the_same_for_each_method(
    worker: Worker, settings: dict[str, Any]
) -> None:
    few = {**settings, "shots": 8}
    data = {
        (method, seed): worker.run(spec_of(few, method, seed, size="shots=8", resample=True)).data
        for method in ("plain", ADDROP)
        for seed in (0, 1)
    }
    assert data["plain", 0] == data[ADDROP, 0] != data["plain", 1] == data[ADDROP, 1]
    assert data["plain", 0]["validation"] == data["plain", 1]["validation"]
    fixed = [worker.run(spec_of(few, seed=seed, size="shots=8")).data for seed in (0, 1)]
    assert fixed[0] == fixed[1]


def test_splits_of_a_run_are_disjoint(settings: dict[str, Any]) -> None:
    from attendrop.lab import tasks

    data = tasks.load_files(settings["train_file"], settings["validation_file"], None)
    whole = sorted(data.train["text"])
    parts = split_for(spec_of(settings, fold=1, keep="split"), data)
    texts = [list(part["text"]) for part in (parts.train, parts.validation, parts.others[SELECTION])]
    assert sorted(texts[0] + texts[1] + texts[2]) == whole
    assert parts.test is None


def test_mistake_raises_one_line_error(worker: Worker, settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="shots is 500"):
        worker.run(spec_of({**settings, "shots": 500}))
    assert worker.run(spec_of(settings)).status == "finished"  # the worker goes on


# ---- the design ------------------------------------------------------------------------------------------------------


def test_contenders_join_methods_and_have_settings_of_their_own() -> None:
    assert parse_contender("plain") == ("plain", [], {})
    text = "addrop:p=0.3,q=0.3 + mixout@learning-rate=3e-5,num_train_epochs=5"
    assert parse_contender(text).methods == ["addrop:p=0.3,q=0.3", "mixout"]
    assert parse_contender(text).settings == {"learning_rate": "3e-5", "num_train_epochs": "5"}


def test_a_design_pairs_every_method_on_every_seed_task_and_size() -> None:
    shared = {"model": "roberta-base", "num_train_epochs": 3}
    design = make_design(shared, [ADDROP, "rdrop"], tasks=("glue/rte", "glue/mrpc"), sizes=("all", "fraction=0.1"))
    assert design.methods == ("plain", ADDROP, "rdrop")
    runs = design.all_runs(2)
    assert len(runs) == len({run.id for run in runs}) == 2 * 2 * 2 * 3
    assert [run.method for run in runs[:3]] == list(design.methods)
    assert {run.seed for run in runs[:3]} == {0}
    assert runs[-1].settings["fraction"] == "0.1"
    assert Design(**design.to_dict()).all_runs(2)[5].id == runs[5].id


def test_studies_of_earlier_versions_go_on() -> None:
    """What a run is called, and what study.json says, does not change with fields that are new and not used."""
    run = RunSpec({"model": "m", "seed": 1}, "plain", "t", 1, details=True, models_folder="f", only_check=True, trial=2)
    assert run.id == "04fc0a6bfbdc25e8"
    assert RunSpec({"model": "m", "seed": 1}, "plain", "t", 1, head_seed=0).id != run.id
    design = make_design({"model": "roberta-base"}, ["plain", "rdrop"], tasks=("glue/rte",))
    assert "same_head" not in design.to_dict()
    same = make_design({"model": "roberta-base"}, ["plain", "rdrop"], tasks=("glue/rte",), same_head=True, first_seed=3)
    assert {spec.head_seed for spec in same.all_runs(2)} == {3}
    assert Design(**same.to_dict()) == same


@pytest.mark.parametrize(
    ("methods", "fields", "words"),
    [
        (["addrop", "addrop"], {}, "method 'addrop' is listed 2 times"),
        (["plain"], {}, "there is one method only"),
        (["adrop"], {}, "did you mean 'addrop'"),
        (["addrop:p=3"], {}, "p is 3"),
        (["addrop@seed=3"], {}, "has 'seed=3' after the @"),
        (["addrop@learning_rate"], {}, "written name=value"),
        (["addrop@learningrate=1"], {}, "there is no setting 'learningrate'"),
        (["addrop"], {"baseline": "rdrop"}, "baseline is 'rdrop'; it must be one of the methods: addrop"),
        (["addrop"], {"keep": "best"}, "keep is 'best'; it must be one of 'last', 'split', 'dev'"),
        (["addrop"], {"resample": True}, "it needs --fraction, --shots or --max"),
        (["addrop"], {"sizes": ("fraction=2",)}, "fraction is 2"),
    ],
)
def test_a_wrong_design_is_refused_before_anything_runs(methods: list[str], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_design({"model": "roberta-base"}, methods, **{"tasks": ("glue/rte",), **fields})


def test_a_preset_is_for_one_method_and_leaves_plain_fine_tuning_alone() -> None:
    with pytest.raises(UserError, match="preset is 'paper', which would change plain fine-tuning too"):
        make_design({"model": "roberta-base", "preset": "paper"}, ["plain", "addrop"], tasks=("glue/rte",))
    design = make_design({"model": "roberta-base"}, ["plain", "addrop@preset=paper"], tasks=("glue/rte",))
    assert [run.settings.get("preset") for run in design.all_runs(1)] == [None, "paper"]


# ---- graphs that outlive a run ---------------------------------------------------------------------------------------


def test_runs_share_graphs_if_they_differ_in_the_amount_of_data_alone(settings: dict[str, Any]) -> None:
    keys = [_settings_key(make_config({**settings, **more})) for more in ({}, {"shots": 4}, {"focal_gamma": 2})]
    assert keys[0] == keys[1] != keys[2]
    assert holds_tensors(LabelLoss(torch.ones(2), gamma=0.0))  # weights of classes are of one run


def test_methods_that_hold_tensors_are_recognised() -> None:
    assert not holds_tensors(parse_method(ADDROP))
    mixout = parse_method("mixout:p=0.5")
    mixout._pretrained = {"weight": torch.zeros(2)}  # type: ignore[attr-defined]
    assert holds_tensors(mixout)


ALTERNATING = [("",), (ADDROP,), ("attendout:T=2",), ("rdrop:alpha=1",), ("mixout:p=0.5",)] + [
    ("", method) for method in ("llrd:decay=0.5", "freeze:blocks=1", "lp_ft:share=0.5")
]


@pytest.mark.gpu
@pytest.mark.parametrize("methods", ALTERNATING, ids=" and ".join)
def test_runs_that_share_graphs_equal_runs_of_their_own(methods: tuple[str, ...], tmp_path: Path) -> None:
    """Runs of one method, or of two in turn, which share the optimizer."""
    examples = make_examples("bert", 40)

    def train(model: Any, method: str, seed: int, optimizer: Any, kept: PersistentGraphs) -> Any:
        trainer = RegularizedTrainer(
            model=model,
            args=make_arguments(tmp_path, seed=seed, num_train_epochs=2, use_cpu=False, eval_strategy="no"),
            train_dataset=examples,
            eval_dataset=examples[:8],
            data_collator=pad,
            optimizers=(optimizer, None),
            regularizers=[method] if method else [],
            capture="auto",
        )
        trainer.capture.keep_graphs(kept, method)
        trainer.train()
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        return trainer

    runs = [(method, seed) for method in methods for seed in (1, 2)]
    device, alone = make_arguments(tmp_path, use_cpu=False).device, {}
    for method, seed in runs:
        model = zoo.make_model("bert", seed=seed).to(device)
        train(model, method, seed, None, PersistentGraphs())
        alone[method, seed] = weights_of(model)
    kept, shared, optimizer = PersistentGraphs(), zoo.make_model("bert").to(device), None
    for method, seed in runs * 2:
        with torch.no_grad():
            for parameter, fresh in zip(
                shared.parameters(), zoo.make_model("bert", seed=seed).parameters(), strict=True
            ):
                parameter.copy_(fresh)
        if optimizer is not None:
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
            for group in optimizer.param_groups:
                group.pop("initial_lr", None)
                group["lr"] = make_arguments(tmp_path).learning_rate
        trainer = train(shared, method, seed, optimizer, kept)
        optimizer = trainer.optimizer.optimizer
        assert same_bits(weights_of(shared), alone[method, seed]), f"{method}, seed {seed}"
    if set(methods) <= {"", ADDROP, "llrd:decay=0.5", "freeze:blocks=1", "lp_ft:share=0.5"}:
        assert trainer.capture.were_captured
