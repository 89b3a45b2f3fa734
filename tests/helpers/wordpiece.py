"""A tokenizer with a vocabulary written by hand, and tiny models that take it, for the tests of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"()-$%&/#`"


def make_tokenizer(pieces: Iterable[str] = (), max_length: int = 128) -> Any:
    """Lower-cases and splits like BERT. Without `pieces` every character is a token."""
    pieces = list(pieces) or [*CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    vocabulary = {piece: place for place, piece in enumerate((*SPECIAL, *pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]", model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def save_model(folder: Path, tokenizer: Any, kind: str = "classification", labels: int = 2, layers: int = 1) -> Path:
    """A tiny BERT of some `layers` with a head for `labels`, or a BART for a translation, with its tokenizer."""
    torch.manual_seed(0)
    if kind == "translation":
        model: Any = hf.BartForConditionalGeneration(
            hf.BartConfig(
                vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=256,
                pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=3,
            )
        )  # fmt: skip
    else:
        model = hf.BertForSequenceClassification(
            hf.BertConfig(
                vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=layers, num_attention_heads=2,
                intermediate_size=16, max_position_embeddings=256, num_labels=labels,
            )
        )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
