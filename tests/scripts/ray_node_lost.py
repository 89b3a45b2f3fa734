"""Runs a study on a Ray cluster of two nodes, kills one of them in the middle, and compares with the local engine.

    OMP_NUM_THREADS=1 python tests/scripts/ray_node_lost.py FOLDER [--seeds 4]

All records must be there, and their scores must be those of the local engine, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the order in which threads add numbers decides the last bits
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from attendrop.lab.studies.driver import run_study
from attendrop.lab.studies.executors import make_engine
from attendrop.lab.studies.records import Record
from attendrop.lab.studies.spec import RunSpec
from helpers.study_workers import real_specs

CONFIGURATION = {"kind": "compare"}
_OUTCOME = ("status", "scores", "curves", "predictions", "data", "model")  # of a record; the rest are names and times


def local_records(folder: Path, specs: list[RunSpec]) -> dict[str, Record]:
    return run_study(folder, CONFIGURATION, specs, make_engine("local", workers=2, device="cpu"))


def ray_records(folder: Path, specs: list[RunSpec]) -> tuple[dict[str, Record], int]:
    """Runs a study on two nodes, of which one is killed when both are in the middle of a run.

    Returns:
        The records, and how many runs have lost a worker.
    """
    from ray.cluster_utils import Cluster

    from attendrop.lab.studies.driver import Study

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    workers: set[str] = set()

    def on_progress(report: dict[str, Any]) -> bool:
        workers.add(report["worker"])
        if len(workers) == 2 and node in cluster.list_all_nodes():
            print(f"killing a node in epoch {report['epoch']:g} of run {report['id']}", flush=True)
            cluster.remove_node(node, allow_graceful=False)
        return False

    remaining = iter(specs)
    engine = make_engine("ray", address=cluster.address)
    try:
        with Study(folder, CONFIGURATION) as study:
            for _ in study.run(lambda: next(remaining, None), engine, len(specs), on_progress):
                pass
    finally:
        engine.close()
        cluster.shutdown()
    return study.records, sum("lost_workers" in record for record in study.records.values())


def compare(folder: Path, seeds: int) -> dict[str, int]:
    """Runs the study with both engines.

    Returns:
        How many runs there are, how many records of Ray, how many are bit-equal, and how many have lost their node.
    """
    specs = real_specs(folder, seeds)
    expected = local_records(folder / "local", specs)
    losses = {record["scores"]["validation"]["loss"] for record in expected.values()}
    assert len(losses) == len(specs), "runs with other methods and seeds must have other scores"
    records, lost = ray_records(folder / "ray", specs)
    equal = [name for name, record in expected.items() if all(record[key] == records[name][key] for key in _OUTCOME)]
    return {"runs": len(specs), "records": len(records), "equal": len(equal), "lost": lost}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    os.environ["PYTHONPATH"] = path  # the nodes have everything installed
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    print(compare(Path(options.folder), options.seeds))
