"""The tables of `benchmarks/results`: time and memory of steps, runs, kernels and inference.

If a row was measured several times under the same conditions, the last measurement counts. Tables of training steps on
a GPU have the rows that `trainer_steps.PARTS` measures, and no older ones.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from benchmarks.floors import weight_passes_of
from benchmarks.records import RESULTS

from .markdown import NOT_YET, percent, table, two
from .results import Row, last_rows


def steps_on_a_cpu() -> str:
    """Multiples of a plain step on two cores of a CPU, of a model with four layers."""
    measured = last_rows(RESULTS / "steps-cpu.csv", ("provider",), threads="2", batch="8", length="128", layers="4")
    return table(
        ["step", "time", "spread", "floor", "peak memory"],
        [
            [row["provider"], two(row["time x plain"]), percent(row.get("spread"))]
            + [two(row[column]) for column in ("floor x plain", "memory x plain")]
            for row in measured
        ],
    )


def _steps(part: str) -> list[Row]:
    """The last measurements of the steps of a part of `benchmarks.trainer_steps`, in its order."""
    from benchmarks.trainer_steps import PARTS

    file, _, wanted = PARTS[part]
    of_file = last_rows(RESULTS / file, ("model", "batch", "length", "provider"))
    by_key = {(row["model"], f"{row['batch']}x{row['length']}", row["provider"]): row for row in of_file}
    keys = [(model, size, name) for model, size, names in wanted for name in names]
    return [by_key[key] for key in keys if key in by_key]


def captured() -> str:
    """Milliseconds of a step inside `Trainer.train()` on a GPU, and multiples of a captured plain step."""
    measured = _steps("sizes")
    sizes = list(dict.fromkeys((row["batch"], row["length"]) for row in measured))
    lines = []
    for name in dict.fromkeys(row["provider"] for row in measured):
        at = {(row["batch"], row["length"]): row for row in measured if row["provider"] == name}
        cells = [f"{float(at[s]['train ms']):.1f} ({two(at[s]['x captured'])})" if s in at else "" for s in sizes]
        last = at.get(sizes[-1])
        spreads = [float(row["spread"]) for row in at.values() if row.get("spread")]
        floor, memory = next(iter(at.values()))["floor"], last["memory x capt"] if last else ""
        lines.append([name, *cells, percent(max(spreads, default=None)), two(floor), two(memory)])
    products = {(row["batch"], row["length"]): row.get("products ms") for row in measured}
    if any(products.values()):
        lines.append(["matrix products alone", *(products[size] or "" for size in sizes), "", two(1), ""])
    titles = [*(f"{b} × {n}" for b, n in sizes), "largest spread", "floor", "memory, {} × {}".format(*sizes[-1])]
    return table(["ms (× plain captured)", *titles], lines)


def peers() -> str:
    """Steps of ours beside what else a user could run; nothing before it is measured."""
    measured = _steps("peers")
    if not measured:
        return ""
    return (
        "### Beside what else one could run\n\n"
        '`python -m benchmarks.trainer_steps --part peers`, RoBERTa-base shapes, 16 × 128. "stock compiled" is the '
        "Trainer of\ntransformers with `torch_compile`, in its default mode and in reduce-overhead. "
        '"× products" is in multiples of the\ntime of the matrix products of a plain step alone, '
        f"{two(measured[-1]['products ms'])} ms; the floor of each step counts them.\n\n"
    ) + table(
        ["step", "ms", "× plain captured", "× products", "floor, × products", "peak memory, MiB"],
        [
            [
                *(row["provider"], row["train ms"], two(row["x captured"])),
                *(two(_times_products(row)), two(row["floor"]), row["peak MiB"]),
            ]
            for row in measured
        ],
    )


def _times_products(row: Row) -> str:
    return str(float(row["train ms"]) / float(row["products ms"])) if row["products ms"] else ""


def models(is_long: bool) -> str:
    """Steps of long texts, or of other models: ms, multiple of a captured plain step, peak memory."""
    of: dict[tuple[str, str], dict[str, Row]] = {}
    for row in _steps("long" if is_long else "models"):
        of.setdefault((row["model"], f"{row['batch']} × {row['length']}"), {})[row["provider"]] = row
    if not of:
        return ""
    names = list(dict.fromkeys(name for by in of.values() for name in by))
    products = [next(iter(by.values())).get("products ms") for by in of.values()]
    lines = [
        [size if is_long else f"{model}, {size}", *(_cell(by.get(name)) for name in names), *([ms] if ms else [])]
        for ((model, size), by), ms in zip(of.items(), products, strict=True)
    ]
    first = "batch × tokens" if is_long else "model, batch × tokens"
    names += ["matrix products alone, ms"] * any(products)
    return (
        f"### {'Long texts' if is_long else 'Other models'}\n\n"
        "Each cell: ms (× plain captured, spread), peak memory in MiB\n"
        f"(`python -m benchmarks.trainer_steps --part {'long' if is_long else 'models'}`).\n\n"
        f"{table([first, *names], lines)}"
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    spread = f", {noise}" if (noise := _spread(row)) else ""
    return f"{float(row['train ms']):.1f} ({two(row['x captured'])}{spread}), {row['peak MiB']}"


def family() -> str:
    """Captured steps of the papers' methods, as multiples of plain ones."""
    header = ["step", "ms", "spread", "× captured plain", "aim", "floor", "× stock plain", "peak memory, MiB"]
    return table(
        header,
        [
            [row["provider"], row["train ms"], _spread(row)]
            + [two(row[name]) for name in ("x captured", "aim", "floor", "x stock")]
            + [row["peak MiB"]]
            for row in _steps("family")
        ],
    )


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
                *(_spread(row), two(row["x captured"]), two(row["floor"])),
                str(weight_passes_of(row["provider"]) or ""),
                *(two(row["aim"]), row["peak MiB"]),
            ]
            for row in measured
        ],
    )


