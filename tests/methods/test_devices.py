"""Methods create their tensors on the device of the model.

Checked on torch's meta device, which has shapes but no values: like a GPU, it refuses tensors of another device.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers.masking_utils

from attendrop import Engine, Loop
from attendrop.methods import make_method
from helpers import zoo
from helpers.settings import SETTINGS, bert_for

# They read a value on the host: whether something is finite, all True, or equal.
READS_VALUES = {"concrete_dropout", "rdrop", "softtriple", "structure_mask", "supertickets"}


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in READS_VALUES])
def test_every_method_creates_its_tensors_on_the_device_of_the_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.masking_utils, "is_tracing", lambda *_: True)  # it would look for padding
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which meta has not
    model = zoo.make_model(bert_for(name)).train().to("meta")
    model.config.problem_type = "single_label_classification"
    batch: dict[str, Any] = zoo.make_batch("bert")
    batch = {key: value.to("meta") for key, value in (batch | SETTINGS[name].columns(batch, "usual")).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loop = Loop(optimizer, 1.0, examples=lambda *_: batch)
    method = make_method(name, dict(SETTINGS[name].usual))
    with Engine(model, [method], epochs=2, loop=loop) as engine:
        for _ in range(2):
            with engine.micro_batch(batch) as inputs:
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_optimizer()


def test_meta_device_refuses_tensors_of_another_device() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, device="meta") * torch.ones(2)
