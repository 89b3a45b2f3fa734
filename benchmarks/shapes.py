"""Models with the shapes of well-known ones and random weights, and random texts for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

TEXT = {"vocab_size": 50265, "type_vocab_size": 1}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def roberta(length: int, attention: str = "sdpa", **sizes: int) -> Any:
    """RoBERTa-base, with as many positions as needed."""
    config = hf.RobertaConfig(
        **TEXT, max_position_embeddings=2 + max(512, length), attn_implementation=attention, **sizes
    )
    return hf.RobertaForSequenceClassification(config)


def roberta_lora(length: int, attention: str = "sdpa") -> Any:
    """RoBERTa-base with LoRA of rank 8 on queries and values; the head is trained too."""
    return with_adapters(roberta(length, attention))


def with_adapters(model: Any) -> Any:
    """A BERT or RoBERTa classifier with LoRA of rank 8 on queries and values; the head is trained too."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=8, target_modules=["query", "value"], modules_to_save=["classifier"]))


def minilm(length: int, attention: str = "sdpa") -> Any:
    """all-MiniLM-L6-v2."""
    config = hf.BertConfig(**MINILM, max_position_embeddings=max(512, length), attn_implementation=attention)
    return hf.BertForSequenceClassification(config)


def mpnet(length: int, attention: str = "sdpa") -> Any:
    """MPNet-base."""
    return hf.MPNetForSequenceClassification(hf.MPNetConfig(max_position_embeddings=2 + max(512, length)))


def deberta(length: int, attention: str = "sdpa") -> Any:
    """DeBERTa-v3-base."""
    config = hf.DebertaV2Config(
        vocab_size=128100, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, position_buckets=256, pos_att_type=["c2p", "p2c"], norm_rel_ebd="layer_norm",
        share_att_key=True, position_biased_input=False, max_position_embeddings=max(512, length),
    )  # fmt: skip
    return hf.DebertaV2ForSequenceClassification(config)


def modernbert(length: int, attention: str = "sdpa") -> Any:
    """ModernBERT-base."""
    return hf.ModernBertForSequenceClassification(hf.ModernBertConfig(attn_implementation=attention))


def qwen2_lora(length: int, attention: str = "sdpa") -> Any:
    """Qwen2-0.5B as a language model, with LoRA of rank 8 on queries and values."""
    import peft

    config = hf.Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True, attn_implementation=attention,
    )  # fmt: skip
    lora = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(hf.Qwen2ForCausalLM(config), lora)


def tiny(length: int, attention: str = "sdpa") -> Any:
    """So small that a CPU tests the benchmark itself."""
    return roberta(length, attention, **TINY)


def tiny_bert(length: int, attention: str = "sdpa") -> Any:
    """The same with the parts of BERT."""
    config = hf.BertConfig(**TINY, max_position_embeddings=max(512, length), attn_implementation=attention)
    return hf.BertForSequenceClassification(config)


MODELS: dict[str, Callable[..., Any]] = {
    "roberta-base": roberta,
    "roberta-base lora": roberta_lora,
    "minilm": minilm,
    "mpnet-base": mpnet,
    "deberta-v3-base": deberta,
    "modernbert-base": modernbert,
    "qwen2-0.5b lora": qwen2_lora,
    "tiny": tiny,
    "tiny bert": tiny_bert,
    "tiny lora": lambda *arguments: with_adapters(tiny(*arguments)),
}


def make_model(name: str, length: int, device: str, attention: str = "sdpa") -> Any:
    """One of `MODELS` on a device, always with the same weights.

    Args:
        name: its name.
        length: the longest text.
        device: "cpu" or "cuda".
        attention: the attention implementation.
    """
    torch.manual_seed(0)
    with torch.device(device):
        return MODELS[name](length, attention)


class RandomTexts(torch.utils.data.Dataset):
    """Random tokens with random labels; the labels of a language model are the tokens.

    Args:
        count: the number of texts.
        length: the tokens of each.
        model: the name of the model.
    """

    def __init__(self, count: int, length: int, model: str) -> None:
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(1000, 30000, (count, length), generator=g).tolist()
        self.labels = self.ids if model.startswith("qwen2") else torch.randint(0, 2, (count,), generator=g).tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.ids[i], "attention_mask": [1] * len(self.ids[i]), "labels": self.labels[i]}
