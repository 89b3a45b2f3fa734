"""Compares what `attendrop train` makes of a table by default with two linear models that take seconds.

    python -m studies.simple_baselines --model DIR --data DIR --sizes 100 300 1000 --seeds 3

`--data` is a folder of Parquet files: `arena/<name>/{train,test}.parquet`, `glue/<name>/`, `conll2003/`, and `harder/`,
which `studies.harder_files` writes. For every set, size and seed, that many training examples are drawn; of sets named
`k-shot`, that many of each class. The tool gets them as a file and nothing else: it splits off its own validation data
and chooses everything. The linear models get all of them:

    words     TF-IDF of words and pairs of words, logistic or ridge regression whose strength cross-validation
              chooses; in tagging, features of the word and its neighbours
    frozen    the mean of the model's last hidden states, for pairs [u, v, |u − v|, u ∗ v] of length 1, and the same
              regression

All are scored on the same test examples. A run is a row of `results/simple-baselines.csv`, and rows that exist are not
run again. `--workers 12` trains as many at once; of another recipe than the default (`--recipe`), the tool alone runs.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import append, conditions
from docs.tables.markdown import table

from . import RESULTS

OUTPUT = RESULTS / "simple-baselines.csv"
TOOL, WORDS, FROZEN = "tool", "words", "frozen"
DEFAULT = "default"  # the recipe that the tool chooses


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        name: Its name.
        train: The file that training examples are drawn from.
        test: The file with the test examples.
        text: The columns with texts.
        label: The column with the label.
        metric: What it is scored with.
        shots: Training examples of each class; classes that have fewer are left out. 0 = as many as `--sizes` says,
            whatever their classes. Test examples of classes or tags that no training example has are left out.
        scale: Numbers are multiplied by it: a file whose labels go from 0 to 100 is not rare.
    """

    name: str
    train: str
    test: str
    text: tuple[str, ...] = ("text",)
    label: str = "label"
    metric: str = "accuracy"
    shots: int = 0
    scale: float = 1.0


def _arena(name: str, **more: Any) -> DataSet:
    return DataSet(more.pop("called", name), f"arena/{name}/train.parquet", f"arena/{name}/test.parquet", **more)


def _harder(name: str, **more: Any) -> DataSet:
    return DataSet(more.pop("called", name), f"harder/{name}/train.parquet", f"harder/{name}/test.parquet", **more)


def _glue(name: str, *text: str, train: str = "train", metric: str = "accuracy", **more: Any) -> DataSet:
    return DataSet(
        more.pop("called", name), f"glue/{name}/{train}.parquet", f"glue/{name}/validation.parquet", text,
        metric=metric, **more,
    )  # fmt: skip


DATA_SETS = (
    *map(_arena, ("subj", "trec", "sst5", "cr", "mpqa", "ag_news", "stackoverflow")),
    *map(_arena, ("tweet_irony", "tweet_emotion", "tweet_offensive", "counterfactual")),
    _arena("snli", text=("text", "text_pair")),
    _glue("sst2", "sentence"),
    _glue("cola", "sentence", metric="mcc"),
    _glue("mrpc", "sentence1", "sentence2"),
    _glue("rte", "sentence1", "sentence2"),
    _glue("qnli", "question", "sentence", train="train_subset"),
    _glue("stsb", "sentence1", "sentence2", metric="pearson"),
    _glue("stsb", "sentence1", "sentence2", metric="pearson", called="stsb-0-100", scale=20.0),
    DataSet("conll2003", *(f"conll2003/{part}.parquet" for part in ("train", "validation")), ("tokens",), "ner_tags",
            "entity_f1"),
    _arena("stackoverflow", called="stackoverflow 5-shot", shots=5),
    _arena("trec", called="trec 8-shot", shots=8),
    _arena("tweet_emotion", called="tweet_emotion 8-shot", shots=8),
    # harder ones, of `studies.harder_files`
    _harder("sms_spam", metric="macro_f1"),
    _harder("reuters52", metric="macro_f1"),
    _harder("trec_fine", called="trec_fine 5-shot", shots=5),
    _harder("german_reviews"),
    _harder("german_tags", text=("tokens",), label="tags", metric="token_accuracy"),
    _harder("tweet_sentiment", metric="pearson"),
    _harder("flesch", metric="r2"),
    _harder("topics", metric="micro_f1"),
)  # fmt: skip
BY_NAME = {data_set.name: data_set for data_set in DATA_SETS}


