"""What `attendrop tune` searches: a range or a list of values for each field of a method and for settings.

    addrop.p=0.1..0.9                 a number from 0.1 to 0.9
    addrop.p=0.1..0.9:0.1             0.1, 0.2, … 0.9
    learning_rate=log:1e-5..1e-4      the logarithm of the number is uniform
    layers=all,first                  one of these values, for every method that has the field
    weight_decay=0.01                 this value

A space is a dictionary {name: dimension}. Names are those of settings, and `method.field`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.hyper import Hyper, hyper_of
from ...errors import UserError, on_one_line
from ...methods import method_class, parse_method, split_method
from ..runs.presets import paper_layers
from ..runs.settings import TRAINING, all_settings, make_config
from .design import Contender

LEARNING_RATE = "log:5e-6..1e-4"
PAPER_LEARNING_RATES = "1e-5,2e-5,3e-5"  # of plain fine-tuning

# Fields that are searched after the others of their method: the points of a seed depend on the order.
_LAST = ("attendout.reward_on", "freelb.steps")
_GRID_POINTS = 5  # of a range without a step
_NOT_SEARCHED = ("seed", "data_seed", "output_dir")
# Settings of attendrop that are searched like training arguments.
_ALSO_SEARCHED = ("max_length", "patience", "dropout", "attention_dropout")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
        low: The lowest number.
        high: The highest number.
        is_log: Whether the logarithm of the number is uniform.
        step: The distance of neighbouring numbers; None = any number of the range.
        is_whole: Whether only whole numbers are allowed.
    """

    low: float
    high: float
    is_log: bool = False
    step: float | None = None
    is_whole: bool = False

    def at(self, share: float) -> float:
        """Return the number at a share of the range.

        Args:
            share: From 0 to 1; equal shares of this interval are equally likely.
        """
        if self.step is not None or (self.is_whole and not self.is_log):
            values = self.grid()
            return values[min(int(share * len(values)), len(values) - 1)]
        if self.is_log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(rounded(value), self.low), self.high)
        return round(value) if self.is_whole else value

    def grid(self) -> list[float]:
        """Return the numbers of a grid: those of the steps, all whole numbers, or five at equal distances."""
        step = self.step or (1 if self.is_whole and not self.is_log else None)
        if step is None:
            values = [self.at(i / (_GRID_POINTS - 1)) for i in range(_GRID_POINTS)]
            return list(dict.fromkeys(values))
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [self.low + round(i * step) if self.is_whole else rounded(self.low + i * step) for i in range(count)]

    def suggest(self, trial: Any, name: str) -> float:
        """Return the value of a trial of Optuna.

        Args:
            trial: The trial.
            name: The name of the dimension.
        """
        if not self.is_whole:
            return float(trial.suggest_float(name, self.low, self.high, log=self.is_log, step=self.step))
        step = int(self.step or 1)
        return int(trial.suggest_int(name, int(self.low), int(self.high), log=self.is_log, step=step))

    def __str__(self) -> str:
        step = "" if self.step is None else f":{self.step:g}"
        return f"{'log:' if self.is_log else ''}{self.low:g}..{self.high:g}{step}"


