"""Model soups: averages of the kept models of a comparison, against a literal version, and wrong input."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from attendrop import load_classifier
from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs.predict import predict_texts
from attendrop.lab.studies.records import read_records
from attendrop.lab.studies.soup import make_soup
from attendrop.model.pooled import pooled_class
from attendrop.utils.manifest import MANIFEST_FILE
from helpers.cli_tools import save_encoder, sentences, write_csv

pytestmark = pytest.mark.xdist_group("soup")

RDROP = "rdrop:alpha=1"
SEEDS = 4


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with a validation and a test file whose models are kept, and whose runs share their head."""
    folder = tmp_path_factory.mktemp("soup")
    rows = sentences(48, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    names = {"train": rows, "validation": sentences(40, seed=2), "test": sentences(40, seed=3)}
    files = [
        word for name, of in names.items() for word in (f"--{name}-file", str(write_csv(folder / f"{name}.csv", of)))
    ]
    more = ["--num-train-epochs", "4", "--learning-rate", "3e-3", "--per-device-train-batch-size", "8", "--use-cpu"]
    words = [
        "--model",
        str(folder / "model"),
        *files,
        *more,
        "--method",
        RDROP,
        "--seeds",
        str(SEEDS),
        "--workers",
        "0",
    ]
    assert run(["compare", *words, "--same-head", "--keep-models", "--output-dir", str(folder / "study")]) == 0
    return folder / "study"


def kept(study: Path, method: str) -> dict[int, dict[str, torch.Tensor]]:
    """Seed -> the weights of its run, from the file."""
    records = [record for record in read_records(study).values() if record.method == method]
    folders = {record.seed: study / "models" / record.id for record in records}
    return {seed: load_file(folders[seed] / "model.safetensors") for seed in sorted(folders)}


def literal_scores(study: Path, weights: Sequence[dict[str, torch.Tensor]], file: str) -> tuple[float, float]:
    """Accuracy and loss of the average of weights, text by text, without anything of the package."""
    model = load_classifier(next((study / "models").iterdir()))
    average = {name: sum(of[name].double() for of in weights) / len(weights) for name in weights[0]}
    model.load_state_dict(average, strict=False)
    tokenizer = AutoTokenizer.from_pretrained(study.parent / "model")
    lines = (study.parent / f"{file}.csv").read_text().splitlines()[1:]
    correct, losses = [], []
    for text, label in (line.rsplit(",", 1) for line in lines):
        with torch.no_grad():
            logits = model.eval()(**tokenizer(text, return_tensors="pt")).logits[0]
        gold = model.config.label2id[label]
        correct.append(int(logits.argmax()) == gold)
        losses.append(float(-logits.log_softmax(-1)[gold]))
    return sum(correct) / len(correct), sum(losses) / len(losses)


def test_soups_are_those_of_a_literal_version(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = kept(study, RDROP)
    assert len(weights) == SEEDS
    uniform = make_soup(study, tmp_path / "uniform", "uniform", RDROP)
    saved = load_file(tmp_path / "uniform" / "model.safetensors")
    for name, tensor in saved.items():
        assert torch.equal(tensor, (sum(of[name].double() for of in weights.values()) / SEEDS).to(tensor.dtype))
    for part in ("validation", "test"):
        accuracy, loss = literal_scores(study, list(weights.values()), part)
        assert uniform.scores[part]["accuracy"] == pytest.approx(accuracy)
        assert uniform.scores[part]["loss"] == pytest.approx(loss, rel=1e-4)

    for record in read_records(study).values():  # the kept weights are those that were scored
        if record.method == RDROP:
            assert uniform.members[record.seed]["validation"] == pytest.approx(record.scores["validation"])

    singles = {seed: literal_scores(study, [of], "validation") for seed, of in weights.items()}
    order = sorted(singles, key=lambda seed: (-singles[seed][0], singles[seed][1]))
    chosen: list[int] = []
    best = 0.0
    for seed in order:
        accuracy = literal_scores(study, [weights[s] for s in (*chosen, seed)], "validation")[0]
        if accuracy > best:
            chosen, best = [*chosen, seed], accuracy
    words = ["--method", RDROP, "--kind", "greedy", "--output-dir", str(tmp_path / "greedy")]
    assert run(["soup", str(study), *words]) == 0
    record = json.loads((tmp_path / "greedy" / "record.json").read_text())
    assert record["soup"]["seeds"] == chosen
    assert record["scores"]["validation"]["accuracy"] == pytest.approx(best)
    assert best >= singles[order[0]][0]
    shown = " ".join(capsys.readouterr().out.split())
    assert "The runs were chosen by their scores on validation; those scores are optimistic." in shown
    assert "Warning" not in shown

    # The folder is that of any model.
    text, label = next(iter(predict_texts(tmp_path / "greedy", ["a good film"])))
    assert (text, label in ("good", "bad")) == ("a good film", True)
    loaded = load_classifier(tmp_path / "greedy")
    assert torch.equal(
        loaded.pooled_head.weight, load_file(tmp_path / "greedy" / "model.safetensors")["pooled_head.weight"]
    )
    assert "model soup" in (tmp_path / "greedy" / "README.md").read_text()
    with pytest.raises(UserError, match="not empty"):
        make_soup(study, tmp_path / "greedy", "greedy", RDROP)


def changed(study: Path, copy: Path, change: Any) -> Path:
    shutil.copytree(study, copy)
    records = sorted((r for r in read_records(copy).values() if r.method == RDROP), key=lambda r: r.seed)
    change(copy, [record.id for record in records])
    return copy


def another_depth(study: Path, ids: list[str]) -> None:
    path = study / "models" / ids[1] / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] - 1}))


