"""What is measured on trained models that a study has kept. The numbers of a model are stored beside it, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.files import load_json, write_whole
from .. import tasks
from ..records import StudyRecord
from ..runs.settings import make_config
from ..studies.kept_models import load_kept
from ..studies.splits import load_split_data
from .planning import PlannedRun

RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_EXAMPLES = 500  # of the validation data, drawn at random
START = 0.55  # P(drop) at the start: layers above it at the end are pruned
NO_SCORES = ("share pruned", "speed-up")
_BATCH = 32
_LENGTH = 128  # tokens of the texts whose forward pass is timed

Numbers = dict[tuple[str, str, float | None], float]  # what is added to the row, column, x -> value


def measure_robustness_of(run: PlannedRun, record: StudyRecord, place: Path, gates: dict[int, float]) -> Numbers:
    """Measure the score of a kept model while attention positions are dropped, by layer, order and rate.

    Args:
        run: The run.
        record: Its record.
        place: The folder of its model.
        gates: Unused: P(drop) of each layer.
    """
    from ..robustness.measure import measure_robustness

    def measure() -> Numbers:
        model, prepared, batches = _loaded(run, record, place)
        result = measure_robustness(
            model, batches, rates=RATES, compute_metrics=prepared.compute_metrics, metric=prepared.metric
        )
        return {
            (f", {point.order}", point.layer.replace("_", " "), point.rate): float(point.score)
            for point in result.points
        }

    return _once(place, "robustness", measure)


def measure_pruning(run: PlannedRun, record: StudyRecord, place: Path, gates: dict[int, float]) -> Numbers:
    """Prune the layers of a kept model whose P(drop) rose, and measure its score and speed before and after.

    Args:
        run: The run.
        record: Its record.
        place: The folder of its model.
        gates: P(drop) of each layer in the last round; empty for a run without a generator, which is not pruned.
    """
    from ...prune.measure import cost_of
    from ...prune.surgery import prune

    def measure() -> Numbers:
        model, prepared, batches = _loaded(run, record, place)
        whole = _score(model, prepared, batches)
        layers = [layer for layer, rate in gates.items() if rate > START]
        numbers: Numbers = {("", "score before pruning", None): whole, ("", "score", None): whole}
        share, faster = 0.0, 1.0
        if layers:
            length = min(_LENGTH, int(getattr(model.config, "max_position_embeddings", 512)) - 2)
            before = cost_of(model, length=length).milliseconds
            prune(model, layers)
            after = cost_of(model, length=length).milliseconds
            share, faster = len(layers) / len(gates), (before or 0.0) / (after or 1.0)
            numbers["", "score", None] = _score(model, prepared, batches)
        return {**numbers, ("", "share pruned", None): share, ("", "speed-up", None): faster}

    return _once(place, "pruning", measure)


def _once(place: Path, name: str, measure: Callable[[], Numbers]) -> Numbers:
    """Return the numbers beside a model, after measuring them if they are not there."""
    file = place.with_name(f"{place.name}-{name}.json")
    if file.is_file():
        return {(suffix, column, x): value for suffix, column, x, value in load_json(file)}
    if not place.is_dir():
        raise UserError(
            f"{str(place)!r} is missing: the run has ended and its model was not kept; choose another folder."
        )
    numbers = measure()
    write_whole(file, json.dumps([[*key, value] for key, value in numbers.items()]) + "\n")
    return numbers


def _loaded(run: PlannedRun, record: StudyRecord, place: Path) -> tuple[Any, tasks.Prepared, list[Mapping[str, Any]]]:
    """Return the model of a run in eval mode, its prepared data, and batches of the validation examples."""
    import torch
    from torch.utils.data import DataLoader

    config = make_config({**run.spec.settings, "output_dir": str(place)})
    data = tasks.at_most(load_split_data(run.spec, config), "validation", MOST_EXAMPLES, 0)
    tokenizer = tasks.load_processor(config.model, data.task)
    prepared = tasks.prepare(data, tokenizer, config.max_length)
    assert prepared.validation is not None
    columns = [name for name in prepared.validation.column_names if name in (*tokenizer.model_input_names, "labels")]
    loader = DataLoader(prepared.validation.select_columns(columns), batch_size=_BATCH, collate_fn=prepared.collator)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_kept(place, data.task).to(device).eval(), prepared, [dict(batch) for batch in loader]


def _score(model: Any, prepared: tasks.Prepared, batches: list[Mapping[str, Any]]) -> float:
    """Return the score of a model."""
    import torch
    from transformers import EvalPrediction
    from transformers.trainer_pt_utils import nested_concat

    outputs, labels = None, None
    device = next(model.parameters()).device
    with torch.no_grad():
        for batch in _on(batches, device):
            logits = model(**batch).logits.float().cpu()
            outputs = logits if outputs is None else nested_concat(outputs, logits, padding_index=-100)
            gold = batch["labels"].cpu()
            labels = gold if labels is None else nested_concat(labels, gold, padding_index=-100)
    assert outputs is not None
    assert labels is not None
    metrics = prepared.compute_metrics(EvalPrediction(outputs.numpy(), labels.numpy()))
    return float(metrics[prepared.metric])


def _on(batches: list[Mapping[str, Any]], device: Any) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield {name: value.to(device) for name, value in batch.items()}
