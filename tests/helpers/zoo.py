"""Tiny models of every supported architecture and head, with padded batches. Real transformers classes throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

from attendrop.model.pooled import pooled_class

VOCABULARY = 60
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 40}
ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
CAUSAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _config(kind: str) -> Any:
    grouped = {**SMALL, **TEXT, **CAUSAL, "num_key_value_heads": 2}
    configs: dict[str, Callable[[], Any]] = {
        "bert": lambda: hf.BertConfig(**SMALL, **TEXT),
        "roberta": lambda: hf.RobertaConfig(**SMALL, **TEXT, pad_token_id=0),
        "electra": lambda: hf.ElectraConfig(**SMALL, **TEXT, embedding_size=16),
        "albert": lambda: hf.AlbertConfig(**{**SMALL, "num_hidden_layers": 3}, **TEXT, embedding_size=16),
        "distilbert": lambda: hf.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, **TEXT),
        "xlm_roberta": lambda: hf.XLMRobertaConfig(**SMALL, **TEXT, pad_token_id=0),
        "modernbert": lambda: hf.ModernBertConfig(
            **SMALL, **TEXT, **CAUSAL, cls_token_id=1, sep_token_id=2, local_attention=6, global_attn_every_n_layers=2
        ),
        "mpnet": lambda: hf.MPNetConfig(**SMALL, **TEXT, pad_token_id=0),
        # a width of 12 for each head: DeBERTa divides by the root of 3 · 12 in float32, where other roots are rounded
        "deberta_v2": lambda: hf.DebertaV2Config(
            **{**SMALL, "hidden_size": 48}, **TEXT, relative_attention=True, position_buckets=8,
            pos_att_type=["c2p", "p2c"], norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False,
        ),
        "gpt2": lambda: hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=40, vocab_size=VOCABULARY, **CAUSAL),
        "llama": lambda: hf.LlamaConfig(**grouped),
        "qwen2": lambda: hf.Qwen2Config(**grouped),
        "bart": lambda: hf.BartConfig(**ENCODER_DECODER, **TEXT),
        "marian": lambda: hf.MarianConfig(**ENCODER_DECODER, **TEXT),
        "t5": lambda: hf.T5Config(
            d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=VOCABULARY, pad_token_id=0,
            eos_token_id=2, decoder_start_token_id=0, relative_attention_num_buckets=8,
        ),
        "vit": lambda: hf.ViTConfig(**SMALL, image_size=16, patch_size=4),
    }  # fmt: skip
    return configs[kind]()


_CLASSES = {
    "albert": hf.AlbertForSequenceClassification,
    "bart": hf.BartForConditionalGeneration,
    "bert": hf.BertForSequenceClassification,
    "deberta_v2": hf.DebertaV2ForSequenceClassification,
    "distilbert": hf.DistilBertForSequenceClassification,
    "electra": hf.ElectraForSequenceClassification,
    "gpt2": hf.GPT2LMHeadModel,
    "llama": hf.LlamaForCausalLM,
    "marian": hf.MarianMTModel,
    "modernbert": hf.ModernBertForSequenceClassification,
    "mpnet": hf.MPNetForSequenceClassification,
    "qwen2": hf.Qwen2ForCausalLM,
    "roberta": hf.RobertaForSequenceClassification,
    "t5": hf.T5ForConditionalGeneration,
    "vit": hf.ViTForImageClassification,
    "xlm_roberta": hf.XLMRobertaForSequenceClassification,
}
ARCHITECTURES = sorted(_CLASSES)
ADAPTED = {"deberta_v2", "mpnet"}  # transformers has only eager attention for these
NO_CHECKPOINTING = {"albert", "mpnet"}

# The heads beside sequence classification, causal and sequence-to-sequence language models, each on a BERT.
HEADS = ["multilabel", "regression", "token", "choice", "span", "masked"]
# BERTs whose head reads a pooling: of one sequence, of a regression, and of two texts that are encoded apart.
POOLED = ["pooled", "pooled_regression", "pooled_pairs"]
SCALE = 3.0  # of the regression
_HEAD_CLASSES = {
    "multilabel": hf.BertForSequenceClassification,
    "regression": hf.BertForSequenceClassification,
    "token": hf.BertForTokenClassification,
    "choice": hf.BertForMultipleChoice,
    "span": hf.BertForQuestionAnswering,
    "masked": hf.BertForMaskedLM,
}


def make_model(kind: str, seed: int = 0, dropout: bool = True, attention: str = "sdpa") -> Any:
    """A tiny model of an architecture or, with BERT, of a head; with "_lora" after the name it has adapters."""
    if kind.endswith("_lora"):
        return with_adapters(make_model(kind.removesuffix("_lora"), seed, dropout, attention))
    torch.manual_seed(seed)
    config = _config(kind if kind in _CLASSES else "bert")
    config.num_labels = {"regression": 1, "multilabel": 4, "token": 5, "span": 2}.get(kind, 3)
    if kind == "multilabel":
        config.problem_type = "multi_label_classification"
    if not dropout:
        for name in list(vars(config)):
            if "drop" in name and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
    if kind not in ADAPTED:
        config._attn_implementation = attention
    if kind in POOLED:
        config.attendrop_pooling, config.problem_type = "mean", "single_label_classification"
        if kind == "pooled_pairs":
            config.attendrop_pairs = "separate"
        if kind == "pooled_regression":
            config.num_labels, config.problem_type = 1, "regression"
        model = pooled_class(config)(config)
    else:
        model = (_CLASSES[kind] if kind in _CLASSES else _HEAD_CLASSES[kind])(config)
    if kind == "pooled_regression":
        model.output_scale.fill_(SCALE)
        model.output_shift.fill_(0.5)
    # Fresh weights are so small that attention is nearly uniform; larger ones make every position matter.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(5 if kind != "t5" else 2)
    return model


def with_adapters(model: Any, targets: list[str] | None = None) -> Any:
    """The model with LoRA on the layers of these names, by default on queries and values."""
    peft = pytest.importorskip("peft")
    usual = {"gpt2": ["c_attn"], "bert": ["query", "value"], "mpnet": ["q", "v"]}
    targets = targets or usual.get(model.config.model_type, ["q_proj", "v_proj"])
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False))


def make_batch(kind: str, size: int = 3, length: int = 9, seed: int = 1) -> dict[str, torch.Tensor]:
    """A batch for the model of the same name; from the second example on, each is shorter than the one before."""
    kind = kind.removesuffix("_lora")
    g = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=g)

    if kind == "vit":
        return {"pixel_values": torch.randn(size, 3, 16, 16, generator=g), "labels": integers(3, size)}
    shape = (size, 2, length) if kind in ("choice", "pooled_pairs") else (size, length)
    ids = integers(VOCABULARY, *shape, low=5)
    mask = torch.ones(shape, dtype=torch.long)
    for i in range(1, size):
        mask[i, ..., max(2, length - 2 * i) :] = 0
    batch = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
    if kind in ("gpt2", "llama", "qwen2"):
        batch["labels"] = ids.masked_fill(mask == 0, -100)
    elif kind in ("bart", "marian", "t5"):
        labels = integers(VOCABULARY, size, 6, low=5)
        labels[1:, 4:] = -100
        batch["labels"] = labels
    elif kind == "multilabel":
        batch["labels"] = integers(2, size, 4).float()
    elif kind in ("regression", "pooled_regression"):
        batch["labels"] = torch.randn(size, generator=g)
    elif kind == "token":
        batch["labels"] = integers(5, size, length).masked_fill(mask == 0, -100)
    elif kind == "masked":
        batch["labels"] = ids.masked_fill((torch.rand(shape, generator=g) > 0.3) | (mask == 0), -100)
        batch["labels"][:, 1] = ids[:, 1]
    elif kind == "choice":
        batch["labels"] = integers(2, size)
    elif kind == "span":
        batch["start_positions"], batch["end_positions"] = integers(3, size), integers(3, size)
    else:
        batch["labels"] = integers(3, size)
    return batch
