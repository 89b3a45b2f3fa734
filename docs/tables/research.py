"""The tables of `studies/results`: simulations, examples with real weights, defaults and public files."""

from __future__ import annotations

from collections.abc import Callable

from attendrop.lab.tasks.catalogue import RENAMED_KINDS
from studies import RESULTS, defaults, few_shot, simple_baselines
from studies.verdict import seeds

from .examples import TITLES, lines
from .markdown import table
from .results import last_rows


def simulated(quantity: str, rules: str = "second") -> str:
    """Shares of simulated studies, in percent: a row for each kind of differences, a column for each kind of study.

    Args:
        quantity: What was simulated.
        rules: The edition of the rules; empty for what does not depend on them.
    """
    shares: dict[str, dict[str, str]] = {}
    for row in _simulations(quantity, rules):
        study = f"{row['seeds']} seeds" if row["seeds"].isdigit() else "until decided"
        study += f", {row['methods']} methods" if row["methods"] != "1" else ""
        shares.setdefault(row["differences"], {})[study] = f"{100 * float(row['measured']):.1f}"
    studies = list(dict.fromkeys(study for of in shares.values() for study in of))
    lines = [[name, *(of.get(study, "") for study in studies)] for name, of in shares.items()]
    return table(["differences", *studies], lines)


def simulated_inflation() -> str:
    """The mean estimate of studies that say "helps" until they are decided, as a multiple of the true effect."""
    ratios: dict[str, list[str]] = {}
    for rules in ("first", "second"):
        for row in _simulations("estimate at the stop / effect", rules):
            effect = row["differences"].removeprefix("normal, effect ")
            ratios.setdefault(effect, []).extend([f"{float(row['measured']):.2f} ×", f"{float(row['mean_seeds']):.0f}"])
    titles = ["effect / deviation", "first rules", "seeds", "these rules", "seeds"]
    return table(titles, [[effect, *of] for effect, of in ratios.items()])


def _simulations(quantity: str, rules: str) -> list[dict[str, str]]:
    key = ("seeds", "methods", "differences")
    return last_rows(RESULTS / "statistics.csv", key, quantity=quantity, rules=rules)


def simulated_ensembles() -> str:
    """How often the interval of an ensemble's gain contains the mean gain, in percent."""
    shares: dict[str, list[str]] = {}
    for row in last_rows(RESULTS / "ensembles.csv", ("case", "seeds")):
        shares.setdefault(row["case"], []).append(f"{100 * float(row['covered']):.1f}")
    return table(["members", "5 seeds", "10 seeds", "20 seeds"], [[name, *of] for name, of in shares.items()])


def simulated_calibration() -> str:
    """Estimates of the calibration error, and the loss after temperature scaling, of simulated models."""
    lines = [
        [row["accuracy"], row["factor"], f"{int(row['examples']):,}"]
        + [f"{float(row[name]) + 0.0:.1f}" for name in ("true_error", "error", "debiased")]
        + [f"{float(row[name]):.3f}" for name in ("loss", "scaled_loss")]
        + [f"{float(row['doubled']):.1f}"]
        for row in last_rows(RESULTS / "calibration.csv", ("accuracy", "factor", "examples"))
    ]
    titles = ["accuracy", "logits", "examples", "true ECE", "mean ECE", "debiased", "loss", "scaled", "doubled"]
    return table(titles, lines)


def examples() -> str:
    """What came out of the examples with real weights."""
    measured = last_rows(RESULTS / "examples-cuda.csv", ("example", "score", "method", "seed"))
    if not measured:
        return ""
    intro = (
        f"On one {measured[0]['device']}, with the real weights: means over the seeds, and differences between runs of "
        "the same\n"
        "seed. Seconds are those of a plain and of a regularised run, while all four examples ran at once.\n\n"
    )
    return intro + table([*TITLES, "seconds of a run"], lines(measured))


def chosen_defaults() -> str:
    """The epochs and learning rates that are chosen, against the best of a grid."""
    key = ("task", "examples", "evaluated", "by", "epochs", "rate", "seed")
    return defaults.markdown(last_rows(RESULTS / "defaults.csv", key))


def public_files() -> str:
    """What was said about public files, and the scores of runs on them."""
    lines = []
    for row in last_rows(RESULTS / "public-files.csv", ("data set",)):
        flags = row["train"].removeprefix("attendrop train --model M --train-file ")
        for old, new in RENAMED_KINDS.items():  # results have the names of their time
            flags = flags.replace(f"--kind {old}", f"--kind {new}")
        kind = RENAMED_KINDS.get(row["kind"], row["kind"])
        said = row["said"].replace("|", "\\|") or "nothing unusual"
        score = f"{row['metric']} {float(row['score']):.3f}"
        beside = f" ({float(row['most frequent']):.3f})" if row["most frequent"] else ""
        trained = f"{row['trained on']}, {row['steps']} steps"
        lines.append([row["data set"], kind, f"`{flags}`", said, trained, score + beside])
    return table(
        ["data set", "kind", "file and flags", "what was said", "trained on", "score (most frequent answer)"], lines
    )


