"""`fine_tune`: a whole run as one function call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...utils.quiet import quiet_transformers
from ..tasks.modalities import file_kinds
from .result import Result
from .run import Listener, train
from .settings import make_config

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(file_kinds())]  # `help(fine_tune)` lists the kinds


def fine_tune(
    listener: Listener | None = None,
    *,
    model: str | Path | None = None,
    task: str | None = None,
    train_file: str | Path | None = None,
    validation_file: str | Path | None = None,
    test_file: str | Path | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    kind: Kind | None = None,
    max_length: int | None = None,
    method: str | Sequence[str] | None = None,
    preset: Literal["recommended", "paper"] | None = None,
    output_dir: str | Path | None = None,
    num_train_epochs: float | None = None,
    learning_rate: float | None = None,
    per_device_train_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    seed: int | None = None,
    patience: int | None = None,
    bf16: bool | None = None,
    lora: bool | None = None,
    quantize: Literal["4bit", "8bit"] | None = None,
    capture: Literal["auto", "eager", "captured"] | None = None,
    resume: bool | None = None,
    overwrite: bool | None = None,
    **settings: Any,
) -> Result:
    """Fine-tune a model, as `attendrop train` does. An argument that is not given has the default of the flag.

    Args:
        listener: Receives the events of the run; None = no output.
        model: Name on the Hugging Face Hub, or a folder with a saved model.
        task: A data set by name, such as "glue/rte"; either this or `train_file`.
        train_file: Your own training data: CSV, TSV, JSON, Parquet, Excel, CoNLL, plain texts with kind "mlm", or a
            folder of images or sounds with one sub-folder for each class.
        validation_file: Your own validation data. Without it, a share of the training data is split off.
        test_file: Your own data to predict at the end.
        text: Column with the text, or with the paths of images or sounds.
        text_pair: Column with the second text of a pair.
        label: Column with the label, or several with 0 and 1: anger,joy.
        kind: Kind of task; by default it is guessed from the data.
        max_length: Truncate texts to this number of tokens, or sounds to this number of seconds.
        method: A method, written "name:field=value,field=value", or a list of methods.
        preset: "recommended", plain fine-tuning by the default recipe; or "paper", the papers' settings for a model
            family and task they report.
        output_dir: Folder for the model and the results; by default `runs/<model>-<data>-<methods>`.
        num_train_epochs: Number of passes over the training data; by default chosen from the amount of data.
        learning_rate: The highest learning rate; by default chosen from the width of the model.
        per_device_train_batch_size: Examples in a batch, on each device.
        gradient_accumulation_steps: Batches that make one step of the optimizer.
        seed: Seed of the new head, of the order of the examples, and of dropout.
        patience: Stop after this number of evaluations in a row without improvement.
        bf16: Whether to compute in bfloat16.
        lora: Whether to train low-rank adapters instead of all weights.
        quantize: With `lora`: load the frozen weights in 4 or 8 bits.
        capture: How training steps are run; "captured" means CUDA graphs on one GPU.
        resume: Whether to continue from the last checkpoint in the output folder.
        overwrite: Whether an earlier run in the output folder may be replaced.
        **settings: All other flags of `attendrop train`, with underscores. They include all fields of
            `TrainingArguments`.

    Example:
        ```python
        result = fine_tune(
            model="roberta-base",
            task="glue/rte",
            method="addrop:p=0.3,q=0.3",
            num_train_epochs=5,
            output_dir="rte",
        )
        print(result.scores["validation"]["accuracy"])
        ```
    """
    given = {name: value for name, value in locals().items() if name not in ("listener", "settings")}
    config = make_config({**given, **settings})
    with quiet_transformers(hide_warnings=False):  # a bar for each checkpoint would fill a notebook
        return train(config, listener)
