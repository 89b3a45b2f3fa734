"""Captured steps of every method, recorded and replayed on the CPU (helpers/recorded.py), match eager steps.

The GPU's own graphs are tested in test_captured.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import TrainingArguments, masking_utils

from attendrop import RegularizedTrainer
from attendrop.capture.forward_patches import capturable
from attendrop.capture.measured_plans import MeasuredPlans
from attendrop.methods import method_names
from helpers import zoo
from helpers.captured import CAPTURED, make_methods
from helpers.recorded import RecordedGraphs, Tape, recorded_steps  # noqa: F401
from helpers.settings import SETTINGS, bert_for

CASES = [(name, text) for name, texts in CAPTURED.items() for text in texts]
# Further settings of a method are among the slow tests.
PARAMETERS = [
    pytest.param(name, text, id=text, marks=() if text == CAPTURED[name][0] else pytest.mark.slow)
    for name, text in CASES
]
OTHER_MODELS = [
    pytest.param("deberta_v2"),
    pytest.param("pooled"),
    pytest.param("pooled_pairs"),
    pytest.param("pooled_regression"),
    pytest.param("llama"),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("mpnet", "bart", "marian", "t5")),
]


def test_every_method_has_a_recorded_setting() -> None:
    assert sorted(CAPTURED) == method_names()


def train(folder: Any, kind: str, name: str, text: str, capture: str, data: Any = None, **options: Any) -> Any:
    usual = {
        "per_device_train_batch_size": 4, "num_train_epochs": 2, "logging_steps": 5, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True, "learning_rate": 1e-3, "use_cpu": True, "seed": 3,
    }  # fmt: skip
    batch = zoo.make_batch(kind, size=16, length=16, seed=4)
    batch |= SETTINGS[name].columns(batch, "usual")
    data = data or [{k: v[i] for k, v in batch.items()} for i in range(16)]
    trainer = RegularizedTrainer(
        model=zoo.make_model(
            kind, dropout=kind.startswith("bert")
        ).double(),  # in float32 Adam makes steps of gradients that are rounding alone
        args=TrainingArguments(folder, **usual | options),
        train_dataset=data,
        regularizers=make_methods(text),
        capture=capture,
    )
    trainer.train()
    assert trainer.capture.gave_up is None
    return trainer


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize(("name", "text"), PARAMETERS)
def test_recorded_steps_match_eager(name: str, text: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2} if CASES.index((name, text)) % 3 == 0 else {}
    if name == "l2_sp":  # the gradient of a key's bias is rounding alone, which Adam would enlarge to steps
        options["adam_epsilon"] = 1e-3
    kind = bert_for(name)
    eager, recorded = (train(tmp_path, kind, name, text, capture, **options) for capture in ("eager", "captured"))
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-6), key


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize("name", ["scal", "attention_layerdrop"])
@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_recorded_steps_match_eager_on_other_models(kind: str, name: str, tmp_path: Any) -> None:
    text = CAPTURED[name][0]
    eager, recorded = (train(tmp_path, kind, name, text, capture) for capture in ("eager", "captured"))
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-6), key


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize("name", ["scal", "hiddencut", "unidrop"])
def test_recorded_checkpointing_matches_eager(name: str, tmp_path: Any) -> None:
    eager, recorded = (
        train(tmp_path, "llama", name, CAPTURED[name][0], capture, gradient_checkpointing=True)
        for capture in ("eager", "captured")
    )
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-6), key


@pytest.mark.usefixtures("recorded_steps")
def test_recorded_steps_clip_measure_and_count_as_eager_ones(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_grad_norm": 0.01, "optim": "sgd", "logging_steps": 1}  # Adam would hide a wrong factor
    eager = train(tmp_path, "bert", "addrop", "addrop:p=0.5,q=0.5,layers=all,cross_tuning=false", "eager", **options)
    plans = []
    captured = MeasuredPlans._captured
    monkeypatch.setattr(MeasuredPlans, "_captured", lambda *args: plans.append(1) or captured(*args))
    recorded = train(
        tmp_path, "bert", "addrop", "addrop:p=0.5,q=0.5,layers=all,cross_tuning=false", "captured", **options
    )
    assert len(plans) == 7  # all of the eight but the first one
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-9), key
    lines = [[line for line in t.state.log_history if "grad_norm" in line] for t in (eager, recorded)]
    assert min(line["grad_norm"] for line in lines[0]) > 0.01
    assert any(name.startswith("addrop/drop_rate") for name in lines[0][-1])
    for one, other in zip(*lines, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    assert recorded.state.total_flos == eager.state.total_flos > 0


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_mask_is_left_out_without_padding(kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = zoo.make_batch(kind, size=10, length=16, seed=4)
    batch["attention_mask"].fill_(1)
    batch["attention_mask"][:4, 12:] = 0
    batch["input_ids"].clamp_(min=3)
    data = [{k: v[i] for k, v in batch.items()} for i in range(10)]
    masks = []
    static_batch = RecordedGraphs.static_batch

    def watched(self: Any, batch: Any) -> Any:
        masks.append("attention_mask" in batch)
        return static_batch(self, batch)

    monkeypatch.setattr(RecordedGraphs, "static_batch", watched)
    monkeypatch.setattr("attendrop.capture.batches.MASK_FREE_FROM", 1)
    options = {"num_train_epochs": 3, "train_sampling_strategy": "sequential", "dataloader_num_workers": 1}
    eager, recorded = (
        train(tmp_path, kind, "scores_dropout", "scores_dropout:p=0.3", capture, data, **options)
        for capture in ("eager", "captured")
    )
    assert masks == 3 * [True, False, False]  # the last one has two examples
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-6), key


def test_tape_refuses_operations_that_a_graph_cannot_capture() -> None:
    x = torch.arange(4.0)
    for work in (
        lambda: float(x[0]),
        lambda: bool(x[0] > 0),
        lambda: x[x > 1],
        lambda: (x > 1).nonzero(),
        lambda: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    ):
        with pytest.raises(RuntimeError, match="not allowed during a capture"), Tape():
            work()
    with Tape() as tape:
        y = x * 2 + x.sum()
    x.add_(1)
    tape.replay()
    assert torch.equal(y, x * 2 + x.sum())


def test_a_batch_without_padding_has_no_mask_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes a mask during a capture, before version 5.18 also for a batch that has none."""
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    assert masking_utils.is_tracing(None)
    with capturable(zoo.make_model("bert")):
        assert not masking_utils.is_tracing(None)
        assert masking_utils.is_tracing(torch.ones(2, 3))  # its values cannot be read
    assert masking_utils.is_tracing(None)
