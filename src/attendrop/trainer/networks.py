"""Networks that a method trains beside the model, in a Trainer: their data, their scores, and which one is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ..core.networks import TrainsNetworks, exchange, exchanged, networks_of
from ..core.trainer_protocol import TrainerProtocol
from ..random import all_preserved, shared_generator
from ..utils.files import write_json

logger = logging.get_logger(__name__)

Evaluate = Callable[..., dict[str, float]]


class AuxiliaryNetworks:
    """Supports methods that train their own networks (`TrainsNetworks`) in a Trainer."""

    def __init__(self, trainer: TrainerProtocol) -> None:
        self._trainer = trainer
        self._held_out: Any = None
        self._all_examples: Any = None  # the training examples and those that are held out
        self._collate: Any = None

    @property
    def _methods(self) -> list[TrainsNetworks]:
        return [method for method in self._trainer.regularizers if isinstance(method, TrainsNetworks)]

    def prepare_data(self) -> None:
        """Check what the methods need of the data and the arguments, and hold examples out where they ask for it."""
        trainer = self._trainer
        for method in self._methods:
            self._check(method)
        share = max((method.held_out for method in self._methods), default=0.0)
        if share and self._held_out is None:
            generator = shared_generator(trainer.args.seed, 0, "held-out")
            order = torch.randperm(len(trainer.train_dataset), generator=generator).tolist()
            count = max(1, round(share * len(order)))
            self._all_examples = trainer.train_dataset
            self._held_out = torch.utils.data.Subset(trainer.train_dataset, sorted(order[:count]))
            trainer.train_dataset = torch.utils.data.Subset(trainer.train_dataset, sorted(order[count:]))
            logger.info(f"{count} of {len(order)} training examples are held out for rewards.")

    def all_examples(self) -> Any:
        """Return the training examples that the user gave, whether some of them are held out or not."""
        return self._trainer.train_dataset if self._all_examples is None else self._all_examples

    def _check(self, method: TrainsNetworks) -> None:
        args, dev = self._trainer.args, self._trainer.eval_dataset
        if method.draws_from == "dev" and (dev is None or isinstance(dev, Mapping) or not len(dev)):
            raise ValueError(
                f"eval_dataset is {type(dev).__name__}, and {type(method).__name__} draws examples from it "
                "(reward_on='dev'); pass one data set, or reward on 'held_out', 'noisy' or 'cached' examples."
            )
        if args.fp16 or self._trainer.is_fsdp_enabled:
            setting = "args.fp16 is True" if args.fp16 else "args.fsdp is on"
            raise ValueError(
                f"{setting}, which a method that trains several networks does not support; use bf16 or DDP."
            )

    def draw_examples(self, source: str, count: int, generator: torch.Generator) -> Mapping[str, Any]:
        """Return a batch of examples of "dev", "train" or "held_out", the same on every process."""
        trainer = self._trainer
        dataset = {"dev": trainer.eval_dataset, "train": trainer.train_dataset, "held_out": self._held_out}[source]
        chosen = torch.randperm(len(dataset), generator=generator)[:count].tolist()
        with all_preserved():
            if self._collate is None:
                # Not the evaluation loader: with persistent workers the Trainer would keep it and evaluate on it. The
                # loader of a `datasets.Dataset` drops columns from the data set and not in its collator.
                collate = trainer.get_test_dataloader(dataset).collate_fn
                self._collate = trainer._get_collator_with_removed_columns(collate)
            return trainer._prepare_inputs(self._collate([dataset[i] for i in chosen]))

    def evaluate(self, evaluate: Evaluate, *args: Any, **kwargs: Any) -> None:
        """Evaluate each network in the place of the model; its metrics are logged as `eval_<name>_...`."""
        for name, network in networks_of(self._trainer.regularizers, competing=True).items():
            with exchanged(self._trainer.model, network):
                evaluate(*args, metric_key_prefix=f"eval_{name}", **kwargs)

    def keep_best(self, evaluate: Evaluate) -> None:
        """Make the best network on the development set the final model."""
        networks, args = networks_of(self._trainer.regularizers, competing=True), self._trainer.args
        if not networks or self._trainer.eval_dataset is None:
            return
        metric = args.metric_for_best_model or "loss"
        metric = metric if metric.startswith("eval_") else f"eval_{metric}"
        sign = 1 if (args.greater_is_better if args.metric_for_best_model else False) else -1
        best = sign * evaluate()[metric]
        for name, network in networks.items():
            with exchanged(self._trainer.model, network):
                scores = evaluate(metric_key_prefix=f"eval_{name}")
            score = sign * scores[metric.replace("eval_", f"eval_{name}_", 1)]
            if score > best:
                best = score
                exchange(self._trainer.model, network)
                logger.info(f"The {name} is better on {metric}: it is the model from now on.")

    def save_records(self, folder: Path, is_checkpoint: bool) -> None:
        """Write what each method has learned into `<method>_run.json`, and its further files beside a final model."""
        for method in self._methods:
            if method.record():
                path = folder / f"{method.name}_run.json"
                write_json(path, method.record())
            if not is_checkpoint:
                method.save(folder)
