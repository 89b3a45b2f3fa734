"""The model card: what the library reads back from it, what it must not invent, and names that look like markup."""

from __future__ import annotations

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from attendrop import ADDrop, AttendOut
from attendrop.lab.records import FolderRecord
from attendrop.lab.report.card import write_card
from attendrop.lab.runs import make_config
from attendrop.lab.runs.caveats import caveats_of
from attendrop.lab.tasks import KINDS, Task, find_task
from attendrop.lab.tasks.hub import is_hub_name

HOSTILE = [
    "<script>alert('a')</script>.csv",
    "a: b #c - [d](http://e).csv",
    "two\nlines\n---\ntags: [x].csv",
    "---\r\n...\r\n| a | b |.csv",
    "`code` ``more`` *star* _under_ ~~gone~~ $x$ &lt; \\.csv",
    "'quote\" {% x %} {{ y }} !tag &anchor *alias @at %d.csv",
    "ümläut \u2028 \t \x1b null~ yes.csv",
    "__init__ _a_ a__b__c é_é_é.csv",
    "not UTF-8 \udcff.csv",
]


def make_record(task: Task, **changes: Any) -> FolderRecord:
    content = {
        "schema": 2,
        "settings": {"model": "roberta-base", "task": task.name, "learning_rate": 2e-5, "num_train_epochs": 3},
        "regularizers": [{"method": "addrop", "p": 0.5, "layers": "all"}],
        "task": task.name,
        "task_definition": dataclasses.asdict(task),
        "max_length": 128,
        "seed": 5,
        "versions": {"attendrop": "0.1.0", "torch": "2.11"},
        "device": "cpu",
        "examples": {"train": 72, "validation": 24},
        "notes": [],
        "caveats": [],
        "cost": {"total_seconds": 12.3, "steps": 27},
        "scores": {"validation": {"loss": 0.5, "accuracy": 0.75}},
        **changes,
    }
    return FolderRecord.from_json(content)


def own_file(name: str, **changes: Any) -> FolderRecord:
    """The record of a run on the user's own file."""
    task = Task(name, "classification", ("text",), "label", ("bad", "good"), ("accuracy", "macro_f1"))
    record = make_record(task, **changes)
    record.settings |= {"task": None, "train_file": f"folder/{name}"}
    record.task = Path(f"folder/{name}").name
    return record


def written(folder: Path, record: FolderRecord) -> ModelCard:
    return ModelCard.load(write_card(folder, record))


def test_the_library_reads_back_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "roberta-rte"
    folder.mkdir()
    scores = {"validation": {"loss": 0.5, "accuracy": 0.75, "defender_accuracy": 0.5}, "hans": {"accuracy": 0.25}}
    card = written(folder, make_record(find_task("glue/rte"), scores=scores))
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["attendrop", "addrop"],
        "base_model": "roberta-base",
        "datasets": ["nyu-mll/glue"],
        "model-index": [
            {
                "name": "roberta-rte",
                "results": [
                    {
                        "task": {"type": "text-classification"},
                        "dataset": {
                            "name": "glue/rte",
                            "type": "nyu-mll/glue",
                            "config": "rte",
                            "split": "validation",
                        },
                        "metrics": [{"type": "accuracy", "value": 0.75, "name": "accuracy"}],
                    },
                    {
                        "task": {"type": "text-classification"},
                        "dataset": {
                            "name": "hans",
                            "type": "jhu-cogsci/hans",
                            "split": "validation",
                            "revision": "refs/convert/parquet",
                        },
                        "metrics": [{"type": "accuracy", "value": 0.25, "name": "accuracy"}],
                    },
                ],
            }
        ],
    }
    assert card.content == (folder / "README.md").read_text(encoding="utf-8")
    for words in ("# roberta-base on glue/rte", "`addrop`: `p=0.5, layers=all`", "- seed: 5, one run", "72 train"):
        assert words in card.text
    for row in ("| validation/loss | 0.5000 |", "| validation/defender_accuracy | 0.5000 |"):
        assert row in card.text
    assert "AutoModelForSequenceClassification" in card.text


@pytest.mark.parametrize(
    ("name", "scores", "expected"),
    [
        ("glue/cola", {"mcc": 0.5}, [("matthews_correlation", "mcc", 0.5)]),
        (
            "glue/stsb",
            {"pearson": 0.8, "spearman": 0.0},
            [("pearsonr", "pearson", 0.8), ("spearmanr", "spearman", 0.0)],
        ),
        (
            "conll2003",
            {"entity_f1": 0.9, "token_accuracy": 1.0},
            [("f1", "entity_f1", 0.9), ("accuracy", "token_accuracy", 1.0)],
        ),
        ("swag", {"accuracy": 0.25}, [("accuracy", "accuracy", 0.25)]),
        ("wmt16/en-ro", {"bleu": 31.5}, [("sacrebleu", "bleu", 31.5)]),
        ("ptb", {"token_accuracy": 0.5}, [("accuracy", "token_accuracy", 0.5)]),
        ("glue/stsb", {"pearson": float("nan"), "spearman": 1}, [("spearmanr", "spearman", 1)]),
    ],
)
def test_scores_have_the_names_of_the_hub(
    name: str, scores: dict[str, float], expected: list[tuple[str, str, float]], tmp_path: Path
) -> None:
    task = find_task(name)
    data = written(tmp_path, make_record(task, scores={"validation": scores})).data
    assert [(r.metric_type, r.metric_name, r.metric_value) for r in data.eval_results] == expected
    assert {r.dataset_type for r in data.eval_results} == {task.hub or task.name}
    assert {r.task_type for r in data.eval_results} == {data.pipeline_tag}
    assert data.datasets == ([task.hub] if task.hub else None)


