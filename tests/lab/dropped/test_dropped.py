"""What is dropped, by distance and token: equal to a loop over all positions."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from transformers import PreTrainedTokenizerFast

from attendrop import ADDrop, Engine, Progress
from attendrop.lab.dropped.figure import plot_dropped
from attendrop.lab.dropped.measure import DropShare, measure_dropped
from attendrop.lab.dropped.tokens import KINDS, TokenKinds
from attendrop.methods.attendout.generator import Generator
from helpers import zoo


def tokenizer_of(words: list[str], model: Any = WordPiece) -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(words)}
    own = Tokenizer(model(vocabulary, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [*SPECIAL, ",", "##ing", *(f"w{number}" for number in range(zoo.VOCABULARY - 6))]


def batches() -> list[dict[str, torch.Tensor]]:
    made = [zoo.make_batch("bert", size=3, length=length, seed=length) for length in (9, 40)]
    for batch in made:
        batch["input_ids"][:, 0], batch["input_ids"][:, 1], batch["input_ids"][0, 2:5] = 2, 4, 5
    return made


def bin_of(distance: int) -> str:
    names = {0: "0", 1: "1", 2: "2 to 3", 4: "4 to 7", 8: "8 to 15", 16: "16 to 31", 32: "32 or more"}
    return names[max(least for least in names if least <= distance)]


@pytest.mark.usefixtures("float64")
def test_shares_of_a_generator_equal_a_loop_over_positions() -> None:
    model = zoo.make_model("bert")
    generator = Generator.from_model(model, 2, init_drop=0.3).double()
    torch.manual_seed(0)
    torch.nn.init.normal_(generator.q.weight)
    occurrences: dict[int, int] = defaultdict(int)
    for batch in batches():
        for token in batch["input_ids"][batch["attention_mask"].bool()].tolist():
            occurrences[token] += 1

    def kind_of(token: int) -> str:
        if token in (4, 5):
            return {4: "punctuation", 5: "later part of a word"}[token]
        return "special token" if token < 4 else "rare word" if occurrences[token] <= 2 else "other word"

    sums: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for batch in batches():
        p = generator(batch["input_ids"], batch["attention_mask"]).sigmoid()
        for b, n in enumerate(batch["attention_mask"].sum(1).tolist()):
            for layer in range(2):
                for i in range(n):
                    for j in range(n):
                        value = p[layer, b, i, j].item()
                        key = f"layer_{layer}"
                        sums[key, "distance", bin_of(abs(i - j))].append(value)
                        sums[key, "token", kind_of(int(batch["input_ids"][b, j]))].append(value)
                        sums[key, "", ""].append(value)
    result = measure_dropped(model, batches(), generator, TokenKinds(tokenizer_of(WORDS)))
    actual = {(share.layer, share.by, share.group): share for share in result.shares}
    assert actual.keys() == {key for key in sums if key[1]}
    assert {group for _, by, group in actual if by == "token"} == set(KINDS)
    for key, share in actual.items():
        mean = sum(sums[key]) / len(sums[key])
        of_layer = sums[key[0], "", ""]
        expected = DropShare(*key, len(sums[key]), mean, mean / (sum(of_layer) / len(of_layer)))
        assert share.positions == expected.positions
        assert (share.share, share.ratio) == pytest.approx((expected.share, expected.ratio), rel=1e-9)
    assert (result.source, result.examples, result.layers) == ("AttendOut's generator", 6, ["layer_0", "layer_1"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layers", ["first", "all"])
def test_shares_of_addrop_are_q_of_the_candidates_of_a_step(layers: str) -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), batches()[0]
    result = measure_dropped(model, [batch], ADDrop(p=0.4, q=0.6, layers=layers), TokenKinds(tokenizer_of(WORDS)))
    with Engine(model, [ADDrop(p=0.4, q=0.6, layers=layers, cross_tuning=False)]) as engine:
        engine.begin_step(Progress(step=0, total_steps=1), measure=True)
        with engine.micro_batch(batch):
            metrics = engine._step.metrics
    assert result.layers == (["layer_0"] if layers == "first" else ["layer_0", "layer_1"])
    for layer in result.layers:
        shares = [share for share in result.shares if (share.layer, share.by) == (layer, "distance")]
        dropped = sum(share.share * share.positions for share in shares)
        candidates = dropped / 0.6 / sum(share.positions for share in shares)
        assert candidates == pytest.approx(float(metrics[f"addrop/candidate_share_{layer}"]), rel=1e-6)
    whole = measure_dropped(model, [batch], ADDrop(p=1.0, q=0.25), TokenKinds(tokenizer_of(WORDS)))
    assert {(round(share.share, 9), round(share.ratio, 9)) for share in whole.shares} == {(0.25, 1.0)}


def test_tags_are_groups_of_keys_and_figure_and_table_are_written(tmp_path: Path) -> None:
    model, batch = zoo.make_model("token"), zoo.make_batch("token", size=4)
    tags = ["noun", "verb", "adjective", "other", "name"]
    result = measure_dropped(model, [batch], ADDrop(), TokenKinds(tokenizer_of(WORDS)), tags)
    labels = batch["labels"]
    rows = batch["attention_mask"].sum(1)
    for number, tag in enumerate(tags):
        expected = int(((labels == number).sum(1) * rows).sum())
        assert sum(share.positions for share in result.shares if share.group == tag) == expected
    plot_dropped(result, tmp_path / "dropped.png")
    assert (tmp_path / "dropped.png").stat().st_size > 10_000
    with result.write_csv(tmp_path / "dropped.csv").open() as file:
        assert [row["group"] for row in csv.DictReader(file)] == [share.group for share in result.shares]


def test_words_are_told_from_their_parts_in_every_kind_of_vocabulary() -> None:
    pieces = TokenKinds(tokenizer_of([*SPECIAL, "▁the", "ing", "▁,", "!"], WordLevel))
    assert [KINDS[kind] for kind in pieces.of(torch.arange(8), torch.full((8,), 9))] == [
        *["special token"] * 4, "other word", "later part of a word", "punctuation", "punctuation",
    ]  # fmt: skip
    words = TokenKinds(tokenizer_of([*SPECIAL, "the", "ing"], WordLevel))
    assert [KINDS[kind] for kind in words.of(torch.arange(4, 6), torch.tensor([0, 0, 0, 0, 3, 2]))] == [
        "other word", "rare word",
    ]  # fmt: skip


def test_what_cannot_be_described_is_refused() -> None:
    model, kinds = zoo.make_model("bert"), TokenKinds(tokenizer_of(WORDS))
    with pytest.raises(ValueError, match="batches is empty"):
        measure_dropped(model, [], ADDrop(), kinds)
    with pytest.raises(ValueError, match="attribution='rd', which drops at random"):
        measure_dropped(model, batches(), ADDrop(attribution="rd"), kinds)
    with pytest.raises(ValueError, match="both must be numbers"):
        measure_dropped(model, batches(), ADDrop(p="0.1..0.5"), kinds)
    with pytest.raises(ValueError, match="not tokens"):
        measure_dropped(zoo.make_model("vit"), [zoo.make_batch("vit")], ADDrop(), kinds)
