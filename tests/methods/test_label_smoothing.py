"""Label smoothing compared with smoothed labels by hand, and with the Trainer's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from attendrop import R3F, Engine, LabelSmoothing, RegularizedTrainer
from helpers import zoo
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, weights_of
from helpers.literal import CAUSAL, rows_of
from helpers.precision import assert_same_gradients, assert_same_numbers


def targets_of(kind: str, labels: torch.Tensor) -> list[int]:
    """The class of each row of `rows_of`."""
    if kind == "multilabel":
        return [int(1 - y) for y in labels.flatten()]  # the first of the two outcomes is "yes"
    labels = labels[:, int(kind in CAUSAL) :] if labels.dim() == 2 else labels
    return [int(y) for y in labels.flatten() if y != -100]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "multilabel", "token", "choice", "masked"])
def test_whole_step_matches_smoothed_labels(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [LabelSmoothing(0.3)]) as engine, engine.micro_batch(batch) as inputs:
        total = engine.loss(model(**inputs))
        total.backward()
    rows = rows_of(kind, literal(**batch).logits, batch["labels"])
    targets = targets_of(kind, batch["labels"])
    losses = []
    for row, target in zip(rows, targets, strict=True):
        smooth = torch.full_like(row, 0.3 / len(row))
        smooth[target] += 0.7
        losses.append(-(smooth * row.log()).sum())
    expected = sum(losses) / len(losses)
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_training_matches_label_smoothing_factor(kind: str, tmp_path: Path) -> None:
    """With accumulation for Llama: its loss is divided by the tokens of the whole step, and so is the penalty.

    Not for BERT: the Trainer adds up the means of BERT's micro-batches, and averages those of its own label smoothing.
    """
    examples = make_examples(kind, 16)
    accumulation = 2 if kind == "llama" else 1

    def run(trainer: type[Trainer], factor: float, **more: Any) -> dict[str, torch.Tensor]:
        args = make_arguments(
            tmp_path, max_steps=2, gradient_accumulation_steps=accumulation, label_smoothing_factor=factor, **SGD
        )
        model = zoo.make_model(kind, dropout=False)
        trainer(model=model, args=args, train_dataset=examples, data_collator=pad, **more).train()
        return weights_of(model)

    own, plain = run(Trainer, 0.3), run(Trainer, 0.0)
    method = run(RegularizedTrainer, 0.0, regularizers=[LabelSmoothing(0.3)])
    assert largest_difference(own, plain) > 1e-6
    assert largest_difference(method, own) < 1e-11


def test_unsupported_heads_and_losses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"LabelSmoothing needs one predicted distribution .* regression head"):
        Engine(zoo.make_model("regression"), [LabelSmoothing()])
    with pytest.raises(ValueError, match=r"R3F trains on the loss of unsmoothed labels; set R3F\(loss='both'\)"):
        Engine(zoo.make_model("bert"), [R3F(), LabelSmoothing()])
    args = make_arguments(tmp_path, max_steps=1, label_smoothing_factor=0.1)
    examples = make_examples("bert", 4)
    with pytest.raises(ValueError, match=r"LabelSmoothing\.epsilon changes the model's own loss, and another"):
        RegularizedTrainer(
            model=zoo.make_model("bert"), args=args, train_dataset=examples, data_collator=pad,
            regularizers=[LabelSmoothing()],
        )  # fmt: skip
