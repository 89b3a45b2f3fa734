"""AD-DROP in a bare accelerate loop, with no Trainer.

    python examples/accelerate_loop.py
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 examples/accelerate_loop.py

It runs in seconds on a CPU and downloads nothing: the model is a tiny BERT with random weights and the data are made
up. Put your own model and data set in the place of `make_model` and `make_data`; the loop stays as it is.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from attendrop import ADDrop, Engine

EPOCHS = 4  # with cross-tuning that ends plain: AD-DROP, plain, AD-DROP, plain
BATCH_SIZE = 16  # of one process
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


def make_data(size: int = 256, length: int = 12) -> list[dict[str, torch.Tensor]]:
    """Sentences of 6 to 12 random tokens, padded; the label says whether MARKER is among them."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 40, (size, length), generator=generator)
    lengths = torch.randint(6, length + 1, (size,), generator=generator)
    labels = torch.randint(0, 2, (size,), generator=generator)
    places = (torch.rand(size, generator=generator) * lengths).long()
    ids[torch.arange(size)[labels == 1], places[labels == 1]] = MARKER
    mask = (torch.arange(length) < lengths.unsqueeze(1)).long()
    ids = ids * mask
    return [{"input_ids": ids[i], "attention_mask": mask[i], "labels": labels[i]} for i in range(size)]


def main() -> None:
    set_seed(0)
    accelerator = Accelerator()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(make_data(), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)

    # Before `prepare`, because finding the attention calls runs the model once: it must not be sharded yet.
    # With gradient accumulation, `steps_per_epoch` counts optimizer steps.
    engine = Engine(
        model,
        [ADDrop(p=0.3, q=0.3, layers="first")],
        epochs=EPOCHS,
        steps_per_epoch=len(loader) // accelerator.num_processes,
        seed=0,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        batch_size=BATCH_SIZE,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    # What the engine asks before the training pass must not start a gradient reduction: it gets the model without its
    # data-parallel wrapper.
    engine.model = accelerator.unwrap_model(model)
    for epoch in range(EPOCHS):
        model.train()
        total = torch.zeros((), device=accelerator.device)
        for number, batch in enumerate(loader):
            # Figures cost a little, so they are taken only where they will be shown. With gradient accumulation this is
            # called once for each optimizer step, before its first micro-batch.
            engine.begin_step(measure=number == len(loader) - 1)
            # Forward and backward both belong inside: gradient checkpointing replays blocks in the backward.
            with engine.micro_batch(batch) as inputs:
                loss = engine.loss(model(**inputs))
                accelerator.backward(loss)
            engine.before_optimizer()  # with gradient accumulation: only when accelerator.sync_gradients
            optimizer.step()
            engine.after_optimizer()  # likewise
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), reduction="mean").item()
        accelerator.print(f"epoch {epoch + 1}: loss {mean:.4f}")
        for name, value in engine.pop_metrics().items():
            figure = accelerator.reduce(value.to(accelerator.device), reduction="mean").item()
            accelerator.print(f"    {name} = {figure:.4f}")
    engine.close()  # the model is an ordinary one again
    accelerator.end_training()


if __name__ == "__main__":
    main()
