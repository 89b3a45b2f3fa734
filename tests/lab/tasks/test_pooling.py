"""What the head of a text classifier reads: the choice from the files of a model, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from attendrop.errors import UserError
from attendrop.lab.tasks import Data, Task, find_task, load_config, load_model, load_tokenizer, prepare, with_pairs
from attendrop.lab.tasks.pooling import choose_pairs, choose_pooling
from helpers.wordpiece import make_tokenizer, save_model

SINGLE = Task("t", "classification", ("text",), "label", ("no", "yes"))
PAIRS = dataclasses.replace(SINGLE, text=("one", "two"))
NUMBERS = Task("n", "regression", ("one", "two"), "label")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT whose pooler and head were never trained."""
    return save_model(tmp_path / "model", make_tokenizer())


def chosen(folder: Path, task: Task = SINGLE, wanted: str = "auto") -> Any:
    return choose_pooling(folder, load_config(folder), task, wanted)


def change_weights(folder: Path, *names: str) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in names:
        weights[name] += 0.1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def write_modules(folder: Path, **pooling: Any) -> None:
    types = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in types]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_an_encoder_without_a_trained_pooler_gets_the_mean_and_a_trained_one_its_own_head(folder: Path) -> None:
    assert chosen(folder).pooling == "mean"
    assert "no trained pooler" in chosen(folder).sentence
    change_weights(folder, "bert.pooler.dense.bias")
    assert chosen(folder) == ("model", None, False)
    assert chosen(folder, wanted="cls").pooling == "cls"


def test_a_trained_head_of_the_right_size_is_kept(folder: Path) -> None:
    change_weights(folder, "classifier.bias")
    assert chosen(folder).pooling == "model"
    assert chosen(folder, dataclasses.replace(SINGLE, labels=("a", "b", "c"))).pooling == "mean"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForTokenClassification"]}))
    assert chosen(folder).pooling == "mean"  # that head is for something else


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "mean"),
    ],
)
def test_a_sentence_encoder_is_pooled_as_it_was_trained(folder: Path, settings: Any, expected: str) -> None:
    change_weights(folder, "bert.pooler.dense.bias")
    write_modules(folder, **settings)
    choice = chosen(folder)
    assert (choice.pooling, choice.is_sentence_encoder) == (expected, True)
    is_known = sum(value is True or key == "pooling_mode" for key, value in settings.items() if "include" not in key)
    assert ("as this sentence encoder was trained" in choice.sentence) == (
        is_known == 1 and "pooling_mode_max_tokens" not in settings
    )


def test_broken_files_of_a_sentence_encoder_are_refused_in_one_line(folder: Path) -> None:
    (folder / "modules.json").write_text("{")
    with pytest.raises(UserError, match=r"modules\.json' is broken"):
        chosen(folder)
    (folder / "modules.json").write_text("{}")
    with pytest.raises(UserError, match="it holds a dict"):
        chosen(folder)


def test_roberta_has_no_pooler_that_its_head_reads(tmp_path: Path) -> None:
    config = hf.RobertaConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    model = hf.RobertaModel(config)
    torch.nn.init.ones_(model.pooler.dense.bias)
    model.save_pretrained(tmp_path)
    assert chosen(tmp_path).pooling == "mean"


def test_modernbert_pools_by_itself(tmp_path: Path) -> None:
    config = hf.ModernBertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    hf.ModernBertModel(config).save_pretrained(tmp_path)
    assert chosen(tmp_path).pooling == "model"
    assert load_model(tmp_path, SINGLE).config.classifier_pooling == "cls"  # as its configuration says
    write_modules(tmp_path, pooling_mode="mean")
    model = load_model(tmp_path, SINGLE)
    assert type(model) is hf.ModernBertForSequenceClassification
    assert model.config.classifier_pooling == "mean"
    with pytest.raises(UserError, match="pairs is 'separate', and the head is the model's own"):
        choose_pairs(load_config(tmp_path), PAIRS, chosen(tmp_path), 10, "separate")


def test_what_cannot_be_pooled_keeps_its_head_and_refuses_a_pooling(tmp_path: Path, folder: Path) -> None:
    config = hf.GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert chosen(tmp_path).pooling == "model"
    with pytest.raises(UserError, match="pooling is 'mean', and .* is a gpt2 model, which has to keep the head"):
        chosen(tmp_path, wanted="mean")
    assert chosen(folder, find_task("conll2003")).pooling == "model"
    with pytest.raises(UserError, match="pooling is 'cls', and this is text token_classification, whose head"):
        chosen(folder, find_task("conll2003"), "cls")
    with pytest.raises(UserError, match="pooling is 'max'; it must be one of auto, mean, cls, model"):
        chosen(folder, wanted="max")