@dataclass(frozen=True)
class Choices:
    """One of several values, as a user writes them.

    Attributes:
        values: The values.
    """

    values: tuple[str, ...]

    def at(self, share: float) -> str:
        """Return the value at a share of the list, from 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def grid(self) -> list[str]:
        """Return all values."""
        return list(self.values)

    def suggest(self, trial: Any, name: str) -> str:
        """Return the value of a trial of Optuna, as for a `Range`."""
        return str(trial.suggest_categorical(name, self.values))

    def __str__(self) -> str:
        return ",".join(self.values)


Dimension = Range | Choices
Space = Mapping[str, Dimension]


def rounded(number: float) -> float:
    """Return a number with four digits, which a user can read and copy."""
    return float(f"{number:.4g}")


def parse_dimension(text: str, is_whole: bool = False) -> Dimension:
    """Parse the right-hand side of `name=values`.

    Args:
        text: `low..high`, `low..high:step`, `log:low..high`, or values separated by commas.
        is_whole: Whether the numbers of a range must be whole.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        if text.strip().startswith("log:"):
            raise UserError(f"{text!r} is no range; it must be written log:LOW..HIGH, such as log:1e-5..1e-4.")
        values = [value.strip() for value in re.split(r",(?![^\[(]*[\])])", text)]
        if not all(values) or len(set(values)) < len(values):
            raise UserError(
                f"{text!r} has an empty or a repeated value; it must be a range such as 0.1..0.9, or different values "
                "separated by commas."
            )
        return Choices(tuple(values))
    low, high, step = (float(part) if part else None for part in match.groups()[1:])
    assert low is not None
    assert high is not None
    is_log = match[1] is not None
    if not low < high or (is_log and low <= 0):
        raise UserError(f"{text!r} begins at {low:g}; it must be {'above 0 and ' if is_log else ''}below {high:g}.")
    if step is not None and (is_log or not 0 < step <= high - low):
        raise UserError(
            f"{text!r} has the step {step:g}; it must be above 0 and at most {high - low:g}, and a log range has none."
        )
    if is_whole and any(number is not None and number != int(number) for number in (low, high, step)):
        raise UserError(f"{text!r} is a range of whole numbers; its ends and its step must be whole.")
    return Range(low, high, is_log, step, is_whole)


def method_name(method: str) -> str:
    """Return the name of a method that the user wrote with or without fields; that of the class, if it is in a file."""
    name = split_method(method)[0]
    return method_class(name).name if ":" in name else name


