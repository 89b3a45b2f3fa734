"""Small in-memory data sets for the tiny models of `zoo`, and the arguments that every training run here shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments

from .zoo import VOCABULARY

Example = dict[str, Any]

_PADDING = {"input_ids": 0, "attention_mask": 0, "labels": -100}


def make_examples(kind: str, count: int = 32, seed: int = 3, longest: int = 9) -> list[Example]:
    """Examples of different lengths for the model of the same name, not padded yet."""
    g = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> Tensor:
        return torch.randint(5, VOCABULARY, (n,), generator=g)

    examples = []
    for _ in range(count):
        length = int(torch.randint(4, longest + 1, (), generator=g))
        example: Example = {"input_ids": tokens(length), "attention_mask": torch.ones(length, dtype=torch.long)}
        if kind in ("gpt2", "llama", "qwen2"):
            example["labels"] = example["input_ids"].clone()
        elif kind in ("bart", "marian", "t5"):
            example["labels"] = tokens(int(torch.randint(3, 7, (), generator=g)))
        else:
            example["labels"] = torch.randint(0, 3, (), generator=g)
        examples.append(example)
    return examples


def pad(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Pads to the longest of these examples, as the usual collators do."""
    batch = {}
    for name in examples[0]:
        values = [example[name] for example in examples]
        batch[name] = (
            torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=_PADDING[name])
            if values[0].dim()
            else torch.stack(values)
        )
    return batch


def make_arguments(folder: str | Path, of: type[TrainingArguments] = TrainingArguments, **options: Any) -> Any:
    """Training arguments for a few quiet steps on the CPU."""
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    shape = {"per_device_train_batch_size": 4, "learning_rate": 1e-3, "seed": 11, "use_cpu": True}
    return of(output_dir=str(folder), **{**quiet, **shape, **options})


# For runs that are to agree up to rounding. Adam divides a gradient by its own size, which makes a whole step of the
# rounding noise in a gradient that should be zero; and clipping would hide a gradient of the wrong scale.
SGD = {"optim": "sgd", "learning_rate": 0.02, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
