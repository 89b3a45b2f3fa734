"""The Ray executor: real clusters of several nodes on this machine."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import UserError
from attendrop.lab.studies.executors import make_executor
from helpers.study_workers import BROKEN, LIGHT, light_specs
from scripts.ray_node_lost import compare

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head node with one processor."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))  # nodes have it installed
        head = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield head
        head.shutdown()


def engine_of(cluster: Any, make_worker: str = LIGHT, **options: Any) -> Any:
    return make_executor("ray", address=cluster.address, make_worker=make_worker, **options)


def test_runs_survive_a_lost_node(cluster: Any, tmp_path: Path) -> None:
    """Two nodes, of which one is killed while its worker runs: its run goes to the other one."""
    node = cluster.add_node(num_cpus=1)
    marks = tmp_path / "marks"
    marks.mkdir()
    specs = light_specs(5, seconds=1.0, marks=str(marks))
    remaining = iter(specs)
    records, workers = [], set()

    def progress(report: dict[str, Any]) -> bool:
        workers.add(report["worker"])
        if len(workers) == 2 and node in cluster.list_all_nodes():  # both are in the middle of a run
            cluster.remove_node(node, allow_graceful=False)
        return report["id"] == specs[4].id

    with closing(engine_of(cluster)) as executor:
        for record in executor.results(lambda: next(remaining, None), progress):
            records.append(record)
    assert node not in cluster.list_all_nodes()
    assert sorted(record.id for record in records) == sorted(spec.id for spec in specs)
    statuses = {record.seed: record.status for record in records}
    assert statuses == {0: "finished", 1: "finished", 2: "finished", 3: "finished", 4: "stopped"}
    assert len(list(marks.iterdir())) == 6  # one run was started twice
    assert sum(bool(record.lost_workers) for record in records) == 1


def test_an_actor_that_dies_and_a_run_that_fails(cluster: Any, tmp_path: Path) -> None:
    faults = ["dies once", "dies", "diverges", "memory once"]
    specs = [light_specs(1, fault=fault, marks=str(tmp_path))[0] for fault in faults]
    remaining = iter(specs)
    with closing(engine_of(cluster)) as executor:
        records = {record.id: record for record in executor.results(lambda: next(remaining, None))}
    ordered = [records[spec.id] for spec in specs]
    assert [record.status for record in ordered] == ["finished", "failed", "failed", "finished"]
    assert "the Ray actor was lost" in ordered[1].error.message
    assert ordered[2].error.type == "DivergedError"


def test_what_does_not_fit_into_the_cluster_is_refused(cluster: Any) -> None:
    with pytest.raises(UserError, match="gpus_per_worker is 0.5 and cpus_per_worker is 1, .* has 0 GPUs"):
        engine_of(cluster, gpus_per_worker=0.5)
    with pytest.raises(UserError, match="cpus_per_worker is 20"):
        engine_of(cluster, cpus_per_worker=20)


def test_worker_start_failure_raises_one_line_error(cluster: Any) -> None:
    remaining = iter(light_specs(1))
    refused = pytest.raises(UserError, match="no worker could be started: RuntimeError in .*: no CUDA here.$")
    with closing(engine_of(cluster, BROKEN)) as executor, refused:
        list(executor.results(lambda: next(remaining, None)))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:{port}", "where no Ray cluster answers"),
        ("no-such-host.invalid:6379", "where no Ray cluster answers"),
        ("127.0.0.1", "it must be host:port"),
        ("127.0.0.1:0", "it must be host:port"),
        ("ray://127.0.0.1:10001", "it must be host:port"),
    ],
)
def test_unreachable_address_raises_one_line_error(address: str, sentence: str) -> None:
    pytest.importorskip("ray")
    start = time.monotonic()
    with pytest.raises(UserError, match=f"address is '.*', .*{sentence}|address is '.*'; {sentence}"):
        make_executor("ray", address=address.format(port=free_port()), make_worker=LIGHT)
    assert time.monotonic() - start < 15


def test_port_of_another_program_raises_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would wait for minutes."""
    pytest.importorskip("ray")
    monkeypatch.setattr("attendrop.lab.studies.executors.ray._PATIENCE", 0.5)
    refused = pytest.raises(UserError, match="where no Ray cluster answers")
    with socket.create_server(("127.0.0.1", 0)) as server, refused:  # it accepts, and says nothing
        make_executor("ray", address=f"127.0.0.1:{server.getsockname()[1]}", make_worker=LIGHT)


def test_without_ray_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"Ray is not installed: pip install 'attendrop\[ray\]'"):
        make_executor("ray", make_worker=LIGHT)


@pytest.mark.slow
def test_scores_are_bit_equal_to_those_of_the_local_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real training on two nodes, of which one is killed in the middle."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
    assert compare(tmp_path, seeds=3) == {"runs": 6, "records": 6, "equal": 6, "lost": 1}
