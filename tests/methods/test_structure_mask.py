"""Structure masks compared with their equation, the collator, and training on trees."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from attendrop import Engine, RegularizedTrainer, StructureMask, collate_structure
from helpers import zoo
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, same_bits, weights_of
from helpers.methods import TwoViews
from helpers.oracles import ChangedAttention
from helpers.precision import assert_same_gradients, assert_same_numbers
from helpers.traces import traces


def random_structure(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    mask = torch.rand(rows, length, length, generator=torch.Generator().manual_seed(seed)) < 0.4
    mask[0, 2] = False  # a token that sees nothing
    return mask


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5"])
def test_forward_and_gradients_match_the_equation(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    mask = random_structure(3, 9)
    with Engine(model, [StructureMask()]) as engine, engine.micro_batch({**batch, "structure_mask": mask}) as inputs:
        assert inputs.keys() == batch.keys()
        actual = model(**inputs)
        actual.loss.backward()
    two = kind in ("bart", "t5")

    def change(call: int, scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        if two and call >= 2:  # the decoder, and what it sees of the encoder: the structure is that of the source
            return scores.masked_fill(~valid, float("-inf")).softmax(-1)
        examples = []
        for b in range(3):
            queries = []
            for q in range(9):
                allowed = valid[b, 0, q] & mask[b, q]
                row = scores[b, :, q]
                if allowed.any():
                    e = torch.where(allowed, (row - row[:, allowed].amax(-1, keepdim=True)).exp(), 0)
                    queries.append(e / e.sum(-1, keepdim=True))
                else:
                    queries.append((valid[b, 0, q] / valid[b, 0, q].sum()).expand(4, 9))
            examples.append(torch.stack(queries, 1))
        return torch.stack(examples)

    ChangedAttention(change).attach(literal)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["mpnet", "deberta_v2"])
def test_token_hidden_from_all_others_does_not_change_the_output(kind: str) -> None:
    """Also for models with an adapter: token 3 does not influence the first token."""
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind, size=1)
    mask = torch.ones(1, 9, 9, dtype=torch.bool)
    mask[..., 3] = False
    with Engine(model, [StructureMask()]) as engine:
        with engine.micro_batch({**batch, "structure_mask": mask}) as inputs:
            before = model(**inputs).logits
            inputs["input_ids"] = inputs["input_ids"].clone()
            inputs["input_ids"][0, 3] = 7
            assert_same_numbers(model(**inputs).logits, before)
        inputs = {**batch, "input_ids": inputs["input_ids"]}
        assert not torch.allclose(model(**inputs).logits, model(**batch).logits)


def test_only_selected_layers_of_the_encoder_are_masked() -> None:
    batch = zoo.make_batch("bart") | {"structure_mask": random_structure(3, 9)}
    for layers, sites in (("all", [0, 1]), ("first", [0]), ([1], [1])):
        with (
            Engine(zoo.make_model("bart").train(), [StructureMask(layers=layers)]) as engine,
            engine.micro_batch(batch),
        ):
            assert list(engine.seams.plan.keep) == sites
    with pytest.raises(ValueError, match=r"StructureMask\.layers is \[2\], but there is no layer 2"):
        Engine(zoo.make_model("bert"), [StructureMask(layers=[2])])


def test_masks_fit_multiple_choice_and_views() -> None:
    batch = zoo.make_batch("choice") | {"structure_mask": random_structure(6, 9).view(3, 2, 9, 9)}
    with (
        Engine(zoo.make_model("choice").train(), [StructureMask(), TwoViews()]) as engine,
        engine.micro_batch(batch),
    ):
        keep = engine.seams.plan.keep[0]
    assert torch.equal(keep, torch.cat([batch["structure_mask"].view(6, 1, 9, 9)] * 2))


@pytest.mark.parametrize("shape", [(9, 9), (3, 9), (3, 8, 8), (2, 9, 9), (3, 9, 8), (3, 1, 9, 8)])
def test_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    batch = zoo.make_batch("bert") | {"structure_mask": torch.ones(shape)}
    sentence = (
        rf"column 'structure_mask' \(StructureMask\) has shape \[{', '.join(map(str, shape))}\]; it must be \[3, 9, 9\]"
    )
    with (
        Engine(zoo.make_model("bert").train(), [StructureMask()]) as engine,
        pytest.raises(ValueError, match=sentence),
        engine.micro_batch(batch),
    ):
        pass


def trees(examples: list[dict]) -> list[dict]:
    """Each token sees itself, its parent and the first token."""
    results = []
    for example in examples:
        n = len(example["input_ids"])
        tree = torch.eye(n, dtype=torch.bool)
        tree[torch.arange(1, n), torch.arange(1, n) // 2] = True
        tree[:, 0] = True
        results.append({**example, "structure_mask": tree})
    return results


@pytest.mark.parametrize("side", ["right", "left"])
def test_collator_aligns_the_matrices_with_the_tokens(side: str) -> None:
    def pad_to(examples: list[dict]) -> dict:
        batch = pad(examples)
        if side == "left":
            for i, example in enumerate(examples):
                shift = batch["input_ids"].shape[1] - len(example["input_ids"])
                for name in ("input_ids", "attention_mask"):
                    batch[name][i] = batch[name][i].roll(shift)
        return batch

    examples = trees(make_examples("bert", 4))
    examples[1]["structure_mask"] = examples[1]["structure_mask"].tolist()  # as a `datasets.Dataset` gives it
    batch = collate_structure(pad_to)(examples)
    length = batch["input_ids"].shape[1]
    assert batch["structure_mask"].shape == (4, length, length)
    assert len({len(example["input_ids"]) for example in examples}) > 1
    for i, example in enumerate(examples):
        here = batch["attention_mask"][i].bool()
        tree = torch.as_tensor(example["structure_mask"])
        assert torch.equal(batch["structure_mask"][i][here][:, here], tree)
        assert batch["structure_mask"][i][~here].all()
        assert batch["structure_mask"][i][:, ~here].all()
    assert "structure_mask" in examples[0]  # the examples are the user's
    assert "structure_mask" not in collate_structure(pad_to)(make_examples("bert", 2))
    examples[2]["structure_mask"] = torch.ones(2, 3)
    n = len(examples[2]["input_ids"])
    with pytest.raises(
        ValueError, match=rf"matrix of shape \[2, 3\] for an example of {n} tokens; it must be \[{n}, {n}\]"
    ):
        collate_structure(pad_to)(examples)


@pytest.mark.parametrize("as_dataset", [False, True])
def test_training_uses_the_trees_and_evaluation_ignores_them(tmp_path: Path, as_dataset: bool) -> None:
    def run(examples: list[dict], regularizers: list) -> tuple:
        if as_dataset:
            datasets = pytest.importorskip("datasets")
            examples = datasets.Dataset.from_list([{k: v.tolist() for k, v in e.items()} for e in examples])
            examples = examples.with_format(
                "torch", columns=["input_ids", "attention_mask", "labels"], output_all_columns=True
            )
        model = zoo.make_model("bert", dropout=False)
        trainer = RegularizedTrainer(
            model=model, args=make_arguments(tmp_path, max_steps=3, **SGD), train_dataset=examples,
            eval_dataset=examples, data_collator=collate_structure(pad), regularizers=regularizers,
        )  # fmt: skip
        trainer.train()
        return model, trainer

    examples = make_examples("bert", 16)
    model, trainer = run(trees(examples), [StructureMask()])
    plain, plain_trainer = run(examples, [])
    assert traces(model) == []
    assert largest_difference(weights_of(model), weights_of(plain)) > 1e-4
    plain.load_state_dict(model.state_dict())
    assert trainer.evaluate()["eval_loss"] == plain_trainer.evaluate()["eval_loss"]
    open_to_all = [{**e, "structure_mask": torch.ones(len(e["input_ids"]), len(e["input_ids"]))} for e in examples]
    free, _ = run(open_to_all, [StructureMask()])
    assert same_bits(weights_of(free), weights_of(run(examples, [])[0]))


def test_missing_column_is_refused_when_the_trainer_is_created(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"StructureMask reads the column 'tree', and the batch has only attention_mask"
    ):
        RegularizedTrainer(
            model=zoo.make_model("bert"), args=make_arguments(tmp_path), train_dataset=trees(make_examples("bert", 8)),
            data_collator=collate_structure(pad, "structure_mask"), regularizers=[StructureMask(column="tree")],
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"StructureMask\.column is ''; it must be the name of a column"):
        StructureMask(column="")
