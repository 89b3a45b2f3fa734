"""LoRA, memory and the output folder of a run by name."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attendrop.errors import UserError
from attendrop.lab.records import StudyRecord
from attendrop.lab.runs import Listener, fine_tune, make_config
from attendrop.lab.runs.lora import load_for_training
from attendrop.lab.runs.memory import estimate_memory, out_of_memory_explained
from attendrop.lab.runs.predict import predict_texts
from attendrop.lab.runs.settings import all_settings
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.worker import Worker
from attendrop.lab.tasks import Task, load_files
from attendrop.lab.tasks.models import load_model
from helpers.cli_tools import attendrop, save_encoder, sentences, write_csv
from helpers.data import make_arguments

pytestmark = pytest.mark.xdist_group("adapters")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    rows = sentences(48, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", sentences(16, seed=2))
    pairs = [(text, "the film", label) for text, label in rows]
    write_csv(folder / "pairs.csv", pairs, ("first", "second", "label"))
    return folder


def settings_of(place: Path, **more: Any) -> dict[str, Any]:
    files = {"train_file": str(place / "train.csv"), "validation_file": str(place / "dev.csv")}
    short = {"num_train_epochs": 1, "learning_rate": 5e-3, "use_cpu": True}
    return {"model": str(place / "model"), **files, **short, **more}


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


# ---- LoRA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [[], ["addrop:p=0.5,q=0.5,layers=all"]])
def test_adapters_are_trained_and_merged_into_an_ordinary_model(place: Path, tmp_path: Path, method: list[str]) -> None:
    out = tmp_path / "out"
    chosen = {"lora": True, "lora_r": 2, "lora_targets": ["query", "value"], "method": method}
    notes = Notes()
    result = fine_tune(notes, **settings_of(place, **chosen, num_train_epochs=2), output_dir=str(out))
    assert (out / "config.json").is_file()
    assert not (out / "adapter_config.json").exists()
    assert any("LoRA of rank 2 in 4 linear layers" in note for note in notes.texts)
    base = dict(load_model(place / "model", _task(result)).named_parameters())
    trained = dict(load_model(out, _task(result), is_finished=True).named_parameters())
    assert base.keys() == trained.keys()
    changed = {name for name in base if not torch.equal(base[name], trained[name])}
    assert {name for name in changed if not name.startswith("pooled_head")} == {
        f"bert.encoder.layer.{layer}.attention.self.{part}.weight" for layer in (0, 1) for part in ("query", "value")
    }
    assert torch.linalg.matrix_rank(trained[_QUERY] - base[_QUERY], rtol=1e-4) == 2
    assert len(list(predict_texts(out, ["a fine film", "a dull film"]))) == 2


_QUERY = "bert.encoder.layer.0.attention.self.query.weight"


def _task(result: Any) -> Any:
    from attendrop.lab.tasks import Task

    return Task.from_dict(result.record.task_definition)


def test_a_worker_starts_adapters_anew_from_the_seed(place: Path, tmp_path: Path) -> None:
    worker = Worker("cpu")

    def run(seed: int, **more: Any) -> StudyRecord:
        return worker.run(RunSpec({**settings_of(place, **more), "seed": seed}, "plain", "train.csv", seed))

    first, other, plain, again = run(3, lora=True), run(4, lora=True), run(3), run(3, lora=True)
    assert first.scores == again.scores
    assert first.scores != other.scores
    assert first.scores != plain.scores
    result = fine_tune(
        **settings_of(place, lora=True, seed=3), output_dir=str(tmp_path / "run"),
        save_strategy="no", load_best_model_at_end=False,
    )  # fmt: skip
    # The scores of a run are those of the merged model, whose sums are rounded in another order.
    expected = first.scores["validation"]["loss"]
    assert result.scores["validation"]["loss"] == pytest.approx(expected, rel=1e-4)


def test_mistakes_with_adapters_raise_one_line_errors(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lora_r is 4, and lora is not given; add --lora"):
        make_config(settings_of(place, lora_r=4))
    with pytest.raises(UserError, match="quantize is '3bit'; it must be one of '4bit', '8bit'"):
        make_config(settings_of(place, lora=True, quantize="3bit"))
    with pytest.raises(UserError, match="lora_r is 0; it must be a whole number of at least 1"):
        make_config(settings_of(place, lora=True, lora_r=0))
    if find_spec("bitsandbytes") is None:
        with pytest.raises(UserError, match="quantize is '4bit', and bitsandbytes is not installed: pip install"):
            fine_tune(**settings_of(place, lora=True, quantize="4bit"), output_dir=str(tmp_path / "a"))
    with pytest.raises(UserError, match="lora_targets is 'q_proj', which is no linear layer .*; it has dense, key"):
        fine_tune(**settings_of(place, lora=True, lora_targets=["q_proj"]), output_dir=str(tmp_path / "b"))
    assert not list(tmp_path.iterdir())
    config = make_config(settings_of(place))
    assert make_config(config.settings()).settings() == config.settings()


def test_the_frozen_weights_are_quantised_and_the_head_is_not(place: Path, tmp_path: Path) -> None:
    """Runs where bitsandbytes is installed. Its 4 bits need wider layers on a CPU than this model has."""
    pytest.importorskip("bitsandbytes")
    settings = settings_of(place, lora=True, quantize="8bit", learning_rate=1e-2)
    model = load_for_training(make_config(settings), load_files(settings["train_file"]).task, None, [])
    types = {name: type(module).__name__ for name, module in model.named_modules()}
    assert types["base_model.model.classifier.modules_to_save.default"] == "Linear"
    assert types["base_model.model.bert.encoder.layer.0.attention.self.query.base_layer"] == "Linear8bitLt"
    result = fine_tune(**settings, output_dir=str(tmp_path / "out"))
    before, after = load_model(settings["model"], Task.from_dict(result.record.task_definition)), result.model
    name = "bert.encoder.layer.0.output.dense.weight"
    change = (after.get_parameter(name) - before.get_parameter(name)).detach().abs().max()
    assert 0 < change < 0.1  # the adapters alone: rounding is not part of the saved weights
    assert after.get_parameter(name).dtype == torch.float32


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_estimate_is_near_what_a_step_needs(place: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
    model = BertForSequenceClassification(config).train()
    batch, tokens = 8, 64
    arguments = make_arguments(tmp_path, per_device_train_batch_size=batch)
    estimate = estimate_memory(model, arguments, tokens)
    optimizer = torch.optim.AdamW(model.parameters())
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = {"input_ids": torch.ones(batch, tokens, dtype=torch.long), "labels": torch.zeros(batch, dtype=torch.long)}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    weights = sum(p.nbytes for p in model.parameters())
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())
    assert (estimate.parameters, estimate.gradients, estimate.optimizer) == (weights, weights, state)
    assert estimate.activations / 1.6 < sum(kept.values()) < estimate.activations * 1.6
    smaller = estimate_memory(model, make_arguments(tmp_path, gradient_checkpointing=True), tokens)
    assert smaller.activations < estimate.activations
    assert "rough estimate" in str(estimate)


def test_an_out_of_memory_error_names_the_flags_that_help(tmp_path: Path) -> None:
    arguments = make_arguments(tmp_path, per_device_train_batch_size=8)
    advice = "--per-device-train-batch-size 4 --gradient-accumulation-steps 2, --gradient-checkpointing, --bf16"
    with pytest.raises(UserError, match=advice), out_of_memory_explained(arguments):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with (
        pytest.raises(UserError, match="the machine has not enough memory.*--lora"),
        out_of_memory_explained(arguments),
    ):
        torch.empty(2**55, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="another"), out_of_memory_explained(arguments):
        raise RuntimeError("another")


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_a_finished_run_keeps_the_model_and_not_its_checkpoints(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = settings_of(place, output_dir=str(out))
    fine_tune(**settings)
    assert (out / "model.safetensors").is_file()
    assert not list(out.glob("checkpoint-*"))
    with pytest.raises(UserError, match="is finished, and its checkpoints were removed; repeat it with --overwrite"):
        fine_tune(**settings, resume=True)
    fine_tune(**settings, overwrite=True, keep_checkpoints=True)
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-3"]


def test_run_yaml_repeats_the_run_from_any_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    short = ["--learning-rate", "5e-3", "--num-train-epochs", "1", "--use-cpu", "--seed", "7"]
    columns = ["--text", "first", "--text-pair", "second", "--output-dir", "runs/pair"]
    done = attendrop("train", "--model", "model", "--train-file", "pairs.csv", *columns, *short)
    assert done.code == 0, done.err
    assert 'predict runs/pair "a text" "a second text"' in done.out
    assert "as a rough estimate" in done.out
    out = place / "runs" / "pair"
    written = yaml.safe_load((out / "run.yaml").read_text(encoding="utf-8"))
    assert (written["seed"], written["num_train_epochs"], written["optim"]) == (7, 1.0, "adamw_torch_fused")
    assert written["train_file"] == str(place / "pairs.csv")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert 'attendrop predict FOLDER "a text" "a second text"' in card
    command = next(line for line in card.splitlines() if "--config" in line).strip()
    monkeypatch.chdir(tmp_path)
    done = attendrop(*shlex.split(command.replace("NEW_FOLDER", "again"))[1:])
    assert done.code == 0, done.err
    assert (tmp_path / "again/model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    again = yaml.safe_load((tmp_path / "again/run.yaml").read_text(encoding="utf-8"))
    assert {**again, "output_dir": written["output_dir"]} == written
    of_the_call = {"resume", "resume_changed", "overwrite", "resume_from_checkpoint", "hub_token"}
    of_the_machine = {"run_name", "logging_dir", "local_rank", "ddp_backend", "dataloader_pin_memory"}
    made = {"accelerator_config", "debug"}  # objects that the library makes of its defaults
    assert all_settings().keys() - written.keys() <= of_the_call | of_the_machine | made