def with_fields(method: str, values: Mapping[str, Any]) -> str:
    """Return a method with more fields.

    Args:
        method: "name" or "name:field=value,…".
        values: The fields and their values.
    """
    fields = ",".join(f"{name}={_text(value)}" for name, value in values.items())
    name, given = split_method(method)
    return f"{name}:{','.join(filter(None, (given.strip(), fields)))}" if fields else method


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def apply_point(settings: Mapping[str, Any], contender: Contender, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with one point of the space.

    Args:
        settings: The settings that all runs share.
        contender: The methods as the user wrote them.
        point: Name of a dimension -> value.
    """
    own = {name: _number(value) for name, value in point.items() if "." not in name}
    methods = []
    for method in contender.methods:
        prefix = f"{method_name(method)}."
        fields = {name.removeprefix(prefix): value for name, value in point.items() if name.startswith(prefix)}
        methods.append(with_fields(method, fields))
    return {**settings, **contender.settings, **own, "method": methods}


def _number(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) else value


def make_spaces(
    contenders: Sequence[Contender], settings: Mapping[str, Any], texts: Iterable[str] = (), is_paper: bool = False
) -> dict[str, dict[str, Dimension]]:
    """Return the search space of each contender: the defaults, or the user's values, all checked.

    Args:
        contenders: The contenders to tune. Fields and settings that have a value there are not searched.
        settings: The settings that all runs share. Those that the user set are not searched.
        texts: The values of `--space`.
        is_paper: Whether the defaults are the grids of the papers.
    """
    spaces = {contender.name: _default_space(contender, settings, is_paper) for contender in contenders}
    for text in texts:
        for name, dimension_name, dimension in _parse_space(text, contenders, settings):
            spaces[name][dimension_name] = dimension
    for contender in contenders:
        _check_space(contender, spaces[contender.name], settings)
    return spaces


def method_space(name: str) -> dict[str, str]:
    """Return what is searched by default, for each field of a method: the `search` of its `hyper`."""
    texts = {field.name: bounds.search for field, bounds in _bounds(name) if bounds.search}
    return dict(sorted(texts.items(), key=lambda item: f"{name}.{item[0]}" in _LAST))


def paper_grid(name: str) -> dict[str, str]:
    """Return the grid of the paper, for `--protocol paper`; empty where the default space is searched instead."""
    return {field.name: bounds.paper for field, bounds in _bounds(name) if bounds.paper}


def _bounds(name: str) -> list[tuple[dataclasses.Field[Any], Hyper]]:
    """Return the fields of a method that were made with `hyper`."""
    fields = ((field, hyper_of(field)) for field in dataclasses.fields(method_class(name)))
    return [(field, bounds) for field, bounds in fields if bounds is not None]


def _default_space(contender: Contender, settings: Mapping[str, Any], is_paper: bool) -> dict[str, Dimension]:
    space: dict[str, Dimension] = {}
    is_rate_free = "learning_rate" not in {**settings, **contender.settings}
    if is_rate_free and not (is_paper and contender.methods):
        space["learning_rate"] = parse_dimension(PAPER_LEARNING_RATES if is_paper else LEARNING_RATE)
    for method in contender.methods:
        name, fixed = split_method(method)[0], _fixed_fields(method)
        defaults = (paper_grid(name) if is_paper else {}) or method_space(name)
        if is_paper and name == "addrop":
            defaults = {**defaults, "layers": paper_layers(settings.get("task"))}
        for field, text in defaults.items():
            if field not in fixed:
                space[f"{method_name(method)}.{field}"] = parse_dimension(text, _is_whole(name, field))
    return space


def _fixed_fields(method: str) -> set[str]:
    """Return the fields that have a value in what the user wrote."""
    return set(re.findall(r"(?:^|,)\s*(\w+)\s*=", split_method(method)[1]))


def _is_whole(name: str, field: str) -> bool:
    """Return whether a field of a method holds a whole number."""
    defaults = {f.name: f.default for f in dataclasses.fields(method_class(name))}
    return type(defaults[field]) is int


def _parse_space(
    text: str, contenders: Sequence[Contender], settings: Mapping[str, Any]
) -> list[tuple[str, str, Dimension]]:
    """Parse one `--space`: yield (contender, name of the dimension, dimension) for all affected contenders."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name or not value:
        raise UserError(f"space is {text!r}; it must be written name=values, such as addrop.p=0.1..0.9.")
    try:
        if (setting := name.replace("-", "_")) in searched_settings():
            return _setting_space(setting, value, contenders, settings)
        return _field_space(name, value, contenders)
    except UserError as error:
        raise UserError(f"space is {text!r}: {on_one_line(error)}.") from None


def searched_settings() -> list[str]:
    """Return the settings that can be searched: the training arguments, and a few of attendrop's own."""
    return [
        setting.name
        for setting in all_settings().values()
        if (setting.panel == TRAINING or setting.name in _ALSO_SEARCHED) and setting.name not in _NOT_SEARCHED
    ]


def _setting_space(
    name: str, value: str, contenders: Sequence[Contender], settings: Mapping[str, Any]
) -> list[tuple[str, str, Dimension]]:
    for given in (settings, *(contender.settings for contender in contenders)):
        if name in given:
            raise UserError(f"{name} has the value {given[name]!r} too; it must have either a value or a space")
    dimension = parse_dimension(value, all_settings()[name].type is int)
    return [(contender.name, name, dimension) for contender in contenders]


def _field_space(name: str, value: str, contenders: Sequence[Contender]) -> list[tuple[str, str, Dimension]]:
    wanted, _, field = name.rpartition(".")
    dimensions, known = [], []
    for contender in contenders:
        for method in contender.methods:
            own, cls_name = method_name(method), split_method(method)[0]
            fields = [f.name for f in dataclasses.fields(method_class(cls_name))]
            known += [f"{own}.{f}" for f in fields]
            if wanted not in ("", own) or field not in fields:
                continue
            if field in _fixed_fields(method):
                raise UserError(f"{own}.{field} has a value in {method!r} too; it must have either a value or a space")
            dimensions.append((contender.name, f"{own}.{field}", parse_dimension(value, _is_whole(cls_name, field))))
    if not dimensions:
        near = difflib.get_close_matches(name, [*known, *searched_settings()], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        listed = f" or one of {', '.join(dict.fromkeys(known))}" if known else ""
        raise UserError(f"there is nothing to search called {name!r}{hint}; it must be a training argument{listed}")
    return dimensions


def _check_space(contender: Contender, space: Space, settings: Mapping[str, Any]) -> None:
    """Make the configuration of a run with both ends of each range and with each choice."""
    make_config(apply_point(settings, contender, {}))
    for name, dimension in space.items():
        ends = dimension.values if isinstance(dimension, Choices) else (dimension.at(0), dimension.at(1))
        for value in ends:
            run = apply_point(settings, contender, {name: value})
            try:
                make_config(run)
                for text in run["method"]:
                    parse_method(text)
            except ValueError as error:
                raise UserError(f"space is '{name}={dimension}': {on_one_line(error)}.") from None
