"""Tasks by name: the catalogue, folders of Parquet files, validation splits, few shots, fractions, descriptions."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value

from attendrop.errors import UserError
from attendrop.lab.runs.data import load_data
from attendrop.lab.runs.settings import make_config
from attendrop.lab.tasks import (
    KINDS,
    TASKS,
    Data,
    Task,
    at_most,
    describe,
    few_shots,
    find_task,
    fraction,
    load_files,
    load_task,
    split_validation,
)
from helpers.wordpiece import make_tokenizer


def test_importing_tasks_loads_no_heavy_library() -> None:
    code = "import sys, attendrop.lab.tasks; print({'torch', 'transformers', 'datasets', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_catalogue_has_the_tasks_of_both_papers() -> None:
    corpora = {"wikitext-2", "wikitext-103"}
    others = {"imdb", "rotten_tomatoes", "ag_news", "conll2003", "ptb", "swag", "hans"}
    assert {name for name in TASKS if "/" not in name} == others | corpora
    assert sum(name.startswith("glue/") for name in TASKS) == 9
    for task in TASKS.values():
        assert task.kind in KINDS
        assert task.hub or task.missing
        assert task.folders
        assert (task.label is None) == (task.kind in ("translation", "mlm"))
    assert TASKS["glue/rte"].labels == ("entailment", "not_entailment")
    assert TASKS["glue/wnli"].labels == ("not_entailment", "entailment")
    assert TASKS["glue/mnli"].labels == ("entailment", "neutral", "contradiction")
    assert TASKS["glue/mnli"].splits["validation"] == "validation_matched"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("glue/rte", "glue/rte"),
        ("rte", "glue/rte"),
        (" GLUE/STS-B ", "glue/stsb"),
        ("paws-x", "paws-x/en"),
        ("multi30k", "multi30k/en-de"),
        ("wmt16/ro-en", "wmt16/ro-en"),
        ("HANS", "hans"),
    ],
)
def test_a_task_is_found_by_name(name: str, expected: str) -> None:
    assert find_task(name).name == expected


def test_translation_tasks_name_source_and_target_language() -> None:
    assert find_task("wmt16/en-ro").text == ("en", "ro")
    assert find_task("wmt16/ro-en").text == ("ro", "en")
    assert {find_task(f"wmt16/{pair}").hub_config for pair in ("en-ro", "ro-en")} == {"ro-en"}
    assert {find_task(f"wmt16/{pair}").hub_config for pair in ("en-tr", "tr-en")} == {"tr-en"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glue/rtee", r"task is 'glue/rtee'; did you mean glue/rte\? The known tasks are"),
        ("conl2003", r"did you mean conll2003\?"),
        ("wmt16/en-or", r"did you mean .*wmt16/en-ro\?"),
        ("zzz", "task is 'zzz'; it must be one of glue/cola"),
    ],
)
def test_the_nearest_task_is_suggested(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_task(name)


def test_without_a_network_the_error_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"data of glue/rte .* cannot be reached; check the connection, .* --data-dir"):
        load_task("glue/rte")
    with pytest.raises(UserError, match=r"ptb is not on the Hub \(the Penn Treebank is licensed.*--data-dir"):
        load_task("ptb")


RTE = {
    "sentence1": ["a b", "c d", "e f"],
    "sentence2": ["g", "h", "i"],
    "label": [0, 1, 1],
}


def save(folder: Path, name: str, columns: dict[str, list[Any]], features: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, features=features).to_parquet(str(folder / f"{name}.parquet"))
    return folder / f"{name}.parquet"


def test_folder_of_parquet_files_is_read_as_a_task(tmp_path: Path) -> None:
    save(tmp_path / "glue/rte", "train-00000-of-00002", RTE)
    save(tmp_path / "glue/rte", "train-00001-of-00002", {**RTE, "label": [1, 0, 0]})
    save(tmp_path / "glue/rte", "validation_subset", RTE)
    save(tmp_path / "glue/rte", "test", {**RTE, "label": [-1, -1, -1]})
    before = sorted(tmp_path.rglob("*"))
    data = load_task("glue/rte", tmp_path)
    assert data.train is not None
    assert data.train["label"][:] == [0, 1, 1, 1, 0, 0]
    assert data.train["sentence2"][:3] == ["g", "h", "i"]
    assert data.test is not None
    assert data.test.column_names == ["sentence1", "sentence2"]  # GLUE hides the labels of its test splits
    assert data.notes == ["validation of glue/rte is a subset, 3 examples"]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_hubs_layout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository in the format of the Hub, with label names and with hidden labels in the test split."""
    texts = {name: Value("string") for name in ("sentence1", "sentence2")}
    features = Features({**texts, "label": ClassLabel(names=["entailment", "not_entailment"])})
    for name, labels in (("train", [0, 1, 1]), ("validation", [1, 0, 1]), ("test", [-1, -1, -1])):
        save(tmp_path / "repo/rte", f"{name}-00000-of-00001", {**RTE, "label": labels}, features)
    splits = "".join(f"  - split: {name}\n    path: rte/{name}-*\n" for name in ("train", "validation", "test"))
    (tmp_path / "repo/README.md").write_text(f"---\nconfigs:\n- config_name: rte\n  data_files:\n{splits}---\n")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(TASKS, "glue/rte", dataclasses.replace(TASKS["glue/rte"], hub=str(tmp_path / "repo")))
    data = load_task("glue/rte")
    assert {name: split.num_rows for name, split in data.splits().items()} == {"train": 3, "validation": 3, "test": 3}
    assert data.validation is not None
    assert data.validation["label"][:] == [1, 0, 1]
    assert data.test is not None
    assert "label" not in data.test.column_names
    monkeypatch.setitem(TASKS, "glue/rte", dataclasses.replace(TASKS["glue/rte"], hub_config="rtee"))
    with pytest.raises(UserError, match="the data of glue/rte .* cannot be loaded: .*rtee") as caught:
        load_task("glue/rte")
    assert "\n" not in str(caught.value)


