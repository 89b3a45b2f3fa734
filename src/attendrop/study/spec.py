"""What one run of a study is. Importing this loads neither torch nor transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

KEEP = ("last", "split", "dev")


@dataclass(frozen=True)
class RunSpec:
    """One run of a study.

    Attributes:
        settings: The settings of `attendrop train`, for `make_config`, without `output_dir`. `method` and `seed` are
            among them.
        method: What the run is compared by: the method as the user wrote it, or `plain`.
        task: The name of the task, or of the training file.
        size: How much is trained on: "all", "fraction=0.1" or "shots=16".
        seed: The seed of the head, of the order of examples and of all draws.
        keep: Which epoch is scored: "last"; "split", the best on a part of the training data that is not trained on;
            "dev", the best on the validation data itself, as papers often do.
        resample: Whether the seed decides too which examples are trained on.
        fold: Number of a random stratified split of the training data. The run is then scored on the part that is
            split off, and never sees the validation data. None = no such split.
    """

    settings: Mapping[str, Any]
    method: str
    task: str
    seed: int
    size: str = "all"
    keep: str = "last"
    resample: bool = False
    fold: int | None = None
    trial: int | None = field(default=None, compare=False)  # number of the trial of a tuning study
    details: bool = field(default=False, compare=False)  # whether the record holds texts and attention maps too

    @property
    def id(self) -> str:
        """Name of the run, made of everything that decides its result."""
        values = asdict(self)
        del values["trial"], values["details"]
        text = json.dumps(values, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