def test_every_kind_of_task_has_a_card(tmp_path: Path) -> None:
    for kind in KINDS:
        task = dataclasses.replace(find_task("glue/rte"), kind=kind)
        assert written(tmp_path, make_record(task)).data.pipeline_tag


def test_a_validation_set_that_was_split_off_is_not_a_split_of_the_hub(tmp_path: Path) -> None:
    (result,) = written(tmp_path, make_record(find_task("imdb"))).data.eval_results
    assert (result.dataset_type, result.dataset_split) == ("stanfordnlp/imdb", None)


def test_nothing_is_invented_for_the_users_own_files(tmp_path: Path) -> None:
    card = written(tmp_path, own_file("train.csv", scores={"validation": {"loss": 0.5}}))
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["attendrop", "addrop"],
        "base_model": "roberta-base",
    }
    assert "train.csv" in card.text
    (result,) = written(tmp_path, own_file("train.csv")).data.eval_results
    assert (result.dataset_type, result.dataset_name) == ("unknown", "train.csv")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("roberta-base", True),
        ("google/electra-small-discriminator", True),
        ("./model", False),
        ("../model", False),
        ("/data/model", False),
        ("~/model", False),
        ("runs/a/model", False),
        ("runs\\model", False),
        ("two words", False),
        ("a:b", False),
        ("", False),
        ("model", False),  # a folder here
        ("runs/model", False),  # a folder here
    ],
)
def test_only_a_name_on_the_hub_is_a_base_model(
    name: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "runs/model"):
        (tmp_path / folder).mkdir(parents=True)
    record = make_record(find_task("glue/rte"))
    record.settings["model"] = name
    assert is_hub_name(name) is expected
    assert written(tmp_path, record).data.base_model == (name if expected else None)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_look_like_markup_survive(name: str, tmp_path: Path) -> None:
    record = own_file(name, notes=[f"{name} is a sample"])
    record.settings["model"] = f"folder/sub/{name}"
    record.regularizers = [{"method": "addrop", "p": name}]
    card = written(tmp_path, record)
    assert [result.dataset_name for result in card.data.eval_results] == [name]
    assert set(card.data.to_dict()) == {"library_name", "pipeline_tag", "tags", "model-index"}
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(card.text)
    shown = " ".join(Path(f"folder/{name}").name.encode("utf-8", "backslashreplace").decode().split())
    assert shown_by(page, "h1") == [f"{shown} on {shown}"]
    assert shown_by(page, "h2") == ["Data", "Method", "Training", "Scores", "Use"]
    whole = " ".join(name.encode("utf-8", "backslashreplace").decode().split())
    assert f"{whole} is a sample" in shown_by(page, "li")
    assert {shown, f"p={whole}"} <= set(shown_by(page, "code"))
    assert shown_by(page, "td") == ["validation/loss", "0.5000", "validation/accuracy", "0.7500"]
    assert set(re.findall(r"<(\w+)", page)) == {
        "h1", "h2", "p", "ul", "li", "code", "table", "thead", "tbody", "tr", "th", "td", "img", "pre",
    }  # fmt: skip


def shown_by(page: str, element: str) -> list[str]:
    """The texts of an element, as a browser shows them; markup inside an element stays."""
    return [html.unescape(text) for text in re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)]


def test_the_caveats_of_a_run_stand_below_its_scores(tmp_path: Path) -> None:
    caveats = ["attendout used validation examples during training, so the scores on them are optimistic."]
    text = written(tmp_path, make_record(find_task("glue/rte"), caveats=caveats)).text
    assert text.index("| validation/accuracy |") < text.index(caveats[0]) < text.index("## Use")


def test_a_method_that_uses_the_validation_examples_is_a_caveat() -> None:
    config = make_config({"model": "roberta-base", "task": "glue/rte"})
    assert caveats_of(config, [ADDrop(), AttendOut(reward_on="held_out")]) == []
    (caveat,) = caveats_of(config, [ADDrop(), AttendOut(reward_on="dev")])
    assert caveat.startswith("attendout used validation examples during training")
    config = config.replaced({"max_eval_samples": 1000})
    assert caveats_of(config, []) == ["At most 1,000 examples of each split were evaluated, drawn at random."]