def against_simple_models() -> str:
    """The default recipe beside two linear models."""
    return simple_baselines.markdown(simple_baselines.read(simple_baselines.OUTPUT))


def expected() -> str:
    """What is known about scores, for the README: one line for each comparison."""
    cells = simple_baselines.summaries(simple_baselines.read(simple_baselines.OUTPUT))
    held = sum(not cell["loses"] for cell in cells)
    sets, models = (len({cell[name] for cell in cells}) for name in ("data set", "model"))
    lines = [
        [
            "`attendrop train` beside linear models of words and of frozen features: "
            f"{sets} data sets, {models} models, 32 to 1,000 examples",
            f"as good as the better one, within noise, or better in {held} of {len(cells)} cells "
            "([each](docs/simple-baselines.md))",
        ]
    ]
    shots: dict[str, list[dict[str, str]]] = {}
    for row in simple_baselines.read(few_shot.OUTPUT):
        shots.setdefault(row["shots"], []).append(row)
    for number, rows in sorted(shots.items(), key=lambda item: int(item[0])):
        ours, theirs = (sum(float(row[called]) for row in rows) / len(rows) for called in ("tool", "SetFit"))
        about = f"`attendrop train` beside SetFit, {number} examples of each class, {len(rows)} data sets"
        lines.append([about, f"accuracy {ours:.1f} and {theirs:.1f}"])
    of_methods = (
        "+0.5 points of accuracy each, at 1.3 and 1.9 times the cost, with our first recipe; not measured with this one"
    )
    lines.append(["AD-DROP and SAM beside plain fine-tuning, six data sets, 300 examples, 14 seeds", of_methods])
    return table(["comparison", "result"], lines)


def selective() -> str:
    """Coverage of prediction sets, and the accuracy of answers above a threshold, on real sets."""
    lines = []
    for row in last_rows(RESULTS / "selective.csv", ("set",)):
        cells = [row["set"], f"{100 * float(row['accuracy']):.1f}", f"{100 * float(row['coverage']):.1f}"]
        cells += [f"{float(row['classes_in_set']):.2f} of {row['classes']}"]
        for target in ("0.9", "0.95"):
            chosen = float(row[f"chosen_{target}"])
            answered, right = (f"{100 * float(row[f'{name}_{target}'] or 0):.1f}" for name in ("answered", "accuracy"))
            shown = f"{answered} % answered, {right} right, missed {100 * float(row[f'missed_{target}']):.0f} %"
            cells.append(shown if chosen >= 0.5 else f"no threshold in {100 * (1 - chosen):.0f} %")
        lines.append(cells)
    return table(["set", "accuracy", "coverage, of 90 %", "classes listed", "target 90 %", "target 95 %"], lines)


def _ends(text: str) -> str:
    """Return the beginning and the end of a sentence, which has the advice."""
    return text if len(text) <= 220 else f"{text[:70]} … {text[-140:]}"


def messy_files() -> str:
    """From files in the forms of their authors to predictions: what was typed and said, now and before."""
    lines = []
    for row in last_rows(RESULTS / "messy-files.csv", ("data set",)):
        flags = row["train"].removeprefix("attendrop train --model M --train-file ")
        said, said_before = row["said"], row["said before"]
        before = "the same" if said_before == said else _ends(said_before) or "accepted"
        if row["accepted before"] == "False":
            before += " (not with these flags)"
        score = f"{row['predictions']} ({row['form']}), {row['metric']} {float(row['score']):.2f}"
        cells = [
            row["data set"],
            f"`{flags}`",
            row["stops"],
            _ends(said) or "accepted",
            row["stops before"],
            before,
            score,
        ]
        lines.append([cell.replace("|", "\\|") for cell in [*cells, score]])
    titles = ["data set", "file and flags", "stops", "what `check` said first", "stops before", "before"]
    return table([*titles, "predictions, score"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "examples": examples,
    "defaults": chosen_defaults,
    "public-files": public_files,
    "simple-baselines": against_simple_models,
    "recipe-parts": lambda: simple_baselines.ablations(simple_baselines.read(simple_baselines.OUTPUT)),
    "expected": expected,
    "few-shot": lambda: few_shot.markdown(simple_baselines.read(few_shot.OUTPUT)),
    "messy-files": messy_files,
    "selective": selective,
    "seeds-to-decide": seeds.markdown,
    "simulated-alarms": lambda: simulated("false alarms"),
    "simulated-alarms-first": lambda: simulated("false alarms", "first"),
    "simulated-coverage": lambda: simulated("coverage"),
    "simulated-bca": lambda: simulated("coverage of BCa", ""),
    "simulated-power": lambda: simulated("power"),
    "simulated-power-first": lambda: simulated("power", "first"),
    "simulated-most-power": lambda: simulated("most power of any test", ""),
    "simulated-population": lambda: simulated("false alarms about other test sets"),
    "simulated-population-first": lambda: simulated("false alarms about other test sets", "first"),
    "simulated-inflation": simulated_inflation,
    "simulated-ensembles": simulated_ensembles,
    "simulated-calibration": simulated_calibration,
    "simulated-equivalence": lambda: simulated('false "no difference"'),
}
