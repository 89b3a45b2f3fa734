"""Generates the tables of the README and the documentation from the benchmark results and the cards of the methods.

    python -m benchmarks.tables             # writes the tables
    python -m benchmarks.tables --check     # writes nothing; exit code 1 if a table is out of date

A table stands between two comments, `<!-- table: NAME -->` and `<!-- end of table -->`. If a row was measured several
times under the same conditions, the last measurement counts. Tables of training steps on a GPU have the rows that
`trainer_steps.PARTS` measures, and no older ones. Whole files are generated too: the figure of the verdict
study, and the preset that it recommends.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml

from attendrop.methods import method_names

from . import defaults, example_scores
from .floors import weight_passes_of
from .records import NOT_YET, RESULTS, table

ROOT = Path(__file__).parent.parent
CARDS = "docs/methods"
RECIPE = "Recipe of the paper"
PAGES = (
    "README.md",
    "PAPER_INDEX.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
MARKED = re.compile(r"(<!-- table: (?P<name>[a-z0-9_-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Row = dict[str, str]


def rows(file: str, key: tuple[str, ...], **conditions: str) -> list[Row]:
    """The last row for each value of `key`, in the order in which the values first appear; none without results."""
    last: dict[tuple[str, ...], Row] = {}
    if not (RESULTS / file).exists():
        return []
    with (RESULTS / file).open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if all(row[name] == value for name, value in conditions.items()):
                last[tuple(row[name] for name in key)] = row
    return list(last.values())


def steps_on_a_cpu() -> str:
    """Multiples of a plain step on two cores of a CPU, of a model with four layers."""
    measured = rows("steps-cpu.csv", ("provider",), threads="2", batch="8", length="128", layers="4")
    return table(
        ["step", "time", "spread", "floor", "peak memory"],
        [
            [row["provider"], _two(row["time x plain"]), _percent(row.get("spread"))]
            + [_two(row[column]) for column in ("floor x plain", "memory x plain")]
            for row in measured
        ],
    )


def _steps(part: str) -> list[Row]:
    """The last measurements of the steps of a part of `benchmarks.trainer_steps`, in its order."""
    from .trainer_steps import PARTS

    file, _, wanted = PARTS[part]
    of_file = rows(file, ("model", "batch", "length", "provider"))
    found = {(row["model"], f"{row['batch']}x{row['length']}", row["provider"]): row for row in of_file}
    keys = [(model, size, name) for model, size, names in wanted for name in names]
    return [found[key] for key in keys if key in found]


def captured() -> str:
    """Milliseconds of a step inside `Trainer.train()` on a GPU, and multiples of a captured plain step."""
    measured = _steps("sizes")
    sizes = list(dict.fromkeys((row["batch"], row["length"]) for row in measured))
    lines = []
    for name in dict.fromkeys(row["provider"] for row in measured):
        at = {(row["batch"], row["length"]): row for row in measured if row["provider"] == name}
        cells = [f"{float(at[s]['train ms']):.1f} ({_two(at[s]['x captured'])})" if s in at else "" for s in sizes]
        last = at.get(sizes[-1])
        spreads = [float(row["spread"]) for row in at.values() if row.get("spread")]
        floor, memory = next(iter(at.values()))["floor"], last["memory x capt"] if last else ""
        lines.append([name, *cells, _percent(max(spreads, default=None)), _two(floor), _two(memory)])
    titles = [*(f"{b} × {n}" for b, n in sizes), "largest spread", "floor", "memory, {} × {}".format(*sizes[-1])]
    return table(["ms (× plain captured)", *titles], lines)


def models(is_long: bool) -> str:
    """Steps of long texts, or of other models: ms, multiple of a captured plain step, peak memory."""
    of: dict[tuple[str, str], dict[str, Row]] = {}
    for row in _steps("long" if is_long else "models"):
        of.setdefault((row["model"], f"{row['batch']} × {row['length']}"), {})[row["provider"]] = row
    if not of:
        return ""
    names = list(dict.fromkeys(name for by in of.values() for name in by))
    lines = [
        [size if is_long else f"{model}, {size}", *(_cell(by.get(name)) for name in names)]
        for (model, size), by in of.items()
    ]
    first = "batch × tokens" if is_long else "model, batch × tokens"
    return (
        f"### {'Long texts' if is_long else 'Other models'}\n\n"
        "Each cell: ms (× plain captured, spread), peak memory in MiB\n"
        f"(`python -m benchmarks.trainer_steps --part {'long' if is_long else 'models'}`).\n\n"
        f"{table([first, *names], lines)}"
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    spread = f", {found}" if (found := _spread(row)) else ""
    return f"{float(row['train ms']):.1f} ({_two(row['x captured'])}{spread}), {row['peak MiB']}"


def whole_runs() -> str:
    """Seconds of whole runs on few texts."""
    of: dict[tuple[str, int, int], dict[str, Row]] = {}
    for row in rows("whole-runs-cuda.csv", ("model", "texts", "epochs", "run")):
        of.setdefault((row["model"], int(row["texts"]), int(row["epochs"])), {})[row["run"]] = row
    names = sorted({name for by in of.values() for name in by}, key=lambda name: (name.split()[0], "captured" in name))
    lines = [[*map(str, run), *(_seconds(by.get(name)) for name in names)] for run, by in sorted(of.items())]
    return table(["model", "texts", "epochs", *names], lines)


def short_runs() -> str:
    """Those on 300 texts that `benchmarks.all` measures."""
    measured = rows("whole-runs-cuda.csv", ("run",), model="roberta-base", texts="300", epochs="10")
    return table(
        ["run", "seconds", "spread", "× eager"],
        [
            [row["run"], f"{float(row['seconds']):.1f}", _spread(row), _two(row["x eager"])]
            for row in measured
            if row["run"].startswith("addrop")
        ],
    )


def evaluation() -> str:
    """Evaluation and prediction, beside a bare captured forward."""
    measured = rows("evaluation-cuda.csv", ("what",), model="roberta-base")
    if not measured:
        return NOT_YET
    return table(
        ["", "texts", "seconds", "spread", "bare forward, seconds", "spread", "× bare forward"],
        [
            [
                *(row["what"], row["texts"], row["seconds"], _percent(row["spread"])),
                *(row["bare seconds"], _percent(row["bare spread"]), _two(row["x bare"])),
            ]
            for row in measured
        ],
    )


def _seconds(row: Row | None) -> str:
    if row is None:
        return ""
    beside = ", ".join(part for part in (_two(row["x eager"]), _spread(row)) if part)
    return f"{float(row['seconds']):.1f}" + (f" ({beside})" if beside else "")


def _spread(row: Row) -> str:
    """In percent; nothing where there was one round."""
    return _percent(row["spread"]) if int(row["rounds"]) > 1 else ""


def _percent(value: str | float | None) -> str:
    return "" if value in ("", None) else f"{float(value):.0f} %"  # type: ignore[arg-type]


class Steps(NamedTuple):
    """Milliseconds of a step of one size."""

    stock: float
    plain: float
    addrop: float


def _headline_steps() -> dict[str, Steps]:
    """For each size of batch: plain in the stock Trainer, plain captured, AD-DROP captured."""
    times: dict[str, dict[str, float]] = {}
    for row in _steps("sizes"):
        times.setdefault(f"{row['batch']} × {row['length']}", {})[row["provider"]] = float(row["train ms"])
    return {size: Steps(of["stock plain"], of["plain captured"], of["addrop captured"]) for size, of in times.items()}


def speed_in_a_sentence() -> str:
    """The first claim of the README."""
    steps = _headline_steps()
    faster = [of.stock / of.plain for of in steps.values()]
    *small, largest = (of.addrop / of.stock for of in steps.values())
    return (
        f"**Faster steps.** On one GPU, a step of plain fine-tuning is {min(faster):.1f} to {max(faster):.1f} times as "
        "fast as in the stock\n"
        f"`Trainer`. A step with AD-DROP takes {min(small):.2f} to {max(small):.2f} of the time of a *plain* step of "
        "the stock `Trainer`,\n"
        f"and {largest:.2f} at the largest batch ([measurements](#speed-on-one-gpu)).\n"
    )


def speed() -> str:
    """The captured steps of the README, beside those of the stock Trainer."""
    return table(
        ["batch × tokens", "stock Trainer, plain", "attendrop, plain", "attendrop, AD-DROP"],
        [
            [size, f"{of.stock:.1f} ms"] + [f"{ms:.1f} ms ({ms / of.stock:.2f} ×)" for ms in (of.plain, of.addrop)]
            for size, of in _headline_steps().items()
        ],
    )


def kernels() -> str:
    """Time of AD-DROP's mask beside attention itself."""
    measured = rows("kernels-cuda.csv", ("provider", "batch", "length"), batch="64", length="256")
    return table(
        ["64 × 256, 12 heads of width 64, bf16", "µs", "spread", "× attention", "floor of a mask, µs"],
        [
            [
                row["provider"],
                f"{float(row['microseconds']):.0f}",
                _percent(row["spread"]),
                _two(row["time x attention"]),
                row["floor microseconds"] if row["provider"].startswith("mask") else "",
            ]
            for row in measured
        ],
    )


