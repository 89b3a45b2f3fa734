"""Tiny saved models, small files and a function that runs the command line, for the tests of whole runs."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from helpers.forks import Done, run_python

GOOD = ["fine", "warm", "clever", "moving", "funny", "brave"]
BAD = ["dull", "cold", "stale", "clumsy", "loud", "empty"]
OTHER = ["the", "film", "is", "a", "and", "story", "with", "actors", "plot", "it", "was", "music"]


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Made-up reviews of different lengths with their labels."""
    draw = random.Random(seed)
    examples = []
    for i in range(count):
        words = [draw.choice(OTHER) for _ in range(draw.randint(3, 12))]
        words.insert(draw.randrange(len(words)), draw.choice(GOOD if i % 2 else BAD))
        examples.append((" ".join(words), "good" if i % 2 else "bad"))
    return examples


def write_csv(path: Path, rows: Sequence[Sequence[Any]], header: Sequence[str] = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def save_tokenizer(folder: Path, texts: Sequence[str]) -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=500, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", eos_token="[SEP]", bos_token="[CLS]", model_max_length=256,
    )  # fmt: skip
    fast.save_pretrained(folder)


def save_encoder(folder: Path, texts: Sequence[str], dropout: float = 0.1) -> Path:
    """A tiny pretrained BERT, without a head, as a user would have it from the Hub."""
    save_tokenizer(folder, texts)
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=500, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=256, pad_token_id=0,
    )  # fmt: skip
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    model = hf.BertModel(config)
    with torch.no_grad():  # fresh weights are so small that no position of the attention matters
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return folder


def save_translator(folder: Path, texts: Sequence[str]) -> Path:
    save_tokenizer(folder, texts)
    torch.manual_seed(0)
    config = hf.BartConfig(
        vocab_size=500, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=128,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=3,
    )  # fmt: skip
    hf.BartForConditionalGeneration(config).save_pretrained(folder)
    return folder


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def attendrop(*arguments: Any) -> Done:
    """Runs the command line in a process of its own."""
    return run_python("-m", "attendrop", *arguments, PYTHONUNBUFFERED="1")
