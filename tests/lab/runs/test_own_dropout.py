"""`--dropout` and `--attention-dropout`: the model's own dropout, in every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn
from transformers import AutoConfig, AutoModel

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs import fine_tune, make_config
from attendrop.lab.runs.folder import read_record
from attendrop.lab.studies.compare import compare
from attendrop.lab.studies.design import make_design
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.studies.records import read_records
from attendrop.lab.tasks.dropout import set_dropout
from helpers import zoo
from helpers.cli_tools import save_encoder, sentences, write_csv

pytestmark = pytest.mark.xdist_group("own_dropout")

FAMILIES = ("bert", "roberta", "electra", "distilbert", "mpnet", "deberta-v2", "modernbert", "bart", "gpt2", "t5")
SHORT = {"num_train_epochs": 1, "seed": 5, "use_cpu": True, "no_baselines": True, "head_start": "random"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dropout")
    rows = sentences(24, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    return folder


def settings(workspace: Path, output: str, **more: Any) -> dict[str, Any]:
    files = {"model": str(workspace / "model"), "train_file": str(workspace / "train.csv")}
    return {**files, **SHORT, "output_dir": str(workspace / output), **more}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_dropout_is_left_in_the_model(family: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model(family)
    for name, value in {**sizes, "vocab_size": 32, "n_layer": 1, "n_embd": 16, "n_head": 2, "d_model": 16}.items():
        if name in config.to_dict() or name in config.attribute_map:
            setattr(config, name, value)
    config.pad_token_id = 0
    set_dropout(family, config, 0.0, None if family == "t5" else 0.0)
    model = AutoModel.from_config(config)
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} <= {0.0}
    rates = [value for name, value in config.to_dict().items() if "attention" in name and "drop" in name]
    assert not any(rates)


def test_what_a_model_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"attention_dropout is 0\.3, and the configuration of m \(t5\) has no such"):
        set_dropout("m", AutoConfig.for_model("t5"), None, 0.3)
    with pytest.raises(UserError, match="dropout is 1.0; it must be a number from 0 to below 1"):
        make_config({"model": "m", "task": "glue/rte", "dropout": 1})


def test_a_run_trains_with_it_records_it_and_resumes_with_it(workspace: Path) -> None:
    whole = settings(workspace, "none", dropout=0, attention_dropout=0, keep_checkpoints=True)
    result = fine_tune(**whole)
    config = result.model.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0, 0)
    written = yaml.safe_load((result.folder / "run.yaml").read_text())
    assert (written["dropout"], written["attention_dropout"]) == (0, 0)
    assert read_record(result.folder).settings["dropout"] == 0
    with pytest.raises(UserError, match=r"dropout is 0\.2 and was 0, .* when checkpoint-\d+ was written"):
        fine_tune(**{**whole, "dropout": 0.2, "num_train_epochs": 2}, resume=True)
    command = ["train", "--config", str(result.folder / "run.yaml"), "--output-dir", str(workspace / "again")]
    assert run(command) == 0
    assert read_record(workspace / "again").scores == read_record(result.folder).scores


def test_a_comparison_trains_with_it(workspace: Path, tmp_path: Path) -> None:
    base = settings(workspace, "unused", dropout=0, attention_dropout=0)
    del base["output_dir"], base["seed"]
    design = make_design(base, ["plain", "hype@dropout=0.4"])
    analysis = compare(design, tmp_path, make_executor(workers=0), seeds=1)
    assert analysis
    by_method = {record.method: record.settings for record in read_records(tmp_path).values()}
    assert by_method["plain"]["dropout"] == 0
    assert by_method["hype@dropout=0.4"]["dropout"] == 0.4


def test_pooled_models_have_it_too() -> None:
    model = zoo.make_model("pooled_regression")
    set_dropout("m", model.config, 0.0, 0.0)
    assert {m.p for m in type(model)(model.config).modules() if isinstance(m, nn.Dropout)} == {0.0}
