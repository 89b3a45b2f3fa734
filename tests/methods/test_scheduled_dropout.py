"""Scheduled dropout: measured rates, shapes of the masks, and schedules fitted to a run of AttendOut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attendrop import Engine, Progress, RDrop, ScheduledDropout, fit_schedule
from attendrop.methods import make_method, parse_method
from helpers import zoo


def test_measured_rate_follows_the_schedule_of_each_layer() -> None:
    model, batch = zoo.make_model("albert").train(), zoo.make_batch("albert", size=16, length=32)
    method = ScheduledDropout(start=0.6, slopes=(-0.4, 0.2))
    engine = Engine(model, [method])
    for step, expected in ((0, (0.6, 0.6, 0.6)), (50, (0.4, 0.55, 0.7)), (100, (0.2, 0.5, 0.8))):
        engine.begin_step(Progress(step=step, total_steps=100))
        with engine.micro_batch(batch):
            keep = engine.seams.plan.keep
        for layer, p in enumerate(expected):
            n = keep[layer].numel()
            assert keep[layer].shape == (16, 1, 32, 32)
            assert abs((~keep[layer]).float().mean() - p) < 4 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("kind", [*zoo.ARCHITECTURES, "choice"])
def test_masks_fit_every_architecture(kind: str) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    engine = Engine(model, [ScheduledDropout()])
    with engine.micro_batch(batch) as inputs:
        assert len(engine.seams.plan.keep) == len(engine.seams.sites)
        model(**inputs).loss.backward()
    engine.close()


def test_schedule_is_fitted_to_learned_curves_and_survives_json() -> None:
    # layer 0 falls, layer 1 rises and then stays: both are piecewise linear with corners at 0, 1/2 and 1
    history = []
    for step in range(1, 101):
        t = step / 100
        history.append({"step": step, "drop_probability": [0.6 - 0.5 * t, 0.2 + min(t, 0.5)]})
    actual = fit_schedule(history, knots=3)
    for t in (0.0, 0.2, 0.5, 0.9, 1.0):
        assert actual.probability(0, 2, t) == pytest.approx(0.6 - 0.5 * t, abs=0.01)
        assert actual.probability(1, 2, t) == pytest.approx(0.2 + min(t, 0.5), abs=0.01)
    plain = json.loads(json.dumps(actual.to_dict()))
    assert make_method(plain.pop("method"), plain) == actual


def test_schedule_of_a_finished_run_is_read_from_its_file(tmp_path: Path) -> None:
    history = [{"step": step, "drop_probability": [0.6 - 0.05 * step, 0.1]} for step in range(1, 11)]
    path = tmp_path / "attendout_run.json"
    path.write_text(json.dumps(history))
    actual = parse_method(f"scheduled_dropout:run={path}")
    assert actual == fit_schedule(history)
    fields = actual.to_dict()
    assert "run" not in fields  # a resumed run does not need the file
    path.unlink()
    assert make_method(fields.pop("method"), fields) == actual


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ScheduledDropout\.start is 1\.5"):
        ScheduledDropout(start=1.5)
    with pytest.raises(ValueError, match=r"ScheduledDropout\.slopes is \[1\]"):
        ScheduledDropout(slopes=[1])
    with pytest.raises(ValueError, match=r"ScheduledDropout\.curves has 1 layers; .* has 2"):
        Engine(zoo.make_model("bert"), [ScheduledDropout(curves=[[(0, 0.1), (1, 0.2)]])])
    with pytest.raises(ValueError, match="has 1 dropout steps; a schedule needs at least 2"):
        fit_schedule([{"step": 1, "drop_probability": [0.1]}])


def test_the_two_views_of_rdrop_get_different_masks() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    regularizers = [ScheduledDropout(start=0.3), RDrop(alpha=1e4)]
    with Engine(model, regularizers) as engine, engine.micro_batch(batch) as inputs:
        for keep in engine.seams.plan.keep.values():
            first, second = keep.chunk(2)
            assert not torch.equal(first, second)
        outputs = model(**inputs)
        assert engine.loss(outputs) > outputs.loss + 0.01  # the divergence of the views is not 0


def test_masks_of_one_view_do_not_depend_on_the_number_of_views() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    masks = []
    for others in ([], [RDrop()]):
        with Engine(model, [ScheduledDropout(start=0.3), *others]) as engine, engine.micro_batch(batch):
            masks.append([keep[:3] for keep in engine.seams.plan.keep.values()])
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))


@pytest.mark.parametrize("layers", [2, 6, 12])
def test_by_default_lower_layers_keep_the_higher_probabilities(layers: int) -> None:
    method = ScheduledDropout()
    for fraction in (0.0, 0.3, 1.0):
        values = [method.probability(layer, layers, fraction) for layer in range(layers)]
        assert values == sorted(values, reverse=True)
        assert max(values) <= 0.1
    assert values[0] > values[-1]
