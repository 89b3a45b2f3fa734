"""Whole runs whose head reads a pooling: pairs encoded apart, LoRA, resumed runs, and the snippets of the card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import AutoModel

from attendrop import fine_tune, load_classifier, prune
from attendrop.errors import UserError
from attendrop.lab.robustness.run_folder import robustness_of_run
from attendrop.lab.runs.folder import read_record
from attendrop.lab.runs.predict import predict_file, predict_texts
from attendrop.lab.tasks import Task
from attendrop.lab.tasks.models import load_model
from attendrop.prune.constant_attention import ConstantAttention
from helpers.data import same_bits
from helpers.wordpiece import make_tokenizer, save_model

pytestmark = pytest.mark.xdist_group("runs")

SHORT: dict[str, Any] = {
    "num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "seed": 5, "use_cpu": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder, and files of single texts and of pairs."""
    folder = tmp_path_factory.mktemp("pooled")
    save_model(folder / "model", make_tokenizer(), layers=2)
    (folder / "model" / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": "a.Pooling"}]))
    (folder / "model" / "1_Pooling").mkdir()
    (folder / "model" / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    words = ["good", "bad", "fine", "dull"]
    rows = [f"a {words[i % 4]} film {i},it is {words[i // 4 % 4]},{('no', 'yes')[i % 2]}" for i in range(48)]
    (folder / "pairs.csv").write_text("\n".join(["one,two,label", *rows]) + "\n")
    numbers = [row.rpartition(",")[0] + f",{10 * (i % 5) + 100}" for i, row in enumerate(rows)]
    (folder / "numbers.csv").write_text("\n".join(["one,two,label", *numbers]) + "\n")
    return folder


def run(place: Path, output: str, file: str = "pairs.csv", **settings: Any) -> Path:
    columns = {"text": "one", "text_pair": "two", "label": "label"}
    fine_tune(
        model=place / "model", train_file=place / file, output_dir=place / output, **{**columns, **SHORT, **settings}
    )
    return place / output


@pytest.mark.parametrize("file", ["pairs.csv", "numbers.csv"])
def test_few_pairs_are_encoded_apart_from_the_file_to_the_predictions(place: Path, file: str) -> None:
    folder = run(place, f"apart_{file}", file, method=["addrop:p=0.5,q=0.5", "rdrop"])
    record = json.loads((folder / "record.json").read_text())
    assert (record["settings"]["pooling"], record["settings"]["pairs"]) == ("mean", "separate")
    assert record["task_definition"]["is_encoded_apart"]
    assert json.loads((folder / "config.json").read_text())["attendrop_pairs"] == "separate"
    done = predict_file(folder, place / file, place / f"{file}_predictions.csv", overwrite=True)
    assert done.examples == 48
    robustness_of_run(folder, place / file, rates=(0.5,))
    assert "BertPooledForSequenceClassification" in (folder / "README.md").read_text()
    assert not (folder / "modules.json").exists()


def test_snippets_of_the_card_give_the_predicted_logits(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", minversion="6.2")
    folder = run(place, "single", text_pair=None)
    monkeypatch.chdir(place)
    card = (folder / "README.md").read_text()
    blocks = [code.replace("FOLDER", str(folder)) for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL)]
    ours, theirs = (
        next(b for b in blocks if sign in b) for sign in ("model = load_classifier", "SentenceTransformer(")
    )
    names: dict[str, Any] = {}
    exec(ours, names)
    exec(theirs, names)
    inputs = names["tokenizer"](["a text", "another one"], padding=True, return_tensors="pt")
    np.testing.assert_allclose(names["model"](**inputs).logits.detach(), names["logits"], atol=1e-5)


def test_a_resumed_run_is_the_uninterrupted_one(place: Path) -> None:
    usual = {"save_total_limit": 5, "keep_checkpoints": True, "method": ["addrop:p=0.5,q=0.5"]}
    whole = run(place, "whole", **usual)
    first = min(whole.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    resumed = run(place, "resumed", **usual, resume_from_checkpoint=str(first))
    assert same_bits(load_file(whole / "model.safetensors"), load_file(resumed / "model.safetensors"))


def test_adapters_train_the_head(place: Path) -> None:
    pytest.importorskip("peft")
    start = load_file(run(place, "start", num_train_epochs=1, learning_rate=1e-9) / "model.safetensors")
    folder = run(place, "lora", lora=True)
    end = load_file(folder / "model.safetensors")
    assert start.keys() == end.keys()
    changed = {name for name in end if not np.allclose(start[name], end[name], atol=1e-6)}
    assert "pooled_head.weight" in changed
    assert not any("embeddings" in name or "LayerNorm" in name for name in changed)


def test_contradicting_settings_are_refused(place: Path) -> None:
    with pytest.raises(UserError, match="pooling is 'max'"):
        run(place, "refused", pooling="max")
    with pytest.raises(UserError, match="pairs is 'separate', and .* has no pairs of texts"):
        run(place, "refused", pairs="separate", text_pair=None)
    assert not (place / "refused").exists()


def test_a_pruned_model_is_trained_saved_and_loaded_with_constant_attention(place: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(place / "model")
    prune.prune(model, [1])
    model.save_pretrained(tmp_path / "pruned")
    make_tokenizer().save_pretrained(tmp_path / "pruned")
    one = fine_tune(
        model=tmp_path / "pruned", train_file=place / "pairs.csv", text="one", output_dir=tmp_path / "run", **SHORT
    )
    stored = load_file(one.folder / "model.safetensors")
    path = "encoder.layer.1.attention.self"
    (query,) = (tensor for name, tensor in stored.items() if name.endswith(f"{path}.query.weight"))
    assert not query.any()
    loaded = load_model(str(one.folder), Task.from_dict(read_record(one.folder).task_definition), is_finished=True)
    constants = [name for name, module in loaded.named_modules() if isinstance(module, ConstantAttention)]
    assert [name.endswith(path) for name in constants] == [True]
    assert len(list(predict_texts(one.folder, ["a good film", "a dull film"]))) == 2
    config = json.loads((one.folder / "config.json").read_text())
    assert config["attendrop_pruned_layers"] == [1]
    again = load_classifier(one.folder)
    assert [name for name, module in again.named_modules() if isinstance(module, ConstantAttention)] == constants
