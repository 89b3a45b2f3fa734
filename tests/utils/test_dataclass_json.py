"""Dataclasses as JSON and back: equal after a round trip, defaults, and errors that name the place."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from attendrop.utils.dataclass_json import from_json, to_json


@dataclass
class Leaf:
    name: str
    bounds: tuple[float, float] | None
    size: int = 3


@dataclass
class Tree:
    leaves: list[Leaf]
    by_name: dict[str, list[Leaf]] = field(default_factory=dict)
    first: Leaf | None = None


def test_json_round_trip_restores_the_dataclass() -> None:
    leaf = Leaf("a", (0.0, 1.0))
    tree = Tree([leaf, Leaf("b", None, 5)], {"x": [leaf]}, leaf)
    assert from_json(Tree, json.loads(json.dumps(to_json(tree))), "it") == tree


def test_missing_values_are_defaults_and_unknown_ones_are_ignored() -> None:
    assert from_json(Tree, {"leaves": [{"name": "a", "size": None, "more": 1}], "by_name": None}, "it") == Tree(
        [Leaf("a", None)]
    )
    assert to_json({"a": [math.nan, (math.inf, 1.5)]}) == {"a": [None, [None, 1.5]]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "it is a list, not a dictionary"),
        ({}, "'leaves' is missing"),
        ({"leaves": {}}, "'leaves' is a dict, not a list"),
        ({"leaves": [{"name": "a"}, {}]}, "entry 1 of 'leaves' has no 'name'"),
        ({"leaves": [], "by_name": {"x": [3]}}, "entry 0 of 'x' of 'by_name' is a int, not a dictionary"),
    ],
)
def test_an_error_names_the_place(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(Tree, value, "it")