def inference(device: str = "cpu") -> str:
    """Time of a forward with and without pruned attention layers."""
    measured = rows(f"inference-{device}.csv", ("batch", "length", "way"), layers="12", width="768")
    if not measured:
        return ""
    digits = 0 if device == "cpu" else 2
    spread = ["spread"] if "spread" in measured[0] else []
    intro = "On an NVIDIA GPU, bf16 (`python -m benchmarks.inference --device cuda --dtype bfloat16`):\n\n"
    return ("" if device == "cpu" else intro) + table(
        ["batch × tokens", "by", "stock", "pruned", *spread, "speed-up", "against stock SDPA", "at most"],
        [
            [f"{row['batch']} × {row['length']}", row["way"], f"{float(row['stock ms']):.{digits}f} ms"]
            + [f"{float(row['pruned ms']):.{digits}f} ms", *(_percent(row[column]) for column in spread)]
            + [f"{_two(row[column])}×" for column in ("speed-up", "against stock sdpa", "ceiling")]
            for row in measured
        ],
    )


# ---- methods --------------------------------------------------------------------------------------------------


class Card(NamedTuple):
    """The front matter of docs/methods/<name>.md: what the tables say about a method."""

    name: str
    title: str
    paper: str
    url: str
    acts_on: str
    summary: str
    cost: str


