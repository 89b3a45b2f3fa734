"""What a method is: a dataclass whose fields are its hyper-parameters, with up to six verbs.

    for each optimizer step
        on_step_begin(step)                    # mixout mixes the weights
        for each micro-batch
            on_batch(batch, step)              # AttendOut trains the defender; never captured
            plan(batch, step)     -> Plan      # AD-DROP probes; LayerDrop draws; may be captured (`capture_key`)
            one tracked pass under the plan, over `views` copies of each example
            penalty(outputs, step) -> Tensor   # R-Drop compares the views
            backward                           # the plan lives until this has ended
        on_gradients(step)                     # Child-Tuning masks the gradients
        optimizer.step()
        on_step_end(step)                      # AttendOut rewards
    on_close()                                 # also after an exception in the middle of a step

There is one tracked pass for each micro-batch. What else a method wants to know it learns from a probe, or from more
views of the batch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import random
from ..kernels.draws import uniform
from ..model.plan import Plan
from ..model.probe import Probe
from ..model.seams import Seams
from ..utils.transfer import sent
from .schedule import Progress, Schedule

CONFIG_FILE = "regularizers.json"


def _backward(network: nn.Module, batch: Mapping[str, Any]) -> None:
    network(**batch)["loss"].backward()


@dataclass
class Surroundings:
    """What the training loop lends to methods that train a network of their own beside the model."""

    optimizer: torch.optim.Optimizer | None = None
    max_grad_norm: float = 0.0
    world: int = 1
    # forward, loss and backward of another network, just as the loop does it for the model
    backward: Callable[[nn.Module, Mapping[str, Any]], Any] = _backward
    # gives another network what the loop gave to the model's forward: autocast, say
    prepare: Callable[[nn.Module], nn.Module] = field(default=lambda network: network)
    # where work may be recorded as graphs and replayed
    graphs: Any = None
    # a batch of so many fresh examples of "dev", "train" or "held_out", drawn with a generator
    examples: Callable[[str, int, torch.Generator], Mapping[str, Any]] | None = None


@dataclass
class Step:
    """What a method is told about the step that it takes part in."""

    model: nn.Module
    seams: Seams
    progress: Progress
    seed: int = 0
    first_position: int = 0  # of the micro-batch's first example in the global batch
    batch_size: int = 1  # examples in this micro-batch
    measure: bool = False  # whether this step's figures will be logged
    around: Surroundings = field(default_factory=lambda: Surroundings())
    metrics: dict[str, Tensor] = field(default_factory=dict)
    views: int = 1  # copies of each example in the tracked pass, laid one after the other: [views · B, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)  # of the tracked pass, all views
    columns: frozenset[str] = frozenset()  # of the batch, that methods read and the model does not get

    def probe(self, batch: Mapping[str, Any]) -> Probe:
        return Probe(self.model, self.seams, {k: v for k, v in batch.items() if k not in self.columns})

    def uniform(self, site: int, shape: tuple[int, int, int, int], device: torch.device, stream: str) -> Tensor:
        """Local draws in [0, 1) of `shape` [B, H, Q, K], the same however the global batch is dealt out."""
        return uniform(self.key(site, stream), self.positions(shape[0], device), shape[1:], device)

    def key(self, site: int, stream: str) -> int | Tensor:
        """The key of a site's local draws. In a captured step it is an int32 of no dimensions in device memory."""
        return random.key_of(self.seed, self.progress.step, site, stream)

    def keys(self, sites: Sequence[int], stream: str, device: torch.device) -> Tensor:
        """The keys of several sites, int32 [sites, 1], as `random.uniform` takes them to draw for all at once."""
        found = [random.key_of(self.seed, self.progress.step, site, stream) for site in sites]
        return sent(random.as_keys(found).unsqueeze(1), device)

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """The places in the global batch of the micro-batch's rows: more than its examples where choices are rows."""
        return self.first_position * (rows // self.batch_size) + torch.arange(rows, device=device)

    def uniform_of_views(
        self, site: int, shape: tuple[int, int, int, int], device: torch.device, stream: str
    ) -> Tensor:
        """As `uniform`, for every view of its own: [views · B, H, Q, K], where `shape` is that of one view."""
        streams = [stream, *(f"{stream}/{view}" for view in range(1, self.views))]
        return torch.cat([self.uniform(site, shape, device, name) for name in streams])

    def shared_generator(self, name: str) -> torch.Generator:
        """Draws that are the same on every process."""
        return random.shared_generator(self.seed, self.progress.step, name)


@dataclass
class Regularizer:
    """The base of every method. All verbs do nothing here."""

    name: ClassVar[str] = ""
    edits_weights: ClassVar[bool] = False
    local_state: ClassVar[tuple[str, ...]] = ()  # how the names of tensors begin that differ between processes

    @property
    def views(self) -> int:
        """Copies of each example in the tracked pass. With no strength it must be 1, or a run would not be plain."""
        return 1

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the batch that this method reads and the model must not get."""
        return ()

    def refuses(self, other: Regularizer) -> str | None:
        """Why this method cannot act beside `other`: the end of a sentence; None where it can."""
        return None

    def reset(self) -> None:
        """Forgets an earlier run: the same object may train several models, one after the other."""

    def capture_key(self, step: Step) -> Hashable:
        """What `plan` depends on beside the batch, the weights and local draws: steps with equal keys replay one graph.

        None: this step is not captured. That is the rule for methods that plan and do not say otherwise here. Another
        value that is false: nothing is planned.
        """
        return () if type(self).plan is Regularizer.plan else None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        """Raises a `ValueError` where this method cannot do its work on this model for this long."""

    def on_step_begin(self, step: Step) -> None: ...

    def on_batch(self, batch: Mapping[str, Any], step: Step) -> None:
        """Before the plan of a micro-batch, on the host also where plans are captured. The batch may be overwritten."""

    def plan(self, batch: Mapping[str, Any], step: Step) -> Plan:
        return Plan()

    def penalty(self, outputs: Any, step: Step) -> Tensor | None:
        return None

    def on_gradients(self, step: Step) -> None: ...

    def on_step_end(self, step: Step) -> None: ...

    def on_close(self) -> None:
        """Puts back what it has changed: training is over, or has died, maybe in the middle of a step."""

    @property
    def held_out(self) -> float:
        """The share of the training set that this method wants for itself."""
        return 0.0

    @property
    def draws_from(self) -> str | None:
        """The data set, "dev", "train" or "held_out", of which this method draws examples."""
        return None

    def networks(self) -> dict[str, nn.Module]:
        """Networks trained beside the model, whose score is logged too, and one of which may be the better one."""
        return {}

    def record(self) -> list[dict[str, Any]]:
        """What this method learned, round by round, ready for JSON and for `attendrop.report`."""
        return []

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint must hold of this method: tensors, and values ready for JSON."""
        return {}, {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None: ...

    def to_dict(self) -> dict[str, Any]:
        """The whole configuration, ready for JSON."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"method": self.name or type(self).__name__, **fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return [list(point) for point in value.points]
    if isinstance(value, slice):
        return ":".join("" if part is None else str(part) for part in (value.start, value.stop, value.step))
    return value


def save_regularizers(regularizers: Sequence[Regularizer], folder: str | Path, **extra: Any) -> None:
    """Writes the configuration of all methods beside a model."""
    record = {**extra, "regularizers": [regularizer.to_dict() for regularizer in regularizers]}
    Path(folder, CONFIG_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