def weight_passes() -> str:
    """Passes over all weights, beside the same by torch's functions for lists."""
    measured = {row["provider"]: row for row in last_rows(RESULTS / "weight-passes-cuda.csv", ("provider",))}
    lines = []
    for name, row in measured.items():
        foreach = measured.get(f"{name}, foreach")
        if "foreach" not in name:
            moved = f"{int(row['GB/s']) / 1000:.1f}" if row["GB/s"] != "0" else ""
            times = row["microseconds"], percent(row["spread"])
            lines.append([name, row["passes"], *times, moved, foreach["microseconds"] if foreach else ""])
    return table(["pass over all weights", "read or written", "µs", "spread", "TB/s", "µs by torch's foreach"], lines)


def whole_runs() -> str:
    """Seconds of whole runs on few texts."""
    of: dict[tuple[str, int, int], dict[str, Row]] = {}
    for row in last_rows(RESULTS / "whole-runs-cuda.csv", ("model", "texts", "epochs", "run")):
        of.setdefault((row["model"], int(row["texts"]), int(row["epochs"])), {})[row["run"]] = row
    names = sorted({name for by in of.values() for name in by}, key=lambda name: (name.split()[0], "captured" in name))
    lines = [[*map(str, run), *(_seconds(by.get(name)) for name in names)] for run, by in sorted(of.items())]
    return table(["model", "texts", "epochs", *names], lines)


def short_runs() -> str:
    """Those on 300 texts that `benchmarks.all` measures."""
    measured = last_rows(RESULTS / "whole-runs-cuda.csv", ("run",), model="roberta-base", texts="300", epochs="10")
    return table(
        ["run", "seconds", "spread", "× eager"],
        [
            [row["run"], f"{float(row['seconds']):.1f}", _spread(row), two(row["x eager"])]
            for row in measured
            if row["run"].startswith("addrop")
        ],
    )


def _seconds(row: Row | None) -> str:
    if row is None:
        return ""
    beside = ", ".join(part for part in (two(row["x eager"]), _spread(row)) if part)
    return f"{float(row['seconds']):.1f}" + (f" ({beside})" if beside else "")


def _spread(row: Row) -> str:
    """In percent; nothing where there was one round."""
    return percent(row["spread"]) if int(row["rounds"]) > 1 else ""


def evaluation() -> str:
    """Evaluation and prediction, beside a bare captured forward."""
    measured = last_rows(RESULTS / "evaluation-cuda.csv", ("model", "what"))
    if not measured:
        return NOT_YET
    return table(
        ["", "texts", "seconds", "spread", "bare forward, seconds", "spread", "× bare forward"],
        [
            [
                *(f"{row['what']}, {row['model']}", row["texts"], row["seconds"], percent(row["spread"])),
                *(row["bare seconds"], percent(row["bare spread"]), two(row["x bare"])),
            ]
            for row in measured
        ],
    )