def drawn(data_set: DataSet, folder: Path, size: int, seed: int, tested: int) -> tuple[Any, Any]:
    """Draw training and test examples.

    Args:
        data_set: The data set.
        folder: The folder of all data.
        size: The number of training examples.
        seed: The seed of the draw; the test examples are the same for all seeds.
        tested: The largest number of test examples.

    Returns:
        Two tables of pandas, with the columns of texts and the label.
    """
    import pandas

    columns = [*data_set.text, data_set.label]
    pool, test = (pandas.read_parquet(folder / name)[columns] for name in (data_set.train, data_set.test))
    if data_set.shots:
        pool = pool[pool.groupby(data_set.label)[data_set.label].transform("size") >= data_set.shots]
        train = pool.groupby(data_set.label).sample(data_set.shots, random_state=seed).sample(frac=1, random_state=seed)
    else:
        train = pool.sample(min(size, len(pool)), random_state=seed)
    if is_tagging(data_set):
        known = set(np.concatenate(list(train[data_set.label])))
        test = test[[known.issuperset(tags) for tags in test[data_set.label]]]
    elif kind_of(data_set) is None:
        test = test[test[data_set.label].isin(train[data_set.label])]
    test = test.sample(min(tested, len(test)), random_state=0)
    if data_set.scale != 1:
        train, test = (part.assign(**{data_set.label: part[data_set.label] * data_set.scale}) for part in (train, test))
    return train.reset_index(drop=True), test.reset_index(drop=True)


# ---- the three models: each returns its answers for the test examples ---------------------------------------------


def of_tool(data_set: DataSet, train: Any, test: Any, options: argparse.Namespace, seed: int) -> list[Any]:
    """Return the answers of `attendrop train` with its defaults, from the file that it writes."""
    import pandas

    from attendrop.lab.runs import fine_tune

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.to_parquet(folder / "train.parquet")
        test.to_parquet(folder / "test.parquet")
        pair = data_set.text[1] if len(data_set.text) == 2 else None
        result = fine_tune(
            model=options.model, train_file=folder / "train.parquet", test_file=folder / "test.parquet",
            text=data_set.text[0], text_pair=pair, label=data_set.label, seed=seed, output_dir=folder / "run",
            kind=kind_of(data_set), label_separator=";" if is_labels(data_set) else None, max_length=128,
            bf16=options.bf16, use_cpu=options.device == "cpu", disable_tqdm=True, **dict(options.settings),
        )  # fmt: skip
        answers = pandas.read_csv(result.folder / "predictions_test.csv", keep_default_na=False, dtype=str)
    if is_tagging(data_set):
        return _by_example(answers["prediction"].to_numpy(), test[data_set.text[0]])
    column = "prediction" if "prediction" in answers else answers.columns[-1]
    return answers[column].astype(test[data_set.label].dtype).tolist()


def _by_example(tags: np.ndarray, texts: Any) -> list[list[Any]]:
    """Return the tags of each example, from those of all words."""
    ends = np.cumsum([len(words) for words in texts])
    assert ends[-1] == len(tags)
    return [part.tolist() for part in np.split(tags, ends[:-1])]


