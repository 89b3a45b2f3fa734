"""Tests that need a GPU: the same draws and masks as on the CPU, and fp16 with loss scaling."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainingArguments

from attendrop import ADDrop, DropHead, NEFTune, RDrop, RegularizedTrainer, attribute
from attendrop.kernels.attribution_mask import keep_mask
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import zoo
from helpers.data import SGD, largest_difference, weights_of
from helpers.trainers import KINDS, make_trainer

pytestmark = pytest.mark.gpu


def test_draws_and_masks_match_the_cpu() -> None:
    key, positions = key_of(3, 14, 2), torch.tensor([0, 5, 900])
    draws = uniform(key, positions, (4, 33, 33))
    assert torch.equal(draws, uniform(key, positions, (4, 33, 33), "cuda").cpu())
    scores = torch.randn(3, 4, 33, 33, generator=torch.Generator().manual_seed(0))
    valid = torch.arange(33) < torch.tensor([33, 20, 1]).view(3, 1, 1, 1)
    for direction in ("high", "low"):
        cpu = keep_mask(scores, valid, 0.4, 0.6, draws, direction)
        gpu = keep_mask(scores.cuda(), valid.cuda(), 0.4, 0.6, draws.cuda(), direction)
        assert torch.equal(cpu, gpu.cpu())


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize("kind", ["bert", "llama", "t5", "mpnet", "deberta_v2"])
def test_half_precision_training_stays_finite(kind: str, strength: float, precision: str, tmp_path) -> None:
    batch = zoo.make_batch(kind, size=16, seed=4)
    data = [{k: v[i] for k, v in batch.items()} for i in range(16)]
    args = TrainingArguments(
        tmp_path, max_steps=30, per_device_train_batch_size=4, logging_steps=1, logging_nan_inf_filter=False,
        save_strategy="no", report_to=[], disable_tqdm=True, **{precision: True},
    )  # fmt: skip
    model = zoo.make_model(kind)
    before = {name: p.detach().clone().cpu() for name, p in model.named_parameters()}
    method = ADDrop(p=strength, q=strength, layers="all", cross_tuning=False)
    trainer = RegularizedTrainer(model=model, args=args, train_dataset=data, regularizers=[method])
    trainer.train()
    losses = torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses) == 30
    assert losses.isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(p.cpu(), before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attribution_in_half_precision_correlates_with_float32(dtype: torch.dtype) -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval().cuda(), zoo.make_batch("bert")
    batch = {name: value.cuda() for name, value in batch.items()}
    exact = attribute(model, batch)
    with torch.autocast("cuda", dtype=dtype):
        half = attribute(model, batch)
    for layer, values in exact.items():
        assert half[layer].isfinite().all()
        pair = torch.stack([values.flatten(), half[layer].float().flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.99


def test_sft_trainer_with_liger_kernels_trains_as_without(tmp_path) -> None:
    """Its kernels for norms, feed-forwards and positions stay outside of what plans change."""
    pytest.importorskip("liger_kernel")

    def trained(methods: list | None, **options) -> dict[str, torch.Tensor]:
        trainer = make_trainer("sft", tmp_path, methods, max_steps=3, use_cpu=False, **{**SGD, **options})
        trainer.train()
        return weights_of(trainer.model)

    methods = [DropHead(0.5), RDrop(alpha=3.0), NEFTune()]
    plain, with_liger = trained(None), trained(methods, use_liger_kernel=True)
    assert largest_difference(trained(methods), with_liger) < largest_difference(plain, with_liger) / 100


@pytest.mark.parametrize("kind", KINDS)
def test_trainers_of_other_libraries_train(kind: str, tmp_path) -> None:
    def trained(methods: list) -> dict[str, torch.Tensor]:
        trainer = make_trainer(kind, tmp_path, methods, max_steps=3, use_cpu=False, **SGD)
        trainer.train()
        return weights_of(trainer.model)

    plain = trained([])
    assert all(bool(weight.isfinite().all()) for weight in plain.values())
    assert largest_difference(plain, trained([ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=False)])) > 1e-6
