"""Class weights, the focal loss, label smoothing and balanced sampling: against the standard library, and in runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from attendrop import R3F, RegularizedTrainer
from attendrop.capture.eligibility import reason_against_auto
from attendrop.errors import UserError
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.losses import LabelLoss, class_weights
from attendrop.lab.runs.predict import predict_file, predict_texts
from attendrop.lab.runs.sampler import LengthGroupedSampler
from attendrop.lab.tasks import Data, Task
from helpers import zoo
from helpers.cli_tools import save_encoder, sentences, write_csv
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, weights_of

G = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 7, 4, generator=G, dtype=torch.float64) * 3
LABELS = torch.randint(0, 4, (6, 7), generator=G)
LABELS[:, 5:] = -100
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64)


def literal(logits: Any, labels: Any, weights: Any, gamma: float, smoothing: float) -> float:
    """The mean of w_y (1 − p_y)^γ CE over all labels that are not ignored, one at a time."""
    total, count = 0.0, 0
    for row, label in zip(logits.reshape(-1, logits.shape[-1]).numpy(), labels.flatten().tolist(), strict=True):
        if label == -100:
            continue
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        target = np.full(len(p), smoothing / len(p))
        target[label] += 1 - smoothing
        total += weights[label].item() * (1 - p[label]) ** gamma * -(target * np.log(p)).sum()
        count += 1
    return total / count


@pytest.mark.parametrize("gamma", [0.0, 2.0, 0.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_literal_one(gamma: float, smoothing: float) -> None:
    expected = literal(LOGITS, LABELS, WEIGHTS, gamma, smoothing)
    loss = LabelLoss(WEIGHTS, gamma, smoothing)
    assert loss({"logits": LOGITS}, LABELS).item() == pytest.approx(expected, rel=1e-12)
    # the parts of a step add up to the whole
    items = LABELS.ne(-100).sum()
    parts = [loss({"logits": LOGITS[i : i + 2]}, LABELS[i : i + 2], items) for i in (0, 2, 4)]
    assert sum(part.item() for part in parts) == pytest.approx(expected, rel=1e-12)


def test_without_weights_and_focus_it_is_the_cross_entropy() -> None:
    expected = functional.cross_entropy(LOGITS.flatten(0, 1), LABELS.flatten())
    assert LabelLoss(None)({"logits": LOGITS}, LABELS).item() == pytest.approx(expected.item(), rel=1e-12)
    assert LabelLoss(None)((LOGITS[:, 0],), LABELS[:, 0]).item() == pytest.approx(
        functional.cross_entropy(LOGITS[:, 0], LABELS[:, 0]).item(), rel=1e-12
    )


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_loss_of_several_labels_weighs_those_that_are_present(gamma: float) -> None:
    logits, present = LOGITS[:, 0], (LOGITS[:, 1] > 0).double()
    p = torch.sigmoid(logits)
    positive = WEIGHTS * (1 - p) ** gamma * -p.log() * present
    negative = p**gamma * -(1 - p).log() * (1 - present)
    loss = LabelLoss(WEIGHTS, gamma, has_several_labels=True)({"logits": logits}, present)
    assert loss.item() == pytest.approx((positive + negative).mean().item(), rel=1e-10)
    if gamma == 0:
        expected = functional.binary_cross_entropy_with_logits(logits, present, pos_weight=WEIGHTS)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
@pytest.mark.parametrize("has_several_labels", [False, True])
def test_gradient_is_finite_where_a_prediction_is_certain(gamma: float, has_several_labels: bool) -> None:
    logits = torch.tensor([[90.0, -90.0], [-90.0, 90.0]], requires_grad=True)
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]]) if has_several_labels else torch.tensor([0, 0])
    LabelLoss(None, gamma, has_several_labels=has_several_labels)({"logits": logits}, labels).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[1].abs().max() > 0.1


def test_own_loss_does_not_keep_steps_from_being_captured(tmp_path: Path) -> None:
    reasons = []
    for loss in (LabelLoss(None, 2.0), lambda outputs, labels, num_items_in_batch=None: outputs["logits"].sum()):
        trainer = RegularizedTrainer(
            model=zoo.make_model("bert"), args=make_arguments(tmp_path), train_dataset=make_examples("bert", 4),
            data_collator=pad, compute_loss_func=loss,
        )  # fmt: skip
        reasons.append(reason_against_auto(trainer))
    assert reasons == [None, "of compute_loss_func"]


def data_of(values: list[Any], kind: str = "classification", labels: tuple[str, ...] = ("a", "b", "c")) -> Data:
    task = Task("mine", kind, ("text",), "label", labels)
    return Data(task, Dataset.from_dict({"text": ["x"] * len(values), "label": values}), None)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    values = [0] * 50 + [1] * 8 + [2] * 2
    expected = compute_class_weight("balanced", classes=np.arange(3), y=values)
    assert class_weights(["balanced"], data_of(values)) == pytest.approx(expected)
    tags = [[0, 0, 0, 1], [0, 2], [0]]
    flat = [tag for row in tags for tag in row]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=flat)
    assert class_weights(["balanced"], data_of(tags, "token_classification")) == pytest.approx(expected)
    assert class_weights(["balanced"], data_of([[0], [0, 1], [], [0]], "multilabel", ("a", "b"))) == [1 / 3, 3.0]


def test_square_root_weights_are_at_most_ten_times_the_smallest() -> None:
    values = [0] * 64 + [1] * 16 + [2] * 4
    weights = class_weights(["sqrt"], data_of(values))
    assert np.array(weights) / weights[0] == pytest.approx([1, 2, 4])
    assert np.mean([weights[value] for value in values]) == pytest.approx(1)
    rare = class_weights(["sqrt"], data_of([0] * 900 + [1] * 100 + [2]))
    assert np.array(rare) / rare[0] == pytest.approx([1, 3, 10])
    assert class_weights(["sqrt"], data_of([[0], [0, 1], [0], [0], [0]], "multilabel", ("a", "b"))) == [
        pytest.approx(5**-0.5), 2.0,
    ]  # fmt: skip


def test_given_weights_keep_their_ratio_and_have_the_mean_one() -> None:
    values = [0] * 6 + [1] * 2 + [2] * 2
    weights = class_weights(["b=4,c=2"], data_of(values))
    assert np.array(weights) / weights[0] == pytest.approx([1, 4, 2])
    assert np.mean([weights[value] for value in values]) == pytest.approx(1)
    assert class_weights(["b=4", "c=2"], data_of(values)) == weights


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("d=2", "class_weights names the label 'd'; mine has a, b, c"),
        ("a=-1", "class_weights is 'a=-1'; it must be balanced, sqrt, none, or pairs"),
        ("a=nan", "it must be balanced, sqrt, none, or pairs"),
        ("heavy", "it must be balanced, sqrt, none, or pairs of a label and a weight above 0, such as a=2"),
    ],
)
def test_wrong_weights_are_refused(given: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        class_weights([given], data_of([0, 1, 2]))


def test_balanced_sampling_draws_equally_many_of_each_class() -> None:
    classes = [0] * 40 + [1] * 7 + [2] * 3
    sampler = LengthGroupedSampler([5] * 50, 4, seed=1, classes=classes)
    epochs = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    for order in epochs:
        drawn = np.array(classes)[order]
        assert np.bincount(drawn).tolist() == [17, 17, 16]
        assert len({i for i in order if classes[i] == 0}) == 17  # no frequent example twice
        assert {i for i in order if classes[i]} == set(range(40, 50))  # every rare one
    assert epochs[0] != epochs[1]
    ungrouped = LengthGroupedSampler(list(range(50)), 4, seed=1, classes=classes, grouped=False)
    assert sorted(ungrouped) == sorted(epochs[0])


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("losses")
    rows = sentences(48, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    several = [(f"{text} {i}", {0: "film", 1: "film;good", 2: ""}[i % 3]) for i, (text, _) in enumerate(rows)]
    write_csv(folder / "several.csv", several)
    answers = [(text, "the film", "a plot", "it was music", "ABC"[i % 3]) for i, (text, _) in enumerate(rows)]
    write_csv(folder / "choice.csv", answers, ("question", "option_a", "option_b", "option_c", "label"))
    return folder


def settings(place: Path, output: Path, **others: Any) -> dict[str, Any]:
    return {
        "model": str(place / "model"), "train_file": str(place / "train.csv"), "output_dir": str(output),
        "use_cpu": True, "max_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-3, **others,
    }  # fmt: skip


@pytest.mark.parametrize(
    "others",
    [
        {"class_weights": ["balanced"], "method": ["rdrop"], "gradient_accumulation_steps": 2},
        {"focal_gamma": 2, "method": ["addrop:cross_tuning=False"], "balanced_sampling": True},
        {"label_smoothing_factor": 0.1, "method": ["rdrop", "addrop:cross_tuning=False"]},
        {"label_smoothing_factor": 0.1, "class_weights": ["good=2"], "method": ["r3f:loss=both"],
         "balanced_sampling": True, "train_sampling_strategy": "random"},
        {"label_smoothing_factor": 0.1, "method": ["concrete_dropout"], "gradient_accumulation_steps": 2},
    ],
)  # fmt: skip
def test_losses_work_with_methods_and_penalties(others: dict[str, Any], place: Path, tmp_path: Path) -> None:
    result = fine_tune(**settings(place, tmp_path / "out", **others))
    assert result.finished
    losses = [entry["loss"] for entry in result.record.history if "loss" in entry]
    assert losses == [] or np.isfinite(losses).all()
    assert np.isfinite(result.scores["validation"]["loss"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("has_penalty", [False, True])
def test_accumulated_batches_train_as_one_large_batch(has_penalty: bool, tmp_path: Path) -> None:
    """Loss and penalty of a step do not depend on how it is divided, although the batches have different weights."""
    examples = make_examples("bert", 8)

    def run(size: int, steps: int, gamma: float = 1.0) -> dict[str, torch.Tensor]:
        model = zoo.make_model("bert", dropout=False)
        args = make_arguments(
            tmp_path, max_steps=2, **SGD, per_device_train_batch_size=size, gradient_accumulation_steps=steps
        )
        trainer = RegularizedTrainer(
            model=model, args=args, train_dataset=examples, data_collator=pad,
            compute_loss_func=LabelLoss(WEIGHTS[:3], gamma),
            regularizers=[R3F(epsilon=0.5, weight=3.0, loss="both")] if has_penalty else [],
        )  # fmt: skip
        trainer.model_accepts_loss_kwargs = False  # as in a run
        trainer.train()
        return weights_of(model)

    whole = run(4, 1)
    assert largest_difference(whole, run(1, 4)) < 1e-9
    assert largest_difference(whole, run(4, 1, gamma=0.0)) > 1e-4


def test_several_labels_train_evaluate_and_predict(place: Path, tmp_path: Path) -> None:
    result = fine_tune(
        **settings(
            place, tmp_path / "out", train_file=str(place / "several.csv"), label_separator=";", max_steps=30,
            test_file=str(place / "several.csv"), method=["addrop:cross_tuning=False"], class_weights=["balanced"],
        )
    )  # fmt: skip
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["id2label"].values()) == ["film", "good"]
    assert {"micro_f1", "macro_f1", "exact_match"} <= result.scores["validation"].keys()
    done = predict_file(tmp_path / "out", place / "several.csv", tmp_path / "answers.csv")
    table = pandas.read_csv(tmp_path / "answers.csv", keep_default_na=False)
    both = [
        [[name in cell.split(";") for name in ("film", "good")] for cell in table[c]] for c in ("label", "prediction")
    ]
    assert done.scores["micro_f1"] == pytest.approx(f1_score(*both, average="micro"))
    assert done.scores["exact_match"] == pytest.approx(np.mean(np.all(np.equal(*both), axis=1)))
    assert {type(answer) for _, answer in predict_texts(tmp_path / "out", ["a film", "the plot"])} == {str}


def test_multiple_choice_from_a_file_trains_and_predicts_its_letters(place: Path, tmp_path: Path) -> None:
    result = fine_tune(
        **settings(
            place, tmp_path / "out", train_file=str(place / "choice.csv"), kind="multiple_choice", focal_gamma=1.0,
            method=["addrop:cross_tuning=False"],
        )
    )  # fmt: skip
    assert "accuracy" in result.scores["validation"]
    done = predict_file(tmp_path / "out", place / "choice.csv", tmp_path / "answers.csv")
    table = pandas.read_csv(tmp_path / "answers.csv")
    assert set(table["prediction"]) <= set("ABC")
    assert done.scores["accuracy"] == pytest.approx((table["label"] == table["prediction"]).mean())
