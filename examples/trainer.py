"""AD-DROP with the Trainer: the argument `regularizers` is the only difference to plain fine-tuning.

    python examples/trainer.py

It runs in seconds on a CPU and downloads nothing. Replace `make_model` and `make_data` by your own model and data.
"""

from __future__ import annotations

import tempfile

from toy_task import make_data, make_model
from transformers import TrainingArguments

from attendrop import ADDrop, RegularizedTrainer, load_regularizers


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=4,  # with cross-tuning: AD-DROP, plain, AD-DROP, plain
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
            model_init=make_model,  # called after the seed is set; model=... works too
            args=args,
            train_dataset=make_data(256, seed=0),
            eval_dataset=make_data(64, seed=1),
            regularizers=[ADDrop(p=0.3, q=0.3, layers="first")],
        )
        trainer.train()
        trainer.save_model()
        print(load_regularizers(folder))  # the methods are saved with the model


if __name__ == "__main__":
    main()