def of_words(data_set: DataSet, train: Any, test: Any, options: argparse.Namespace, seed: int) -> list[Any]:
    """Return the answers of a linear model of words."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.feature_extraction.text import TfidfVectorizer

    if is_tagging(data_set):
        vectors = DictVectorizer()
        mine, other = ([of for words in part[data_set.text[0]] for of in _described(words)] for part in (train, test))
        flat = linear(data_set, vectors.fit_transform(mine), np.concatenate(list(train[data_set.label])),
                      vectors.transform(other))  # fmt: skip
        return _by_example(flat, test[data_set.text[0]])
    parts = []
    for column in data_set.text:
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        parts.append((vectors.fit_transform(train[column]), vectors.transform(test[column])))
    mine, other = (hstack([part[i] for part in parts]).tocsr() for i in (0, 1))
    return linear(data_set, mine, train[data_set.label].to_numpy(), other).tolist()


def _described(words: Sequence[str]) -> list[dict[str, float]]:
    padded = ["^", *words, "$"]
    return [
        dict.fromkeys(
            (f"w={word}", f"l={word.lower()}", f"e={word[-3:]}", f"b={word[:3]}", f"u={word[:1].isupper()}",
             f"d={word.isdigit()}", f"-={padded[i].lower()}", f"+={padded[i + 2].lower()}", f"first={i == 0}"),
            1.0,
        )
        for i, word in enumerate(words)
    ]  # fmt: skip


def of_frozen(data_set: DataSet, train: Any, test: Any, options: argparse.Namespace, seed: int) -> list[Any] | None:
    """Return the answers of a linear model of the frozen model's means; None for tags."""
    if is_tagging(data_set):
        return None
    mine, other = (_features(data_set, part, options) for part in (train, test))
    center, width = mine.mean(0), mine.std() or 1.0
    return linear(
        data_set, (mine - center) / width, train[data_set.label].to_numpy(), (other - center) / width
    ).tolist()


def _features(data_set: DataSet, part: Any, options: argparse.Namespace) -> np.ndarray:
    sides = [_means(options.model, options.device, tuple(map(str, part[column]))) for column in data_set.text]
    if len(sides) == 1:
        return sides[0]
    u, v = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return np.concatenate([u, v, abs(u - v), u * v], 1)


_loaded: dict[str, Any] = {}


def _means(name: str, device: str, texts: tuple[str, ...]) -> np.ndarray:
    import torch
    from transformers import AutoModel, AutoTokenizer

    if name not in _loaded:
        _loaded[name] = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).to(device).eval()
    tokenizer, model = _loaded[name]
    order, rows = sorted(range(len(texts)), key=lambda i: len(texts[i])), [np.zeros(0)] * len(texts)
    with torch.no_grad():
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            batch = tokenizer([texts[i] for i in places], padding=True, truncation=True, max_length=128,
                              return_tensors="pt").to(device)  # fmt: skip
            mask = batch["attention_mask"].unsqueeze(-1)
            means = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            for place, row in zip(places, means.float().cpu().numpy(), strict=True):
                rows[place] = row
    return np.stack(rows)


