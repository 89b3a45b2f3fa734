"""The program of a worker process: `python -m attendrop.lab.studies.executors.process MODULE:CLASS DEVICE`.

It reads one JSON object from each line of its input and writes one on each line of its output:

    in:   {"run": specification}, and {"stop": bool} as the answer to each progress
    out:  {"ready": name}, then for each run {"progress": report}… and {"record": record, "fatal": bool, "memory": …}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ....utils.processes import end_with_parent
from ..records import worker_name
from ..spec import RunSpec
from .capacity import gpu_memory
from .host import load_worker, run_spec


class Channel:
    """The JSON lines exchanged with the executor. Other output is redirected to stderr, and stdin is empty."""

    def __init__(self) -> None:
        self._input = os.fdopen(os.dup(0), encoding="utf-8")
        self._output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def send(self, **message: Any) -> None:
        self._output.write(json.dumps(message, default=str) + "\n")
        self._output.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for a line. Exits if the executor has terminated."""
        line = self._input.readline()
        if not line:
            os._exit(0)
        return json.loads(line)

    def progress(self, report: dict[str, Any]) -> bool:
        self.send(progress=report)
        return bool(self.receive()["stop"])


def main(make_worker: str, device: str) -> None:
    """Execute the runs that the executor sends, until it closes the input.

    Args:
        make_worker: The import path of the worker class, `module:name`.
        device: The device of the worker.
    """
    end_with_parent()
    channel = Channel()
    worker, name = load_worker(make_worker, device, owns_process=True), worker_name(device)
    channel.send(ready=name)
    while True:
        spec = RunSpec(**channel.receive()["run"])
        record, is_fatal = run_spec(worker, spec, channel.progress, name)
        reports_memory = not is_fatal and not spec.only_check  # a check needs less than a run
        channel.send(record=record.to_json(), fatal=is_fatal, memory=gpu_memory(device) if reports_memory else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