def test_the_splits_of_mnli(tmp_path: Path) -> None:
    columns = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [2, 1, 0]}
    for name in ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"):
        save(tmp_path / "mnli", name, columns)
    data = load_task("glue/mnli", tmp_path)
    assert list(data.splits()) == ["train", "validation", "test", "validation_mismatched", "test_mismatched"]
    assert list(data.others) == ["validation_mismatched", "test_mismatched"]


def test_tags_may_be_names_or_numbers(tmp_path: Path) -> None:
    names = list(find_task("conll2003").labels)
    words = {"tokens": [["EU", "won"], ["so"]]}
    numbered = Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=names))})
    reversed_ = Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=names[::-1]))})
    save(tmp_path / "conll2003", "train", {**words, "ner_tags": [["B-ORG", "O"], ["I-MISC"]]})
    save(tmp_path / "conll2003", "validation", {**words, "ner_tags": [[3, 0], [8]]}, numbered)
    save(tmp_path / "conll2003", "test", {**words, "ner_tags": [[5, 8], [0]]}, reversed_)
    data = load_task("conll2003", tmp_path)
    assert [split["ner_tags"][:] for split in data.splits().values()] == [[[3, 0], [8]]] * 3


def test_labels_may_be_names(tmp_path: Path) -> None:
    save(tmp_path / "rte", "train", {**RTE, "label": ["entailment", "not_entailment", "not_entailment"]})
    train = load_task("glue/rte", tmp_path).train
    assert train is not None
    assert train["label"][:] == [0, 1, 1]


def test_translation_may_be_in_one_column(tmp_path: Path) -> None:
    save(tmp_path / "wmt16/ro-en", "train", {"translation": [{"ro": "un câine", "en": "a dog"}]})
    train = load_task("wmt16/en-ro", tmp_path).train
    assert train is not None
    assert train[0] == {"ro": "un câine", "en": "a dog"}


