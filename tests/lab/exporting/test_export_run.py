"""`attendrop export` on small runs: what is written, the script that is printed, `predict --engine`, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.compression.run_folder import compress_run
from attendrop.lab.exporting import run_folder
from attendrop.lab.exporting.run_folder import export_run
from attendrop.lab.runs.predict import predict_texts, read_finished
from attendrop.lab.statistics.paired_scores import Difference
from helpers.cli_tools import write_csv
from helpers.small_runs import save_sources, train_small

pytestmark = pytest.mark.xdist_group("exporting")

TEXTS = ["the film is fine", "the film is dull and cold and it was a story with actors"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def compressed(sources: Path) -> Path:
    """A run whose last block is computed on a summary."""
    run = train_small(sources, "single")
    settings: dict[str, Any] = {"target": 1.01, "best_effort": True, "ways": ("tail",), "learning_rate": 1e-3}
    return compress_run(run, sources / "fast", **settings, stage_epochs=1, final_epochs=0).folder


def logits_of(folder: Path, engine: str) -> np.ndarray:
    """The logits of the texts, the second one with padding and both one by one."""
    predictor = read_finished(folder).load(engine)
    batch = predictor.tokenizer(TEXTS, padding=True, truncation=True, max_length=16, return_tensors="pt")
    single = predictor.tokenizer(TEXTS[:1], return_tensors="pt")
    with torch.inference_mode():
        return torch.cat([predictor.model(**batch).logits, predictor.model(**single).logits]).numpy()


def printed(script: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    exec(script, {})
    return capsys.readouterr().out


def test_compressed_run_is_exported_in_fp32_and_int8(
    compressed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    done = export_run(compressed)
    truth = logits_of(compressed, "torch")
    assert np.abs(logits_of(compressed, "onnx") - truth).max() <= 1e-4
    assert len(done.script.splitlines()) == 5
    assert "attendrop" not in done.script.replace(str(compressed), "")
    assert "[[" in printed(done.script, capsys)
    assert answers(compressed, "onnx", tmp_path) == [answer for _, answer in predict_texts(compressed, TEXTS)]
    with pytest.raises(UserError, match=r"model.onnx' exists; replace it with --overwrite"):
        export_run(compressed)

    with pytest.raises(UserError, match=r"has no model.int8.onnx, which engine 'onnx-int8' needs; write it with"):
        read_finished(compressed).load("onnx-int8")
    assert run(["export", str(compressed), "--int8", "--tolerance", "0.2"]) == 0
    shown = capsys.readouterr().out
    assert "warning: accuracy on 6 validation examples" in shown  # too few to tell
    lines = shown.splitlines()
    first = lines.index("import onnxruntime, transformers")
    assert "[[" in printed("\n".join(lines[first : first + 5]), capsys)
    assert "--engine onnx-int8" in shown
    off = np.abs(logits_of(compressed, "onnx-int8") - truth).max()
    assert 1e-6 < off < 0.2 * np.abs(truth).max()
    known = json.loads((compressed / "export.json").read_text())["files"]
    assert known.keys() == {"model.onnx", "model.int8.onnx"}

    def worse(*arguments: Any) -> Difference:
        return Difference(-0.3, -0.4, -0.2, 6)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "compare_answers", worse)
        with pytest.raises(UserError, match=r"loses more than tolerance 0.2, and nothing is written"):
            export_run(compressed, int8=True, tolerance=0.2, overwrite=True)
    assert json.loads((compressed / "export.json").read_text())["files"] == known

    (compressed / "model.onnx").write_bytes(b"damaged")
    assert run(["predict", str(compressed), TEXTS[0], "--engine", "onnx"]) == 2
    assert "is not what was exported from this run; write it again with: attendrop export" in capsys.readouterr().err


def answers(folder: Path, engine: str, place: Path) -> list[str]:
    file = write_csv(place / f"{engine}.csv", [(text,) for text in TEXTS], header=["text"])
    words = ["--file", str(file), "--format", "jsonl", "--output", str(place / "out.jsonl"), "--engine", engine]
    assert run(["predict", str(folder), *words, "--overwrite"]) == 0
    return [json.loads(line)["prediction"] for line in (place / "out.jsonl").read_text().splitlines()]


def test_program_of_torch_export_computes_the_same(compressed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = export_run(compressed, "torch")
    program: Any = torch.export.load(done.path).module()
    predictor = read_finished(compressed).load()
    for texts in (TEXTS, TEXTS[:1]):
        batch = predictor.tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt")
        with torch.inference_mode():
            inputs = [batch[name] for name in predictor.tokenizer.model_input_names if name in batch]
            assert (program(*inputs)[0] - predictor.model(**batch).logits).abs().max() <= 1e-6
    assert "tensor([[" in printed(done.script, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "apart", "regression", "multilabel", "tokens", "pooled"])
def test_every_kind_is_exported(sources: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    folder = train_small(sources, kind)
    done = export_run(folder)  # which compares all outputs
    assert printed(done.script, capsys)


def test_what_cannot_be_exported_is_one_sentence(
    sources: Path, compressed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unlabelled = write_csv(tmp_path / "x.csv", [("a",)], header=["text"])
    for words, sentence in (
        ([str(sources / "model")], "has no record.json"),
        ([str(compressed), "--to", "coreml"], "to is 'coreml'; it must be one of 'onnx', 'torch'"),
        ([str(compressed), "--to", "torch", "--int8"], "int8 is for ONNX"),
        ([str(compressed), "--tolerance", "2"], "tolerance is 2.0"),
        ([str(compressed), "--overwrite", "--file", str(unlabelled)], "has no labels"),
    ):
        assert run(["export", *words]) == 2
        shown = capsys.readouterr().err
        assert sentence in shown
        assert "Traceback" not in shown
    monkeypatch.setattr(run_folder, "find_spec", lambda name: None)
    assert run(["export", str(compressed), "--overwrite"]) == 2
    assert "ONNX needs onnx and onnxscript and onnxruntime: pip install" in capsys.readouterr().err
    monkeypatch.setattr("attendrop.lab.cli.packages._is_installed", lambda module: module != "onnxruntime")
    assert run(["predict", str(compressed), TEXTS[0], "--engine", "onnx"]) == 2
    assert "onnxruntime, which is not installed: pip install 'attendrop[onnx]'" in capsys.readouterr().err
