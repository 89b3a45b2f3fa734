"""Search spaces and samplers of `attendrop tune`."""

from __future__ import annotations

import math

import pytest

from attendrop import METHODS, parse_method
from attendrop.errors import UserError
from attendrop.lab.studies.design import parse_contender
from attendrop.lab.studies.sampling import STARTUP_TRIALS, choose_sampler, grid_size, points
from attendrop.lab.studies.search_space import (
    Choices,
    Dimension,
    Range,
    apply_point,
    make_spaces,
    method_space,
    paper_grid,
    parse_dimension,
)

PAPER_GRIDS = {  # as the papers report them, in the fields of this library
    "addrop": {"p": "0.1..0.9:0.1", "q": "0.1..0.9:0.1", "end_on": "either"},
    "attendout": {
        "T": "10,15,25",
        "samples": "0",
        "init_drop": "0.55",
        "layer_offsets": "False",
        "credit": "paired",
        "normalize": "False",
    },
    "attention_dropout": {"p": "0.1,0.2"},
    "child_tuning": {"p": "0.2,0.3,0.4"},
    "mixout": {"p": "0.7,0.8,0.9"},
    "rdrop": {"alpha": "0.05,0.25,0.5"},
    "supcon": {"weight": "0.1,0.3,0.5,0.7,0.9", "tau": "0.1,0.3,0.5,0.7"},
}
SHARED = {"model": "m", "task": "glue/rte"}


def spaces(*methods: str, texts: tuple[str, ...] = (), is_paper: bool = False, **settings: str) -> dict[str, dict]:
    return make_spaces([parse_contender(method) for method in methods], {**SHARED, **settings}, texts, is_paper)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1..0.9", Range(0.1, 0.9)),
        ("log:1e-5..1e-4", Range(1e-5, 1e-4, is_log=True)),
        ("0.1..0.9:0.1", Range(0.1, 0.9, step=0.1)),
        ("-1..1", Range(-1, 1)),
        ("all,first", Choices(("all", "first"))),
        ("[0,1],all", Choices(("[0,1]", "all"))),
        ("0.01", Choices(("0.01",))),
    ],
)
def test_dimension_is_read_and_written(text: str, expected: Dimension) -> None:
    assert parse_dimension(text) == expected
    assert parse_dimension(str(expected)) == expected


