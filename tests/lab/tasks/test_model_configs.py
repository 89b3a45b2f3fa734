"""The configuration of a model whose values are wrong: a sentence, in little time and memory, or a warning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import UserError
from attendrop.lab.cli.boundary import reported
from attendrop.lab.tasks import find_task, load_model
from helpers.wordpiece import make_tokenizer, save_model

RTE = find_task("glue/rte")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "original", make_tokenizer())


def changed(original: Path, folder: Path, **fields: Any) -> Path:
    """A copy of the model with other values in its config.json."""
    shutil.copytree(original, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 10**9}, r"has num_hidden_layers = 1000000000; at most 1,000 are allowed"),
        ({"num_labels": 10**9}, r"has num_labels = 1000000000; at most 100,000 are allowed"),
        ({"text_config": {"num_layers": 10**5}}, r"has num_layers = 100000; at most 1,000 are allowed"),
        ({"text_config": {"a": 1}}, r"has text_config = \{'a': 1\}, and a bert model has no such part; leave it out"),
        ({"decoder": "x"}, r"has decoder = 'x', and a bert model has no such part"),
        ({"text_config": 1}, r"has text_config = 1; it must be an object"),
        ({"id2label": [1]}, r"has id2label = \[1\]; it must be an object"),
        ({"id2label": {"a": 1}}, r"has id2label with the key 'a'; its keys must be the numbers of the labels"),
        ({"text_config": {"id2label": {"0": "x", "1.5": "y"}}}, r"has id2label with the key '1.5'"),
        ({"quantization_config": "x"}, r"has quantization_config = 'x'; it must be an object"),
        ({"quantization_config": {"a": 1}}, r"cannot be loaded: .* has no `quant_method` attribute"),
        ({"layer_norm_eps": float("nan")}, r"has layer_norm_eps = nan, which is not a number"),
        ({"vocab_size": 10**10}, r"describes [\d,]+ parameters, and its weights have [\d,]+ bytes"),
        ({"intermediate_size": 10**9}, r"describes [\d,]+ parameters, and its weights have [\d,]+ bytes"),
        ({"num_attention_heads": 0}, r"cannot be made by its config.json \(integer modulo by zero\)"),
        ({"hidden_act": "os.system"}, r"cannot be made by its config.json \('os.system'\)"),
        ({"attn_implementation": "x"}, r"cannot be made by its config.json \(Specified"),
        ({"pad_token_id": 10**9}, r"cannot be made by its config.json \(Padding_idx"),
    ],
)
def test_wrong_values_are_one_sentence(original: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = changed(original, tmp_path / "model", **fields)
    with pytest.raises(UserError, match=message) as refused:
        load_model(folder, RTE)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [1, {"a": 1}, []])
def test_parts_that_no_model_of_the_kind_reads_are_ignored(original: Path, tmp_path: Path, value: Any) -> None:
    load_model(changed(original, tmp_path / "model", vision_config=value, text_config=None), RTE)


def test_an_error_in_the_code_of_a_model_is_one_sentence(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of the traceback
    monkeypatch.setattr("tempfile.tempdir", None)
    model = load_model(changed(original, tmp_path / "model", chunk_size_feed_forward="x"), RTE)
    with pytest.raises(TypeError) as raised:
        model(**model.dummy_inputs)
    assert reported(raised.value) == 2
    shown = capsys.readouterr().err
    assert "transformers cannot run the model (TypeError: '>' not supported between instances" in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize("layers", [0, 1])
def test_layers_that_are_left_out_are_a_warning(original: Path, tmp_path: Path, layers: int) -> None:
    more = save_model(tmp_path / "more", make_tokenizer(), layers=2)
    notes: list[str] = []
    load_model(changed(more, tmp_path / "model", num_hidden_layers=layers), RTE, notes=notes)
    place = f"bert.encoder.layer.{layers}.attention.output.LayerNorm.bias"
    assert any(n.startswith("warning: ") and n.endswith(f"leaves out, such as {place}") for n in notes), notes
