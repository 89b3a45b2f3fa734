"""The tables in the README and the documentation, made from the results.

    python -m benchmarks.tables             # writes them anew
    python -m benchmarks.tables --check     # exit code 1 where one is not what the results say

A table stands between two comments, `<!-- table: NAME -->` and `<!-- end of table -->`. Of rows that were measured
several times under the same conditions the last one counts.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path

from .records import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/methods/addrop.md", "docs/methods/pruning.md")
MARKED = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Row = dict[str, str]


def rows(file: str, key: tuple[str, ...], **conditions: str) -> list[Row]:
    """The last row for each value of `key`, in the order in which the values first came."""
    found: dict[tuple[str, ...], Row] = {}
    with (RESULTS / file).open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if all(row[name] == value for name, value in conditions.items()):
                found[tuple(row[name] for name in key)] = row
    return list(found.values())


def table(titles: list[str], lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, ["---"] * len(titles), *lines))


def steps_on_a_cpu(threads: str) -> str:
    found = rows("steps-cpu.csv", ("provider",), threads=threads, batch="16", length="128", layers="12")
    columns = ("provider", "time x plain", "floor x plain", "memory x plain")
    return table(
        ["step", "time", "floor", "peak memory"],
        [[row["provider"], *(_two(row[column]) for column in columns[1:])] for row in found],
    )


def captured() -> str:
    found = rows("trainer-steps-cuda.csv", ("provider", "batch", "length"))
    sizes = list(dict.fromkeys((row["batch"], row["length"]) for row in found))
    lines = []
    for name in dict.fromkeys(row["provider"] for row in found):
        at = {(row["batch"], row["length"]): row for row in found if row["provider"] == name}
        cells = [f"{float(at[s]['train ms']):.1f} ({_two(at[s]['x captured'])})" if s in at else "" for s in sizes]
        last = at.get(sizes[-1])
        lines.append(
            [name, *cells, _two(next(iter(at.values()))["floor"]), _two(last["memory x capt"]) if last else ""]
        )
    return table(
        ["ms (× plain captured)", *(f"{b} × {n}" for b, n in sizes), "floor", "memory, {} × {}".format(*sizes[-1])],
        lines,
    )


def kernels() -> str:
    found = rows("kernels-cuda.csv", ("provider", "batch", "length"), batch="64", length="256")
    return table(
        ["64 × 256, 12 heads of width 64, bf16", "µs", "× attention", "floor of a mask, µs"],
        [
            [
                row["provider"],
                f"{float(row['microseconds']):.0f}",
                _two(row["time x attention"]),
                row["floor microseconds"] if row["provider"].startswith("mask") else "",
            ]
            for row in found
        ],
    )


def inference() -> str:
    found = rows("inference-cpu.csv", ("batch", "length", "way"), layers="12", width="768")
    return table(
        ["batch × tokens", "by", "stock", "pruned", "speed-up", "against stock SDPA", "at most"],
        [
            [f"{row['batch']} × {row['length']}", row["way"], f"{float(row['stock ms']):.0f} ms"]
            + [f"{float(row['pruned ms']):.0f} ms"]
            + [f"{_two(row[column])}×" for column in ("speed-up", "against stock sdpa", "ceiling")]
            for row in found
        ],
    )


def _two(value: str) -> str:
    return f"{float(value):.2f}" if value else ""


TABLES: dict[str, Callable[[], str]] = {
    "captured": captured,
    "steps-cpu": lambda: steps_on_a_cpu("2"),
    "steps-cpu-family": lambda: steps_on_a_cpu("16"),
    "kernels": kernels,
    "inference": inference,
}


def renewed(text: str) -> str:
    return MARKED.sub(lambda match: match[1] + TABLES[match["name"]]() + match[3], text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    stale = []
    for page in PAGES:
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        after = renewed(before)
        if after != before:
            stale.append(page)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    print(", ".join(stale) + (" is not up to date" if options.check else " written anew") if stale else "up to date")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
