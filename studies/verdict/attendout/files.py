"""Divides the training examples of a task: a pool that runs draw their training examples from, and the reward set.

A run is trained on examples of the pool, its validation data are the reward set, and it is scored besides on the task's
own test examples (`also_eval`), which no reward and no choice has seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attendrop.lab.tasks.catalogue import find_task


class Files:
    """The files of the experiment.

    Args:
        data: The folder that `studies.verdict.data` made.
        folder: Where the divided files are written.
        reward_set: The number of examples of the reward set.
    """

    def __init__(self, data: str | Path, folder: str | Path, reward_set: int) -> None:
        self.data, self.folder, self.reward_set = Path(data), Path(folder), reward_set

    def write(self, task: str) -> None:
        """Write the pool and the reward set of a task. Labels are written by their names, as the task has them."""
        table = pq.read_table(self.data / task / "train.parquet")
        labels = find_task(task).labels
        names = [labels[number] for number in table["label"].to_pylist()]
        table = table.set_column(table.schema.get_field_index("label"), "label", pa.array(names))
        target = self.folder / task
        target.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(0, self.reward_set), target / "reward.parquet")
        pq.write_table(table.slice(self.reward_set), target / "pool.parquet")

    def settings(self, task: str) -> dict[str, Any]:
        """The settings of a run that name its data."""
        columns = find_task(task)
        text = dict(zip(("text", "text_pair"), columns.text, strict=False))
        return {
            "train_file": str(self.folder / task / "pool.parquet"),
            "validation_file": str(self.folder / task / "reward.parquet"),
            "data_dir": str(self.data),
            "also_eval": [task],
            "label": columns.label,
            **text,
        }
