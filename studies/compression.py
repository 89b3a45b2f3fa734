"""Score of compressed models against the uncompressed one: every way at every number of layers, on eight tasks.

    python -m studies.compression prepare --data ../shared/data --model MPNET --output prepared    # needs pandas
    python -m studies.compression run --data prepared --model MPNET --minutes 28
    python -m studies.compression count

For each task and seed a model is fine-tuned, and compressed with `prune.compress` in every way of `WAYS`; the test
examples are scored once for each model. When all seeds of a task are there, the mean of their probabilities is the
teacher of the tail again (`teacher` = ensemble). Each model adds a line to `studies/results/compression.csv`, in which
`table` counts the examples that both models have right, only the uncompressed one, only the new one and none; of CoLA,
(gold, uncompressed, new) = 000, 001 … 111.

`run` needs PyTorch, transformers, accelerate and the files of `prepare`, no other package and no network. It may be
stopped at any time; started again, it leaves out what has a line. Latencies are measured by `benchmarks.compressed`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results" / "compression.csv"
TEXTS, LENGTH = 9000, 128  # at most: training examples of a task, and tokens of an example
HELD_OUT = 0.1  # of the training examples: layers and the learning rate are chosen on them
SEEDS = 5
EPOCHS, RATE, BATCH = 3, 3e-5, 32  # of fine-tuning
COLUMNS = (
    "model", "task", "seed", "way", "by", "k", "teacher", "plan", "metric", "examples", "full", "score", "table",
    "divergence", "learning_rate", "seconds", "device", "status", "error",
)  # fmt: skip

# Name -> (training file, test file, columns of the texts). Labels are numbers, or names in the order of the alphabet.
TASKS = {
    "rte": ("glue/rte/train", "glue/rte/validation", ("sentence1", "sentence2")),
    "mrpc": ("glue/mrpc/train", "glue/mrpc/validation", ("sentence1", "sentence2")),
    "cola": ("glue/cola/train", "glue/cola/validation", ("sentence",)),
    "qnli": ("glue/qnli/train_subset", "glue/qnli/validation", ("question", "sentence")),
    "sst2": ("glue/sst2/train", "glue/sst2/validation", ("sentence",)),
    "trec": ("arena/trec/train", "arena/trec/test", ("text",)),
    "subj": ("arena/subj/train", "arena/subj/test", ("text",)),
    "tweet_emotion": ("arena/tweet_emotion/train", "arena/tweet_emotion/test", ("text",)),
}
BY_MATTHEWS = ("cola",)


class Way(NamedTuple):
    """A way of compression: what `prune.compress` may do, by what layers are chosen, and the numbers of edits."""

    way: str
    by: str
    counts: tuple[int, ...]


WAYS = (
    Way("tail", "top", (4, 6, 8)),
    Way("remove", "top", (4, 6)),
    Way("constant", "top", (4, 6)),
    Way("constant", "greedy", (4, 6, 9)),
    Way("constant", "gate", (4, 6)),
    Way("constant", "gradient", (4, 6)),
    Way("constant", "similarity", (4, 6)),
    Way("remove", "greedy", (4, 6)),
)
ENSEMBLE = Way("tail", "top", (4, 6, 8))
OWN, ALL = "itself", "ensemble"  # teachers
Line = dict[str, Any]
Batch = dict[str, torch.Tensor]


# ---- data ------------------------------------------------------------------------------------------------------------


def prepare(data: Path, model: str, output: Path) -> None:
    """Tokenise all tasks: one small file each, which `run` reads without pandas and without a tokenizer."""
    import pandas as pd
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    output.mkdir(parents=True, exist_ok=True)
    for task, (*files, columns) in TASKS.items():
        arrays: dict[str, Any] = {}
        for part, file in zip(("train", "test"), files, strict=True):
            rows = pd.read_parquet(data / f"{file}.parquet")
            if part == "train" and len(rows) > TEXTS:
                rows = rows.sample(TEXTS, random_state=0)
            encoded = tokenizer(
                *(rows[column].tolist() for column in columns), truncation=True, max_length=LENGTH,
                return_attention_mask=False,
            )  # fmt: skip
            lengths = [len(ids) for ids in encoded["input_ids"]]
            arrays[f"{part}_starts"] = np.cumsum([0, *lengths])
            for name, lists in encoded.items():
                arrays[f"{part}_{name}"] = np.fromiter(itertools.chain.from_iterable(lists), np.int32)
            arrays[f"{part}_labels"] = _numbers(rows["label"])
        np.savez_compressed(output / f"{task}.npz", **arrays, padding=np.array(tokenizer.pad_token_id))
        print(
            f"{task}: {len(arrays['train_labels']):,} to train on, {len(arrays['test_labels']):,} to test", flush=True
        )


def _numbers(labels: Any) -> np.ndarray:
    names = sorted(labels.unique())
    return np.searchsorted(names, labels.to_numpy())


class Examples:
    """The examples of a part of a task."""

    def __init__(self, folder: Path, task: str, part: str) -> None:
        with np.load(folder / f"{task}.npz") as file:
            own = {name.removeprefix(f"{part}_"): file[name] for name in file.files if name.startswith(f"{part}_")}
            self.padding = int(file["padding"])
        self.starts, self.labels = own.pop("starts"), own.pop("labels")
        self.columns, self.lengths = own, np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        span = slice(self.starts[row], self.starts[row + 1])
        return {**{name: values[span] for name, values in self.columns.items()}, "labels": self.labels[row]}

    def batch(self, rows: Sequence[int] | np.ndarray) -> Batch:
        """The padded inputs of some examples, with their labels."""
        return self.collate([self[int(row)] for row in rows])

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> Batch:
        width = max(len(example["input_ids"]) for example in examples)
        batch = {}
        for name in self.columns:
            values = np.full((len(examples), width), self.padding if name == "input_ids" else 0, np.int64)
            for row, example in enumerate(examples):
                values[row, : len(example[name])] = example[name]
            batch[name] = torch.from_numpy(values)
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
        batch["labels"] = torch.tensor([int(example["labels"]) for example in examples])
        return batch

    def batches(self, rows: np.ndarray, size: int = BATCH) -> list[Batch]:
        """Batches of examples of similar length."""
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        return [self.batch(rows[first : first + size]) for first in range(0, len(rows), size)]


# ---- one task and seed -----------------------------------------------------------------------------------------------


class Unit:
    """The models of a task and a seed."""

    def __init__(self, options: argparse.Namespace, task: str, seed: int, folder: Path) -> None:
        self.options, self.task, self.seed, self.folder = options, task, seed, folder
        self.train, self.test = (Examples(options.data, task, part) for part in ("train", "test"))
        rows = np.random.default_rng(seed).permutation(len(self.train))[: options.texts]
        held_out = max(1, round(HELD_OUT * len(rows)))
        self.held_out = self.train.batches(rows[:held_out][:512])
        self.batches = self.train.batches(rows[held_out:])
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.full = self._fine_tuned([])
        self.answers = self._answers(self.full)
        self._generator: Any = None

    def _fine_tuned(self, methods: list[Any]) -> Any:
        import transformers

        from attendrop import RegularizedTrainer

        transformers.set_seed(self.seed)
        config: Any = transformers.AutoConfig.from_pretrained(
            self.options.model, num_labels=int(self.train.labels.max()) + 1
        )
        cls: Any = transformers.AutoModelForSequenceClassification
        model = cls.from_pretrained(self.options.model, config=config)
        arguments = transformers.TrainingArguments(
            str(self.folder / "trainer"), per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, seed=self.seed,
            learning_rate=RATE, warmup_steps=0.1, max_steps=self.options.max_steps, save_strategy="no",
            report_to="none", disable_tqdm=True, bf16=self.device.type == "cuda", use_cpu=self.device.type == "cpu",
            remove_unused_columns=False, logging_strategy="no",
        )  # fmt: skip
        trainer = RegularizedTrainer(
            model=model, args=arguments, train_dataset=self.train, data_collator=self.train.collate,
            regularizers=methods,
        )  # fmt: skip
        trainer.train()
        return model.to(self.device).eval()

    @property
    def generator(self) -> Any:
        """That of a model of its own, trained with AttendOut's self-pruning."""
        if self._generator is None:
            from attendrop import AttendOut

            method = AttendOut(mode="prune")
            self._fine_tuned([method])
            self._generator = method.generator
        return self._generator

    @torch.inference_mode()
    def _answers(self, model: Any) -> np.ndarray:
        order = np.argsort(self.test.lengths, kind="stable")
        answers = [self._logits(model, batch).argmax(-1) for batch in self.test.batches(order, 4 * BATCH)]
        return np.concatenate([answer.cpu().numpy() for answer in answers])[np.argsort(order)]

    def _logits(self, model: Any, batch: Batch) -> torch.Tensor:
        inputs = {name: x.to(self.device) for name, x in batch.items() if name != "labels"}
        return model(**inputs).logits.float()

    @torch.inference_mode()
    def probabilities(self) -> np.ndarray:
        """Those of the uncompressed model for the texts that every seed may train on, in the order of the file."""
        order = np.argsort(self.train.lengths, kind="stable")
        parts = [self._logits(self.full, b).softmax(-1).cpu().numpy() for b in self.train.batches(order, 4 * BATCH)]
        return np.concatenate(parts)[np.argsort(order)].astype(np.float16)

    def compressed(self, way: Way, count: int, teacher: np.ndarray | None = None) -> Line:
        """Compress the model, score it, and return the fields of the line."""
        from attendrop import prune

        start = time.perf_counter()
        largest = {name: x[:16].to(self.device) for name, x in self.held_out[-1].items() if name != "labels"}
        name = f"{way.way}-{way.by}-{OWN if teacher is None else ALL}"
        done = prune.compress(
            self.full, self.batches, self.held_out, count=count, ways=(way.way,), by=way.by, seed=self.seed,
            generator=self.generator if way.by == "gate" else None, folder=self._made(name),
            shapes={"held out": largest}, rounds=1, base_rate=RATE,
            targets=None if teacher is None else self._targets(teacher),
            stage_epochs=self.options.stage_epochs, final_epochs=self.options.final_epochs,
        )  # fmt: skip
        if not done.reached:
            raise ValueError(f"{len(done.stages) - 2} edits were possible")
        return {
            "plan": str(done.plan), **self.scores(self._answers(done.model)),
            "divergence": f"{done.stages[-1].divergence:.6g}", "learning_rate": done.learning_rate,
            "seconds": round(time.perf_counter() - start, 1), "device": _device_name(self.device),
        }  # fmt: skip

    def _made(self, name: str) -> Path:
        """The folder of the stages, from which a larger number of edits goes on."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def _targets(self, teacher: np.ndarray) -> list[torch.Tensor]:
        """The logits of the ensemble for each batch."""
        rows = np.random.default_rng(self.seed).permutation(len(self.train))[: self.options.texts]
        rows = rows[max(1, round(HELD_OUT * len(rows))) :]
        rows = rows[np.argsort(self.train.lengths[rows], kind="stable")]
        logits = torch.from_numpy(np.log(np.clip(teacher[rows].astype(np.float32), 1e-7, None)))
        return list(logits.split(BATCH))

    def scores(self, answers: np.ndarray) -> Line:
        """The metric, both scores, and the table of the answers."""
        gold, old, new = self.test.labels, self.answers, answers
        if self.task in BY_MATTHEWS:
            counts = np.bincount(4 * gold + 2 * old + new, minlength=8)
        else:
            counts = np.bincount(2 * (old != gold) + (new != gold), minlength=4)
        metric = "matthews" if self.task in BY_MATTHEWS else "accuracy"
        full, score = scores_of(counts)
        return {
            "metric": metric, "examples": len(gold), "full": f"{full:.6f}", "score": f"{score:.6f}",
            "table": " ".join(map(str, counts)),
        }  # fmt: skip


def scores_of(counts: np.ndarray) -> tuple[float, float]:
    """The scores of the uncompressed and of the new model, from the counts of a line."""
    if len(counts) == 4:
        both, only_old, only_new, _ = counts
        return float(both + only_old) / counts.sum(), float(both + only_new) / counts.sum()
    by = counts.reshape(2, 2, 2)
    return matthews(by.sum(2)), matthews(by.sum(1))


def matthews(table: np.ndarray) -> float:
    """Matthews' correlation of a table [gold, answer]."""
    (tn, fp), (fn, tp) = table.astype(float)
    divisor = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return float((tp * tn - fp * fn) / divisor) if divisor else 0.0


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "cpu"