def linear(data_set: DataSet, train: Any, gold: np.ndarray, test: Any) -> np.ndarray:
    """Return the answers of scikit-learn's logistic or ridge regression; cross-validation chooses its strength."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.model_selection import GridSearchCV

    if is_number(data_set):
        return np.asarray(RidgeCV(alphas=np.logspace(-3, 4, 15)).fit(train, gold).predict(test))
    if is_labels(data_set):
        return _labels(train, gold, test)
    folds = min(5, int(np.bincount(np.unique(gold, return_inverse=True)[1]).min()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if is_tagging(data_set) or folds < 2:
            return np.asarray(LogisticRegression(C=10.0, max_iter=200).fit(train, gold).predict(test))
        grid = {"C": np.logspace(-4, 3, 8)}
        return np.asarray(GridSearchCV(LogisticRegression(max_iter=300), grid, cv=folds).fit(train, gold).predict(test))


def _labels(train: Any, gold: np.ndarray, test: Any) -> np.ndarray:
    """Return the labels above a threshold, which has the best micro F1 on held-out folds."""
    from sklearn.preprocessing import MultiLabelBinarizer

    from attendrop.lab.statistics.linear import fit_logistic_labels, folds_of
    from attendrop.lab.tasks.kinds.heads import WORD_STRENGTHS

    names = MultiLabelBinarizer()
    targets = names.fit_transform([_split(value) for value in gold])
    more = {} if isinstance(train, np.ndarray) else {"strengths": WORD_STRENGTHS}
    held_out = np.zeros(targets.shape)
    for fit, held in folds_of(None, len(targets)):
        held_out[held] = fit_logistic_labels(train[fit], targets[fit], **more)(train[held])
    thresholds = np.unique(np.quantile(held_out, np.linspace(0.5, 1, 101)))
    best = max(thresholds, key=lambda at: 2 * targets[held_out >= at].sum() / ((held_out >= at).sum() + targets.sum()))
    predicted = fit_logistic_labels(train, targets, **more)(test) >= best
    return np.array([";".join(labels) for labels in names.inverse_transform(predicted.astype(int))], object)


def _split(labels: str) -> list[str]:
    return [name for name in labels.split(";") if name]


MODELS: dict[str, Callable[..., list[Any] | None]] = {TOOL: of_tool, WORDS: of_words, FROZEN: of_frozen}


# ---- scores -------------------------------------------------------------------------------------------------------


def is_number(data_set: DataSet) -> bool:
    """Return whether the labels are numbers."""
    return data_set.metric in ("pearson", "r2")


def is_tagging(data_set: DataSet) -> bool:
    """Return whether each word has a label."""
    return data_set.metric in ("entity_f1", "token_accuracy")


def is_labels(data_set: DataSet) -> bool:
    """Return whether an example has any number of labels."""
    return data_set.metric == "micro_f1"


def kind_of(data_set: DataSet) -> str | None:
    """Return the kind that the file alone does not say; None for classes."""
    kinds = {"token_classification": is_tagging, "regression": is_number, "multilabel": is_labels}
    return next((kind for kind, holds in kinds.items() if holds(data_set)), None)


def score(data_set: DataSet, answers: Sequence[Any], gold: Sequence[Any]) -> float:
    """Return the score of answers, with the function of the field's library."""
    from scipy.stats import pearsonr
    from seqeval.metrics import f1_score as entity_f1
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, r2_score

    if data_set.metric == "pearson":
        return float(pearsonr(answers, gold)[0]) if np.std(answers) else 0.0
    if data_set.metric == "token_accuracy":
        return float(accuracy_score(*(np.concatenate(list(rows)).astype(str) for rows in (gold, answers))))
    if is_tagging(data_set):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(entity_f1(*([[str(tag) for tag in row] for row in rows] for rows in (gold, answers))))
    if is_labels(data_set):
        pairs = [(set(_split(mine)), set(_split(theirs))) for mine, theirs in zip(answers, gold, strict=True)]
        shared, all_of_both = (
            sum(map(of, pairs)) for of in (lambda p: len(p[0] & p[1]), lambda p: len(p[0]) + len(p[1]))
        )
        return 2 * shared / max(all_of_both, 1)
    if data_set.metric == "macro_f1":
        return float(f1_score(gold, answers, average="macro", zero_division=0.0))
    known = {"accuracy": accuracy_score, "mcc": matthews_corrcoef, "r2": r2_score}
    return float(known[data_set.metric](gold, answers))


def noise(data_set: DataSet, one: Sequence[Any], other: Sequence[Any], gold: Sequence[Any]) -> float:
    """Return half the width of the 95 % interval of a difference of scores, by a bootstrap of the test examples."""
    draw, count = np.random.default_rng(0), len(gold)
    differences = []
    for _ in range(50 if is_tagging(data_set) else 200):
        rows = draw.integers(0, count, count)
        mine, theirs, right = ([values[row] for row in rows] for values in (one, other, gold))
        differences.append(score(data_set, mine, right) - score(data_set, theirs, right))
    return 1.96 * float(np.std(differences))


