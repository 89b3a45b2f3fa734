"""The start from the frozen solution, and the simple baselines beside a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from attendrop import load_classifier
from attendrop.errors import UserError
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.baselines import _is_clear
from attendrop.lab.runs.frozen import fit_pairs
from attendrop.lab.tasks import METRICS, Task
from attendrop.lab.tasks.kinds.answers import ClassAnswers
from attendrop.lab.tasks.kinds.heads import LinearHead, NumberHead
from helpers.cli_tools import OTHER, save_encoder, sentences, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    save_encoder(folder / "model", [text for text, _ in sentences(60, seed=1)])
    write_csv(folder / "train.csv", sentences(60, seed=1))
    write_csv(folder / "dev.csv", sentences(40, seed=2))
    write_csv(folder / "numbers.csv", [(text, len(text)) for text, _ in sentences(60, seed=1)])
    return folder


def test_the_baseline_of_words_stays_small_with_many_classes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def fit(head: Any, features: Any, targets: Any, outputs: int) -> Any:
        if not isinstance(features, np.ndarray):
            sizes.append(features.shape[1])
        return usual(head, features, targets, outputs)

    usual = LinearHead.fit
    monkeypatch.setattr(LinearHead, "fit", fit)
    run(folder, "all_words", overwrite=True)
    monkeypatch.setattr("attendrop.lab.runs.baselines.MOST_WEIGHTS", 20)
    run(folder, "few_words", overwrite=True)
    assert sizes[0] > sizes[1] == 10  # of each of two classes


def run(folder: Path, name: str, **more: Any) -> Any:
    usual = {
        "model": str(folder / "model"), "train_file": str(folder / "train.csv"), "output_dir": str(folder / name),
        "validation_file": str(folder / "dev.csv"), "num_train_epochs": 1, "learning_rate": 1e-9, "use_cpu": True,
    }  # fmt: skip
    return fine_tune(**{**usual, **more})


@torch.no_grad()
def features_of(folder: Path, rows: list[tuple[str, str]]) -> tuple[Any, np.ndarray]:
    model = load_classifier(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)([text for text, _ in rows], padding=True, return_tensors="pt")
    hidden = model.base_model(**batch).last_hidden_state
    return model, model.features(hidden, batch["attention_mask"]).double().numpy()


def test_the_head_starts_with_the_predictions_of_the_frozen_solution(folder: Path) -> None:
    result = run(folder, "start")
    model, features = features_of(folder / "start", sentences(60, seed=1))
    from attendrop.lab.statistics.linear import fit_logistic

    gold = np.arange(60) % 2
    expected = fit_logistic(features, gold, 2)(features)
    logits = features @ model.pooled_head.weight.double().detach().numpy().T + model.pooled_head.bias.tolist()
    assert (logits.argmax(-1) == expected.argmax(-1)).mean() > 0.97
    centred = logits - logits.mean(-1, keepdims=True)
    assert np.sqrt(np.square(centred).mean()) <= 0.51
    assert any("starts from a logistic regression" in note for note in result.record.notes)


def test_the_seed_of_the_head_does_not_matter_and_a_random_start_does(folder: Path) -> None:
    def weight(name: str, **more: Any) -> torch.Tensor:
        tensor: torch.Tensor = run(folder, name, **more).model.pooled_head.weight.detach()
        return tensor

    assert torch.allclose(weight("one", seed=1), weight("two", seed=2), atol=1e-5)
    random = weight("three", head_start="random", seed=1)
    assert not torch.allclose(random, weight("four", head_start="random", seed=2), atol=1e-3)


def test_words_that_win_are_named_first(folder: Path) -> None:
    write_csv(folder / "more.csv", sentences(300, seed=3))
    write_csv(folder / "test.csv", sentences(200, seed=4))
    files = {"train_file": str(folder / "more.csv"), "validation_file": str(folder / "test.csv")}
    result = run(folder, "words", head_start="random", **files)
    baselines = result.record.baselines
    assert set(baselines.scores) == {"fine-tuned", "words", "frozen"}
    assert baselines.best == "words"
    assert baselines.is_clear
    assert result.sentence.startswith("TF-IDF with logistic regression reaches a validation accuracy of")
    assert "it is better" in result.sentence
    assert result.sentence in (folder / "words" / "README.md").read_text()
    assert result.sentence in repr(result)
    assert "TF-IDF" in result._repr_html_()
    assert not run(folder, "without", no_baselines=True).record.baselines.scores


def test_few_examples_show_no_difference() -> None:
    """One more right answer of four, and even three, are noise; a resample that lacks it would say so."""
    task = Task("t", "classification", ("text",), "label", labels=("a", "b"))
    for metric, level in (("accuracy", 0.05), ("macro_f1", 0.025)):
        for right, count, is_clear in ((1, 4, False), (3, 30, False), (12, 60, True)):
            gold = np.arange(count) % 2
            one, other = (np.eye(2)[gold].astype(float), np.eye(2)[np.where(np.arange(count) < right, 1 - gold, gold)])
            answers = [ClassAnswers(task, values, gold) for values in (one, other)]
            assert _is_clear(METRICS[metric], *answers, level) == is_clear, (metric, right, count)


def test_the_frozen_head_is_kept_where_it_is_better(folder: Path) -> None:
    write_csv(folder / "more.csv", sentences(300, seed=3))
    write_csv(folder / "test.csv", sentences(200, seed=4))
    files = {"train_file": str(folder / "more.csv"), "validation_file": str(folder / "test.csv")}
    result = run(folder, "kept", head_start="random", keep_best_of=True, learning_rate=1e-12, **files)
    baselines = result.record.baselines
    assert baselines.scores["frozen"] > baselines.scores["fine-tuned"]
    assert baselines.kept == "frozen"
    assert result.scores["validation"]["accuracy"] == pytest.approx(baselines.scores["frozen"])


@pytest.mark.parametrize("pairs", ["joint", "separate"])
def test_pairs_are_compared_with_the_means_of_their_texts(folder: Path, pairs: str) -> None:
    """Two texts in one sequence are read with what the sequence says, and not with what its texts say apart."""
    rows = [(text, other, float(text.split()[-1] == other.split()[-1])) for (text, _), (other, _) in zip(
        sentences(60, seed=1), sentences(60, seed=5), strict=True)]  # fmt: skip
    write_csv(folder / "pairs.csv", rows, ("one", "two", "label"))
    columns = {"text": "one", "text_pair": "two", "label": "label", "kind": "regression"}
    files = {"train_file": str(folder / "pairs.csv"), "validation_file": None}
    result = run(folder, f"pairs-{pairs}", pairs=pairs, pooling="mean", **files, **columns)
    expected = {"fine-tuned", "words", "frozen", "cosine"} | ({"means"} if pairs == "joint" else set())
    assert set(result.record.baselines.scores) == expected


def test_means_of_a_head_that_reads_the_first_token_are_a_baseline(folder: Path) -> None:
    write_csv(folder / "dev60.csv", sentences(60, seed=6))
    scores = run(folder, "cls", pooling="cls", validation_file=str(folder / "dev60.csv")).record.baselines.scores
    pooled = run(folder, "mean", pooling="mean")
    mine, other = (features_of(pooled.folder, sentences(60, seed=seed))[1] for seed in (1, 6))
    from attendrop.lab.statistics.linear import fit_logistic

    gold = np.arange(60) % 2
    assert scores["means"] == pytest.approx((fit_logistic(mine, gold, 2)(other).argmax(-1) == gold).mean(), abs=0.02)
    assert "means" not in pooled.record.baselines.scores


def test_labels_of_the_baselines_have_a_chosen_threshold_too(folder: Path) -> None:
    """Rare labels: above 0.5 neither the fine-tuned model nor a linear one predicts any."""
    for name, seed in (("labels", 1), ("labels-dev", 2)):
        rows = [
            (text, "x" if i % 5 == 0 else "y" if i % 7 == 0 else "") for i, (text, _) in enumerate(sentences(120, seed))
        ]
        write_csv(folder / f"{name}.csv", rows)
    files = {"train_file": str(folder / "labels.csv"), "validation_file": str(folder / "labels-dev.csv")}
    result = run(folder, "labels", kind="multilabel", label_separator=";", **files)
    assert result.record.threshold < 0.5
    assert min(result.record.baselines.scores.values()) > 0


def test_words_of_tags_and_their_neighbours_are_a_baseline(folder: Path) -> None:
    lines = ["\n".join(f"{word} {'B-X' if word == OTHER[0] else 'O'}" for word in text.split()) for text, _ in
             sentences(40, seed=1)]  # fmt: skip
    (folder / "tags.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    files = {"train_file": str(folder / "tags.txt"), "validation_file": None, "kind": "token_classification"}
    baselines = run(folder, "tags", **files).record.baselines
    assert baselines.scores["words"] == 1.0
    assert baselines.names["words"].startswith("word features")


def test_a_ridge_regression_starts_a_head_for_numbers(folder: Path) -> None:
    result = run(folder, "numbers", train_file=str(folder / "numbers.csv"), validation_file=None, kind="regression")
    assert any("ridge regression" in note for note in result.record.notes)
    assert {"words", "frozen"} <= set(result.record.baselines.scores)
    assert result.scores["validation"]["rmse"] < 40


def test_a_class_with_one_example_and_hundreds_of_classes_have_a_head(folder: Path) -> None:
    write_csv(folder / "one.csv", [*sentences(40, seed=1), ("a film of its own", "rare")])
    notes = " ".join(run(folder, "one-example", train_file=str(folder / "one.csv"), validation_file=None).record.notes)
    assert "starts from a logistic regression on the frozen features" in notes
    texts = [text for text, _ in sentences(1100, seed=7)]
    write_csv(folder / "many.csv", [(f"{text} {i}", f"c{i % 550}") for i, text in enumerate(texts)])
    files = {"train_file": str(folder / "many.csv"), "validation_file": None, "max_steps": 1}
    result = run(folder, "hundreds", **files)
    assert any("550 classes are too many to choose it" in note for note in result.record.notes)
    assert result.scores["validation"]["accuracy"] >= 0


def test_settings_that_contradict_each_other_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="keep_best_of"):
        run(folder, "refused", keep_best_of=True, no_baselines=True)
    with pytest.raises(UserError, match="head_start is 'zero'"):
        run(folder, "refused", head_start="zero")


def test_pairs_are_drawn_towards_the_cosine_and_keep_their_features() -> None:
    """Few examples do not find the sum of many products by themselves; the solution is one of the same features."""
    draw, width = np.random.default_rng(0), 64
    u, v = (draw.normal(size=(560, width)) for _ in range(2))
    v += draw.uniform(0, 3, (560, 1)) * u
    u, v = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (u, v))
    features, cosine = np.concatenate([u, v, abs(u - v), u * v], 1).astype(np.float32), (u * v).sum(1)
    gold = 100 * cosine + draw.normal(size=560)
    for targets, kind in ((gold, NumberHead()), ((gold > np.median(gold)).astype(int), LinearHead())):
        outputs = 1 if kind.groups(targets) is None else 2
        plain, drawn = (
            fit(features[:60], targets[:60], outputs)(features[60:]) for fit in (kind.fit, partial(fit_pairs, kind))
        )
        assert drawn.shape == plain.shape == (500, outputs)
        if outputs == 1:
            assert np.corrcoef(drawn[:, 0], gold[60:])[0, 1] > 0.99 > np.corrcoef(plain[:, 0], gold[60:])[0, 1]
        else:
            right, right_plain = (float((of.argmax(1) == targets[60:]).mean()) for of in (drawn, plain))
            assert right > max(0.9, right_plain + 0.03)
    # literally: the fit of the features beside the cosine, of which one weight is the same for all products
    size = np.sqrt(features[:60].var(0, dtype=float).sum()) / cosine[:60].std()
    beside = np.concatenate([features, size * features[:, -width:].sum(1, keepdims=True, dtype=float)], 1)
    literal = NumberHead().fit(beside[:60], gold[:60], 1)(beside[60:])
    assert np.allclose(fit_pairs(NumberHead(), features[:60], gold[:60], 1)(features[60:]), literal, rtol=1e-5)
    same = np.repeat(features[:1], 10, 0)  # the cosine is constant
    assert np.isfinite(fit_pairs(NumberHead(), same, gold[:10], 1)(same)).all()
