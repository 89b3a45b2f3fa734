"""A pretrained model with an odd value in its config.json, or a damaged file: trained on, or refused in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .cases import Case, Siege
from .damage import DAMAGE

_VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 3, 7, 10**5, 10**9, 10**30, 0.5, 1e300, float("nan"), True, "x", "os.system", "\x1b[2J", [], [1],
    {}, {"a": 1}, {"0": "x"}, {"quant_method": "x"}, {"AutoConfig": "evil.Evil"},
)  # fmt: skip
_MORE = (
    "num_labels", "id2label", "problem_type", "quantization_config", "auto_map", "attn_implementation", "dtype",
    "text_config", "pruned_heads", "is_encoder_decoder", "chunk_size_feed_forward", "return_dict", "rope_scaling",
)  # fmt: skip


def models(siege: Siege) -> Iterator[Case]:
    """A model to train from, with one value of its config.json changed, or one of its files damaged."""
    names = [*json.loads((siege.model / "config.json").read_text()), *_MORE]
    files = [path.name for path in siege.model.iterdir() if path.is_file()]
    while True:
        name, value = siege.draw.choice(names), siege.draw.choice(_VALUES)
        file, how = siege.draw.choice(files), siege.draw.choice(list(DAMAGE))
        is_damaged = siege.draw.random() < 0.2

        def before(
            name: str = name, value: Any = value, file: str = file, how: str = how, is_damaged: bool = is_damaged
        ) -> None:
            shutil.copytree(siege.model, "model")
            if is_damaged:
                return DAMAGE[how](Path("model", file))
            path = Path("model/config.json")
            path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
            return None

        words = siege.training("out", "--model", "model", "--max-steps", 1)
        shown = f"{file} {how}" if is_damaged else f"{name} = {value!r:.40}"
        yield Case(f"train: {shown}", words, before=before, megabytes=1500)