def row_of(data_set: DataSet, size: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train the three models on one draw, and return the row of the file."""
    train, test = drawn(data_set, options.data, size, seed, options.tested)
    gold = [list(row) if is_tagging(data_set) else row for row in test[data_set.label]]
    answers: dict[str, list[Any]] = {}
    seconds: dict[str, float | str] = dict.fromkeys(MODELS, "")
    for name, model in MODELS.items():
        if name != TOOL and options.recipe != DEFAULT:
            continue
        begun = time.perf_counter()
        given = model(data_set, train, test, options, seed)
        seconds[name] = round(time.perf_counter() - begun, 1)
        if given is not None:
            answers[name] = given
    scores = {name: score(data_set, given, gold) for name, given in answers.items()}
    best = max((name for name in scores if name != TOOL), key=lambda name: scores[name], default=None)
    half = "" if best is None else round(100 * noise(data_set, answers[TOOL], answers[best], gold), 2)
    return {
        "model": Path(options.model).name, "recipe": options.recipe, "data set": data_set.name, "examples": len(train),
        "tested": len(test), "seed": seed, "metric": data_set.metric,
        **{name: round(100 * scores[name], 2) if name in scores else "" for name in MODELS},
        "noise": half,
        **{f"{name} seconds": seconds[name] for name in MODELS},
        **conditions(options.device), "size": 0 if data_set.shots else size,
    }  # fmt: skip


# ---- the table ----------------------------------------------------------------------------------------------------


def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each model, data set and size the means over the seeds, and the difference to the better linear model.

    The difference has a 95 % interval: that of Student's t over the seeds, or that of the test examples, whichever is
    wider. With one seed it is that of the test examples.

    Args:
        rows: Rows of `row_of`, or of the file.
    """
    from scipy.stats import t

    most: dict[tuple[str, str], int] = {}  # an earlier run of fewer test examples is left out
    for row in rows:
        cell = row["model"], row["data set"]
        most[cell] = max(most.get(cell, 0), int(row["tested"]))
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["recipe"] != DEFAULT or int(row["tested"]) < most[row["model"], row["data set"]]:
            continue
        key = ("model", "data set", "size", "metric")
        groups.setdefault(tuple(str(row[name]) for name in key), []).append(row)
    cells = []
    for (model, name, size, metric), mine in groups.items():
        means = {
            one: statistics.fmean(float(row[one]) for row in mine)
            for one in MODELS
            if all(row[one] != "" for row in mine)
        }
        best = max((one for one in means if one != TOOL), key=lambda one: means[one])
        differences = [float(row[TOOL]) - float(row[best]) for row in mine]
        half = statistics.fmean(float(row["noise"]) for row in mine)
        if len(mine) > 1:
            of_seeds = float(t.ppf(0.975, len(mine) - 1)) * statistics.stdev(differences) / len(mine) ** 0.5
            half = max(half, of_seeds)
        difference = statistics.fmean(differences)
        cells.append(
            {"model": model, "data set": name, "size": int(size), "metric": metric,
             "means": means, "best": best, "difference": difference, "half": half,
             "loses": difference + half < 0}
        )  # fmt: skip
    return cells


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the share of cells in which the tool does not lose, and its scores beside the better linear model's.

    Args:
        rows: Rows of `row_of`, or of the file.
    """
    cells = summaries(rows)
    if not cells:
        return ""
    sizes = sorted({cell["size"] for cell in cells})
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for cell in cells:
        tool, best = (f"{cell['means'][name]:.1f}" for name in (TOOL, cell["best"]))
        shown = f"**{tool}**" if cell["difference"] >= 0 else tool
        loss = f", loses by {-cell['difference']:.1f} ± {cell['half']:.1f}" if cell["loses"] else ""
        text = f"{shown} / {best}{loss}"
        lines.setdefault((cell["model"], cell["data set"], cell["metric"]), {})[cell["size"]] = text
    held = sum(not cell["loses"] for cell in cells)
    better = sum(cell["difference"] >= 0 for cell in cells)
    text = (
        f"In {held} of {len(cells)} cells `attendrop train` is as good as the better of the two linear models,\n"
        f"within noise; in {better} its mean is at least as high (bold).\n\n"
    )
    titles = ["model", "data set", "score", *(f"{size:,} examples" if size else "few of each class" for size in sizes)]
    return text + table(titles, [[*key, *(line.get(size, "") for size in sizes)] for key, line in lines.items()])


def ablations(rows: Sequence[dict[str, Any]]) -> str:
    """Return what the default recipe gains over each other one, on the same draws.

    Args:
        rows: Rows of the file; those of other recipes have a name of their own (`--recipe`, `--set`).
    """
    from scipy.stats import t

    draw = ("model", "data set", "examples", "seed", "tested")
    usual = {tuple(row[name] for name in draw): row for row in rows if row["recipe"] == DEFAULT}
    gains: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        key = tuple(row[name] for name in draw)
        if row["recipe"] != DEFAULT and key in usual:
            name = f"{row['data set']} {row['examples']}"
            gains.setdefault(row["recipe"], {}).setdefault(name, []).append(float(usual[key][TOOL]) - float(row[TOOL]))
    lines = []
    for recipe, cells in gains.items():
        means = {name: statistics.fmean(points) for name, points in cells.items()}
        count, mean = len(means), statistics.fmean(means.values())
        half = float(t.ppf(0.975, count - 1)) * statistics.stdev(means.values()) / count**0.5 if count > 1 else None
        ends = (min(means, key=lambda name: means[name]), max(means, key=lambda name: means[name]))
        lines.append(
            [recipe, str(count), f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}"),
             *(f"{means[name]:+.1f} ({name})" for name in ends)]
        )  # fmt: skip
    return table(["other recipe", "cells", "the default gains", "least", "most"], lines) if lines else ""


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, such as that of all-MiniLM-L6-v2")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--sets", nargs="+", choices=BY_NAME, default=list(BY_NAME), metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 300, 1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tested", type=int, default=1000, help="test examples")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--recipe", default=DEFAULT, help="a name for the settings of --set")
    parser.add_argument("--set", dest="settings", nargs="+", type=_setting, default=[], metavar="NAME=VALUE",
                        help="settings of the runs, for ablations")  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, help="processes that train at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    todo = [
        (BY_NAME[name], size, seed, options)
        for seed, size, name in itertools.product(range(options.seeds), options.sizes, options.sets)
        if (not BY_NAME[name].shots or size == options.sizes[0]) and not _is_done(options, BY_NAME[name], size, seed)
    ]
    for row in rows_of(row_of, todo, options.workers, options.seconds):
        append(options.output, [row], is_quiet=True)
        print(
            *(row[name] for name in ("data set", "examples", "seed", TOOL, WORDS, FROZEN, "tool seconds")), flush=True
        )
    print(markdown(read(options.output)))
    return 0


def rows_of(
    make: Callable[..., dict[str, Any]], todo: Sequence[tuple[Any, ...]], workers: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a study as they are made. Of several processes, what fails is printed and left out.

    Args:
        make: Makes a row.
        todo: The arguments of each row.
        workers: The number of processes.
        seconds: No row is begun after this time.
    """
    end = time.monotonic() + seconds
    if workers == 1:
        yield from (make(*arguments) for arguments in todo if time.monotonic() < end)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting, running = list(reversed(todo)), set[Future[dict[str, Any]]]()
        while waiting or running:
            while waiting and len(running) < workers and time.monotonic() < end:
                running.add(pool.submit(make, *waiting.pop()))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                if (error := future.exception()) is None:
                    yield future.result()
                else:
                    print("failed:", *traceback.format_exception(error), flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of results; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _is_done(options: argparse.Namespace, data_set: DataSet, size: int, seed: int) -> bool:
    wanted = (Path(options.model).name, options.recipe, data_set.name, str(0 if data_set.shots else size), str(seed))
    return any(
        (row["model"], row["recipe"], row["data set"], row["size"], row["seed"]) == wanted
        for row in read(options.output)
    )


def _setting(text: str) -> tuple[str, Any]:
    import yaml

    name, _, value = text.partition("=")
    return name, yaml.safe_load(value)


if __name__ == "__main__":
    sys.exit(main())