def card(name: str) -> Card:
    """Reads the front matter of a card."""
    text = (ROOT / CARDS / f"{name}.md").read_text(encoding="utf-8")
    fields = yaml.safe_load(text.split("---\n")[1])
    return Card(name, **{field: str(value) for field, value in fields.items()})


def cards() -> list[Card]:
    """The cards of all methods, those that act on the same part of the model together."""
    return sorted(map(card, method_names()), key=lambda it: (it.acts_on, it.title.casefold()))


def methods() -> str:
    """One row for each method. The links are relative to the folder of the cards."""
    return table(
        ["method", "acts on", "cost", "paper", "what it does"],
        [[f"[{it.title}]({it.name}.md)", it.acts_on, it.cost, f"[{it.paper}]({it.url})", it.summary] for it in cards()],
    )


def works_with() -> str:
    """Where each method works; tests/scripts/works_with.py tried it."""
    tried = {row["method"]: row for row in rows("works-with.csv", ("method",))}
    settings = [name for name in next(iter(tried.values())) if name != "method"]
    return table(
        ["method", *settings],
        [[f"[{it.title}]({it.name}.md)"] + ["yes" if tried[it.name][s] == "yes" else "no" for s in settings]
         for it in cards()],
    )  # fmt: skip


def method_links() -> str:
    """All methods in one paragraph of the README."""
    links = " ·\n".join(f"[{it.title}]({CARDS}/{it.name}.md)" for it in cards())
    return f"{len(cards())} methods: {links}.\n"


def recipes() -> str:
    """The section "Recipe of the paper" of each card."""
    return "\n".join(
        f"## {it.title}\n\n[{it.paper}]({it.url}). [Card]({CARDS}/{it.name}.md).\n\n{_section(it.name, RECIPE)}\n"
        for it in cards()
    )


