"""Model soups: one model whose weights are the average of the runs of one method (Wortsman et al., arXiv 2203.05482).

A uniform soup averages all runs. A greedy soup begins with the run that has the best validation score, tries the others
in the order of their scores, and keeps a run if the score of the average rises. Other parts of the data are
used for evaluation only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import set_seed

from ...errors import UserError
from ...methods import names_file
from ...utils.checks import check_choice
from ...utils.files import whole_folder
from .. import tasks
from ..evaluation.evaluator import scores_of
from ..evaluation.scorer import Scorer
from ..records import Averaged, Kept, Scores, StudyRecord
from ..runs.folder import check_folder, empty_folders_removed
from ..runs.lora import load_for_training
from ..runs.resolve import resolve_settings
from ..runs.run import Listener, Run, prepare_run
from ..runs.settings import make_config
from ..tasks.pooling import OWN_HEAD
from .configuration import check_data, read_configuration
from .kept_models import MODELS_FOLDER, load_kept
from .records import check_models, read_records
from .spec import RunSpec
from .splits import SELECTION, load_split_data
from .training import named_tensors

SOUPS = ("uniform", "greedy")

Weights = dict[str, Tensor]


@dataclasses.dataclass
class Soup:
    """The result of `make_soup`.

    Attributes:
        folder: The folder with the model.
        kind: "uniform" or "greedy".
        metric: The name of the score.
        seeds: The seeds of the runs that are averaged, in the order in which they were added.
        chosen_on: The part of the data that chose the runs; None for a uniform soup.
        scores: Scores of the soup.
        members: Seed -> scores of its run, for all runs.
        sentences: Notes for the reader.
    """

    folder: Path
    kind: str
    metric: str
    seeds: list[int]
    chosen_on: str | None
    scores: Scores
    members: dict[int, Scores]
    sentences: list[str]


def make_soup(
    study: str | Path,
    output_dir: str | Path,
    kind: str = "greedy",
    method: str | None = None,
    task: str | None = None,
    size: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Soup:
    """Average the models of one method of a comparison, evaluate the result, and write it as a model folder.

    Args:
        study: The folder of the comparison, which was run with `keep_models`.
        output_dir: The folder to write, which must not exist or be empty.
        kind: "uniform" or "greedy".
        method: The method as the comparison names it; None = the only one whose models are kept.
        task: The task, if the comparison has several.
        size: The amount of training data, if the comparison has several.
        progress: Called with a sentence after each step.

    Example:
        ```python
        soup = make_soup("studies/rte", "rte-soup", kind="greedy", method="addrop")
        print(soup.seeds, soup.scores["validation"])
        ```
    """
    check_choice("kind", kind, SOUPS)
    records = choose_records(study, method, task, size)
    first = records[0]
    spec = RunSpec(
        first.settings, first.method, first.task, first.seed, first.size, first.keep, bool(first.resample),
        first.fold, first.head_seed,
    )  # fmt: skip
    settings = {"pooling": OWN_HEAD, **first.settings, "output_dir": str(output_dir), "save_strategy": "no"}
    # Nothing is trained, and no file is run because a record names it.
    settings["method"] = [method for method in settings.get("method") or [] if not names_file(method)]
    config = make_config(settings)
    check_folder(config, may_go_on=False)
    data = tasks.with_pairs(load_split_data(spec, config), config.pairs)
    tokenizer = tasks.load_processor(config.model, data.task, trust_remote_code=config.trust_remote_code)
    resolved = resolve_settings(config, tasks.load_config(config.model, trust_remote_code=config.trust_remote_code))
    config = resolved.config
    set_seed(resolved.arguments.seed)
    plain = dataclasses.replace(config, lora=False)  # adapters were added to the weights when they were kept
    model = load_for_training(plain, data.task, tokenizer, [])
    run = prepare_run(config, resolved.arguments, data, model, tokenizer, Listener())
    with empty_folders_removed(config.output_dir):
        trainer = run.make_trainer(model, resolved.regularizers)
        averager = _Averager(Path(study, MODELS_FOLDER), records, run, trainer, progress or (lambda text: None))
        is_split = spec.keep == "split" and not spec.resample  # otherwise the part is trained on by other seeds
        chosen_on = SELECTION if is_split else "validation"
        members = averager.score_members()
        seeds = averager.uniform() if kind == "uniform" else averager.greedy(members, chosen_on)
        scores = averager.score()
        sentences = _sentences(kind, records, seeds, chosen_on, scores, bool(model.new_weights))
        _conclude(run, trainer, Averaged(kind, first.method, seeds, sentences))
    on = chosen_on if kind == "greedy" else None
    return Soup(config.output_dir, kind, run.prepared.metric, seeds, on, scores, members, sentences)


def _conclude(run: Run, trainer: Any, soup: Averaged) -> None:
    """Write the folder as `attendrop train` writes it, without the part that was split off of the training data."""
    data = dataclasses.replace(run.data, others={n: s for n, s in run.data.others.items() if n != SELECTION})
    prepared = dataclasses.replace(
        run.prepared, others={n: s for n, s in run.prepared.others.items() if n != SELECTION}
    )
    whole = dataclasses.replace(run, data=data, prepared=prepared)
    with whole_folder(run.config.output_dir) as draft:
        whole.conclude(trainer, 0.0, Kept(), soup, draft)


def choose_records(study: str | Path, method: str | None, task: str | None, size: str | None) -> list[StudyRecord]:
    """Return the finished runs of one method whose models are kept, by seed.

    Args:
        study: The folder of the comparison.
        method: The method; None = the only one whose models are kept.
        task: The task, if there are several.
        size: The amount of training data, if there are several.

    Raises:
        UserError: The choice of runs is ambiguous, or their models are missing.
    """
    check_data(Path(study), read_configuration(study))
    finished = [r for r in read_records(study).values() if r.is_finished and r.fold is None]
    check_models(Path(study), finished)
    kept = [record for record in finished if Path(study, MODELS_FOLDER, record.id).is_dir()]
    if not kept:
        raise UserError(
            f"{str(study)!r} has no models of its runs; they are kept by `attendrop compare --keep-models`."
        )
    for name, value in (("task", task), ("size", size), ("method", method)):
        known = list(dict.fromkeys(str(getattr(record, name)) for record in kept))
        if value is None and len(known) > 1:
            raise UserError(f"the study has several values of {name}; choose one with --{name}: {', '.join(known)}.")
        check_choice(name, known[0] if value is None else value, known)
        chosen = value or known[0]
        finished, kept = ([r for r in of if getattr(r, name) == chosen] for of in (finished, kept))
    if len(finished) > len(kept):
        missing = len(finished) - len(kept)
        raise UserError(
            f"the models of {missing} of the {len(finished)} runs of {finished[0].method} are missing; "
            "delete the records of these runs, and `attendrop compare --keep-models` runs them again."
        )
    if len(kept) < 2:
        raise UserError(
            f"there is one run of {kept[0].method}; a soup needs at least two, with other --seeds of the comparison."
        )
    return sorted(kept, key=lambda record: record.seed)


class _Averager:
    """Loads the models of the runs, averages them in the model of a Trainer, and scores it."""

    def __init__(
        self, folder: Path, records: Sequence[StudyRecord], run: Run, trainer: Any, progress: Callable[[str], None]
    ) -> None:
        self.paths = {record.seed: folder / record.id for record in records}
        self.run, self.trainer, self.progress = run, trainer, progress
        self._total: Weights = {}
        self._count = 0

    def score_members(self) -> dict[int, Scores]:
        """Return the scores of every run by itself."""
        members = {}
        for seed in self.paths:
            self._total, self._count = {}, 0
            self.add(seed)
            members[seed] = self.score()
            self.progress(f"seed {seed}: {self._shown(members[seed])}")
        return members

    def uniform(self) -> list[int]:
        """Average all runs, and return their seeds."""
        self._total, self._count = {}, 0
        for seed in self.paths:
            self.add(seed)
        return list(self.paths)

    def greedy(self, members: Mapping[int, Scores], part: str) -> list[int]:
        """Add the runs in the order of their scores; keep one if the score of the average rises, as the authors do.

        Args:
            members: The scores of each run.
            part: The part of the data that chooses.
        """
        metric, sign = self.run.prepared.metric, 1 if self.run.prepared.greater_is_better else -1
        order = sorted(members, key=lambda s: (-sign * members[s][part][metric], members[s][part]["loss"], s))
        self._total, self._count = {}, 0
        kept: list[int] = []
        best = -float("inf")
        for seed in order:
            before, count = self._total, self._count
            self.add(seed)
            score = sign * self.score([part])[part][metric]
            if score > best:
                kept, best = [*kept, seed], score
            else:
                self._total, self._count = before, count
            is_kept = "kept" if kept[-1] == seed else "left out"
            self.progress(f"with seed {seed}: {metric} {sign * score:.4f} on {part}; {is_kept}")
        self._write()
        return kept

    def add(self, seed: int) -> None:
        """Add a run to the average."""
        weights = self._load(seed)
        if self._total:
            weights = {name: self._total[name] + tensor for name, tensor in weights.items()}
        self._total, self._count = weights, self._count + 1
        self._write()

    def _load(self, seed: int) -> Weights:
        """Return the weights of a run in double precision, so that the order of the sum does not matter."""
        model = load_kept(self.paths[seed], self.run.data.task)
        weights = {name: tensor.detach().double() for name, tensor in named_tensors(model)}
        expected = {name: tensor.shape for name, tensor in self._tensors()}
        if {name: tensor.shape for name, tensor in weights.items()} != expected:
            raise UserError(
                f"the model of seed {seed} in {str(self.paths[seed])!r} has other weights than "
                f"{self.run.config.model}; models of different architectures cannot be averaged."
            )
        return weights

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from named_tensors(self.trainer.model)

    @torch.no_grad()
    def _write(self) -> None:
        for name, tensor in self._tensors():
            tensor.copy_(self._total[name] / self._count)

    def score(self, only: Sequence[str] | None = None) -> Scores:
        """Return the scores of the average on all parts that have labels, or on some of them."""
        scores: Scores = {}
        for part in self.run.scored_parts():
            if only is None or part.name in only:
                is_own = part.data is self.run.data
                scorer = Scorer(part.prepared, part.data.task, measures_calibration=is_own)
                scores[part.name] = scores_of(self.trainer.score(part.split, scorer))
        return scores

    def _shown(self, scores: Scores) -> str:
        metric = self.run.prepared.metric
        return ", ".join(f"{metric} {of[metric]:.4f} on {part}" for part, of in scores.items() if metric in of)


def _sentences(
    kind: str,
    records: Sequence[StudyRecord],
    seeds: Sequence[int],
    chosen_on: str,
    scores: Scores,
    has_new_weights: bool,
) -> list[str]:
    """Return notes for the reader of the scores."""
    method, listed = records[0].method, ", ".join(map(str, seeds))
    sentences = [
        f"The weights are the {kind} average (model soup) of {len(seeds)} of {len(records)} runs of {method}: "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {listed}."
    ]
    if kind == "greedy":
        part = "a part of the training data that was split off" if chosen_on == SELECTION else chosen_on
        sentences.append(f"The runs were chosen by their scores on {part}; those scores are optimistic.")
        if set(scores) <= {chosen_on}:
            sentences.append("There is no other part with labels, so the soup has no independent evaluation.")
    if has_new_weights and records[0].head_seed is None:
        sentences.append(
            "Warning: each run began with a head of its own, and the average of such heads is usually poor; "
            "`attendrop compare --same-head --keep-models` gives runs that can be averaged."
        )
    return sentences