def another_depth_without_a_seal(study: Path, ids: list[str]) -> None:
    another_depth(study, ids)
    (study / "models" / ids[1] / MANIFEST_FILE).unlink()


def another_architecture(study: Path, ids: list[str]) -> None:
    another_depth_without_a_seal(study, ids)
    place = study / "models" / ids[1]
    pooled_class(config := AutoConfig.from_pretrained(place))(config).save_pretrained(place)


def swapped_models(study: Path, ids: list[str]) -> None:
    first, second, third = (study / "models" / name for name in (ids[0], ids[1], "third"))
    for source, target in ((first, third), (second, first), (third, second)):
        source.rename(target)


def one_run(study: Path, ids: list[str]) -> None:
    for run_id in ids[1:]:
        (study / "runs" / f"{run_id}.json").unlink()


def a_broken_file(study: Path, ids: list[str]) -> None:
    path = study / "models" / ids[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda study, ids: None, {"method": None}, "several values of method; choose one with --method"),
        (lambda study, ids: None, {"method": "mixout"}, "method is 'mixout'; it must be one of"),
        (lambda study, ids: None, {"kind": "best"}, "kind is 'best'; it must be one of 'uniform', 'greedy'"),
        (lambda study, ids: shutil.rmtree(study / "models"), {}, "has no models of its runs"),
        (lambda study, ids: shutil.rmtree(study / "models" / ids[0]), {}, f"the models of 1 of the {SEEDS} runs"),
        (one_run, {}, "a soup needs at least two"),
        (another_depth, {}, "config.json has .* bytes and was written with"),
        (another_depth_without_a_seal, {}, "in its weights and not in the model"),
        (swapped_models, {}, "holds the model of run"),
        (another_architecture, {}, "models of different architectures cannot be averaged"),
        (a_broken_file, {}, "model"),
    ],
)
def test_models_that_cannot_be_averaged_raise_one_line_errors(
    change: Any, options: dict[str, Any], words: str, study: Path, tmp_path: Path
) -> None:
    copy = changed(study, tmp_path / "study", change)
    with pytest.raises(UserError, match=words) as error:
        make_soup(copy, tmp_path / "out", **{"kind": "uniform", "method": RDROP, **options})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_greedy_leaves_out_a_run_with_which_the_score_stays_the_same(study: Path, tmp_path: Path) -> None:
    def equal_weights(copy: Path, ids: list[str]) -> None:
        for run_id in ids:
            (copy / "models" / run_id / MANIFEST_FILE).unlink()
        for run_id in ids[1:]:
            shutil.copy(copy / "models" / ids[0] / "model.safetensors", copy / "models" / run_id)

    soup = make_soup(changed(study, tmp_path / "study", equal_weights), tmp_path / "out", "greedy", RDROP)
    assert len(soup.seeds) == 1


def test_an_error_advises_no_flag_that_the_command_lacks(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert run(["soup", str(study), "--output-dir", str(tmp_path), "--method", RDROP]) == 2
    shown = capsys.readouterr().err
    assert "which is not empty" in " ".join(shown.split())
    assert set(re.findall(r"--[a-z-]+", shown)) == {"--output-dir"}


def test_a_soup_of_a_study_whose_tokenizer_has_changed_is_refused(study: Path, tmp_path: Path) -> None:
    path = study.parent / "model" / "tokenizer_config.json"
    before = path.read_bytes()
    path.write_text(json.dumps({**json.loads(before), "model_max_length": 17}))
    try:
        with pytest.raises(UserError, match="the tokenizer of the model .* changed after runs of the study"):
            make_soup(study, tmp_path / "out", "uniform", RDROP)
    finally:
        path.write_bytes(before)


def test_a_soup_of_a_study_whose_file_has_changed_is_refused(study: Path, tmp_path: Path) -> None:
    path = study.parent / "validation.csv"
    before = path.read_bytes()
    write_csv(path, sentences(40, seed=9))
    try:
        with pytest.raises(UserError, match="the file '.*validation.csv' changed after runs of the study"):
            make_soup(study, tmp_path / "out", "uniform", RDROP)
    finally:
        path.write_bytes(before)


def test_heads_that_were_initialised_differently_are_warned_about(study: Path, tmp_path: Path) -> None:
    def forget(copy: Path, ids: list[str]) -> None:
        for run_id in ids:
            path = copy / "runs" / f"{run_id}.json"
            record = json.loads(path.read_text())
            del record["checksum"], record["head_seed"]
            path.write_text(json.dumps(record))

    soup = make_soup(changed(study, tmp_path / "study", forget), tmp_path / "out", "uniform", RDROP)
    assert soup.sentences[-1].startswith("Warning: each run began with a head of its own")


def test_models_that_cannot_be_kept_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attendrop.lab.cli.packages._is_installed", lambda module: True)
    words = ["--model", "m", "--task", "glue/rte", "--method", "addrop", "--keep-models"]
    assert run(["compare", *words, "--engine", "ray"]) == 2
    assert "it needs --engine local" in " ".join(capsys.readouterr().err.split())
    assert run(["compare", *words, "--lora", "--quantize", "8bit"]) == 2
    assert "quantised weights cannot be averaged" in " ".join(capsys.readouterr().err.split())