def test_points_of_a_range_are_inside_and_a_grid_is_exact() -> None:
    assert parse_dimension("0.1..0.9:0.1").grid() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert parse_dimension("1..4", is_whole=True).grid() == [1, 2, 3, 4]
    assert parse_dimension("log:1e-5..1e-1").grid() == [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    for text in ("0.1..0.9", "log:1e-5..1e-4", "0.1..0.9:0.1"):
        dimension = parse_dimension(text)
        assert isinstance(dimension, Range)
        values = [dimension.at(i / 100) for i in range(101)]
        assert values == sorted(values)
        assert (values[0], values[-1]) == (dimension.low, dimension.high)
    middle = parse_dimension("log:1e-6..1e-2").at(0.5)
    assert math.isclose(float(middle), 1e-4, rel_tol=1e-3)  # the middle of a log range is the geometric mean
    assert {parse_dimension("1..4", is_whole=True).at(i / 100) for i in range(101)} == {1, 2, 3, 4}


def test_every_method_has_a_default_space_whose_points_it_accepts() -> None:
    assert {name for name in METHODS if not method_space(name)} == {"structure_mask", "supertickets"}
    assert {name: paper_grid(name) for name in METHODS if paper_grid(name)} == PAPER_GRIDS
    for name, space in spaces("plain", *METHODS).items():
        assert "learning_rate" in space
        for sampler in ("qmc", "random"):
            for point in points(space, sampler, 8, seed=1):
                settings = apply_point(SHARED, parse_contender(name), point)
                assert 5e-6 <= settings["learning_rate"] <= 1e-4
                for method in settings["method"]:
                    fields = parse_method(method).to_dict()
                    assert all(name.partition(".")[2] in fields for name in point if "." in name)


def test_what_the_user_fixes_is_not_searched() -> None:
    searched = spaces("plain", "addrop:q=0.3+rdrop", "mixout@learning_rate=3e-5", texts=("weight_decay=0,0.01",))
    assert searched["plain"].keys() == {"learning_rate", "weight_decay"}
    assert searched["addrop:q=0.3+rdrop"].keys() == {
        "learning_rate", "addrop.p", "addrop.layers", "rdrop.alpha", "weight_decay",
    }  # fmt: skip
    assert searched["mixout@learning_rate=3e-5"].keys() == {"mixout.p", "weight_decay"}
    assert spaces("plain", learning_rate="1e-5")["plain"] == {}
    point = {"learning_rate": 1.23456e-5, "addrop.p": 0.5, "rdrop.alpha": 1.0}
    settings = apply_point(SHARED, parse_contender("addrop:q=0.3+rdrop"), point)
    assert settings["method"] == ["addrop:q=0.3,p=0.5", "rdrop:alpha=1"]
    assert settings["learning_rate"] == 1.235e-5


def test_field_name_alone_concerns_every_method_that_has_it() -> None:
    searched = spaces("plain", "addrop", "scores_dropout", "rdrop", texts=("layers=all,first",))
    assert searched["addrop"]["addrop.layers"] == searched["scores_dropout"]["scores_dropout.layers"]
    assert not any("layers" in name for method in ("plain", "rdrop") for name in searched[method])


def test_grid_of_the_paper_has_81_points() -> None:
    searched = spaces("plain", "addrop", is_paper=True)
    assert grid_size(searched["addrop"]) == 81
    grid = points(searched["addrop"], "grid", 81, seed=0)
    # RTE is trained in all layers, and the first epoch is plain, however many there are.
    assert {(point["addrop.layers"], point["addrop.end_on"]) for point in grid} == {("all", "either")}
    of_sentiment = spaces("addrop", is_paper=True, task="glue/sst2")["addrop"]
    assert of_sentiment["addrop.layers"].grid() == ["first"]
    assert "addrop.layers" not in spaces("addrop:layers=first", is_paper=True)["addrop:layers=first"]
    attendout = spaces("attendout", is_paper=True)["attendout"]
    for point in points(attendout, "grid", grid_size(attendout), seed=0):
        settings = apply_point(SHARED, parse_contender("attendout"), point)
        assert parse_method(settings["method"][0]).to_dict()["samples"] == 0
    values = {round(i / 10, 1) for i in range(1, 10)}
    assert {(point["addrop.p"], point["addrop.q"]) for point in grid} == {(p, q) for p in values for q in values}


@pytest.mark.parametrize("sampler", ["random", "qmc", "grid"])
def test_points_depend_on_the_seed_and_more_trials_begin_with_the_same_ones(sampler: str) -> None:
    space = spaces("addrop", texts=("p=0.1..0.9:0.2", "q=0.1,0.2"))["addrop"]
    first = points(space, sampler, 6, seed=3)
    assert points(space, sampler, 20, seed=3)[:6] == first
    assert (points(space, sampler, 6, seed=4) == first) == (sampler == "grid")


def test_sampler_is_chosen_by_the_number_of_trials() -> None:
    assert choose_sampler("auto", 20) == "qmc"
    assert choose_sampler("auto", 50) == "tpe"
    assert choose_sampler("random", 50) == "random"
    space = spaces("addrop")["addrop"]
    assert points(space, "tpe", 50, seed=0) == points(space, "qmc", 50, seed=0)[:STARTUP_TRIALS]


BAD_SPACES = {
    "p": "it must be written name=values",
    "addrop.p=0.1..1.9": "ADDrop.p is 1.9; it must be from 0 to 1",
    "addrop.z=1": "nothing to search called 'addrop.z' (did you mean 'addrop.q'?); it must be a training argument or",
    "rdrop.alpha=1..2": "nothing to search called 'rdrop.alpha'",
    "learning_rat=log:1e-5..1e-4": "did you mean 'learning_rate'?",
    "seed=1,2": "nothing to search called 'seed'",
    "learning_rate=log:0..1": "begins at 0; it must be above 0 and below 1",
    "learning_rate=1e-4..1e-5": "begins at 0.0001; it must be below 1e-05",
    "learning_rate=log:5": "it must be written log:LOW..HIGH",
    "learning_rate=-1..1": "learning_rate is -1.0; it must be a number above 0",
    "layers=all,all": "an empty or a repeated value",
    "p=0.1..0.5:0.9": "has the step 0.9; it must be above 0 and at most 0.4",
    "addrop.ig_steps=1..2.5": "its ends and its step must be whole",
    "attribution=none": "ADDrop.attribution is 'none'; it must be one of",
    "max_steps=few,many": "max_steps is 'few'; it must be a whole number",
    "q=0.1..0.9": "addrop.q has a value in 'addrop:q=0.3' too",
    "weight_decay=0..1": "weight_decay has the value '0.1' too",
}


@pytest.mark.parametrize("text", BAD_SPACES)
def test_wrong_space_is_named_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError) as caught:
        spaces("plain", "addrop:q=0.3", texts=(text,), weight_decay="0.1")
    message = str(caught.value)
    assert BAD_SPACES[text] in message
    assert message.startswith(f"space is {text!r}" if "q=0.1" in text else "space is '")
    assert text.partition("=")[2] in message or text == "p" or "log:" in text or ".." in text
    assert message.endswith(".")
    assert "\n" not in message
