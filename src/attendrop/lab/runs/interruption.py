"""Early ends of a run: a checkpoint after Ctrl-C, and a one-line error on a full disk."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ...errors import UserError
from ...trainer.checkpoint_folders import newest_checkpoint
from ...utils.distributed import sum_over_processes
from ...utils.files import is_no_space

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a `UserError` that names the last checkpoint."""
    try:
        yield
    except Exception as error:
        if not is_no_space(error):
            raise
        last = newest_checkpoint(folder)
        if last is None:
            state = "no checkpoint was written"
        else:
            state = f"{last.name} is complete: free some space and continue with --resume"
        raise UserError(f"{str(folder)!r} could not be written to, because the disk is full; {state}.") from None


class Interruption(TrainerCallback):
    """On Ctrl-C, finish the step, save a checkpoint and stop. A second Ctrl-C stops at once.

    All processes of a run receive the signal, but maybe in different steps, so they agree on the step after which they
    stop.

    Attributes:
        requested: Whether this process received the signal.
        happened: Whether the run was stopped.
    """

    def __init__(self) -> None:
        self.requested = False
        self.happened = False

    @contextmanager
    def handle_signals(self, on_request: Callable[[], None]) -> Iterator[None]:
        """Handle SIGINT and SIGTERM; call `on_request` at the first one. Only the main thread can handle signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, frame: Any) -> None:
            if self.requested:
                raise KeyboardInterrupt
            self.requested = True
            on_request()

        before = {number: signal.signal(number, handler) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        requested = self.requested
        if args.world_size > 1:  # reading a tensor waits for the device
            flag = torch.tensor(float(requested), device=args.device)
            requested = bool(sum_over_processes(flag, args.world_size) > 0)
        if requested and state.global_step < state.max_steps:
            self.happened = True
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.happened:  # the Trainer would treat the stop as the end of an epoch: evaluate, log and save
            control.should_evaluate = control.should_save = control.should_log = False
