"""Mistakes of the user raise a `ValueError` before training starts that names field, value and what is allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import TrainingArguments

from attendrop import ADDrop, Engine, RegularizedTrainer, attribute, load_regularizers, parse_method
from attendrop.lab.report.masks import main as draw
from helpers import zoo
from helpers.forks import run_python
from helpers.traces import traces


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p": 1.5}, r"ADDrop\.p is 1\.5; it must be from 0 to 1"),
        ({"p": -0.1}, r"ADDrop\.p is -0\.1"),
        ({"q": 2}, r"ADDrop\.q is 2"),
        ({"q": float("nan")}, r"ADDrop\.q is nan"),
        ({"q": "much"}, r"ADDrop\.q is 'much'; it must be a number from 0 to 1"),
        ({"q": "0.1..1.5"}, r"ADDrop\.q is .*must be from 0 to 1"),
        ({"attribution": "lime"}, r"ADDrop\.attribution is 'lime'; it must be one of 'ga', 'iga', 'aa', 'rd'"),
        ({"label": "silver"}, r"ADDrop\.label is 'silver'.*'pseudo', 'gold'"),
        ({"direction": "up"}, r"ADDrop\.direction is 'up'.*'high', 'low'"),
        ({"end_on": "x"}, r"ADDrop\.end_on is 'x'.*'plain'"),
        ({"cross_tuning": "maybe"}, r"ADDrop\.cross_tuning is 'maybe'"),
        ({"ig_rule": "simpson"}, r"ADDrop\.ig_rule is 'simpson'"),
        ({"ig_steps": 0}, r"ADDrop\.ig_steps is 0; .*at least 1"),
    ],
)
def test_fields_of_addrop_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADDrop(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adrop", "method is 'adrop' .did you mean 'addrop'.*; it must be one of addrop"),
        ("addrop:r=0.3", "method 'addrop' has no field 'r'; its fields are p, q, layers"),
        ("addrop:p", "has 'p'; fields are written name=value"),
        ("addrop:p=0.3,,q=1", "fields are written name=value"),
        ("addrop:p=3", r"ADDrop\.p is 3"),
    ],
)
def test_parse_method_names_the_mistake(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text)


def test_parse_method_reads_every_kind_of_value() -> None:
    assert parse_method("addrop") == ADDrop()
    actual = parse_method("addrop:p=0.2, q=0.1..0.5, layers=[0, 1], cross_tuning=false, attribution=iga, ig_steps=5")
    assert actual == ADDrop(p=0.2, q="0.1..0.5", layers=[0, 1], cross_tuning=False, attribution="iga", ig_steps=5)
    assert parse_method("addrop:layers=0:2").layers == slice(0, 2)


def make_trainer(tmp_path, model=None, regularizer=None, drop=(), examples=4, **arguments) -> RegularizedTrainer:
    batch = zoo.make_batch("bert", size=examples)
    data = [{k: v[i] for k, v in batch.items() if k not in drop} for i in range(examples)]
    args = TrainingArguments(
        tmp_path / "run", use_cpu=True, report_to=[], disable_tqdm=True, **{"num_train_epochs": 2, **arguments}
    )
    return RegularizedTrainer(
        model=model or zoo.make_model("bert"), args=args, train_dataset=data, regularizers=[regularizer or ADDrop()]
    )


@pytest.mark.parametrize(
    ("regularizer", "message"),
    [
        (ADDrop(layers=[7]), r"ADDrop\.layers is \[7\], but there is no layer 7; this model has layers 0 to 1"),
        (ADDrop(layers="last"), r"ADDrop\.layers is 'last'; it must be 'first', 'all'"),
        (ADDrop(layers=slice(5, 9)), r"selects no layer; this model has layers 0 to 1"),
        ("adrop", r"method is 'adrop' \(did you mean 'addrop'\?\)"),
        (3, r"regularizers has 3, which is not a regulariser"),
        (ADDrop, r"which is not a regulariser"),
    ],
)
def test_trainer_refuses_bad_regularizers_when_it_is_created(tmp_path, regularizer, message: str) -> None:
    model = zoo.make_model("bert")
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, model, regularizer)
    assert traces(model) == []


def test_reentrant_checkpointing_is_refused(tmp_path) -> None:
    options = {"use_reentrant": True}
    with pytest.raises(ValueError, match="use_reentrant=True.*must be"):
        make_trainer(tmp_path, gradient_checkpointing=True, gradient_checkpointing_kwargs=options)
    model = zoo.make_model("bert").train()
    model.gradient_checkpointing_enable(options)
    with pytest.raises(ValueError, match="use_reentrant=True"):
        Engine(model, [ADDrop()], epochs=2)


def test_flash_attention_is_refused_by_the_trainer(tmp_path) -> None:
    model = zoo.make_model("bert")
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2"):
        make_trainer(tmp_path, model)


def test_missing_labels_are_refused_before_training(tmp_path) -> None:
    trainer = make_trainer(tmp_path, drop=["labels"])
    with pytest.raises(ValueError, match="train_dataset gives batches with attention_mask, input_ids and no label"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert traces(trainer.model) == []


def test_cross_tuning_with_one_epoch_is_refused(tmp_path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=1)
    with pytest.raises(
        ValueError, match=r"training has 1 epoch .* at least 2 epochs .*or set ADDrop\(cross_tuning=False"
    ):
        trainer.train()
    assert traces(trainer.model) == []


def test_model_in_eval_mode_is_refused() -> None:
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert")
    engine = Engine(model, [ADDrop(cross_tuning=False)])
    with (
        pytest.raises(ValueError, match="BertForSequenceClassification is in eval mode.*model.train()"),
        engine.micro_batch(batch),
    ):
        pass


def test_attribution_without_needed_labels_is_refused() -> None:
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert")
    del batch["labels"]
    with pytest.raises(ValueError, match="the batch has no labels .*label='gold' needs"):
        attribute(model, batch, label="gold")
    with pytest.raises(ValueError, match="method is 'lime'"):
        attribute(model, batch, method="lime")
    with pytest.raises(ValueError, match="label is 'silver'"):
        attribute(model, batch, label="silver")
    model, batch = zoo.make_model("regression").eval(), zoo.make_batch("regression")
    del batch["labels"]
    with pytest.raises(ValueError, match="the batch has no labels .*regression needs"):
        attribute(model, batch)


def test_model_without_a_head_is_refused() -> None:
    model = zoo.make_model("bert").bert
    with pytest.raises(ValueError, match="BertModel has no head whose prediction is known; supported are"):
        Engine(model, [ADDrop()], epochs=2)
    assert traces(model) == []


def test_folder_without_a_configuration_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"regularizers\.json does not exist"):
        load_regularizers(tmp_path)


def test_drawing_command_fails_with_one_line_error(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["hello", "--model", str(tmp_path / "none")], ["hello", "--p", "3"], [" "]):
        with pytest.raises(SystemExit, match="2"):
            draw(arguments)
        assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: ")
    done = run_python("-m", "attendrop.lab.report.masks", " ")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_importing_attendrop_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, attendrop; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert torch is not None