def _section(name: str, title: str) -> str:
    """The text under a heading of a card."""
    _, _, rest = (ROOT / CARDS / f"{name}.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0].strip()


def simulated(quantity: str) -> str:
    """Shares of simulated studies, in percent: a row for each kind of differences, a column for each kind of study."""
    shares: dict[str, dict[str, str]] = {}
    for row in rows("statistics.csv", ("seeds", "methods", "differences"), quantity=quantity):
        study = f"{row['seeds']} seeds" if row["seeds"].isdigit() else row["seeds"]
        study += f", {row['methods']} methods" if row["methods"] != "1" else ""
        shares.setdefault(row["differences"], {})[study] = f"{100 * float(row['measured']):.1f}"
    studies = list(dict.fromkeys(study for of in shares.values() for study in of))
    lines = [[name, *(of.get(study, "") for study in studies)] for name, of in shares.items()]
    return table(["differences", *studies], lines)


def simulated_ensembles() -> str:
    """How often the interval of an ensemble's gain contains the mean gain, in percent."""
    shares: dict[str, list[str]] = {}
    for row in rows("ensembles.csv", ("case", "seeds")):
        shares.setdefault(row["case"], []).append(f"{100 * float(row['covered']):.1f}")
    return table(["members", "5 seeds", "10 seeds", "20 seeds"], [[name, *of] for name, of in shares.items()])


def baselines() -> str:
    """Captured steps of averages, baselines and further methods, as multiples of plain ones, beside their floors."""
    measured = _steps("baselines")
    if not measured:
        return ""
    return (
        "### Averages, fine-tuning baselines and further methods\n\n"
        "`python -m benchmarks.trainer_steps --part baselines`, at the same shapes. The floor is derived from the "
        "passes of a\n"
        "step (`benchmarks/floors.py`); it and × plain are multiples of a captured plain step of the same model. "
        '"over weights"\n'
        "is how often a step reads or writes a number for each weight, which the floor does not count: 0.12 ms each "
        "time at\n"
        "the bandwidth of the card's memory.\n\n"
    ) + table(
        [
            *("step", "model", "ms", "spread", "× plain", "floor", "over weights", "should be at most"),
            "peak memory, MiB",
        ],
        [
            [
                *(row[column] for column in ("provider", "model", "train ms")),
                *(_spread(row), _two(row["x captured"]), _two(row["floor"])),
                str(weight_passes_of(row["provider"]) or ""),
                *(_two(row["aim"]), row["peak MiB"]),
            ]
            for row in measured
        ],
    )


def weight_passes() -> str:
    """Passes over all weights, beside the same by torch's functions for lists."""
    measured = {row["provider"]: row for row in rows("weight-passes-cuda.csv", ("provider",))}
    lines = []
    for name, row in measured.items():
        foreach = measured.get(f"{name}, foreach")
        if "foreach" not in name:
            moved = f"{int(row['GB/s']) / 1000:.1f}" if row["GB/s"] != "0" else ""
            times = row["microseconds"], _percent(row["spread"])
            lines.append([name, row["passes"], *times, moved, foreach["microseconds"] if foreach else ""])
    return table(["pass over all weights", "read or written", "µs", "spread", "TB/s", "µs by torch's foreach"], lines)


def examples() -> str:
    """What came out of the examples with real weights."""
    measured = rows("examples-cuda.csv", ("example", "score", "method", "seed"))
    if not measured:
        return ""
    intro = (
        f"On one {measured[0]['device']}, with the real weights: means over the seeds, and differences between runs of "
        "the same\n"
        "seed. Seconds are those of a plain and of a regularised run, while all four examples ran at once.\n\n"
    )
    return intro + table([*example_scores.TITLES, "seconds of a run"], example_scores.lines(measured))


def family() -> str:
    """Captured steps of the papers' methods, as multiples of plain ones."""
    header = ["step", "ms", "spread", "× captured plain", "aim", "floor", "× stock plain", "peak memory, MiB"]
    return table(
        header,
        [
            [row["provider"], row["train ms"], _spread(row)]
            + [_two(row[name]) for name in ("x captured", "aim", "floor", "x stock")]
            + [row["peak MiB"]]
            for row in _steps("family")
        ],
    )


def chosen_defaults() -> str:
    """The epochs and learning rates that are chosen, against the best of a grid."""
    key = ("task", "examples", "evaluated", "by", "epochs", "rate", "seed")
    return defaults.markdown(rows("defaults.csv", key))


def public_files() -> str:
    """What was said about public files, and the scores of runs on them."""
    lines = []
    for row in rows("public-files.csv", ("data set",)):
        flags = row["train"].removeprefix("attendrop train --model M --train-file ")
        said = row["said"].replace("|", "\\|") or "nothing unusual"
        score = f"{row['metric']} {float(row['score']):.3f}"
        beside = f" ({float(row['most frequent']):.3f})" if row["most frequent"] else ""
        trained = f"{row['trained on']}, {row['steps']} steps"
        lines.append([row["data set"], row["kind"], f"`{flags}`", said, trained, score + beside])
    return table(
        ["data set", "kind", "file and flags", "what was said", "trained on", "score (most frequent answer)"], lines
    )


def _two(value: str) -> str:
    return f"{float(value):.2f}" if value else ""


def attention_with_bits() -> str:
    """Attention that reads bits, as multiples of PyTorch's flash attention, and AD-DROP's mask, of that as a bias."""
    found = rows("bits-cuda.csv", ("batch", "length", "provider"), causal="False")
    sizes = sorted({(row["batch"], row["length"]) for row in found}, key=lambda size: int(size[1]))
    of_memory = ("4", "2048")
    lines = []
    for name in dict.fromkeys(row["provider"] for row in found):
        at = {(row["batch"], row["length"]): row for row in found if row["provider"] == name}
        cells = [f"{float(at[s]['microseconds']):.0f} ({_two(at[s]['x first'])})" if s in at else "" for s in sizes]
        largest = _percent(max((float(row["spread"]) for row in at.values() if row["spread"]), default=None))
        lines.append([name, *cells, largest, at[of_memory]["added MiB"] if of_memory in at else ""])
    columns = [*(f"{b} × {n}" for b, n in sizes), "largest spread", f"MiB, {' × '.join(of_memory)}"]
    return table(["µs (× first of its group)", *columns], lines) if found else ""


def profile() -> str:
    """Where the time of a plain step goes, eager and captured, and captured with a cast in each layer."""
    from .profile import PROFILED

    of = {}
    for name in PROFILED:
        measured = rows("profile-cuda.csv", ("step ms", "name"), provider=name, what="kind")
        last = measured[-1]["step ms"]
        of[name] = {row["name"]: row for row in measured if row["step ms"] == last}
    whole = [next(iter(by.values())) for by in of.values()]
    kinds = list(dict.fromkeys(kind for by in of.values() for kind in by))
    lines = [
        [kind, *(cell for by in of.values() for cell in _time_and_calls(by.get(kind)))]
        for kind in sorted(kinds, key=lambda kind: -float(of[PROFILED[-1]].get(kind, {}).get("ms", 0)))
    ]
    step = ["a whole step (spread)"]
    step += [cell for row in whole for cell in (f"{_two(row['step ms'])} ({_percent(row['spread'])})", "")]
    return table(["kind of kernel", *(f"{name}, {what}" for name in of for what in ("ms", "kernels"))], [step, *lines])


def _time_and_calls(row: Row | None) -> tuple[str, str]:
    return ("", "") if row is None else (_two(row["ms"]), f"{float(row['calls']):.0f}" if float(row["calls"]) else "")


TABLES: dict[str, Callable[[], str]] = {
    "captured": captured,
    "speed": speed,
    "speed-in-a-sentence": speed_in_a_sentence,
    "steps-cpu": steps_on_a_cpu,
    "family": family,
    "baselines": baselines,
    "weight-passes": weight_passes,
    "examples": examples,
    "kernels": kernels,
    "bits": attention_with_bits,
    "profile": profile,
    "inference": inference,
    "inference-cuda": lambda: inference("cuda"),
    "long-texts": lambda: models(is_long=True),
    "other-models": lambda: models(is_long=False),
    "whole-runs": whole_runs,
    "short-runs": short_runs,
    "evaluation": evaluation,
    "defaults": chosen_defaults,
    "public-files": public_files,
    "methods": methods,
    "works-with": works_with,
    "method-links": method_links,
    "recipes": recipes,
    "simulated-alarms": lambda: simulated("false alarms"),
    "simulated-coverage": lambda: simulated("coverage"),
    "simulated-bca": lambda: simulated("coverage of BCa"),
    "simulated-power": lambda: simulated("power"),
    "simulated-ensembles": simulated_ensembles,
    "simulated-equivalence": lambda: simulated('false "no difference"'),
}


def generated(name: str) -> str:
    """The content of a table. Those of the verdict study are made in its own package, which reads this module."""
    of_the_study = {"verdict": "page", "attendout": "attendout.report"}.get(name.partition("-")[0])
    if of_the_study is None:
        return TABLES[name]()
    return str(import_module(f"benchmarks.verdict.{of_the_study}").TABLES[name]())


def renewed(text: str) -> str:
    """`text` with every marked table generated again."""
    return MARKED.sub(lambda match: match[1] + generated(match["name"]) + match[3], text)


# Whole files -> the module and the function that make them.
FILES = {
    "docs/images/verdict.svg": ("benchmarks.verdict.figure", "draw"),
    "src/attendrop/__init__.pyi": ("docs.stub", "stub"),
    "src/attendrop/lab/runs/recommended.py": ("benchmarks.verdict.recommend", "module"),
}


def _made(file: str) -> str:
    module, function = FILES[file]
    return str(getattr(import_module(module), function)())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    stale = []
    for name in (*FILES, *PAGES):  # the list of public names even where a table cannot be made yet
        path = ROOT / name
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        after = _made(name) if name in FILES else renewed(before or "")
        if after != before:
            stale.append(name)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    print(
        ", ".join(stale) + (" out of date: run `make tables`" if options.check else " written")
        if stale
        else "up to date"
    )
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
