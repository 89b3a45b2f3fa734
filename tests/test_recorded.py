"""Captured steps of every method, recorded and replayed on the CPU (helpers/recorded.py), match eager steps.

The GPU's own graphs are tested in test_captured.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from attendrop import RegularizedTrainer
from attendrop.methods import method_names, parse_method
from helpers import zoo
from helpers.recorded import Tape, recorded_steps  # noqa: F401
from helpers.settings import SETTINGS

# A usual setting of each method, other ways in which it works, and strengths that change from step to step.
METHODS = {
    "addrop": ["addrop:p=0.4,q=0.5,layers=all", "addrop:attribution=rd,layers=all,cross_tuning=False"],
    "attendout": ["attendout:T=3,samples=6,reward_on=cached,active=0.5,init_drop=0.4"],
    "attention_dropout": ["attention_dropout:p=0.3", "attention_dropout:p=0.1..0.5,renormalise=True,pattern=span"],
    "attention_layerdrop": ["attention_layerdrop:p=0.5", "attention_layerdrop:p=0..0.8"],
    "child_tuning": ["child_tuning:p=0.4", "child_tuning:p=0.3..0.9", "child_tuning:variant=D,p=0.5,samples=4"],
    "concrete_dropout": ["concrete_dropout:init=0.3,lr=0.05"],
    "dropconnect": ["dropconnect:p=0.3", "dropconnect:p=0..0.5"],
    "drophead": ["drophead:p=0.4", "drophead:p=0.3,schedule=constant"],
    "headmask": ["headmask:share=0.1..0.6,by=importance", "headmask:n=3", "headmask:share=0..0.5"],
    "hiddencut": ["hiddencut:ratio=0.1..0.6,weight=0..2", "hiddencut:by=gradient,ratio=0.3", "hiddencut:by=random"],
    "layerdrop": ["layerdrop:p=0.5", "layerdrop:p=0..0.9"],
    "mixout": ["mixout:p=0.7", "mixout:p=0.1..0.6,pattern=element"],
    "noisytune": ["noisytune:strength=0.5"],
    "r3f": ["r3f:epsilon=0.5,weight=0..5", "r3f:noise=normal,epsilon=0.1"],
    "rdrop": ["rdrop", "rdrop:alpha=0..3"],
    "scal": ["scal:epsilon=0.5,alpha=0.2", "scal:epsilon=0..1,alpha=0..1"],
    "scheduled_dropout": ["scheduled_dropout", "scheduled_dropout:start=0.3,slopes=[0.2,-0.6]"],
    "scores_dropout": ["scores_dropout:p=0.3", "scores_dropout:p=0..0.5,pattern=element"],
    "structure_mask": ["structure_mask"],
    "supertickets": ["supertickets"],
    "unidrop": ["unidrop:p_k=0.2,p_d=0.3", "unidrop:fd1=0..0.3,fd2=0.1..1,layerdrop=0..0.5,p_d=0.5..0.1"],
}
CASES = [(name, text) for name, texts in METHODS.items() for text in texts]


def test_every_method_is_here() -> None:
    assert sorted(METHODS) == method_names()


def make_method(name: str, text: str) -> Any:
    if name == "supertickets":
        from attendrop.methods import make_method

        return make_method(name, SETTINGS[name].usual)
    return parse_method(text)


def train(folder: Any, kind: str, name: str, text: str, step: str, **options: Any) -> Any:
    usual = {
        "per_device_train_batch_size": 4, "num_train_epochs": 2, "logging_steps": 5, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True, "learning_rate": 1e-3, "use_cpu": True, "seed": 3,
    }  # fmt: skip
    batch = zoo.make_batch(kind, size=16, length=16, seed=4)
    batch |= SETTINGS[name].columns(batch, "usual")
    data = [{k: v[i] for k, v in batch.items()} for i in range(16)]
    trainer = RegularizedTrainer(
        model=zoo.make_model(kind).double(),  # in float32 Adam makes steps of gradients that are rounding alone
        args=TrainingArguments(folder, **usual | options),
        train_dataset=data,
        regularizers=[make_method(name, text)],
        step=step,
    )
    trainer.train()
    assert trainer.steps.gave_up is None
    return trainer


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize(("name", "text"), CASES, ids=[text for _, text in CASES])
def test_recorded_steps_match_eager(name: str, text: str, tmp_path: Any) -> None:
    options = {"gradient_accumulation_steps": 2} if CASES.index((name, text)) % 3 == 0 else {}
    eager, recorded = (train(tmp_path, "bert", name, text, step, **options) for step in ("eager", "captured"))
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-6), key


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize("name", ["addrop", "hiddencut", "attention_layerdrop"])
@pytest.mark.parametrize("kind", ["mpnet", "deberta_v2", "bart", "marian", "llama", "t5"])
def test_recorded_steps_match_eager_on_other_models(kind: str, name: str, tmp_path: Any) -> None:
    text = METHODS[name][0]
    eager, recorded = (train(tmp_path, kind, name, text, step) for step in ("eager", "captured"))
    for key, value in weights_of(eager).items():
        assert torch.allclose(weights_of(recorded)[key], value, atol=1e-6), key


def test_tape_refuses_what_a_graph_cannot_have() -> None:
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