def test_a_folder_of_ours_keeps_its_pooling(folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    model = load_model(folder, SINGLE, pooling="cls")
    model.save_pretrained(tmp_path / "again")
    load_tokenizer(folder).save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again", SINGLE, notes=notes, is_finished=True)
    assert type(again).__name__ == "BertPooledForSequenceClassification"
    assert again.config.attendrop_pooling == "cls"
    assert torch.equal(again.pooled_head.weight, model.pooled_head.weight)
    assert notes == []
    with pytest.raises(UserError, match="pooling is 'model', and the head of .* was trained on 'cls'"):
        load_model(tmp_path / "again", SINGLE, pooling="model")
    other = load_model(tmp_path / "again", find_task("conll2003"))
    assert not hasattr(other.config, "attendrop_pooling")


def test_a_regression_from_a_classifier_begins_with_its_own_scale(folder: Path, tmp_path: Path) -> None:
    load_model(folder, SINGLE).save_pretrained(tmp_path)
    notes: list[str] = []
    model = load_model(tmp_path, dataclasses.replace(NUMBERS, text=("one",)), notes=notes)
    assert (model.output_scale.item(), model.output_shift.item()) == (1, 0)
    assert not any("output_scale" in note for note in notes)


def test_a_finished_model_without_some_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    load_model(folder, SINGLE).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["pooled_head.bias"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="no whole model of a finished run: pooled_head.bias is not in"):
        load_model(tmp_path, SINGLE, is_finished=True)
    with pytest.raises(UserError, match=r"no whole model .* pooled_head\.weight"):
        load_model(tmp_path, dataclasses.replace(SINGLE, labels=("a", "b", "c")), is_finished=True)
    stock = shutil.copytree(folder, tmp_path / "stock")
    assert type(load_model(stock, SINGLE, is_finished=True)) is hf.BertForSequenceClassification


def test_few_pairs_are_encoded_apart_by_a_sentence_encoder(folder: Path) -> None:
    def pairs(task: Task, examples: int, wanted: str = "auto") -> str:
        return choose_pairs(load_config(folder), task, chosen(folder, task), examples, wanted)

    assert pairs(PAIRS, 10) == "joint"
    write_modules(folder, pooling_mode="mean")
    assert [pairs(PAIRS, n) for n in (999, 1000)] == ["separate", "joint"]
    assert [pairs(NUMBERS, n) for n in (2999, 3000)] == ["separate", "joint"]
    assert pairs(PAIRS, 10, "joint") == pairs(SINGLE, 10) == "joint"
    assert pairs(PAIRS, 5000, "separate") == "separate"
    with pytest.raises(UserError, match="pairs is 'separate', and t has no pairs of texts to classify"):
        pairs(SINGLE, 10, "separate")
    with pytest.raises(UserError, match="pairs is 'both'; it must be one of auto, joint, separate"):
        pairs(PAIRS, 10, "both")


@pytest.mark.parametrize("labels", [[0, 1], [0.5, 2.0], [[0], [0, 1]]])
def test_pairs_encoded_apart_become_batches_of_two_rows(folder: Path, labels: list[Any]) -> None:
    kind = {int: "classification", float: "regression", list: "multilabel"}[type(labels[0])]
    task = dataclasses.replace(PAIRS, kind=kind, labels=() if kind == "regression" else ("no", "yes"))
    split = datasets.Dataset.from_dict({"one": ["a b c", "d"], "two": ["e", "f g h i"], "label": labels})
    data = with_pairs(Data(task, split, None), "separate")
    assert data is with_pairs(Data(task, split, None), "joint") or data.task.is_encoded_apart
    tokenizer = load_tokenizer(folder)
    prepared = prepare(data, tokenizer)
    batch = prepared.collator([prepared.train[i] for i in range(2)])
    assert prepared.train["length"][:] == [5, 6]
    assert batch["input_ids"].shape == (2, 2, 6)
    assert tokenizer.batch_decode(batch["input_ids"][:, 1], skip_special_tokens=True) == ["e", "f g h i"]
    model = load_model(folder, data.task, tokenizer=tokenizer, pooling="mean")
    assert model.pooled_head.in_features == 4 * 16
    assert model(**batch).loss.isfinite()
    with pytest.raises(UserError, match="are encoded apart, and this model has a head of its own"):
        load_model(folder, data.task, pooling="model")
