"""The snippets of the model card: each runs as it stands, and answers as `attendrop predict` does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendrop.lab.runs.predict import text_columns
from attendrop.lab.tasks import load_tokenizer
from helpers.small_runs import KINDS, MAX_LENGTH, WIDTH, long_texts, save_sources, train_small

pytestmark = pytest.mark.xdist_group("small runs")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sources(tmp_path_factory.mktemp("usage"))


@pytest.fixture(scope="module")
def runs(sources: Path) -> dict[str, Path]:
    folders: dict[str, Path] = {}

    class Lazy(dict[str, Path]):
        def __missing__(self, kind: str) -> Path:
            folders[kind] = self[kind] = train_small(sources, kind)
            return self[kind]

    return Lazy()


def snippets(folder: Path) -> dict[str, str]:
    """The code of the card, by what is imported from: "pipeline", "model", "onnxruntime"."""
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL)
    names = {"pipe = ": "pipeline", "onnxruntime": "onnx", "SentenceTransformer": "sentence", "tokenizer(": "python"}
    return {
        next(name for sign, name in names.items() if sign in block): block.replace("FOLDER", folder.as_posix())
        for block in blocks
    }


def executed(code: str, names: dict[str, Any] | None = None, **replaced: str) -> dict[str, Any]:
    """Run a snippet, with other values for some of its lines: `texts="['a']"`."""
    names = {} if names is None else names
    for name, value in replaced.items():
        code = re.sub(rf"^{name} = .*$", lambda _, line=f"{name} = {value}": line, code, flags=re.MULTILINE)
    exec(code, names)
    return names


def examples(kind: str, count: int) -> dict[str, str]:
    texts = [text for text, _ in long_texts(count, seed=9)]
    if WIDTH.get(kind) == 2:
        return {"first, second": repr((texts, texts[::-1]))}
    return {"words": repr(texts[0].split())} if kind == "tokens" else {"texts": repr(texts)}


def predicted(folder: Path, kind: str, given: dict[str, str]) -> dict[str, list[Any]]:
    (value,) = (eval(value) for value in given.values())
    texts = [" ".join(value)] if kind == "tokens" else value
    if WIDTH.get(kind) == 2:
        texts = [text for pair in zip(*value, strict=True) for text in pair]
    return text_columns(folder, texts)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_snippet_runs_as_it_stands_and_answers_as_predict_does(
    kind: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = runs[kind]
    code, record = snippets(folder), json.loads((folder / "record.json").read_text("utf-8"))
    assert set(code) >= ({"python", "onnx"} if kind == "apart" else {"pipeline", "python", "onnx"})
    executed(code["python"])  # as it stands
    given = examples(kind, 24)
    ours = predicted(folder, kind, given)
    names = executed(code["python"], **given)
    if kind == "regression":
        np.testing.assert_allclose(ours["prediction"], names["numbers"], atol=10 ** -record["decimals"])
    elif kind == "tokens":
        tags = [names["tags"].get(place, "O") for place in range(len(ours["prediction"][0]))]
        assert ours["prediction"][0] == tags
        assert len(names["tags"]) < len(tags)  # the others are cut
    else:
        assert ours["prediction"] == names["labels"]
        columns = [ours[name] for name in ours if name.startswith("probability_")]
        np.testing.assert_allclose(np.transpose(columns), names["probabilities"], atol=2e-4)
    logits = names["logits"]
    if "pipeline" in code:
        assert_same(kind, executed(code["pipeline"])["answers"], None, record)
        assert_same(kind, executed(code["pipeline"], **given)["answers"], ours, record)
    if kind not in ("single", "apart"):  # the same lines, and an export takes seconds
        return
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    np.testing.assert_allclose(executed(code["onnx"], names)["logits"], logits, atol=1e-4)


def assert_same(kind: str, answers: Any, ours: dict[str, list[Any]] | None, record: dict[str, Any]) -> None:
    """The answers of a pipeline are exactly ours."""
    if ours is None:
        assert isinstance(answers, list)  # there may be no entity
    elif kind == "regression":
        scores = [answer["score"] for answer in answers]
        np.testing.assert_allclose(ours["prediction"], scores, atol=10 ** -record["decimals"])
    elif kind == "multilabel":
        chosen = [{score["label"] for score in row if score["score"] > record["threshold"]} for row in answers]
        assert chosen == [set(labels) for labels in ours["prediction"]]
    elif kind == "tokens":
        words = next(iter(ours.values()))[0]
        entities = {answer["start"]: answer["entity"] for answer in answers}
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        assert [entities.get(start, "O") for start in starts[:-1]] == ours["prediction"][0]
    else:
        assert [answer["label"] for answer in answers] == ours["prediction"]


def test_other_libraries_truncate_as_the_run_did_and_further_training_does_not(runs: dict[str, Path]) -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(runs["single"])
    assert theirs.model_max_length == MAX_LENGTH
    assert len(theirs("a film " * 50, truncation=True)["input_ids"]) == MAX_LENGTH
    assert load_tokenizer(runs["single"]).model_max_length == 256  # its own limit: --max-length may be larger again


def test_a_run_that_starts_from_a_run_may_read_longer_texts(runs: dict[str, Path], sources: Path) -> None:
    import transformers

    settings = {"model": str(runs["single"]), "max_length": 40, "output_dir": str(sources / "longer")}
    longer = train_small(sources, "single", **settings)
    assert json.loads((longer / "record.json").read_text("utf-8"))["max_length"] == 40
    assert transformers.AutoTokenizer.from_pretrained(longer).model_max_length == 40
    assert load_tokenizer(longer).model_max_length == 256
