"""Models and tokenizers: the head for each task, and a one-sentence error for everything wrong with a folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets.config
import pytest
import torch
import transformers as hf
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from attendrop.errors import UserError
from attendrop.lab.tasks import Task, find_task, load_model, load_task, load_tokenizer
from helpers.wordpiece import make_tokenizer, save_model

RTE = find_task("glue/rte")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two labels."""
    return save_model(tmp_path_factory.mktemp("models") / "original", make_tokenizer())


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return shutil.copytree(original, tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("glue/mnli", "BertPooledForSequenceClassification"),
        ("glue/stsb", "BertPooledForSequenceClassification"),
        ("conll2003", "BertForTokenClassification"),
        ("swag", "BertForMultipleChoice"),
    ],
)
def test_each_task_gets_its_head(name: str, head: str, original: Path) -> None:
    task, notes = find_task(name), []
    model = load_model(original, task, tokenizer=load_tokenizer(original), notes=notes)
    assert type(model).__name__ == head
    assert model.dtype == torch.float32
    if task.kind in ("classification", "token_classification"):
        assert model.config.id2label == dict(enumerate(task.labels))
        assert model.config.label2id == {label: index for index, label in enumerate(task.labels)}
    if task.kind == "regression":
        assert (model.config.num_labels, model.config.problem_type) == (1, "regression")
    assert any("classifier.weight" in note or "pooled_head.weight" in note for note in notes)


def test_a_translation_gets_a_model_that_generates(tmp_path: Path) -> None:
    folder = save_model(tmp_path, make_tokenizer(), "translation")
    assert type(load_model(folder, find_task("multi30k"))).__name__ == "BartForConditionalGeneration"


def test_a_head_of_the_right_size_is_loaded_and_another_is_noted(original: Path, capfd: Any) -> None:
    notes: list[str] = []
    verbosity = hf.utils.logging.get_verbosity()
    model = load_model(original, RTE, notes=notes, pooling="model")
    expected = hf.BertForSequenceClassification.from_pretrained(original)
    assert torch.equal(model.classifier.weight, expected.classifier.weight)
    assert notes == []
    capfd.readouterr()
    load_model(original, find_task("glue/mnli"), notes=notes, pooling="model")
    assert notes == [f"{original} has a head of another size; classifier.bias, classifier.weight are re-initialised"]
    assert capfd.readouterr().err == ""  # the library's own report is not printed
    assert hf.utils.logging.get_verbosity() == verbosity


