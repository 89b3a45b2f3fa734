"""What the AttendOut experiment runs, and the rules by which later stages are chosen from earlier ones.

Everything that is chosen is chosen on the development tasks, on the reward set or on seeds of its own, by the functions
of this module. The confirmation tasks have no part in any choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, NamedTuple

from attendrop.lab.studies.sampling import points
from attendrop.lab.studies.search_space import Range
from attendrop.lab.studies.spec import RunSpec

from ..plan import FIRST_RECIPE
from .files import Files

DEVELOPMENT, CONFIRMATION = ("glue/sst2", "glue/qnli"), ("imdb", "glue/qqp")
LAYERS = 6  # of MiniLM
REWARD_SET = 2000
SETTINGS: dict[str, Any] = {
    "max_length": 64, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 256, "warmup_steps": 0.1,
    "weight_decay": 0.01, "tf32": True, "eval_strategy": "no", "logging_steps": 10, "shots": 150,
}  # fmt: skip

# Learning rate and number of epochs are chosen for plain fine-tuning, and are then the same for all.
RECIPES = [{"learning_rate": rate, "num_train_epochs": e} for e in (10, 20) for rate in (5e-5, 1e-4, 2e-4)]
RECIPE_SEEDS, SEARCH_SEEDS = range(2000, 2002), range(1000, 1003)
SEEDS = (range(10), range(10, 20))  # in two parts, so that all comparisons have ten pairs early

PLAIN = "plain"
NEVER_LEARNS, NO_MASKS = "AttendOut that never learns", "game without masks"
# Rounds of ten steps. Where the rewards come from the whole reward set, they have no sampling error, and the better
# network is the better one. `offset_lr` lets the rates move within the few rounds of a small training set.
_GAME = f"attendout:T=10,samples={REWARD_SET},select=better,offset_lr=0.1"
GAMES = {
    "AttendOut, 64 reward examples": "attendout:T=10,samples=64,offset_lr=0.1",
    "AttendOut, exact reward": _GAME,
    "AttendOut, exact reward, explore": f"{_GAME},explore=1.0",
    NEVER_LEARNS: _GAME.replace("offset_lr=0.1", "offset_lr=0,generator_lr=0"),
    NO_MASKS: f"{_GAME},init_drop=0,common_dropout=false",
}
CONTROLS = (NEVER_LEARNS, NO_MASKS)
DEFAULT = "AttendOut, default"
OF_TASK = "best rates of "

Row = dict[str, str]
Rates = tuple[float, ...]


class Contender(NamedTuple):
    """What is trained: a name, and the method as on the command line (empty for plain fine-tuning)."""

    name: str
    text: str = ""


class Stage(NamedTuple):
    """A part of the experiment.

    Attributes:
        name: Its name in the results.
        tasks: The tasks.
        seeds: The seeds.
        contenders: What is trained on a task, given the lines so far.
        recipes: Learning rates and numbers of epochs, given the lines so far.
    """

    name: str
    tasks: Sequence[str]
    seeds: Sequence[int]
    contenders: Callable[[list[Row], str], list[Contender]]
    recipes: Callable[[list[Row]], list[dict[str, Any]]]


# ---- fixed drop rates -------------------------------------------------------------------------------------------


def fixed_rates() -> list[Rates]:
    """The rates of the six layers that are tried: uniform ones, one layer alone, and points that fill the space."""
    uniform = [(rate,) * LAYERS for rate in (0.1, 0.2, 0.3, 0.45, 0.6)]
    single = [tuple(0.5 if i == layer else 0.0 for i in range(LAYERS)) for layer in range(LAYERS)]
    space = {str(layer): Range(0.0, 0.6) for layer in range(LAYERS)}
    spread = [tuple(round(p[str(i)], 2) for i in range(LAYERS)) for p in points(space, "qmc", 13, seed=0)]
    return [*uniform, *single, *spread]


def contender_of(rates: Rates) -> Contender:
    """Random dropout of attention positions with a fixed rate for each layer: AttendOut's masks without a generator."""
    listed = ",".join(f"{rate:g}" for rate in rates)
    return Contender(f"rates {listed}", f"scheduled_dropout:curves=[{listed}]")


def rates_of(name: str) -> Rates:
    """The rates of a fixed contender, from its name."""
    return tuple(float(rate) for rate in name.removeprefix("rates ").split(","))


# ---- choices ----------------------------------------------------------------------------------------------------


