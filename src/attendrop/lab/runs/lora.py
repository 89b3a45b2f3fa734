"""LoRA from the command line: adapters (peft) in a loaded model, and the ordinary model that they are merged into."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from typing import Any

from ...errors import UserError, on_one_line
from .. import tasks
from ..tasks.models import head_modules
from .settings import RunConfig


def load_for_training(config: RunConfig, task: tasks.Task, tokenizer: Any, notes: list[str]) -> Any:
    """Load the model of a run, with adapters if the run asks for them.

    The first weights of the adapters, like those of a new head, are drawn from the global random state.

    Args:
        config: The configuration.
        task: The task, whose kind selects the head.
        tokenizer: The tokenizer of the model.
        notes: A list to which sentences about the model are added.
    """
    check_libraries(config)
    model = tasks.load_model(
        config.model, task, trust_remote_code=config.trust_remote_code, tokenizer=tokenizer, notes=notes,
        quantization=_quantization(config), pooling=config.pooling, dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )  # fmt: skip
    if not config.lora:
        return model
    return _with_adapters(model, config, task, notes)


def check_libraries(config: RunConfig) -> None:
    """Refuse adapters and quantisation where their libraries are missing.

    Args:
        config: The configuration.
    """
    if config.lora and find_spec("peft") is None:
        raise UserError("lora is True, and peft is not installed: pip install 'attendrop[peft]'.")
    if config.quantize is not None and find_spec("bitsandbytes") is None:
        raise UserError(
            f"quantize is {config.quantize!r}, and bitsandbytes is not installed: pip install bitsandbytes."
        )


def merge_adapters(trainer: Any, config: RunConfig, task: tasks.Task) -> None:
    """Make the model of the Trainer an ordinary one after training, with the adapters added to its weights.

    Weights that were quantised for training are loaded again as they were before: adding to rounded weights would
    lose precision.

    Args:
        trainer: The Trainer, after training.
        config: The configuration.
        task: The task.
    """
    if not config.lora:
        return
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    trainer.model = trainer.model_wrapped = merged(model, config, task)


def merged(model: Any, config: RunConfig, task: tasks.Task) -> Any:
    """Return an ordinary model with the adapters added to its weights. The given model must not be used afterwards.

    Args:
        model: The trained model with adapters.
        config: The configuration.
        task: The task.
    """
    if config.quantize is not None:
        from peft import PeftModel

        device = model.device
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            base = tasks.load_model(
                config.model, task, trust_remote_code=config.trust_remote_code, pooling=config.pooling,
                dropout=config.dropout, attention_dropout=config.attention_dropout,
            )  # fmt: skip
            model = PeftModel.from_pretrained(base, folder).to(device)
    whole = model.merge_and_unload()
    for parameter in whole.parameters():
        parameter.requires_grad_(True)
    return whole


def _quantization(config: RunConfig) -> Any:
    """Return how transformers loads the frozen weights; None = as they are."""
    if config.quantize is None:
        return None
    import torch
    from transformers import BitsAndBytesConfig

    if config.quantize == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    dtype = torch.bfloat16 if config.training.get("bf16") else torch.float32
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def _with_adapters(model: Any, config: RunConfig, task: tasks.Task, notes: list[str]) -> Any:
    import peft

    if config.quantize is not None:
        model = peft.prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=bool(config.training.get("gradient_checkpointing"))
        )
    heads = head_modules(model) if tasks.kind_of(task).has_new_head else []
    targets = _targets(model, heads, config.lora_targets)
    settings = peft.LoraConfig(
        r=config.lora_r,
        lora_alpha=2 * config.lora_r if config.lora_alpha is None else config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets,
        modules_to_save=heads or None,
    )
    try:
        adapted = peft.get_peft_model(model, settings)
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"LoRA does not work with {config.model}: {on_one_line(error)}.") from None
    if config.training.get("gradient_checkpointing"):
        adapted.enable_input_require_grads()  # frozen embeddings would cut the graph at the first checkpoint
    trained, everything = adapted.get_nb_trainable_parameters()
    notes.append(
        f"LoRA of rank {config.lora_r} in {len(targets)} linear layers: {trained:,} of {everything:,} parameters are "
        "trained"
    )
    return adapted


def _targets(model: Any, heads: list[str], wanted: list[str]) -> list[str]:
    """Return the names of the linear layers that get an adapter."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    output = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and name.split(".")[0] not in heads and module is not output
    ]
    for target in wanted:
        if not any(_is_called(name, target) for name in linear):
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise UserError(
                f"lora_targets is {target!r}, which is no linear layer of this model; it has {', '.join(known)}."
            )
    return [name for name in linear if not wanted or any(_is_called(name, target) for target in wanted)]


def _is_called(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
