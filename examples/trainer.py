"""AD-DROP with the Trainer: the one argument `regularizers` is all that differs from plain fine-tuning.

    python examples/trainer.py

It runs in seconds on a CPU and downloads nothing: the model is a tiny BERT with random weights and the data are made
up. Put your own model and data set in the place of `make_model` and `make_data`.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer, load_regularizers

MARKER = 7  # the token that decides the label


def make_model() -> BertForSequenceClassification:
    """Yours would be AutoModelForSequenceClassification.from_pretrained(...)."""
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


def make_data(size: int, seed: int, length: int = 12) -> list[dict[str, torch.Tensor]]:
    """Sentences of 6 to 12 random tokens, padded; the label says whether MARKER is among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, 40, (size, length), generator=generator)
    lengths = torch.randint(6, length + 1, (size,), generator=generator)
    labels = torch.randint(0, 2, (size,), generator=generator)
    places = (torch.rand(size, generator=generator) * lengths).long()
    ids[torch.arange(size)[labels == 1], places[labels == 1]] = MARKER
    mask = (torch.arange(length) < lengths.unsqueeze(1)).long()
    ids = ids * mask
    return [{"input_ids": ids[i], "attention_mask": mask[i], "labels": labels[i]} for i in range(size)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=4,  # with cross-tuning that ends plain: AD-DROP, plain, AD-DROP, plain
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            logging_strategy="epoch",
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        trainer = RegularizedTrainer(
            model_init=make_model,  # made after the seed is set; model=... does as well
            args=args,
            train_dataset=make_data(256, seed=0),
            eval_dataset=make_data(64, seed=1),
            regularizers=[ADDrop(p=0.3, q=0.3, layers="first")],
        )
        trainer.train()
        trainer.save_model()
        print(load_regularizers(folder))  # the methods are saved beside the model


if __name__ == "__main__":
    main()