def _halve(path: Path, *parts: str) -> None:
    """Cut the tensors whose names have one of these parts."""
    weights = load_file(path)
    changed = {k: v[: len(v) // 2].clone() if any(part in k for part in parts) else v for k, v in weights.items()}
    save_file(changed, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: _halve(folder / "model.safetensors", "intermediate.dense"),
         "are not of the shapes that its config.json says (bert.encoder.layer.0.intermediate.dense.bias"),
        (lambda folder: _keep(folder / "model.safetensors", lambda name: "attention.output" not in name),
         "lacks 4 of the 16 tensors of its layers, such as bert.encoder.layer.0.attention.output.LayerNorm.bias"),
        (lambda folder: _keep(folder / "model.safetensors", lambda name: ".attention.self." not in name),
         "lacks 6 of the 16 tensors of its layers, such as bert.encoder.layer.0.attention.self.key.bias"),
    ],
)  # fmt: skip
def test_a_pretrained_model_without_its_layers_is_refused(
    original: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = shutil.copytree(original, tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=re.escape(message)):
        load_model(folder, RTE)


def _keep(path: Path, is_kept: Callable[[str], bool]) -> None:
    save_file({name: value for name, value in load_file(path).items() if is_kept(name)}, path, {"format": "pt"})


def test_a_head_with_other_names_is_noted(original: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    load_model(original, RTE).save_pretrained(tmp_path)
    load_model(tmp_path, RTE, notes=notes)
    assert notes == []
    load_model(tmp_path, find_task("glue/sst2"), notes=notes)
    assert notes == [
        f"the head of {tmp_path} was trained for the labels entailment, not_entailment and is now used for negative, "
        "positive"
    ]


def test_a_model_without_a_head_is_noted(tmp_path: Path) -> None:
    hf.BertModel(
        hf.BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    ).save_pretrained(tmp_path)
    notes: list[str] = []
    load_model(tmp_path, RTE, notes=notes)
    assert notes == [f"pooled_head.bias, pooled_head.weight are not in {tmp_path}: they are new"]


def test_weights_in_half_precision_are_loaded_in_float32(original: Path, tmp_path: Path) -> None:
    hf.BertForSequenceClassification.from_pretrained(original).to(torch.float16).save_pretrained(tmp_path)
    assert load_model(tmp_path, RTE).dtype == torch.float32


def test_a_tokenizer_without_a_padding_token_uses_the_end_of_text(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = None, "left"
    tokenizer.save_pretrained(tmp_path)
    config = hf.GPT2Config(vocab_size=len(tokenizer), n_embd=4, n_layer=1, n_head=1, eos_token_id=3, bos_token_id=2)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.pad_token, loaded.padding_side) == (loaded.eos_token, "right")
    assert load_model(tmp_path, RTE, tokenizer=loaded).config.pad_token_id == loaded.eos_token_id
    with pytest.raises(UserError, match="is a gpt2 model, for which transformers has no head of kind translation"):
        load_model(tmp_path, find_task("multi30k"))
    with pytest.raises(UserError, match="is a gpt2 model, for which transformers has no head of kind multiple_choice"):
        load_model(tmp_path, find_task("swag"))


def test_an_incomplete_weights_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for length in (len(content) // 2, 5, 0):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"model/model\.safetensors is incomplete or not a safetensors file"):
            load_model(folder, RTE)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is a pickle, .* convert the weights to safetensors"):
        load_model(folder, RTE)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match="has no weights"):
        load_model(folder, RTE)


def test_remote_code_is_not_run_unless_allowed(folder: Path) -> None:
    ran = folder / "ran"
    path = folder / "config.json"
    config = json.loads(path.read_text())
    names = {"AutoConfig": "mine.MyConfig", "AutoModelForSequenceClassification": "mine.MyModel"}
    path.write_text(json.dumps({**config, "model_type": "mine", "auto_map": names}))
    (folder / "mine.py").write_text(
        "from pathlib import Path\nfrom transformers import BertConfig, BertForSequenceClassification\n"
        f"Path({str(ran)!r}).touch()\n"
        "class MyConfig(BertConfig):\n    model_type = 'mine'\n"
        "class MyModel(BertForSequenceClassification):\n    config_class = MyConfig\n"
    )
    with pytest.raises(UserError, match="needs code from its own repository; .* --trust-remote-code"):
        load_model(folder, RTE)
    assert not ran.exists()
    assert type(load_model(folder, RTE, trust_remote_code=True)).__name__ == "MyModel"
    assert ran.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": "be', "a JSON file of .* is broken"),
        ("config.json", '{"model_type": "unheard_of"}', "cannot be loaded: .*unheard_of"),
        ("config.json", None, "has no config.json: it holds no model of transformers"),
    ],
)
def test_a_broken_configuration_is_refused(name: str, content: str | None, message: str, folder: Path) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        load_model(folder, RTE)
    assert "\n" not in str(caught.value)


def test_folder_with_an_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="it holds an adapter; merge it into its model first"):
        load_model(tmp_path, RTE)


def test_a_missing_or_broken_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(UserError, match="is broken"):
        load_tokenizer(folder)
    for path in [*folder.glob("tokenizer*"), *folder.glob("special*")]:
        path.unlink()
    with pytest.raises(UserError, match="has no tokenizer|cannot be loaded"):
        load_tokenizer(folder)


def test_a_tokenizer_of_another_model_is_refused(original: Path) -> None:
    big = make_tokenizer([f"word{i}" for i in range(500)])
    with pytest.raises(UserError, match="the tokenizer has 505 tokens, but .* has 1"):
        load_model(original, RTE, tokenizer=big)


@pytest.mark.parametrize("load", [load_tokenizer, lambda name: load_model(name, RTE)])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("roberta-bsae", r"the Hub cannot be reached .*; did you mean roberta-base\?"),
        ("google/electra-smal-discriminator", r"did you mean google/electra-small-discriminator\?"),
        ("roberta-base", r"which is not a folder here, and the Hub cannot be reached .* or use a folder\.$"),
        ("not a name", "is neither a folder nor a model on the Hub"),
        ("./nowhere", r"the folder \./nowhere does not exist"),
    ],
)
def test_an_unknown_name_is_refused(load: Any, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(name)


def test_the_nearest_folder_is_suggested(folder: Path) -> None:
    with pytest.raises(UserError, match=r"model2 does not exist; did you mean .*/model\?"):
        load_model(folder.with_name("model2"), RTE)
    with pytest.raises(UserError, match="which is a file; use the folder"):
        load_model(folder / "config.json", RTE)


def test_there_are_no_retries_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the address; the libraries would retry for half a minute."""
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def fail(seconds: float) -> None:
        raise AssertionError("the libraries wait before a retry")

    monkeypatch.setattr("time.sleep", fail)
    with pytest.raises(UserError, match="the Hub cannot be reached"):
        load_tokenizer("roberta-base")
    with pytest.raises(UserError, match="cannot be reached; check the connection"):
        load_task("glue/rte")
    assert not constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE


def test_labels_may_be_given(original: Path) -> None:
    task = Task("mine", "classification", ("text",), "label", ("a", "b"))
    assert load_model(original, task, ("x", "y", "z")).config.id2label == {0: "x", 1: "y", 2: "z"}
