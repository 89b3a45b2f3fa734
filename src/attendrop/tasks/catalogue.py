"""The tasks that are known by name: the columns, labels and metrics of each, and where its data are."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError

KINDS = ("classification", "regression", "tokens", "choice", "translation")


@dataclass(frozen=True)
class Task:
    """What a data set asks of a model.

    text        the columns with text: one or two; for `choice` the context and then the endings; for `tokens` the
                column of words; for `translation` source and target
    label       the column with the answer; None for translation
    labels      the names of the labels, in the Hub's order; empty = from the data
    metrics     their names in `METRICS`; the first one chooses the best model
    hub         the data set on the Hub, its configuration and revision; None = not there, and `missing` says why
    splits      part -> the Hub's name of it; parts beside train, validation and test end up in `Data.others`
    submission  part -> the file that the GLUE site wants
    folders     where the Parquet files may be, below the data folder
    synonyms    another task's label -> this one's, to score a model that was trained there
    max_length  in tokens, unless the user says otherwise
    """

    name: str
    kind: str
    text: tuple[str, ...]
    label: str | None
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    hub: str | None = None
    hub_config: str | None = None
    hub_revision: str | None = None
    missing: str | None = None
    splits: Mapping[str, str] = field(
        default_factory=lambda: {"train": "train", "validation": "validation", "test": "test"}
    )
    submission: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    max_length: int = 128


def _glue(name: str, file: str, text: tuple[str, ...], labels: tuple[str, ...], *metrics: str, **more: Any) -> Task:
    return Task(
        name=f"glue/{name}",
        kind="classification" if labels else "regression",
        text=text,
        label="label",
        labels=labels,
        metrics=metrics,
        hub="nyu-mll/glue",
        hub_config=name,
        folders=(f"glue/{name}", name),
        **{"submission": {"test": file}, **more},
    )


def _wmt16(source: str, target: str) -> Task:
    other = target if source == "en" else source
    return Task(
        name=f"wmt16/{source}-{target}",
        kind="translation",
        text=(source, target),
        label=None,
        metrics=("bleu",),
        hub="wmt/wmt16",
        hub_config=f"{other}-en",
        folders=(f"wmt16/{other}-en", f"wmt16/en-{other}", f"wmt16_en_{other}", f"wmt16_{other}_en"),
    )


def _multi30k(source: str, target: str) -> Task:
    return Task(
        name=f"multi30k/{source}-{target}",
        kind="translation",
        text=(source, target),
        label=None,
        metrics=("bleu",),
        hub="bentrevett/multi30k",
        folders=("multi30k",),
    )


def _paws_x(language: str) -> Task:
    return Task(
        name=f"paws-x/{language}",
        kind="classification",
        text=_PAIR,
        label="label",
        labels=("0", "1"),
        metrics=("accuracy",),
        hub="google-research-datasets/paws-x",
        hub_config=language,
        folders=(f"paws-x/{language}", f"paws_x_{language}"),
        synonyms={"not_duplicate": "0", "duplicate": "1", "not_equivalent": "0", "equivalent": "1"},
    )


_PAIR = ("sentence1", "sentence2")
_ENTAILED = ("entailment", "not_entailment")
_NOT_ENTAILED = dict.fromkeys(("neutral", "contradiction", "not_entailment"), "non-entailment")

_MNLI_SPLITS = {
    "train": "train",
    "validation": "validation_matched",
    "validation_mismatched": "validation_mismatched",
    "test": "test_matched",
    "test_mismatched": "test_mismatched",
}
_MNLI_FILES = {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"}

_ALL = (
    _glue("cola", "CoLA.tsv", ("sentence",), ("unacceptable", "acceptable"), "mcc"),
    _glue("sst2", "SST-2.tsv", ("sentence",), ("negative", "positive"), "accuracy"),
    _glue("mrpc", "MRPC.tsv", _PAIR, ("not_equivalent", "equivalent"), "accuracy", "f1"),
    _glue("stsb", "STS-B.tsv", _PAIR, (), "pearson", "spearman"),
    _glue("qqp", "QQP.tsv", ("question1", "question2"), ("not_duplicate", "duplicate"), "accuracy", "f1"),
    _glue(
        "mnli",
        "",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        "accuracy",
        splits=_MNLI_SPLITS,
        submission=_MNLI_FILES,
    ),
    _glue("qnli", "QNLI.tsv", ("question", "sentence"), _ENTAILED, "accuracy"),
    _glue("rte", "RTE.tsv", _PAIR, _ENTAILED, "accuracy"),
    _glue("wnli", "WNLI.tsv", _PAIR, ("not_entailment", "entailment"), "accuracy"),
    Task(
        name="imdb",
        kind="classification",
        text=("text",),
        label="label",
        labels=("neg", "pos"),
        hub="stanfordnlp/imdb",
        splits={"train": "train", "test": "test"},
        folders=("imdb",),
        synonyms={"negative": "neg", "positive": "pos"},
        max_length=512,
    ),
    Task(
        name="conll2003",
        kind="tokens",
        text=("tokens",),
        label="ner_tags",
        labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
        metrics=("entity_f1", "entity_precision", "entity_recall", "token_accuracy"),
        hub="lhoestq/conll2003",
        folders=("conll2003",),
        max_length=256,
    ),
    Task(
        name="ptb",
        kind="tokens",
        text=("tokens",),
        label="pos_tags",
        metrics=("token_accuracy",),
        missing="the Penn Treebank is licensed by the LDC",
        folders=("ptb", "ptb_sample"),
        max_length=256,
    ),
    Task(
        name="swag",
        kind="choice",
        text=("startphrase", "ending0", "ending1", "ending2", "ending3"),
        label="label",
        labels=("0", "1", "2", "3"),
        hub="allenai/swag",
        hub_config="regular",
        folders=("swag",),
    ),
    Task(
        name="hans",
        kind="classification",
        text=("premise", "hypothesis"),
        label="label",
        labels=("entailment", "non-entailment"),
        hub="jhu-cogsci/hans",
        # The repository itself holds a loading script, which `datasets` no longer runs.
        hub_revision="refs/convert/parquet",
        splits={"validation": "validation"},
        folders=("hans",),
        synonyms=_NOT_ENTAILED,
    ),
    *(_paws_x(language) for language in ("en", "de", "es", "fr", "ja", "ko", "zh")),
    *(_wmt16(*pair) for pair in (("en", "ro"), ("ro", "en"), ("tr", "en"), ("en", "tr"))),
    _multi30k("en", "de"),
    _multi30k("de", "en"),
)

TASKS: dict[str, Task] = {task.name: task for task in _ALL}

_ALIASES = {
    **{name.removeprefix("glue/"): name for name in TASKS if name.startswith("glue/")},
    "sst-2": "glue/sst2",
    "sts-b": "glue/stsb",
    "glue/sst-2": "glue/sst2",
    "glue/sts-b": "glue/stsb",
    "paws-x": "paws-x/en",
    "multi30k": "multi30k/en-de",
}


def find_task(name: str) -> Task:
    """The task of that name. The languages of a translation are source and target: `wmt16/en-ro` asks for Romanian."""
    wanted = name.strip().lower()
    wanted = _ALIASES.get(wanted, wanted)
    if wanted in TASKS:
        return TASKS[wanted]
    near = difflib.get_close_matches(wanted, [*TASKS, *_ALIASES], n=3, cutoff=0.75)
    near = list(dict.fromkeys(_ALIASES.get(match, match) for match in near))
    hint = f"did you mean {' or '.join(near)}? Known are" if near else "it must be one of"
    raise UserError(f"task is {name!r}; {hint} {', '.join(TASKS)}, or your own files with --train-file.")
