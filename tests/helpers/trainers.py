"""Trainers of TRL, sentence-transformers and setfit on tiny models and data that are made on the fly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from attendrop import regularized

from .data import make_arguments, make_examples, pad
from .zoo import SMALL, TEXT, make_model

WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{i}" for i in range(56)))
KINDS = ("sft_packed_lora", "reward", "sentence", "cross_encoder", "seq2seq")


def make_tokenizer() -> Any:
    """One token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        eos_token="[SEP]", model_max_length=32,
    )  # fmt: skip


def texts(count: int, seed: int = 1, longest: int = 9) -> list[str]:
    """Texts of four words or more. The first word says which of two kinds of text it is."""
    g = torch.Generator().manual_seed(seed)
    lines = []
    for i in range(count):
        words = torch.randint(4, 56, (int(torch.randint(3, longest, (), generator=g)),), generator=g)
        lines.append(" ".join(["w0" if i % 2 else "w1", *(f"w{int(word)}" for word in words)]))
    return lines


def triplets(count: int = 16) -> list[dict[str, str]]:
    """Anchors, their beginnings with another end, and other texts."""
    ends = texts(count, seed=2, longest=5)
    return [
        {"anchor": text, "positive": f"{text} {end}", "negative": other}
        for text, end, other in zip(texts(count), ends, texts(count, seed=3), strict=True)
    ]


def save(folder: Path, model: Any) -> str:
    model.save_pretrained(folder / "tiny")
    make_tokenizer().save_pretrained(folder / "tiny")
    return str(folder / "tiny")


def bert(cls: Any, dropout: float = 0.1, **options: Any) -> Any:
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return cls(hf.BertConfig(**SMALL, **TEXT, **rates, **options))


def make_sentence_model(folder: Path, dropout: float = 0.1) -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6.2")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(save(folder, bert(hf.BertModel, dropout)))
    return sentence_transformers.SentenceTransformer(modules=[body, Pooling(32, "mean")], device="cpu")


class OneCallForEachText(nn.Module):
    """A contrastive loss that calls the model for anchors, positives and negatives one after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: list[dict[str, Any]], labels: Any = None) -> torch.Tensor:
        anchor, *others = [self.model(dict(column))["sentence_embedding"] for column in features]
        scores = torch.cat([nn.functional.normalize(x, dim=-1) for x in others])
        logits = nn.functional.normalize(anchor, dim=-1) @ scores.T * 10
        return nn.functional.cross_entropy(logits, torch.arange(len(anchor), device=logits.device))


def make_trainer(kind: str, folder: Path, regularizers: Any = None, **options: Any) -> Any:
    """A trainer of this kind; without `regularizers` (None) that of the library itself."""
    makers = {
        "sft": _sft, "sft_packed_lora": _sft, "reward": _reward, "sentence": _sentence,
        "cross_encoder": _cross_encoder, "seq2seq": _seq2seq,
    }  # fmt: skip
    return makers[kind](kind, folder, regularizers, options)


def _made(cls: type, regularizers: Any, **arguments: Any) -> Any:
    if regularizers is None:
        return cls(**arguments)
    return regularized(cls)(**arguments, regularizers=regularizers)


def _causal_model() -> Any:
    model = make_model("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    return model


def _sft(kind: str, folder: Path, regularizers: Any, options: dict[str, Any]) -> Any:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    extra: dict[str, Any] = {}
    if kind == "sft_packed_lora":
        peft = pytest.importorskip("peft")
        extra["peft_config"] = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        options = {"packing": True, **options}
    pairs = zip(texts(16), texts(16, seed=2), strict=True)
    data = datasets.Dataset.from_list([{"prompt": one, "completion": f" {two}"} for one, two in pairs])
    options = {"max_length": 24, "bf16": False, "learning_rate": 1e-2, **options}
    return _made(
        trl.SFTTrainer, regularizers, model=options.pop("model", None) or _causal_model(),
        args=make_arguments(folder, trl.SFTConfig, **options), train_dataset=data, processing_class=make_tokenizer(),
        **extra,
    )  # fmt: skip


def _reward(kind: str, folder: Path, regularizers: Any, options: dict[str, Any]) -> Any:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    pairs = [(f"w0 {text}", f"w1 {text}") for text in texts(16)]
    data = datasets.Dataset.from_list([{"chosen": good, "rejected": bad} for good, bad in pairs])
    options = {"max_length": 24, "bf16": False, "disable_dropout": False, **options}
    torch.manual_seed(0)
    config = _causal_model().config
    config.num_labels, config.attention_dropout = 1, 0.1
    return _made(
        trl.RewardTrainer, regularizers, model=hf.LlamaForSequenceClassification(config),
        args=make_arguments(folder, trl.RewardConfig, **options), train_dataset=data,
        processing_class=make_tokenizer(),
    )  # fmt: skip


def _sentence(kind: str, folder: Path, regularizers: Any, options: dict[str, Any]) -> Any:
    st = pytest.importorskip("sentence_transformers", minversion="6.2")
    datasets = pytest.importorskip("datasets")

    loss, model = options.pop("loss", OneCallForEachText), options.pop("model", None) or make_sentence_model(folder)
    return _made(
        st.SentenceTransformerTrainer, regularizers, model=model, loss=loss(model),
        args=make_arguments(folder, st.SentenceTransformerTrainingArguments, **options),
        train_dataset=datasets.Dataset.from_list(triplets()),
    )  # fmt: skip


def _cross_encoder(kind: str, folder: Path, regularizers: Any, options: dict[str, Any]) -> Any:
    st = pytest.importorskip("sentence_transformers", minversion="6.2")
    datasets = pytest.importorskip("datasets")

    labels = options.pop("num_labels", 1)
    path = save(folder, bert(hf.BertForSequenceClassification, num_labels=labels))
    rows = [
        {"one": row["anchor"], "two": row["positive" if i % 2 else "negative"], "label": i % 2}
        for i, row in enumerate(triplets())
    ]
    return _made(
        st.CrossEncoderTrainer, regularizers, model=st.CrossEncoder(path, num_labels=labels, device="cpu"),
        args=make_arguments(folder, st.CrossEncoderTrainingArguments, **options),
        train_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip


def _seq2seq(kind: str, folder: Path, regularizers: Any, options: dict[str, Any]) -> Any:
    return _made(
        hf.Seq2SeqTrainer, regularizers, model=make_model("bart"), data_collator=pad,
        args=make_arguments(folder, hf.Seq2SeqTrainingArguments, **options), train_dataset=make_examples("bart", 16),
    )  # fmt: skip
