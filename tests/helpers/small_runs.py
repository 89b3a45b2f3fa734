"""Small finished runs of each kind of task, for the tests of what is done with a run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from attendrop import fine_tune
from helpers.cli_tools import save_encoder, sentences, write_csv

KINDS = ("single", "pairs", "apart", "regression", "multilabel", "tokens", "pooled")
WIDTH = {"pairs": 2, "apart": 2}  # texts of an example
MAX_LENGTH = 16  # of tokens: less than most texts have


def long_texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Reviews of which many are cut: the word that decides may stand anywhere."""
    draw = random.Random(seed)
    return [
        (" ".join(word for text, _ in draw.sample(pool, 3) for word in text.split()), label)
        for pool in [sentences(60, seed)]
        for _, label in pool[:count]
    ]


def save_sources(folder: Path) -> Path:
    """Write a tiny encoder and a training file for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = long_texts(60, seed=1)
    texts = [text for text, _ in rows]
    save_encoder(folder / "model", texts)
    write_csv(folder / "single.csv", rows)
    write_csv(folder / "pairs.csv", [(t, texts[-i], label) for i, (t, label) in enumerate(rows)], ("a", "b", "label"))
    write_csv(folder / "regression.csv", [(text, 1.5 * (i % 5) + 20) for i, text in enumerate(texts)])
    write_csv(folder / "multilabel.csv", [(text, ["x", "x;y", "y", ""][i % 4]) for i, text in enumerate(texts)])
    tagged = "\n\n".join(
        "\n".join(f"{word} {('O', 'B-X')[len(word) > 4]}" for word in text.split()[:24]) for text in texts
    )
    (folder / "tokens.txt").write_text(f"{tagged}\n", encoding="utf-8")
    return folder


def train_small(sources: Path, kind: str, **settings: Any) -> Path:
    """Train a run of a kind for a few steps, and return its folder.

    Args:
        sources: What `save_sources` wrote.
        kind: One of `KINDS`.
        **settings: Other settings of the run.
    """
    file = {"tokens": "tokens.txt", "apart": "pairs.csv", "pooled": "single.csv"}.get(kind, f"{kind}.csv")
    of_kind: dict[str, dict[str, Any]] = {
        "pairs": {"text": "a", "text_pair": "b", "label": "label", "pairs": "joint"},
        "apart": {"text": "a", "text_pair": "b", "label": "label", "pairs": "separate", "pooling": "mean"},
        "regression": {"kind": "regression"},
        "multilabel": {"kind": "multilabel", "label_separator": ";"},
        "tokens": {"kind": "token_classification"},
        "pooled": {"pooling": "mean"},
    }
    folder = sources / "runs" / kind
    usual = {
        "model": str(sources / "model"), "output_dir": str(folder), "max_length": MAX_LENGTH, "pooling": "model",
        "max_steps": 6, "learning_rate": 3e-3, "seed": 3,
    }  # fmt: skip
    result = fine_tune(
        train_file=str(sources / file), use_cpu=True, no_baselines=True, head_start="random",
        per_device_train_batch_size=16, **{**usual, **of_kind.get(kind, {}), **settings},
    )  # fmt: skip
    return result.folder