def test_a_task_without_a_training_split_is_for_evaluation_only(tmp_path: Path) -> None:
    save(tmp_path / "hans", "validation", {"premise": ["a"], "hypothesis": ["b"], "label": [1]})
    save(tmp_path / "wmt16_en_ro", "validation", {"en": ["a"], "ro": ["b"]})
    save(tmp_path / "imdb", "test", {"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(UserError, match="hans is for evaluation only; .*--also-eval"):
        load_task("hans", tmp_path)
    with pytest.raises(UserError, match="wmt16/en-ro has no training split in"):
        load_task("wmt16/en-ro", tmp_path)
    assert list(load_task("hans", tmp_path, evaluation=True).splits()) == ["validation"]
    imdb = load_task("imdb", tmp_path, evaluation=True)
    assert imdb.validation is imdb.test
    assert imdb.notes == ["imdb has no validation split; its test split is evaluated"]


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--data-dir is .*nowhere, which is not a folder"):
        load_task("glue/rte", tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no folder glue/rte or rte for glue/rte"):
        load_task("glue/rte", tmp_path)
    (tmp_path / "rte").mkdir()
    with pytest.raises(UserError, match="glue/rte has none of its splits"):
        load_task("glue/rte", tmp_path, evaluation=True)
    path = save(tmp_path / "rte", "train", RTE)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"rte/train\.parquet is incomplete or not a Parquet file"):
        load_task("glue/rte", tmp_path)
    save(tmp_path / "rte", "train", {"sentence1": ["a"], "label": [0]})
    with pytest.raises(UserError, match="train of glue/rte has no column 'sentence2'; it has sentence1, label"):
        load_task("glue/rte", tmp_path)
    save(tmp_path / "rte", "train", {**RTE, "label": [0, 1, 7]})
    with pytest.raises(UserError, match="train of glue/rte has the label 7; known are entailment, not_entailment"):
        load_task("glue/rte", tmp_path)
    save(tmp_path / "rte", "train", {"sentence1": [], "sentence2": [], "label": []})
    with pytest.raises(UserError, match=r"train\.parquet has no examples"):
        load_task("glue/rte", tmp_path)


def test_the_setting_of_progress_bars_is_restored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "rte", "train", RTE)
    capfd.readouterr()
    assert not datasets.are_progress_bars_disabled()
    load_task("glue/rte", tmp_path)
    assert not datasets.are_progress_bars_disabled()
    assert capfd.readouterr().err == ""


LABELS = ["c"] * 1 + ["a"] * 60 + ["b"] * 39  # of 100


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """100 examples of three classes; one class has a single example."""
    rows = "".join(f"text number {i},{label}\n" for i, label in enumerate(LABELS))
    (tmp_path / "a.csv").write_text("text,label\n" + rows, encoding="utf-8")
    return load_files(tmp_path / "a.csv")


def texts(split: Dataset | None) -> list[str]:
    assert split is not None
    return split["text"][:]


def counts(data: Data, split: Dataset | None) -> Counter[str]:
    assert split is not None
    return Counter(data.task.labels[index] for index in split["label"])


def test_a_validation_split_is_stratified_by_class(data: Data) -> None:
    split = split_validation(data, 0.1, seed=7)
    assert counts(split, split.validation) == {"a": 6, "b": 4}
    assert counts(split, split.train) == {"a": 54, "b": 35, "c": 1}  # a class with one example stays in training
    most = split_validation(data, 0.8, seed=7)
    assert counts(most, most.validation) == {"a": 48, "b": 32}
    assert sorted(texts(split.train) + texts(split.validation)) == sorted(texts(data.train))
    order = texts(data.train)
    assert [order.index(text) for text in texts(split.train)] == sorted(order.index(t) for t in texts(split.train))
    assert split.notes[-2] == "no validation split: 10 of 100 training examples split off, stratified, seed 7"
    assert split.notes[-1].startswith("warning: a score on 10 validation examples says little")
    assert "split off" in most.notes[-1]
    assert not any("says little" in note for note in most.notes)
    assert data.validation is None  # the original data are unchanged
    assert split_validation(split, 0.5) is split


def test_samples_depend_on_the_seed_only(data: Data) -> None:
    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    for number, draw in enumerate(
        (
            lambda seed: split_validation(data, 0.2, seed).validation,
            lambda seed: few_shots(without_rare(data), 5, seed).train,
            lambda seed: fraction(data, 0.3, seed).train,
            lambda seed: at_most(data, "train", 30, seed).train,
        )
    ):
        first = texts(draw(1))
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        before = states()
        assert texts(draw(1)) == first
        assert states() == before
        assert texts(draw(2)) != first


def without_rare(data: Data) -> Data:
    assert data.train is not None
    return dataclasses.replace(
        data, train=data.train.select(range(1, 100)), task=dataclasses.replace(data.task, labels=("a", "b"))
    )


def test_few_shots_takes_examples_of_each_class(data: Data) -> None:
    few = few_shots(without_rare(data), 16, seed=3)
    assert counts(few, few.train) == {"a": 16, "b": 16}
    assert few.notes[-1] == "16 training examples of each class, 32 of 99, seed 3"
    with pytest.raises(UserError, match="--shots is 2, but the class 'c' has 1 training example"):
        few_shots(data, 2)
    with pytest.raises(UserError, match="--shots is 0; it must be at least 1"):
        few_shots(data, 0)


def test_a_fraction_is_of_each_class(data: Data) -> None:
    reduced = fraction(data, 0.6, seed=3)
    assert counts(reduced, reduced.train) == {"a": 36, "b": 23, "c": 1}
    assert reduced.notes[-1] == "60 of 100 training examples (0.6), stratified, seed 3"
    assert texts(fraction(data, 1.0).train) == texts(data.train)
    for share in (0.0, -1.0, 1.01, float("nan")):
        with pytest.raises(UserError, match="--fraction is .*; it must be above 0"):
            fraction(data, share)
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(UserError, match="validation_share is"):
            split_validation(data, share)


def test_at_most_draws_from_every_class_of_a_sorted_file(tmp_path: Path) -> None:
    rows = "".join(f"text number {i},class {i // 10}\n" for i in range(77 * 10))
    (tmp_path / "a.csv").write_text("text,label\n" + rows, encoding="utf-8")
    config = make_config({"model": "m", "train_file": tmp_path / "a.csv", "max_train_samples": 154})
    data = load_data(config, seed=1)
    assert set(counts(data, data.train).values()) == {2}
    assert len(counts(data, data.train)) == 77
    assert data.notes[-1] == "154 of 693 training examples, stratified, seed 1"
    assert data.available == {"train": 693}
    assert len(texts(data.validation)) == 77
    few = load_data(config.replaced({"max_train_samples": 50, "max_eval_samples": 40}), seed=1)
    assert (len(texts(few.train)), len(texts(few.validation))) == (50, 40)
    assert {
        "warning: 50 training examples cannot hold all classes; 27 have none",
        "warning: 40 validation examples cannot hold all classes; 37 have none",
    } <= set(few.notes)
    assert few.available == {"train": 693, "validation": 77}
    other = load_data(config.replaced({"max_eval_samples": 40}), seed=1)
    assert texts(other.validation) == texts(few.validation)  # whatever is trained on


def test_at_most_keeps_rare_classes_and_never_more_than_asked_for(data: Data) -> None:
    assert counts(data, at_most(data, "train", 4, seed=1).train) == {"a": 2, "b": 1, "c": 1}
    many = dataclasses.replace(data, task=dataclasses.replace(data.task, labels=("a", "b", "c", *"defgh")))
    assert len(texts(at_most(many, "train", 9).train)) == 9
    assert at_most(data, "train", 100) is data


def test_regression_examples_are_split_at_random(tmp_path: Path) -> None:
    rows = "".join(f"text number {i},{i / 8}\n" for i in range(41))
    (tmp_path / "a.csv").write_text("text,label\n" + rows, encoding="utf-8")
    data = load_files(tmp_path / "a.csv")
    split = split_validation(data, 0.25, seed=1)
    assert (len(texts(split.train)), len(texts(split.validation))) == (31, 10)
    assert "at random" in split.notes[-2]
    assert len(texts(fraction(data, 0.5).train)) == 20
    with pytest.raises(UserError, match="--shots counts examples of each class, and a.csv is of kind regression"):
        few_shots(data, 3)
    with pytest.raises(UserError, match="its 2 training examples are too few to split 10% off"):
        split_validation(dataclasses.replace(data, train=data.train and data.train.select([0, 1])))


def test_a_description_counts_labels_and_tokens(data: Data) -> None:
    description = describe(split_validation(data, 0.1))
    assert description.rows == {"train": 90, "validation": 10}
    assert description.labels == ("a", "b", "c")
    assert description.balance["validation"] == {"a": 6, "b": 4, "c": 0}
    assert description.lengths == {}
    tokenizer = make_tokenizer(["text", "number", *map(str, range(100)), "##1"])
    lengths = describe(data, tokenizer, max_length=5).lengths["train"]
    assert (lengths.median, lengths.percentile95, lengths.longest, lengths.truncated) == (5.0, 5.0, 5, 0.0)
    assert describe(data, tokenizer, max_length=4).lengths["train"].truncated == 1.0


def make_data(kind: str, text: tuple[str, ...], columns: dict[str, list[Any]], **more: Any) -> Data:
    return Data(Task("mine", kind, text, more.pop("label", None), **more), Dataset.from_dict(columns), None)


def test_lengths_count_the_tokens_of_the_model_inputs() -> None:
    tokenizer = make_tokenizer(["a", "##b", "c"])
    pairs = make_data("classification", ("x", "y"), {"x": ["a", "a a"], "y": ["c", "ab ab"]})
    assert describe(pairs, tokenizer).lengths["train"].longest == 3 + 2 + 4
    choice = make_data("multiple_choice", ("x", "e0", "e1"), {"x": ["a"], "e0": ["c"], "e1": ["c c c"]})
    assert describe(choice, tokenizer).lengths["train"].longest == 3 + 1 + 3
    translation = make_data("translation", ("x", "y"), {"x": ["a", "a a a a"], "y": ["ab ab", "c"]})
    assert describe(translation, tokenizer).lengths["train"].median == 2 + 4
    tokens = make_data(
        "token_classification", ("x",), {"x": [["ab", "c"]], "t": [[0, 1]]}, label="t", labels=("O", "B-X")
    )
    assert describe(tokens, tokenizer).lengths["train"].longest == 2 + 3
    assert describe(tokens).balance == {"train": {"O": 1, "B-X": 1}}
