"""AD-DROP in a training loop with accelerate, without the Trainer.

    python examples/accelerate_loop.py
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 examples/accelerate_loop.py

It runs in seconds on a CPU and downloads nothing. Replace `make_model` and `make_data` by your own model and data; the
loop stays as it is.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from toy_task import make_data, make_model

from attendrop import ADDrop, Engine

EPOCHS = 4  # with cross-tuning: AD-DROP, plain, AD-DROP, plain
BATCH_SIZE = 16  # of each process


def main() -> None:
    set_seed(0)
    accelerator = Accelerator()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(make_data(256), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)

    # Before `prepare`: the engine runs the model once to find its attention calls, so it must not be sharded yet.
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
    # The engine runs the model before the training pass too. That must not start a gradient reduction, so the engine
    # gets the model without its data-parallel wrapper.
    engine.model = accelerator.unwrap_model(model)
    for epoch in range(EPOCHS):
        model.train()
        total = torch.zeros((), device=accelerator.device)
        for number, batch in enumerate(loader):
            # Metrics take a little time, so they are measured only in the step after which they are printed. With
            # gradient accumulation, call this once for each optimizer step, before its first micro-batch.
            engine.begin_step(measure=number == len(loader) - 1)
            # Both forward and backward belong inside: gradient checkpointing recomputes blocks in the backward.
            with engine.micro_batch(batch) as inputs:
                loss = engine.loss(model(**inputs))
                accelerator.backward(loss)
            engine.before_optimizer()  # with gradient accumulation: only when accelerator.sync_gradients
            optimizer.step()
            engine.after_optimizer()  # the same
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), reduction="mean").item()
        accelerator.print(f"epoch {epoch + 1}: loss {mean:.4f}")
        for name, value in engine.pop_metrics().items():
            value = accelerator.reduce(value.to(accelerator.device), reduction="mean")
            accelerator.print(f"    {name} = {value.item():.4f}")
    engine.close()  # the model is an ordinary model again
    accelerator.end_training()


if __name__ == "__main__":
    main()
