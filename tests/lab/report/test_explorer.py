"""The maps of the attention explorer, from live models."""

from __future__ import annotations

import copy

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attendrop import ADDrop, UserError, attribute, prune
from attendrop.lab.report.explorer import explore
from helpers import zoo

WORDS = ["[PAD]", "[UNK]", "the", "film", "is", "not", "bad", "at", "all"]
TEXT = "the film is not bad at all"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def test_maps_are_those_of_the_model_and_of_addrop(tokenizer: PreTrainedTokenizerFast) -> None:
    model = zoo.make_model("bert").train()
    (example,) = explore(model, tokenizer, [TEXT], ADDrop(p=0.3, q=0.5, layers="all"), gold=[1])["examples"]
    assert model.training
    assert example["tokens"] == TEXT.split()
    assert example["gold"] == model.config.id2label[1]
    assert example["predicted"] in model.config.id2label.values()
    assert [layer["layer"] for layer in example["layers"]] == [0, 1]
    batch = {"input_ids": torch.tensor([tokenizer(TEXT)["input_ids"]])}
    model.eval().set_attn_implementation("eager")
    attentions = model(**batch, output_attentions=True).attentions
    for layer, maps in attribute(model, batch).items():
        for head in range(4):
            shown = example["layers"][layer]["heads"][head]
            torch.testing.assert_close(torch.tensor(shown["attention"]), attentions[layer][0, head], atol=6e-4, rtol=0)
            torch.testing.assert_close(torch.tensor(shown["attribution"]), maps[0, head], atol=1e-7, rtol=6e-3)
            region, dropped = torch.tensor(shown["candidates"]), torch.tensor(shown["dropped"])
            assert region.gather(1, maps[0, head].topk(3).indices).all()
            if layer == 0:  # the head reads the first token of the last layer alone; its other rows are ties
                assert region.sum(1).tolist() == [3] * 7  # 7 − ⌊7 · 0.7⌋
            assert (dropped <= region).all()
    all_dropped = sum(sum(map(sum, head["dropped"])) for layer in example["layers"] for head in layer["heads"])
    assert 0 < all_dropped < 2 * 4 * 7 * 7


def test_pruned_layers_are_absent_and_the_others_keep_their_numbers(tokenizer: PreTrainedTokenizerFast) -> None:
    model = zoo.make_model("bert").eval()
    smaller = copy.deepcopy(model)
    prune.prune(smaller, [0])
    (example,) = explore(model, tokenizer, [TEXT], pruned=smaller)["examples"]
    assert [layer["layer"] for layer in example["pruned"]["layers"]] == [1]
    assert example["pruned"]["layers"][0]["heads"][0]["attention"] != example["layers"][1]["heads"][0]["attention"]


@pytest.mark.parametrize("kind", ["albert", "gpt2"])
def test_other_architectures(kind: str, tokenizer: PreTrainedTokenizerFast) -> None:
    explorer = explore(zoo.make_model(kind), tokenizer, [TEXT] * 6, max_tokens=4, max_examples=2)
    assert len(explorer["examples"]) == 2
    for layer in explorer["examples"][0]["layers"]:
        assert len(layer["heads"][0]["attention"]) == 4


def test_what_cannot_be_explored_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    model = zoo.make_model("bert")
    with pytest.raises(UserError, match="texts must be a list"):
        explore(model, tokenizer, [])
    with pytest.raises(UserError, match="max_tokens is 0"):
        explore(model, tokenizer, [TEXT], max_tokens=0)
    with pytest.raises(UserError, match="attribution is 'rd'"):
        explore(model, tokenizer, [TEXT], ADDrop(attribution="rd"))
