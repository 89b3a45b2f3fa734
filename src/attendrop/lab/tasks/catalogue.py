"""The catalogue of tasks that can be loaded by name: columns, labels, metrics and the location of the data."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UserError
from ...utils.deprecation import warn_renamed

# Former name of a kind -> its name.
RENAMED_KINDS = {"tokens": "token_classification", "choice": "multiple_choice"}


@dataclass(frozen=True)
class Task:
    """A data set and its learning task.

    Attributes:
        name: The name in the catalogue, such as `glue/rte`, or the name of the user's file.
        kind: The name of one of `tasks.KINDS`.
        text: The text columns: one or two for `classification`, `regression` and `multilabel`; the context and then the
            endings for `multiple_choice`; the column of words for `token_classification`; source and target for
            `translation`; one for `mlm`.
        label: The label column, which has several labels for each example of `multilabel`; None for `translation` and
            `mlm` (masked language modelling).
        labels: The label names, in the order of the Hub; empty if they are read from the data.
        metrics: Names from `METRICS`. The first one selects the best model.
        hub: The data set on the Hub; None if it is not there, and `missing` says why.
        hub_config: The configuration of the data set on the Hub.
        hub_revision: The revision of the data set on the Hub.
        missing: Why the data set is not on the Hub.
        splits: Our name of each split -> its name on the Hub. Splits other than train, validation and test are loaded
            into `Data.others`.
        submission: Name of a split -> the file name that the GLUE website expects for it.
        folders: Possible folders of the Parquet files, relative to the data folder.
        synonyms: Label of another task -> label of this one, to score a model that was trained on that task.
        max_length: The default maximum length of an example: of a text in tokens, of a sound in seconds.
        label_separator: The delimiter between the labels of one `multilabel` example; None = labels are lists.
        modality: The type of the examples: `text`, `image` or `audio`. The text column of the last two holds paths.
        is_encoded_apart: Whether the model encodes each of two texts by itself.
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
    label_separator: str | None = None
    modality: str = "text"
    is_encoded_apart: bool = False

    def __post_init__(self) -> None:
        if self.kind in RENAMED_KINDS:
            warn_renamed(f"the kind {self.kind}", RENAMED_KINDS[self.kind])
            object.__setattr__(self, "kind", RENAMED_KINDS[self.kind])

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Task:
        """Make a task from its fields in `record.json`, which has lists where the task has tuples."""
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
        if (kind := values.get("kind")) in RENAMED_KINDS:  # an old record
            values["kind"] = RENAMED_KINDS[kind]
        return cls(**values)


def _glue(name: str, file: str, text: tuple[str, ...], labels: tuple[str, ...], *metrics: str, **fields: Any) -> Task:
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
        **{"submission": {"test": file}, **fields},
    )


def _translation(corpus: str, source: str, target: str, hub: str, folders: tuple[str, ...], **fields: Any) -> Task:
    return Task(
        name=f"{corpus}/{source}-{target}",
        kind="translation",
        text=(source, target),
        label=None,
        metrics=("bleu",),
        hub=hub,
        folders=folders,
        **fields,
    )


def _wmt16(source: str, target: str) -> Task:
    other = target if source == "en" else source
    folders = (f"wmt16/{other}-en", f"wmt16/en-{other}", f"wmt16_en_{other}", f"wmt16_{other}_en")
    return _translation("wmt16", source, target, "wmt/wmt16", folders, hub_config=f"{other}-en")


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


def _wikitext(size: int) -> Task:
    return Task(
        name=f"wikitext-{size}",
        kind="mlm",
        text=("text",),
        label=None,
        metrics=("perplexity",),
        hub="Salesforce/wikitext",
        hub_config=f"wikitext-{size}-raw-v1",
        folders=(f"wikitext-{size}", f"wikitext/wikitext-{size}-raw-v1"),
    )


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_HANS_SYNONYMS = dict.fromkeys(("neutral", "contradiction", "not_entailment"), "non-entailment")

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
    _glue("qnli", "QNLI.tsv", ("question", "sentence"), _ENTAILMENT, "accuracy"),
    _glue("rte", "RTE.tsv", _PAIR, _ENTAILMENT, "accuracy"),
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
        name="rotten_tomatoes",
        kind="classification",
        text=("text",),
        label="label",
        labels=("neg", "pos"),
        hub="cornell-movie-review-data/rotten_tomatoes",
        folders=("rotten_tomatoes",),
        synonyms={"negative": "neg", "positive": "pos"},
    ),
    Task(
        name="ag_news",
        kind="classification",
        text=("text",),
        label="label",
        labels=("World", "Sports", "Business", "Sci/Tech"),
        hub="fancyzhu/ag_news",
        splits={"train": "train", "test": "test"},
        folders=("ag_news",),
    ),
    Task(
        name="conll2003",
        kind="token_classification",
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
        kind="token_classification",
        text=("tokens",),
        label="pos_tags",
        metrics=("token_accuracy",),
        missing="the Penn Treebank is licensed by the LDC",
        folders=("ptb", "ptb_sample"),
        max_length=256,
    ),
    Task(
        name="swag",
        kind="multiple_choice",
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
        # The main revision has a loading script, which `datasets` no longer runs.
        hub_revision="refs/convert/parquet",
        splits={"validation": "validation"},
        folders=("hans",),
        synonyms=_HANS_SYNONYMS,
    ),
    *(_paws_x(language) for language in ("en", "de", "es", "fr", "ja", "ko", "zh")),
    *(_wmt16(*pair) for pair in (("en", "ro"), ("ro", "en"), ("tr", "en"), ("en", "tr"))),
    _translation("multi30k", "en", "de", "bentrevett/multi30k", ("multi30k",)),
    _translation("multi30k", "de", "en", "bentrevett/multi30k", ("multi30k",)),
    _wikitext(2),
    _wikitext(103),
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
    """Return the task of this name.

    Args:
        name: A name or an alias in any case: `glue/rte`, `rte`, `STS-B`. The languages of a translation are source and
            target: `wmt16/en-ro` translates into Romanian.
    """
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key in TASKS:
        return TASKS[key]
    matches = difflib.get_close_matches(key, [*TASKS, *_ALIASES], n=3, cutoff=0.75)
    near = list(dict.fromkeys(_ALIASES.get(match, match) for match in matches))
    hint = f"did you mean {' or '.join(near)}? The known tasks are" if near else "it must be one of"
    raise UserError(f"task is {name!r}; {hint} {', '.join(TASKS)}, or use your own files with --train-file.")
