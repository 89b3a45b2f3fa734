"""Every task with real data trains, evaluates and predicts, and its scores equal those of the standard libraries."""

from __future__ import annotations

import csv
import json
import os
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from helpers.cli_tools import save_encoder, save_translator

DATA = Path(__file__).parents[4] / "shared" / "data"
ROWS = 64

# task -> the file of its validation split
TASKS: dict[str, str] = {
    "glue/cola": "glue/cola/validation.parquet",
    "glue/sst2": "glue/sst2/validation.parquet",
    "glue/mrpc": "glue/mrpc/validation.parquet",
    "glue/stsb": "glue/stsb/validation.parquet",
    "glue/qqp": "glue/qqp/validation_subset.parquet",
    "glue/mnli": "glue/mnli/validation_matched.parquet",
    "glue/qnli": "glue/qnli/validation.parquet",
    "glue/rte": "glue/rte/validation.parquet",
    "imdb": "imdb/test_subset.parquet",
    "conll2003": "conll2003/validation.parquet",
    "ptb": "ptb_sample/validation.parquet",
    "swag": "swag/validation_subset.parquet",
    "multi30k": "multi30k/validation.parquet",
}


def direct(metric: str, gold: list[Any], predicted: list[Any], positive: str) -> float:
    """The score by a direct call of the standard library for it."""
    import sacrebleu
    import scipy.stats
    import seqeval.metrics
    import sklearn.metrics

    words = [tags.split() for tags in gold], [tags.split() for tags in predicted]
    calls: dict[str, Any] = {
        "accuracy": lambda: sklearn.metrics.accuracy_score(gold, predicted),
        "f1": lambda: sklearn.metrics.f1_score(gold, predicted, pos_label=positive),
        "mcc": lambda: sklearn.metrics.matthews_corrcoef(gold, predicted),
        "pearson": lambda: scipy.stats.pearsonr([*map(float, gold)], [*map(float, predicted)]).statistic,
        "spearman": lambda: scipy.stats.spearmanr([*map(float, gold)], [*map(float, predicted)]).statistic,
        "entity_f1": lambda: seqeval.metrics.f1_score(*words),
        "entity_precision": lambda: seqeval.metrics.precision_score(*words),
        "entity_recall": lambda: seqeval.metrics.recall_score(*words),
        "token_accuracy": lambda: sklearn.metrics.accuracy_score([*chain(*words[0])], [*chain(*words[1])]),
        "bleu": lambda: sacrebleu.corpus_bleu(predicted, [gold]).score,
    }
    return float(calls[metric]())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    texts = ["two young men are outside near many bushes", "EU rejects German call to boycott British lamb ."] * 20
    return {"encoder": save_encoder(folder / "bert", texts), "translator": save_translator(folder / "bart", texts)}


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the real data")
@pytest.mark.parametrize("task", TASKS)
def test_real_task_trains_evaluates_and_predicts(task: str, models: dict[str, Path], tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    from attendrop.lab.runs import fine_tune
    from attendrop.lab.runs.predict import predict_file
    from attendrop.lab.tasks import find_task

    # All of the first rows are evaluated: `max_eval_samples` would draw them from the whole file.
    data, file = tmp_path / "data", tmp_path / "first.parquet"
    shutil.copytree(
        DATA / TASKS[task].partition("/")[0], data / TASKS[task].partition("/")[0], copy_function=os.symlink
    )
    parquet.write_table(parquet.read_table(DATA / TASKS[task]).slice(0, ROWS), file)
    (data / TASKS[task]).unlink()
    shutil.copy(file, data / TASKS[task])
    if task == "glue/mnli":
        (data / "hans").symlink_to(DATA / "hans")

    kind = find_task(task).kind
    longest = 256 if kind == "token_classification" else 48  # no word is truncated, so that every tag is predicted
    result = fine_tune(
        model=str(models["translator" if kind == "translation" else "encoder"]), task=task, data_dir=str(data),
        method=["addrop:cross_tuning=False"], max_train_samples=ROWS, max_eval_samples=ROWS, max_length=longest,
        num_train_epochs=1, learning_rate=1e-3, use_cpu=True, output_dir=str(tmp_path / "out"),
        generation_max_length=16, also_eval=["hans"] if task == "glue/mnli" else [],
    )  # fmt: skip
    assert result.finished
    metrics = find_task(task).metrics
    assert all(name in result.scores["validation"] for name in metrics)
    if task == "glue/mnli":
        assert 0 <= result.scores["hans"]["accuracy"] <= 1
    done = predict_file(tmp_path / "out", file, tmp_path / "answers.csv")
    assert done.examples == ROWS
    with (tmp_path / "answers.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if kind == "token_classification":  # one line for each word
        sentences: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            sentences.setdefault(row["sentence_number"], []).append(row)
        rows = [{name: " ".join(word[name] for word in words) for name in words[0]} for words in sentences.values()]
    assert len(rows) == ROWS
    column = find_task(task).label or find_task(task).text[1]
    gold, predicted = [row[column] for row in rows], [row["prediction"] for row in rows]
    for name in metrics:
        if task != "imdb":  # its validation split is split off the training data
            assert done.scores[name] == pytest.approx(result.scores["validation"][name], abs=1e-6)
        positive = find_task(task).labels[1] if len(find_task(task).labels) == 2 else ""
        rounded = 1e-2 if kind == "regression" else 1e-6  # the numbers in the file are rounded
        assert done.scores[name] == pytest.approx(direct(name, gold, predicted, positive), abs=rounded)
    record = json.loads((tmp_path / "out" / "record.json").read_text(encoding="utf-8"))
    assert record["scores"] == result.scores
