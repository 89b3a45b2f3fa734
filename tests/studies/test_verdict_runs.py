"""The parts of the verdict study that train more than one run for a line, or score every epoch: with a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from attendrop.lab.studies.worker import Worker
from helpers.cli_tools import save_encoder, sentences
from studies.verdict import ensemble, plan, protocols
from studies.verdict.lines import read
from studies.verdict.run import portable_id

pytestmark = pytest.mark.xdist_group("study_worker")
SHORT = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "eval_strategy": "epoch"}


def make_pairs(count: int, seed: int) -> pa.Table:
    rows = sentences(count, seed=seed)
    texts, labels = [text for text, _ in rows], [int(label == rows[0][1]) for _, label in rows]
    return pa.table({"sentence1": texts, "sentence2": texts[::-1], "label": labels, "idx": list(range(count))})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, and data in the layout of `studies.verdict.data`."""
    for name, value in {"POOL": 40, "CHOOSE_POOL": 12, "TO_CHOOSE": 6, "TEST": 20, "PLAIN_SEEDS": 2}.items():
        monkeypatch.setattr(protocols, name, value)
    monkeypatch.setattr(protocols, "METHOD_SEEDS", 1)
    monkeypatch.setattr(protocols, "SETTINGS", protocols.SETTINGS[:1])
    monkeypatch.setattr(protocols, "TASKS", {"glue/rte": 16})
    monkeypatch.setattr(protocols, "SHARED", SHORT)
    train, dev = make_pairs(72, seed=1), make_pairs(16, seed=2)
    save_encoder(tmp_path / "model", train["sentence1"].to_pylist())
    for place, parts in (("protocols", protocols.make_data(train, dev)), (".", (train, dev))):
        folder = tmp_path / place / "glue/rte"
        folder.mkdir(parents=True)
        for name, table in zip(("train", "validation"), parts, strict=True):
            pq.write_table(table, folder / f"{name}.parquet")
    return tmp_path


def start(module: object, monkeypatch: pytest.MonkeyPatch, data: Path, *more: str) -> None:
    flags = ["--data", data, "--model", data / "model", "--name", "tiny", "--workers", "0", "--output", data / "out"]
    monkeypatch.setattr("sys.argv", ["name", *more, *map(str, flags)])
    module.main()  # type: ignore[attr-defined]


def test_protocol_sets_are_disjoint(data: Path) -> None:
    pool, scored = (pq.read_table(data / "protocols/glue/rte" / f"{name}.parquet") for name in ("train", "validation"))
    assert (len(pool), len(scored)) == (40, 16 + 12 + 20)
    where = protocols.positions(16, len(scored), seed=0)
    assert [len(where[name]) for name in protocols.SETS] == [16, 6, 20]
    assert len(set(np.concatenate(list(where.values())))) == 16 + 6 + 20
    assert not set(pool["idx"].to_pylist()) & set(scored["idx"].to_pylist()[16:])
    assert protocols.positions(16, len(scored), seed=1)["choose"].tolist() != where["choose"].tolist()


def test_epochs_are_scored_on_each_set_and_a_stopped_study_resumes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(protocols, monkeypatch, data, "--minutes", "0")
    assert read(data / "out/protocols-tiny.csv") == []
    start(protocols, monkeypatch, data)
    rows = read(data / "out/protocols-tiny.csv")
    assert [(row["method"], row["seed"], row["status"]) for row in rows] == [
        ("plain", "0", "finished"), ("plain", "1", "finished"), ("AD-DROP", "0", "finished"),
    ]  # fmt: skip
    run = protocols.runs(str(data), str(data / "model"))[rows[0]["id"]]
    predictions = Worker("cpu").run(run).predictions["validation"]  # of the last epoch
    is_correct = np.equal(predictions.gold, predictions.predicted)
    for name, where in protocols.positions(16, len(is_correct), seed=0).items():
        epochs = [float(score) for score in rows[0][name].split()]
        assert len(epochs) == 2
        assert epochs[-1] == pytest.approx(is_correct[where].mean(), abs=1e-4)
    (data / "out/protocols-tiny.csv").write_text(
        "\n".join((data / "out/protocols-tiny.csv").read_text(encoding="utf-8").splitlines()[:3]) + "\nglue/rte pl",
        encoding="utf-8",
    )
    monkeypatch.setattr(protocols, "runs", lambda data, model: {rows[0]["id"]: run})  # nothing is left to run
    start(protocols, monkeypatch, data)
    assert read(data / "out/protocols-tiny.csv") == rows[:2]


@pytest.mark.slow
def test_ensemble_is_scored_as_one_model(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = data / "frozen.yaml"
    frozen.write_text(yaml.safe_dump({"plain": {"method": "", "training": {"learning_rate": 1e-3}}}), encoding="utf-8")
    monkeypatch.setattr(plan, "FROZEN", frozen)
    monkeypatch.setitem(plan.PLAN, "settings", {**SHORT, "eval_strategy": "no"})
    monkeypatch.setitem(plan.PLAN["tasks"], "glue/rte", {"task": "glue/rte"})
    stage = {"tasks": ["glue/rte"], "sizes": ["shots=10"], "first_seed": 0, "seeds": 1}
    monkeypatch.setitem(plan.PLAN["stages"], "confirm", stage)
    start(ensemble, monkeypatch, data, "confirm")
    (row,) = read(data / "out/ensemble-confirm-tiny.csv")
    (plain,) = plan.runs("confirm", str(data), str(data / "model"), ["plain"])
    assert (row["id"], row["method"], row["status"]) == (portable_id(plain), "Ensemble of 5", "finished")
    worker = Worker("cpu")
    records = [worker.run(run) for run in ensemble.members_of(plain)]
    assert len({record.data["train"] for record in records}) == 1  # the same training examples
    assert len({record.scores["validation"]["loss"] for record in records}) == ensemble.MEMBERS
    assert float(row["loss"]) < np.mean([record.scores["validation"]["loss"] for record in records])