def host_batches() -> str:
    """What the host does for each batch of an evaluation, in milliseconds of the processor."""
    measured = last_rows(RESULTS / "host-batches.csv", ("batches are",))
    return table(
        ["batches are", "first evaluation, ms a batch", "later ones, ms a batch", "spread"],
        [[row["batches are"], row["first ms"], row["later ms"], percent(row["spread"])] for row in measured],
    )


def ways_on_a_cpu() -> str:
    """Steps on one thread of a CPU, by the way in which they are computed."""
    measured = last_rows(RESULTS / "cpu-steps.csv", ("step", "way"), threads="1")
    shares = ("matrix products %", "optimizer %", "dropout %", "casts %")
    return table(
        ["step", "computed", "processor ms", "spread", "× float32", *(name.removesuffix(" %") for name in shares)],
        [
            [
                *(row["step"], row["way"], row["processor ms"], percent(row["spread"]), two(row["x float32"])),
                *(percent(row[name]) for name in shares),
            ]
            for row in measured
        ],
    )


def kernels() -> str:
    """Time of AD-DROP's mask beside attention itself."""
    measured = last_rows(RESULTS / "kernels-cuda.csv", ("provider", "batch", "length"), batch="64", length="256")
    return table(
        ["64 × 256, 12 heads of width 64, bf16", "µs", "spread", "× attention", "floor of a mask, µs"],
        [
            [
                row["provider"],
                f"{float(row['microseconds']):.0f}",
                percent(row["spread"]),
                two(row["time x attention"]),
                row["floor microseconds"] if row["provider"].startswith("mask") else "",
            ]
            for row in measured
        ],
    )


def inference(device: str = "cpu") -> str:
    """Time of a forward with and without pruned attention layers."""
    measured = last_rows(RESULTS / f"inference-{device}.csv", ("batch", "length", "way"), layers="12", width="768")
    if not measured:
        return ""
    digits = 0 if device == "cpu" else 2
    spread = ["spread"] if "spread" in measured[0] else []
    intro = "On an NVIDIA GPU, bf16 (`python -m benchmarks.inference --device cuda --dtype bfloat16`):\n\n"
    return ("" if device == "cpu" else intro) + table(
        ["batch × tokens", "by", "stock", "pruned", *spread, "speed-up", "against stock SDPA", "at most"],
        [
            [f"{row['batch']} × {row['length']}", row["way"], f"{float(row['stock ms']):.{digits}f} ms"]
            + [f"{float(row['pruned ms']):.{digits}f} ms", *(percent(row[column]) for column in spread)]
            + [f"{two(row[column])}×" for column in ("speed-up", "against stock sdpa", "ceiling")]
            for row in measured
        ],
    )


def attention_with_bits() -> str:
    """Attention that reads bits, as multiples of PyTorch's flash attention, and AD-DROP's mask, of that as a bias."""
    rows = last_rows(RESULTS / "bits-cuda.csv", ("batch", "length", "provider"), causal="False")
    sizes = sorted({(row["batch"], row["length"]) for row in rows}, key=lambda size: int(size[1]))
    of_memory = ("4", "2048")
    lines = []
    for name in dict.fromkeys(row["provider"] for row in rows):
        at = {(row["batch"], row["length"]): row for row in rows if row["provider"] == name}
        cells = [f"{float(at[s]['microseconds']):.0f} ({two(at[s]['x first'])})" if s in at else "" for s in sizes]
        largest = percent(max((float(row["spread"]) for row in at.values() if row["spread"]), default=None))
        lines.append([name, *cells, largest, at[of_memory]["added MiB"] if of_memory in at else ""])
    columns = [*(f"{b} × {n}" for b, n in sizes), "largest spread", f"MiB, {' × '.join(of_memory)}"]
    return table(["µs (× first of its group)", *columns], lines) if rows else ""


def profile() -> str:
    """Where the time of a plain step goes, eager and captured, and captured with a cast in each layer."""
    from benchmarks.profile import PROFILED

    of = {}
    for name in PROFILED:
        measured = last_rows(RESULTS / "profile-cuda.csv", ("step ms", "name"), provider=name, what="kind")
        last = measured[-1]["step ms"]
        of[name] = {row["name"]: row for row in measured if row["step ms"] == last}
    whole = [next(iter(by.values())) for by in of.values()]
    kinds = list(dict.fromkeys(kind for by in of.values() for kind in by))
    lines = [
        [kind, *(cell for by in of.values() for cell in _time_and_calls(by.get(kind)))]
        for kind in sorted(kinds, key=lambda kind: -float(of[PROFILED[-1]].get(kind, {}).get("ms", 0)))
    ]
    step = ["a whole step (spread)"]
    step += [cell for row in whole for cell in (f"{two(row['step ms'])} ({percent(row['spread'])})", "")]
    return table(["kind of kernel", *(f"{name}, {what}" for name in of for what in ("ms", "kernels"))], [step, *lines])