def means(rows: list[Row], outcome: str, by: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """The mean outcome of each group whose runs have all finished.

    Args:
        rows: Lines of one stage.
        outcome: A column.
        by: The columns that make a group.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return {
        key: mean(float(row[outcome]) for row in group)
        for key, group in groups.items()
        if all(row["status"] == "finished" for row in group)
    }


def of_stage(rows: list[Row], *names: str) -> list[Row]:
    """The lines of some stages."""
    return [row for row in rows if row["stage"] in names]


def chosen_recipe(rows: list[Row]) -> list[dict[str, Any]]:
    """The recipe with the smallest loss after temperature scaling on the reward set, of plain fine-tuning."""
    losses = means(of_stage(rows, "recipe"), "dev_scaled_loss", ("learning_rate", "epochs"))
    rate, epochs = _smallest(losses)
    return [{"learning_rate": float(rate), "num_train_epochs": int(float(epochs))}]


def finalists(rows: list[Row]) -> dict[str, Contender]:
    """Role -> the best fixed rates on the reward set.

    "best rates" have the smallest loss after temperature scaling on all development tasks, the "best uniform rate" the
    smallest loss, and the "best rates of <task>" the smallest loss on this task.
    """
    lines = [row for row in of_stage(rows, "search") if row["method"] != PLAIN]
    loss = means(lines, "dev_loss", ("method",))
    losses = {
        "best rates": means(lines, "dev_scaled_loss", ("method",)),
        "best uniform rate": {key: value for key, value in loss.items() if len(set(rates_of(key[0]))) == 1},
    }
    for task in dict.fromkeys(row["task"] for row in lines):
        losses[OF_TASK + task] = means([row for row in lines if row["task"] == task], "dev_loss", ("method",))
    return {role: contender_of(rates_of(*_smallest(values))) for role, values in losses.items()}


def best_of(rows: list[Row], names: Sequence[str]) -> str:
    """The contender with the smallest loss after temperature scaling on the development tasks, first ten seeds."""
    lines = [row for row in of_stage(rows, "judge") if row["method"] in names and int(row["seed"]) in SEEDS[0]]
    return _smallest(means(lines, "scaled_loss", ("method",)))[0]


def _smallest(values: dict[tuple[str, ...], float]) -> tuple[str, ...]:
    if not values:
        raise SystemExit("nothing can be chosen, because every setting has a run that failed; see the results.")
    return min(values, key=lambda key: values[key])


# ---- stages -----------------------------------------------------------------------------------------------------


def _all_rates(rows: list[Row], task: str) -> list[Contender]:
    return [Contender(PLAIN), *map(contender_of, fixed_rates())]


# Games come first: they take longest, and then all workers end at about the same time.
def _judged(rows: list[Row], task: str) -> list[Contender]:
    chosen = [c for role, c in finalists(rows).items() if not role.startswith(OF_TASK) or role == OF_TASK + task]
    return list(dict.fromkeys([*(Contender(*game) for game in GAMES.items()), *chosen, Contender(PLAIN)]))


def _confirmed(rows: list[Row], task: str) -> list[Contender]:
    rates = {c.name: c for role, c in finalists(rows).items() if not role.startswith(OF_TASK)}
    games = (best_of(rows, [name for name in GAMES if name not in CONTROLS]), NO_MASKS)
    return [*(Contender(name, GAMES[name]) for name in games), rates[best_of(rows, list(rates))], Contender(PLAIN)]


# Added when all others had been judged: `AttendOut()` without arguments, whose rewards come from the development set,
# here the reward set; and the control on the confirmation tasks. The defaults stay if they hurt neither accuracy nor
# log loss.
def _defaults(rows: list[Row], task: str) -> list[Contender]:
    return [Contender(DEFAULT, "attendout")]


def _defaults_and_control(rows: list[Row], task: str) -> list[Contender]:
    return [*_defaults(rows, task), Contender(NEVER_LEARNS, GAMES[NEVER_LEARNS])]


# Stages of one part run at the same time. A part depends on the lines of the parts before it.
PARTS = [
    [Stage("recipe", DEVELOPMENT, RECIPE_SEEDS, lambda rows, task: [Contender(PLAIN)], lambda rows: RECIPES)],
    [Stage("search", DEVELOPMENT, SEARCH_SEEDS, _all_rates, chosen_recipe)],
    [Stage("judge", DEVELOPMENT, SEEDS[0], _judged, chosen_recipe)],
    [
        Stage("confirm", CONFIRMATION, SEEDS[0], _confirmed, chosen_recipe),
        Stage("judge", DEVELOPMENT, SEEDS[1], _judged, chosen_recipe),
        Stage("confirm", CONFIRMATION, SEEDS[1], _confirmed, chosen_recipe),
    ],
    [
        Stage("confirm", CONFIRMATION, [*SEEDS[0], *SEEDS[1]], _defaults_and_control, chosen_recipe),
        Stage("judge", DEVELOPMENT, [*SEEDS[0], *SEEDS[1]], _defaults, chosen_recipe),
    ],
]


def runs(
    stage: Stage, rows: list[Row], files: Files, model: str, settings: dict[str, Any] | None = None
) -> list[RunSpec]:
    """The runs of a stage; those of one task and seed come together, so that complete pairs come early.

    Args:
        stage: The stage.
        rows: The lines of all earlier stages.
        files: Where the data are.
        model: The folder of the model.
        settings: Settings that replace those of the plan, for a trial with small sizes.
    """
    return [
        RunSpec(
            {
                **SETTINGS,
                **FIRST_RECIPE,
                **recipe,
                **files.settings(task),
                "model": model,
                "seed": seed,
                **(settings or {}),
            }
            | {"method": [contender.text] if contender.text else []},
            contender.name,
            task,
            seed,
            "shots=150",
            keep="last",
            resample=True,
        )
        for task in stage.tasks
        for seed in stage.seeds
        for recipe in stage.recipes(rows)
        for contender in stage.contenders(rows, task)
    ]
