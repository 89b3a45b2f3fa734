"""The tables of compressed models: latencies of plans of layers, and scores of `studies.compression`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from attendrop.lab.statistics.paired import t_interval
from benchmarks.records import RESULTS as BENCHMARKS
from studies import RESULTS
from studies.compression import OWN

from .markdown import NOT_YET, table, two
from .results import Row, last_rows

SCORES, LATENCIES = RESULTS / "compression.csv", BENCHMARKS / "compressed-cpu.csv"
SIZES = (("1", "128"), ("16", "128"))
LOSS = 1.0  # points that count as none


def latencies(file: Path = LATENCIES) -> str:
    """Milliseconds of a forward of each plan and way on two cores, and ratios in the same run."""
    measured = last_rows(file, ("model", "batch", "length", "plan", "way"))
    if not measured:
        return NOT_YET
    stock = {(row["model"], row["batch"], row["length"], row["way"]): row for row in measured if row["plan"] == "stock"}
    lines = []
    for row in measured:
        onnx = stock.get((row["model"], row["batch"], row["length"], "onnx"))
        beside = "" if onnx is None else f"{float(onnx['ms']) / float(row['ms']):.2f}×"
        lines.append([
            f"{row['model']} ({row['attention']})", f"{row['batch']} × {row['length']}", row["plan"], row["way"],
            f"{float(row['ms']):.0f} ms", f"{float(row['fastest ms']):.0f} ms",
            f"{two(row['against stock, same way'])}×", "" if row["way"] == "torch" else beside, row["rounds"],
        ])  # fmt: skip
    titles = ["model (attention)", "batch × tokens", "plan", "by", "median", "fastest", "against stock, same way"]
    return table([*titles, "against stock ONNX, fp32", "rounds"], lines)


def scores(file: Path = SCORES, times: Path = LATENCIES) -> str:
    """The gain over the uncompressed model in points for each way and task, with the 95 % interval over seeds."""
    rows = [row for row in last_rows(file, KEY) if row["status"] == "finished"]
    if not rows:
        return NOT_YET
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    of: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        key = (row["model"], row["way"], row["by"], row["teacher"], row["k"])
        of.setdefault(key, {}).setdefault(row["task"], []).append(row)
    lines = []
    for (model, way, by, teacher, k), by_task in sorted(of.items(), key=lambda item: (*item[0][:4], int(item[0][4]))):
        cells, kept = [], 0
        for task in tasks:
            cell, low = _gain(by_task.get(task, []))
            cells.append(cell)
            kept += low >= -LOSS
        taught = "" if teacher == OWN else f", taught by the {teacher}"
        name, kept_of = f"{model}: {way} {k} by {by}{taught}", f"{kept} of {len(tasks)}"
        lines.append([name, *_speeds(times, model, way, k), *cells, kept_of])
    titles = ["", *(f"{batch} × {length}" for batch, length in SIZES), *tasks, f"no worse than {LOSS:g} point"]
    return table(titles, lines)


KEY = ("model", "task", "seed", "way", "by", "k", "teacher")


def _gain(rows: list[Row]) -> tuple[str, float]:
    """The mean gain over seeds with half the width of its interval, and the lower limit, in points."""
    gains = [100 * (float(row["score"]) - float(row["full"])) for row in rows]
    if len(gains) < 2:
        return "".join(f"{gain:+.1f}" for gain in gains), -np.inf
    low, high = t_interval(np.array(gains), resolution=100 / int(rows[0]["examples"]))
    return f"{np.mean(gains):+.1f} ± {(high - low) / 2:.1f}", low


def _speeds(times: Path, model: str, way: str, k: str) -> list[str]:
    plan = f"{'removed' if way == 'remove' else way}={k}"
    measured = last_rows(times, ("batch", "length"), model=model, plan=plan, way="torch")
    by_size = {(row["batch"], row["length"]): f"{two(row['against stock torch'])}×" for row in measured}
    return [by_size.get(size, "") for size in SIZES]


TABLES: dict[str, Callable[[], str]] = {"compressed-latencies": latencies, "compressed-scores": scores}
