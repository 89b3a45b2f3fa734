"""A tiny BERT with random weights and made-up data, for the examples: nothing is downloaded, seconds on a CPU."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

MARKER = 7  # the label of a sentence is 1 if this token is in it


def make_model() -> BertForSequenceClassification:
    """In your own script: AutoModelForSequenceClassification.from_pretrained(...)."""
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def make_data(size: int, seed: int = 0, length: int = 12) -> list[dict[str, torch.Tensor]]:
    """Sentences of 6 to 12 random tokens, padded, with their labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, 40, (size, length), generator=generator)
    lengths = torch.randint(6, length + 1, (size,), generator=generator)
    labels = torch.randint(0, 2, (size,), generator=generator)
    positions = (torch.rand(size, generator=generator) * lengths).long()
    ids[torch.arange(size)[labels == 1], positions[labels == 1]] = MARKER
    mask = (torch.arange(length) < lengths.unsqueeze(1)).long()
    ids = ids * mask
    return [{"input_ids": ids[i], "attention_mask": mask[i], "labels": labels[i]} for i in range(size)]
