"""The model card of a run: what it was trained on, how, with what result, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CLASSES = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "choice": "AutoModelForMultipleChoice",
    "translation": "AutoModelForSeq2SeqLM",
}


def write_card(folder: Path, record: Mapping[str, Any]) -> Path:
    """Writes README.md, the card, from a run's record."""
    path = folder / "README.md"
    path.write_text(card(record), encoding="utf-8")
    return path


def card(record: Mapping[str, Any]) -> str:
    config, task = record["config"], record["task"]
    methods = record["regularizers"]
    data = config.get("task") or Path(config["train_file"]).name
    shown = ", ".join(f"{rows} {part}" for part, rows in record["rows"].items())
    scores = "\n".join(f"| {name} | {_number(value)} |" for name, value in record["metrics"].items())
    training = "\n".join(
        f"- {name}: {config[name]}"
        for name in ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "weight_decay", "warmup_steps")
        if name in config
    )
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    cls = _CLASSES[task["kind"]]
    optimistic = (
        "\nAttendOut was rewarded on the validation examples, so scores on them are optimistic.\n"
        if any(m["method"] == "attendout" and m["reward_on"] == "dev" for m in methods)
        else ""
    )
    return f"""---
library_name: transformers
base_model: {config["model"]}
tags:
- attendrop
---

# {Path(config["model"]).name} on {data}

Fine-tuned with attendrop {record["versions"]["attendrop"]}.

## Data

{data}: {shown} examples, texts cut to {record["max_length"]} tokens.
{_list(record["notes"])}
## Method

{_list(_method(method) for method in methods) or "Plain fine-tuning, no regulariser." + chr(10)}
## Training

{training}
- seed: {record["seed"]}, one run
- {record["steps"]} steps in {record["seconds"]:.0f} s on {record["processes"]} × {record["device"]}

Every setting is in `run.yaml`; `attendrop train --config run.yaml` repeats the run.

## Scores

| | |
|---|---|
{scores}
{optimistic}
One seed says little on a small data set: repeat with several `--seed` and compare means before you believe a
difference.

![loss and score over training](curves.png)

## Use

```python
from transformers import AutoTokenizer, {cls}

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {cls}.from_pretrained("FOLDER")
```

or `attendrop predict FOLDER "a text"`.

{versions}
"""


def _method(fields: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "method")
    return f"`{fields['method']}`: {values}" if values else f"`{fields['method']}`"


def _list(items: Any) -> str:
    return "".join(f"- {item}\n" for item in items)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
