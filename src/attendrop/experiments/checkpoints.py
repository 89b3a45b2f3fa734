"""Checkpoints of a run: the last whole one, and what an interruption or a full disk must leave behind."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..errors import UserError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole: the Trainer writes its state last."""
    found = {}
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if number.isdigit() and _is_whole(path):
            found[int(number)] = path
    return found[max(found)] if found else None


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """A checkpoint that cannot be written is removed, so that the last whole one stays the last."""
    try:
        yield
    except Exception as error:
        if not _is_no_space(error):
            raise
        for path in folder.glob("checkpoint-*"):
            if not _is_whole(path):
                shutil.rmtree(path, ignore_errors=True)
        last = last_checkpoint(folder)
        kept = f"{last.name} is whole: free some space and go on with --resume" if last else "no checkpoint was written"
        raise UserError(f"{str(folder)!r} could not be written to, because the disk is full; {kept}.") from None


def _is_no_space(error: BaseException) -> bool:
    # safetensors and torch wrap the operating system's error in their own
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    text = str(error)
    return getattr(error, "errno", None) in codes or any(
        mark in text for mark in ("No space left on device", "File too large", "unexpected pos", "Disk quota exceeded")
    )


class Interruption(TrainerCallback):
    """Ctrl-C finishes the step, saves a checkpoint and stops; a second Ctrl-C stops at once.

    All processes of a run get the signal, but not in the same step: they agree on one.
    """

    def __init__(self) -> None:
        self.asked = False
        self.happened = False

    @contextmanager
    def listening(self, announce: Any = None) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            if announce is not None:
                announce()

        before = {number: signal.signal(number, ask) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asked = self.asked
        if args.world_size > 1:
            flag = torch.tensor(float(asked), device=args.device)
            torch.distributed.all_reduce(flag)
            asked = bool(flag > 0)
        if asked and state.global_step < state.max_steps:
            self.happened = True
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.happened:  # the Trainer takes the stop for the end of an epoch, with all that belongs to it
            control.should_evaluate = control.should_save = control.should_log = False