def _time_and_calls(row: Row | None) -> tuple[str, str]:
    return ("", "") if row is None else (two(row["ms"]), f"{float(row['calls']):.0f}" if float(row["calls"]) else "")


SPEED_ROWS = {  # row of the measurements -> its name in the README and in its figure
    "stock plain": "stock Trainer, plain",
    "plain captured": "attendrop, plain",
    "addrop captured": "attendrop, AD-DROP",
    "addrop published": "AD-DROP as published",
}
FIGURE_SIZE = "16 × 128"


def _headline_steps() -> dict[str, dict[str, float]]:
    """Milliseconds of a step by its size and by `SPEED_ROWS`."""
    times: dict[str, dict[str, float]] = {}
    for row in _steps("sizes"):
        if row["provider"] in SPEED_ROWS:
            times.setdefault(f"{row['batch']} × {row['length']}", {})[row["provider"]] = float(row["train ms"])
    return times


def claim() -> str:
    """The first claim of the README."""
    steps = _headline_steps().values()
    plain = [of["plain captured"] / of["stock plain"] for of in steps]
    addrop = [of["addrop captured"] / of["stock plain"] for of in steps]
    return (
        f"**A training step takes {min(plain):.2f} to {max(plain):.2f} of the time that it takes in the stock "
        "`Trainer`**, and one with AD-DROP\n"
        f"{min(addrop):.2f} to {max(addrop):.2f} of a plain stock step: RoBERTa-base at four batch sizes, bf16, on one "
        "NVIDIA H200 ([speed](#speed)).\n"
    )


def speed() -> str:
    """The captured steps of the README, beside what else a user could run."""

    def cell(of: dict[str, float], name: str) -> str:
        if name not in of:
            return ""
        beside = "" if name == "stock plain" else f" ({of[name] / of['stock plain']:.2f} ×)"
        return f"{of[name]:.1f} ms{beside}"

    return table(
        ["batch × tokens", *SPEED_ROWS.values()],
        [[size, *(cell(of, name) for name in SPEED_ROWS)] for size, of in _headline_steps().items()],
    )


def speed_figure() -> str:
    """The steps of one size as bars, as SVG text."""
    times = _headline_steps().get(FIGURE_SIZE, {})
    left, bar, row, top, width = 168, 250, 26, 40, 480
    scale = bar / max(times.values(), default=1)
    height = top + row * len(times) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="22" font-weight="bold">One training step, RoBERTa-base, {FIGURE_SIZE} tokens, in ms</text>',
    ]
    for number, (name, ms) in enumerate(sorted(times.items(), key=lambda item: item[1])):
        y = top + row * number
        fill = "#3f51b5" if name.endswith("captured") else "#b0b7c3"
        parts += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(SPEED_ROWS[name])}</text>',
            f'<rect x="{left}" y="{y}" width="{ms * scale:.1f}" height="18" fill="{fill}"/>',
            f'<text x="{left + ms * scale + 6:.1f}" y="{y + 14}">{ms:.1f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def padding() -> str:
    """The share of padding in batches of training, as they are and as captured steps round their lengths."""
    measured = last_rows(RESULTS / "padding.csv", ("data set", "batch"))
    sizes = list(dict.fromkeys(row["batch"] for row in measured))
    columns = ("grouped %", "grouped, captured %", "random %")
    titles = ["grouped", "grouped, captured", "random"]
    lines = []
    for name in dict.fromkeys(row["data set"] for row in measured):
        of = {row["batch"]: row for row in measured if row["data set"] == name}
        cells = [percent(of[size][column]) for size in sizes for column in columns]
        lines.append([name, f"{float(of[sizes[0]]['tokens']):.0f}", *cells])
    return table(["data set", "tokens", *(f"{title}, {size}" for size in sizes for title in titles)], lines)


TABLES: dict[str, Callable[[], str]] = {
    "padding": padding,
    "captured": captured,
    "peers": peers,
    "speed": speed,
    "claim": claim,
    "steps-cpu": steps_on_a_cpu,
    "host-batches": host_batches,
    "ways-cpu": ways_on_a_cpu,
    "family": family,
    "baselines": baselines,
    "weight-passes": weight_passes,
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
}
