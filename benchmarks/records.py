"""Results are added to a CSV, never edited, each row with the conditions that it was measured under."""

from __future__ import annotations

import csv
import datetime
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def conditions(device: str, **more: Any) -> dict[str, Any]:
    """Date, machine and versions."""
    import torch
    import transformers

    import attendrop

    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        **more,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attendrop": attendrop.__version__,
    }


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)
    print(f"appended to {path}")
