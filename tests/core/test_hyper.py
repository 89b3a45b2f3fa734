"""Fields that say what they allow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from attendrop import METHODS, Regularizer, Schedule, Strength, UserError, hyper
from attendrop.core.hyper import hyper_of
from attendrop.lab.cli.methods import field_descriptions, with_bounds


@dataclass
class Toy(Regularizer):
    p: Strength = hyper(0.3, high=1, search="0.1..0.9")
    rate: float = hyper(0.1, above=0, below=1)
    steps: int = hyper(2, low=1, also=[None])
    kind: str = hyper("a", choices=("a", "b"))
    is_on: bool = hyper(True)
    layers: Any = hyper("all", search="first,all")
    free: float = 7.0


def test_values_in_bounds_are_accepted_and_strings_become_schedules() -> None:
    toy = Toy(p="0..1", rate=0.5, steps=None, kind="b", is_on=False, layers=[0, 1], free=-1.0)  # type: ignore[arg-type]
    assert toy.p == Schedule([(0, 0), (1, 1)])
    assert (toy.rate, toy.steps, toy.kind, toy.is_on, toy.layers, toy.free) == (0.5, None, "b", False, [0, 1], -1.0)
    assert (Toy().p, Toy.p, Toy()) == (0.3, 0.3, Toy(p=0.3))


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("p", 1.5, "Toy.p is 1.5; it must be from 0 to 1."),
        ("p", "x", "Toy.p is 'x'; it must be a number from 0 to 1, or a schedule such as '0..1'."),
        ("rate", 0, "Toy.rate is 0; it must be a number above 0 and below 1."),
        ("rate", True, "Toy.rate is True; it must be a number above 0 and below 1."),
        ("steps", 0, "Toy.steps is 0; it must be a whole number of at least 1, or None."),
        ("kind", "c", "Toy.kind is 'c'; it must be one of 'a', 'b'."),
        ("is_on", "yes", "Toy.is_on is 'yes'; it must be one of True, False."),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_allowed(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        Toy(**{field: value})
    assert str(error.value) == sentence


def test_annotations_may_be_types_instead_of_strings() -> None:
    """As in a module without `from __future__ import annotations`."""
    fields = [
        ("p", Strength, hyper(0.3, high=1)),
        ("n", int | None, hyper(None, also=[None])),
        ("x", float, hyper(1.0)),
    ]
    cls = dataclasses.make_dataclass("Typed", fields, bases=(Regularizer,))
    assert cls(p="0..1").p == Schedule([(0, 0), (1, 1)])
    for field, value in (("p", 2), ("n", 0.5), ("x", -1)):
        with pytest.raises(UserError, match=f"Typed.{field} is"):
            cls(**{field: value})


def test_description_says_what_a_field_allows() -> None:
    assert {
        field.name: bounds.described(field) for field in dataclasses.fields(Toy) if (bounds := hyper_of(field))
    } == {
        "p": "a number from 0 to 1, or a schedule",
        "rate": "a number above 0 and below 1",
        "steps": "a whole number from 1, or None",
        "kind": 'one of "a", "b"',
        "is_on": "",
        "layers": "",
    }


def test_help_adds_the_bounds_that_a_docstring_does_not_state() -> None:
    fields = {field.name: field for field in dataclasses.fields(Toy)}
    assert with_bounds(Toy, fields["p"], "a share") == "a share; a number from 0 to 1, or a schedule"
    assert with_bounds(Toy, fields["kind"], "what it is") == 'what it is; one of "a", "b"'
    for field, text in (("p", "a number from 0 to 1"), ("kind", '"a": this, "b": that'), ("is_on", "x"), ("free", "x")):
        assert with_bounds(Toy, fields[field], text) == text


# Checks in `__post_init__` allow less, or the docstring says it in other words.
OTHER_WORDS = {
    "attendout.active", "attendout.hold_out", "attention_dropout.p", "child_tuning.p", "dropconnect.p", "drophead.p",
    "headmask.n", "lp_ft.steps", "mixout.p", "wise_ft.alpha",
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_docstring_of_a_method_states_the_bounds_of_its_fields(name: str) -> None:
    """Where it states any: `attendrop methods NAME` adds what is missing."""
    descriptions = field_descriptions(METHODS[name])
    for field in dataclasses.fields(METHODS[name]):
        bounds, description = hyper_of(field), descriptions[field.name]
        if bounds is None or f"{name}.{field.name}" in OTHER_WORDS:
            continue
        if "number" in description:
            assert bounds.described(field) in description
        if any(f'"{choice}"' in description for choice in bounds.choices):
            assert all(f'"{choice}"' in description for choice in bounds.choices)
