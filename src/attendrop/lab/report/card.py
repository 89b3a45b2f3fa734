"""The model card of a run: the data, the methods, the settings, the scores, and how to load the model.

Metadata and scores are written by `huggingface_hub`, in the format that the Hub reads (`model-index`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...utils.files import write_whole
from ...utils.shell import quoted
from ..records import FolderRecord
from ..tasks import METRICS, TASKS, Task, find_task, modality_of
from ..tasks.hub import is_hub_name
from ._markdown import markdown_code, markdown_text
from .evaluation import SHOWN_CLASSES, baselines_in_card, scores_in_card
from .usage import is_pooled, usage

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

_SHOWN_SETTINGS = (
    "learning_rate",
    "per_device_train_batch_size",
    "num_train_epochs",
    "weight_decay",
    "warmup_steps",
)


def write_card(folder: str | Path, record: FolderRecord) -> Path:
    """Write the model card of a run to `README.md`.

    Args:
        folder: The output folder of the run; its name becomes the name of the model.
        record: The record of the run, `Result.record`.

    Example:
        ```python
        result = fine_tune(model="roberta-base", task="glue/rte", output_dir="rte")
        write_card("rte", result.record)
        ```
    """
    path = Path(folder, "README.md")
    write_whole(path, str(make_card(record, Path(folder))), flush=False)
    return path


def make_card(record: FolderRecord, folder: Path) -> ModelCard:
    """Make the model card of a run.

    Args:
        record: The record of the run.
        folder: Its output folder, whose name is the name of the model.
    """
    from huggingface_hub import ModelCard

    text = _text(record, folder)
    return ModelCard(f"---\n{_metadata(record, folder.resolve().name).to_yaml()}\n---\n\n{text}")


def _metadata(record: FolderRecord, name: str) -> ModelCardData:
    from huggingface_hub import ModelCardData

    task, model = Task.from_dict(record.task_definition), record.settings["model"]
    results = _eval_results(record, task)
    return ModelCardData(
        library_name=_library(record, task),
        pipeline_tag=modality_of(task).pipeline_tag(task),
        tags=["attendrop", *(method["method"] for method in record.regularizers)],
        base_model=model if is_hub_name(model) else None,
        datasets=[task.hub] if task.hub and is_hub_name(task.hub) else None,
        model_name=name if results else None,
        eval_results=results or None,
    )


def _eval_results(record: FolderRecord, task: Task) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    results = []
    scored = ((name, metric, value) for name, of_part in record.scores.items() for metric, value in of_part.items())
    for name, metric, value in scored:
        if metric not in METRICS or not math.isfinite(value):
            continue
        if name in record.examples:  # a split of the task
            source, split = task, task.splits.get(name)
        else:  # a task of --also-eval
            source = find_task(name)
            split = source.splits.get("validation", source.splits.get("test"))
        results.append(
            EvalResult(
                task_type=modality_of(task).pipeline_tag(task),
                dataset_type=source.hub or (source.name if source.name in TASKS else "unknown"),
                dataset_name=source.name,
                dataset_config=source.hub_config,
                dataset_split=split,
                dataset_revision=source.hub_revision,
                metric_type=METRICS[metric].hub_name or metric,
                metric_name=metric,
                metric_value=value,
            )
        )
    return results


_CURVES = """
One seed says little on a small data set. Repeat the run with several values of `--seed` and compare the means.

