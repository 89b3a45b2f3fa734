"""Loads the sequence classifier of a finished run, also a compressed one, without the workbench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForSequenceClassification

from ..model.pooled import pooled_class
from ..model.pooled_config import pooling_of
from ..utils.loading import wrong_weights
from ..utils.manifest import check_sealed
from .layer_plan import restore


def load_classifier(folder: str | Path) -> Any:
    """Load the sequence classifier of a finished run with its own class, in eval mode.

    Its head may read a pooling of the hidden states, which no class of transformers does, and it may be compressed.

    Args:
        folder: The folder, or a name on the Hub.

    Example:
        ```python
        model = load_classifier("runs/reviews")
        logits = model(**tokenizer(["good", "bad"], padding=True, return_tensors="pt")).logits
        ```
    """
    if Path(folder).is_dir():
        check_sealed(folder)
    config: Any = AutoConfig.from_pretrained(folder)
    cls: Any = AutoModelForSequenceClassification if pooling_of(config) is None else pooled_class(config)
    model, report = cls.from_pretrained(
        folder, config=config, use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True
    )
    if problem := wrong_weights(report):
        raise ValueError(f"{str(folder)!r} is no finished model: {problem}.")
    restore(model.eval())
    return model