# ---- all of them -----------------------------------------------------------------------------------------------------


def planned(options: argparse.Namespace) -> Iterator[tuple[str, int, Way, int, str]]:
    """Task, seed, way, number of edits and teacher of every line; the ensembles last."""
    for seed, task in itertools.product(range(options.seeds), options.tasks):
        for way in options.ways:
            yield from ((task, seed, way, count, OWN) for count in _counts(way, options))
    for seed, task in itertools.product(range(options.seeds), options.tasks):
        yield from ((task, seed, ENSEMBLE, count, ALL) for count in _counts(ENSEMBLE, options))


def _counts(way: Way, options: argparse.Namespace) -> tuple[int, ...]:
    return tuple(options.counts or way.counts)


def read(file: Path) -> list[dict[str, str]]:
    """The finished lines; a last one that was cut is left out."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    return [row for row in rows if row["status"] == "finished"]


def key_of(model: str, task: str, seed: int | str, way: str, by: str, count: int | str, teacher: str) -> str:
    return " ".join(map(str, (model, task, seed, way, by, count, teacher)))


def keys_in(rows: Sequence[Mapping[str, str]]) -> set[str]:
    return {key_of(*(row[name] for name in ("model", "task", "seed", "way", "by", "k", "teacher"))) for row in rows}


def run(options: argparse.Namespace) -> None:
    """Run what has no line yet, until the time is up."""
    end = time.monotonic() + 60 * options.minutes
    rows = read(options.output)
    write(options.output, rows)
    done = keys_in(rows)
    todo = [each for each in planned(options) if key_of(options.name, *_named(each)) not in done]
    print(f"{len(done):,} lines are there, {len(todo):,} are left", flush=True)
    for (task, seed), of in itertools.groupby(todo, key=lambda each: each[:2]):
        if time.monotonic() > end:
            print("the time is up; the same command goes on", flush=True)
            return
        with tempfile.TemporaryDirectory() as folder:
            unit = Unit(options, task, seed, Path(folder))
            keep_probabilities(options, unit)
            for _, _, way, count, teacher in of:
                if time.monotonic() > end:
                    break
                line = {
                    "model": options.name, "task": task, "seed": seed, "way": way.way, "by": way.by, "k": count,
                    "teacher": teacher, "status": "finished",
                }  # fmt: skip
                try:
                    mean = mean_probabilities(options, task) if teacher == ALL else None
                    line |= unit.compressed(way, count, mean)
                except (ValueError, RuntimeError, OSError) as error:
                    line |= {"status": "failed", "error": " ".join(str(error).split())[:200]}
                append(options.output, line)
                print({name: value for name, value in line.items() if name != "model"}, flush=True)


def _named(each: tuple[str, int, Way, int, str]) -> tuple[str, int, str, str, int, str]:
    task, seed, way, count, teacher = each
    return task, seed, way.way, way.by, count, teacher


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def append(file: Path, line: Mapping[str, Any]) -> None:
    with file.open("a", newline="", encoding="utf-8") as output:
        csv.DictWriter(output, COLUMNS, restval="", lineterminator="\n").writerow(line)


def _kept(options: argparse.Namespace) -> Path:
    """The probabilities of the uncompressed models, beside the results; git ignores them."""
    return options.output.with_name(f"compression-{options.name}.npz")


def keep_probabilities(options: argparse.Namespace, unit: Unit) -> None:
    """Keep what the ensemble of a task needs of this seed."""
    known, name = _probabilities(options), f"{unit.task}-{unit.seed}"
    if name not in known:
        known[name] = unit.probabilities()
        np.savez_compressed(_kept(options), **known)


def _probabilities(options: argparse.Namespace) -> dict[str, Any]:
    if not _kept(options).is_file():
        return {}
    with np.load(_kept(options)) as file:
        return {name: file[name] for name in file.files}


def mean_probabilities(options: argparse.Namespace, task: str) -> np.ndarray:
    """The mean over the seeds, which must all be there."""
    known = _probabilities(options)
    missing = [seed for seed in range(options.seeds) if f"{task}-{seed}" not in known]
    if missing:
        raise ValueError(f"the ensemble of {task} lacks the seeds {', '.join(map(str, missing))}")
    return np.mean([known[f"{task}-{seed}"].astype(np.float32) for seed in range(options.seeds)], 0)


def count(options: argparse.Namespace) -> None:
    """Show how much of each task is done."""
    done = keys_in(read(options.output))
    for task in options.tasks:
        keys = [key_of(options.name, *_named(each)) for each in planned(options) if each[0] == task]
        print(f"{task:15}{sum(key in done for key in keys):6,} of {len(keys):,}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("prepare", "run", "count"))
    parser.add_argument("--data", type=Path, help="prepare: the folder with glue and arena; run: what prepare wrote")
    parser.add_argument("--model", help="a sentence encoder: a folder, or a name on the Hub")
    parser.add_argument("--name", default="mpnet-base", help="name of the model in the results")
    parser.add_argument("--minutes", type=float, default=600, help="nothing begins after this time")
    parser.add_argument("--output", type=Path, default=RESULTS, help="prepare: a folder; otherwise the CSV file")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--ways", nargs="+", type=way_of, default=list(WAYS), help="such as tail/top or constant/gate")
    parser.add_argument("--counts", nargs="+", type=int, help="numbers of edits, instead of those of each way")
    parser.add_argument("--texts", type=int, default=TEXTS, help="at most this number of training examples")
    parser.add_argument("--stage-epochs", type=float, default=0.5)
    parser.add_argument("--final-epochs", type=float, default=3)
    parser.add_argument("--max-steps", type=int, default=-1, help="of fine-tuning, for trials")
    options = parser.parse_args(arguments)
    if options.command != "count" and (options.data is None or options.model is None):
        parser.error("--data and --model are needed")
    return options


def way_of(text: str) -> Way:
    """A way of `WAYS` by its name."""
    for way in WAYS:
        if text == f"{way.way}/{way.by}":
            return way
    raise argparse.ArgumentTypeError(f"{text!r}; it must be one of {', '.join(f'{w.way}/{w.by}' for w in WAYS)}")


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.command == "prepare":
        prepare(options.data, options.model, options.output)
    else:
        {"run": run, "count": count}[options.command](options)


if __name__ == "__main__":
    main()