![loss and score during training](curves.png)
"""


def _runs(record: FolderRecord, settings_file: Path) -> str:
    """Return the run that trained the model, or the runs whose weights were averaged."""
    if record.soup is not None:
        return _bullets(map(markdown_text, record.soup.sentences))
    kept, cost = _bullets(map(markdown_text, record.kept.sentences)), record.cost
    return (
        f"- seed: {record.seed}, one run\n"
        f"- {cost.steps} steps in {cost.total_seconds:.0f} s on {cost.processes} × {record.device}\n"
        f"{kept}\n"
        "Every setting is in `run.yaml`. On the machine of the run, this repeats it from any directory:\n\n"
        f"    attendrop train --config {quoted(settings_file)} --output-dir NEW_FOLDER\n"
    )


def amount(record: FolderRecord, split: str) -> str:
    """Return the number of examples of a split: "120", or "120 of 4,500" if they are a sample.

    Args:
        record: The record of the run.
        split: The name of the split.
    """
    available = record.available.get(split)
    return f"{record.examples[split]:,}" + ("" if available is None else f" of {available:,}")


def _text(record: FolderRecord, folder: Path) -> str:
    config, versions = record.settings, record.versions
    examples = ", ".join(f"{amount(record, split)} {split}" for split in record.examples)
    methods = _bullets(_method(fields) for fields in record.regularizers)
    settings = _bullets(f"{name}: {markdown_text(config[name])}" for name in _SHOWN_SETTINGS if name in config)
    scores = scores_in_card(record.scores, record.evaluation)
    first = f"**{markdown_text(record.baselines.sentence)}.**\n\n" if record.baselines.sentence else ""
    scores = f"{first}{scores}{baselines_in_card(record.baselines)}"
    caveats = "".join(f"\n{markdown_text(caveat)}\n" for caveat in record.caveats)
    task = Task.from_dict(record.task_definition)
    modality = modality_of(task)
    return f"""# {markdown_text(Path(config["model"]).name)} on {markdown_text(record.task)}

Fine-tuned with attendrop {versions["attendrop"]}.

## Data

Examples of {markdown_code(record.task)}: {examples}. {modality.how_cut(task, record.max_length)}

{_bullets(map(markdown_text, record.notes))}
## Method

{methods or "Plain fine-tuning without a regulariser." + chr(10)}
## Training

{settings}{_runs(record, folder.absolute() / "run.yaml")}
{_compression(record)}## Scores

{scores}{_pictures(record)}{caveats}{_CURVES if record.cost.steps else ""}
## Use

{usage(record, task, folder)}

{", ".join(f"{library} {version}" for library, version in versions.items())}
"""


def _compression(record: FolderRecord) -> str:
    """Return the section about the compression of the model; empty for a model that was not compressed."""
    done = record.compression
    if done is None:
        return ""
    rows = "".join(
        f"| {markdown_text(stage.edit)} | {speed:.2f}× | {'' if stage.score is None else f'{stage.score:.4f}'} |\n"
        for stage in done.stages
        for speed in [min(stage.stock[shape] / time for shape, time in stage.milliseconds.items())]
    )
    return f"""## Compression

{_bullets(map(markdown_text, done.sentences))}
| after | speed | {markdown_text(done.metric)} on the selection |
|---|---|---|
{rows}
![score against time](compression.png)

{_IN_TRANSFORMERS[done.is_exact]}

"""


_IN_TRANSFORMERS = {
    True: "The classes of transformers compute the same, at the speed of before; loaded as shown below, it is fast.",
    False: "The classes of transformers do not compute the same; load the model as shown below.",
}


def _library(record: FolderRecord, task: Task) -> str:
    """Return the library that loads the model."""
    from ...model.sentence_files import LIBRARY

    if record.compression is not None:
        return "attendrop"
    if not is_pooled(record):
        return "transformers"
    return "attendrop" if task.is_encoded_apart else LIBRARY


def _method(fields: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "method")
    return f"{markdown_code(fields['method'])}: {markdown_code(values)}" if values else markdown_code(fields["method"])


def _bullets(items: Iterable[str]) -> str:
    return "".join(f"- {item}\n" for item in items)


def _pictures(record: FolderRecord) -> str:
    """Return the figures and tables of the validation data that the run wrote."""
    evaluation = record.evaluation.get("validation")
    if evaluation is None:
        return ""
    errors = "\nThe validation examples with the largest loss are in `errors.csv`.\n"
    if evaluation.calibration is None:
        return errors
    confusion = (
        "![confusion matrix](confusion.png)\n" if len(evaluation.confusion) in range(1, SHOWN_CLASSES + 1) else ""
    )
    notes = [text for text in (record.threshold_note, record.temperature_note) if text]
    sentences = " ".join(markdown_text(f"{note[:1].upper()}{note[1:]}.") for note in notes)
    return f"\n{sentences}\n\n{confusion}![reliability diagram](reliability.png)\n{errors}"
