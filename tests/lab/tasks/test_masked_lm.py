"""Masked language modelling: whole words are masked, by draws that any division of the work repeats; whole runs."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs import fine_tune
from attendrop.lab.tasks import as_corpus, load_files, load_task, load_tokenizer, prepare
from attendrop.lab.tasks.masking import MaskingCollator, mask_words
from helpers.cli_tools import attendrop, save_encoder, sentences, write_csv
from helpers.data import largest_difference, same_bits
from helpers.wordpiece import make_tokenizer

# One process runs all of these tests, so that their shared fixtures are created once.
pytestmark = pytest.mark.xdist_group("masked_lm")

TEXTS = [text for text, _ in sentences(88, seed=1)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


# ---- masks ----------------------------------------------------------------------------------------------------


def literal_masks(ids: Tensor, words: Tensor, draws: Tensor, share: float) -> tuple[list[list[int]], list[list[int]]]:
    """Row by row and word by word, with the mask token 4 and a vocabulary of 1,000."""
    seen, labels = ids.tolist(), [[-100] * ids.shape[1] for _ in ids]
    for row, numbers in enumerate(words.tolist()):
        count = max(numbers) + 1
        chosen = sorted(range(count), key=lambda word: draws[row, 0, word])[: max(1, math.floor(share * count + 0.5))]
        for place, word in enumerate(numbers):
            if word not in chosen:
                continue
            labels[row][place] = int(ids[row, place])
            if draws[row, 1, place] < 0.8:
                seen[row][place] = 4
            elif draws[row, 1, place] < 0.9:
                seen[row][place] = int(1000 * float(draws[row, 2, place]))
    return seen, labels


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_masks_are_those_of_the_literal_version(share: float) -> None:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (40, 23), generator=g)
    words = torch.randint(0, 2, (40, 23), generator=g).cumsum(1)
    words = words - words[:, :1]
    words[:, 0] = words[:, 20:] = -1
    words[:, 1:20] -= words[:, 1:2]
    words[7, 2:] = -1  # a text of one token
    draws = torch.rand(40, 3, 23, generator=g)
    seen, labels = mask_words(ids, words, draws, share, 4, 1000)
    assert (seen.tolist(), labels.tolist()) == literal_masks(ids, words, draws, share)


def byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=290, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES)


def sentence_piece(split: bool = True) -> Any:
    """As in XLM-R; with `split=False` the tokenizer counts a whole text as one word, as that of Llama."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    tokenizer.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=40, special_tokens=SPECIAL, unk_token="[UNK]", max_piece_length=3)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES)


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "sentencepiece", "unsplit"])
def test_whole_words_are_masked_together(kind: str, tmp_path: Path) -> None:
    tokenizer = {
        "wordpiece": make_tokenizer, "byte-level": byte_level, "sentencepiece": sentence_piece,
        "unsplit": lambda: sentence_piece(split=False),
    }[kind]()  # fmt: skip
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    data = load_files(tmp_path / "texts.txt", tmp_path / "texts.txt", kind="mlm")
    prepared = prepare(data, tokenizer, 64, seed=3)
    assert prepared.train is not None
    batch = prepared.collator([prepared.train[i] for i in range(len(TEXTS))])
    assert len(batch["input_ids"]) == len(TEXTS)
    hidden_words, has_pieces = 0, False
    for row, text in enumerate(TEXTS):
        encoding = tokenizer(text, return_offsets_mapping=True)
        hidden: dict[int, set[bool]] = {}  # of each word between spaces, what its tokens are
        for place, (start, end) in enumerate(encoding["offset_mapping"]):
            if end > start:
                word = text[:end].count(" ")
                has_pieces = has_pieces or word in hidden
                hidden.setdefault(word, set()).add(int(batch["labels"][row, place]) != -100)
        assert all(len(states) == 1 for states in hidden.values()), text
        hidden_words += sum(states == {True} for states in hidden.values())
        assert sum(states == {True} for states in hidden.values()) == max(1, math.floor(0.15 * len(hidden) + 0.5))
    assert has_pieces  # otherwise every word is one token
    assert hidden_words >= len(TEXTS)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join([*TEXTS, "", "  "]), encoding="utf-8")
    return path


def test_masked_tokens_are_replaced_80_10_10(texts: Path, tokenizer: Any) -> None:
    prepared = prepare(load_files(texts, texts, kind="mlm"), tokenizer, 64)
    examples = [prepared.train[i] for i in range(len(TEXTS))]
    counts: Counter[str] = Counter()
    for epoch in range(20):
        prepared.collator.set_epoch(epoch)
        batch = prepared.collator(examples)
        plain = tokenizer.pad([{"input_ids": example["input_ids"]} for example in examples])["input_ids"]
        for row, ids in enumerate(plain):
            for place, token in enumerate(ids):
                label, seen = int(batch["labels"][row, place]), int(batch["input_ids"][row, place])
                if label == -100:
                    assert seen == token
                    continue
                assert label == token
                counts["masked" if seen == tokenizer.mask_token_id else "same" if seen == token else "random"] += 1
    total = sum(counts.values())
    assert total > 5_000
    assert counts["masked"] / total == pytest.approx(0.8, abs=0.02)
    assert counts["random"] / total == pytest.approx(0.1, abs=0.02)


def test_masks_depend_on_seed_epoch_and_example_alone(texts: Path, tokenizer: Any) -> None:
    def labels(rows: list[int], seed: int = 1, epoch: int = 0) -> list[list[int]]:
        prepared = prepare(load_files(texts, texts, kind="mlm"), tokenizer, 64, seed=seed)
        prepared.collator.set_epoch(epoch)
        batch = prepared.collator([prepared.train[i] for i in rows])
        lengths = batch["attention_mask"].sum(1).tolist()
        return [row[:n] for row, n in zip(batch["labels"].tolist(), lengths, strict=True)]

    few, many = labels([4, 2]), labels(list(range(30)))
    assert few == [many[4], many[2]]  # in other places of another batch, with other padding
    for other in ({"epoch": 1}, {"seed": 2}):
        changed = labels(list(range(30)), **other)
        assert sum(a != b for a, b in zip(changed, many, strict=True)) > 25
        assert changed == labels(list(range(30)), **other)


def test_evaluation_has_the_same_masks_for_every_seed(texts: Path, tokenizer: Any) -> None:
    data = load_files(texts, texts, texts, kind="mlm")
    first, second = (prepare(data, tokenizer, 64, seed=seed) for seed in (1, 2))
    for split in ("validation", "test"):
        one, two = getattr(first, split), getattr(second, split)
        assert one[:] == two[:]
        assert set(one.column_names) == {"input_ids", "token_type_ids", "attention_mask", "labels", "length"}
        before = first.collator([one[i] for i in range(5)])
        first.collator.set_epoch(3)
        assert torch.equal(first.collator([one[i] for i in range(5)])["labels"], before["labels"])


def test_long_texts_are_divided_and_not_truncated(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "long.txt").write_text("\n".join(" ".join(TEXTS[i : i + 5]) for i in range(0, 20, 5)), encoding="utf-8")
    data = load_files(tmp_path / "long.txt", tmp_path / "long.txt", kind="mlm")
    prepared = prepare(data, tokenizer, 16)
    assert max(prepared.train["length"]) == 16
    special = set(tokenizer.all_special_ids)
    kept = [token for ids in prepared.train["input_ids"] for token in ids if token not in special]
    whole = [token for text in data.train["text"] for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert kept == whole
    assert any(f"are divided: {len(prepared.train):,} examples" in note for note in prepared.notes)


# ---- data -----------------------------------------------------------------------------------------------------


def test_texts_come_from_lines_or_from_a_column(tmp_path: Path, texts: Path) -> None:
    assert load_files(texts, kind="mlm").train["text"][:] == TEXTS
    table = write_csv(tmp_path / "t.csv", [(text, i) for i, text in enumerate(TEXTS)], ("body", "id"))
    data = load_files(table, kind="mlm")
    assert data.train["body"][:] == TEXTS
    assert data.notes == ["using column 'body' as the text"]
    assert (data.task.kind, data.task.metrics) == ("mlm", ("perplexity",))
    two = write_csv(tmp_path / "two.csv", [(text, text) for text in TEXTS], ("a", "b"))
    with pytest.raises(UserError, match="has the columns a, b, and it is not clear which of them is the text"):
        load_files(two, kind="mlm")
    assert load_files(two, kind="mlm", text="b").task.text == ("b",)


def test_a_task_by_name_gives_its_texts(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "glue" / "rte"
    folder.mkdir(parents=True)
    rows = {"sentence1": ["a b", "a b"], "sentence2": ["c", "d e"], "label": [0, 1]}
    for split in ("train", "validation"):
        parquet.write_table(pyarrow.table(rows), folder / f"{split}.parquet")
    data = as_corpus(load_task("rte", tmp_path))
    assert data.train["text"][:] == ["a b", "c", "d e"]
    corpus = tmp_path / "wikitext-2"
    corpus.mkdir()
    for split in ("train", "validation"):
        parquet.write_table(pyarrow.table({"text": ["", " = A = \n", "", " b c \n"]}), corpus / f"{split}.parquet")
    assert as_corpus(load_task("wikitext-2", tmp_path)).train["text"][:] == [" = A = \n", " b c \n"]


# ---- whole runs -----------------------------------------------------------------------------------------------

SHORT = {
    "kind": "mlm", "num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 5e-3, "seed": 5,
    "use_cpu": True, "max_length": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlm")
    save_encoder(folder / "model", TEXTS)
    (folder / "train.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (folder / "dev.txt").write_text("\n".join(text for text, _ in sentences(30, seed=2)), encoding="utf-8")
    return folder


def settings(workspace: Path, output: str, **more: Any) -> dict[str, Any]:
    files = {"train_file": str(workspace / "train.txt"), "validation_file": str(workspace / "dev.txt")}
    return {"model": str(workspace / "model"), **files, **SHORT, "output_dir": str(workspace / output), **more}


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def pretrained(workspace: Path) -> Path:
    """A run with AD-DROP, evaluated and saved in the middle of its epochs of 11 steps."""
    steps = {"save_strategy": "steps", "save_steps": 9, "eval_strategy": "steps", "eval_steps": 9}
    method = ["addrop:p=0.3,q=0.3,cross_tuning=False"]
    more = {**steps, "save_total_limit": 9, "keep_checkpoints": True}
    result = fine_tune(**settings(workspace, "mlm", method=method, eval_on_start=True, **more))
    assert result.finished
    return workspace / "mlm"


def test_perplexity_falls_and_is_that_of_the_masked_tokens(workspace: Path, pretrained: Path) -> None:
    record = json.loads((pretrained / "record.json").read_text(encoding="utf-8"))
    perplexities = [entry["eval_perplexity"] for entry in record["history"] if "eval_perplexity" in entry]
    assert perplexities[0] > 300  # 500 tokens, nothing learned yet
    assert min(perplexities) < 60
    assert record["scores"]["validation"]["perplexity"] == min(perplexities)  # lower is better
    tokenizer, model = load_tokenizer(pretrained), AutoModelForMaskedLM.from_pretrained(pretrained).eval().double()
    dev = load_files(workspace / "train.txt", workspace / "dev.txt", kind="mlm")
    split = prepare(dev, tokenizer, 16).validation
    losses = []
    for example in split:
        row = {name: torch.tensor([example[name]]) for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            likelihoods = model(**row).logits[0].log_softmax(-1)
        losses += [-likelihoods[i, label].item() for i, label in enumerate(example["labels"]) if label != -100]
    expected = math.exp(sum(losses) / len(losses))
    assert record["scores"]["validation"]["perplexity"] == pytest.approx(expected, rel=1e-4)
    card = (pretrained / "README.md").read_text(encoding="utf-8")
    assert "fill-mask" in card
    assert "AutoModelForMaskedLM" in card
    assert "divided into pieces of at most 16 tokens" in card


def test_fine_tuning_continues_from_the_pretrained_folder(workspace: Path, pretrained: Path, capsys: Any) -> None:
    table = write_csv(workspace / "labelled.csv", sentences(40, seed=3))
    notes: list[str] = []
    result = fine_tune(
        model=str(pretrained), train_file=str(table), num_train_epochs=1, use_cpu=True, learning_rate=1e-30,
        output_dir=str(workspace / "tuned"),
    )  # fmt: skip
    before, after = weights(pretrained), weights(workspace / "tuned")
    encoder = [name for name in after if name.startswith("bert.") and "pooler" not in name]
    assert len(encoder) > 20
    assert all(torch.equal(before[name], after[name]) for name in encoder)
    assert "accuracy" in result.scores["validation"], notes
    assert run(["predict", str(pretrained), "a text"]) == 2
    assert "holds a masked language model, which has no labels to predict" in capsys.readouterr().err


def test_killed_and_resumed_equals_uninterrupted(workspace: Path, pretrained: Path) -> None:
    """From the checkpoint of step 18, in the middle of the second epoch."""
    resumed = workspace / "resumed"
    shutil.copytree(pretrained, resumed)
    for checkpoint in resumed.glob("checkpoint-*"):
        if int(checkpoint.name.removeprefix("checkpoint-")) > 18:
            shutil.rmtree(checkpoint)
    for name in ("model.safetensors", "record.json"):  # a run that was killed has written neither
        (resumed / name).unlink()
    config = [
        "train",
        "--config",
        str(resumed / "run.yaml"),
        "--output-dir",
        str(resumed),
        "--resume",
    ]  # keeps its checkpoints
    assert run(config) == 0
    assert same_bits(weights(resumed), weights(pretrained))
    last = "checkpoint-33/model.safetensors"
    assert same_bits(load_file(resumed / last), load_file(pretrained / last))


@pytest.mark.slow
def test_two_processes_and_two_halves_equal_one_with_the_double_batch(workspace: Path) -> None:
    """Texts differ in length, so that the halves have different numbers of masked tokens."""
    model = save_encoder(workspace / "dropless", TEXTS, dropout=0.0)
    exact = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0, "load_best_model_at_end": False,
             "model": str(model), "num_train_epochs": 2, "method": ["addrop:p=0.5,q=0.5,layers=all"],
             "train_sampling_strategy": "random"}  # fmt: skip
    one = fine_tune(**settings(workspace, "one", **exact))
    half = {**exact, "per_device_train_batch_size": 4}
    fine_tune(**settings(workspace, "halves", **half, gradient_accumulation_steps=2))
    assert largest_difference(weights(workspace / "one"), weights(workspace / "halves")) < 1e-5
    flags = [word for name, value in settings(workspace, "two", **half).items() for word in _flag(name, value)]
    two = attendrop("train", *flags, "--nproc", "2")
    assert two.code == 0, two.err + two.out
    assert largest_difference(weights(workspace / "one"), weights(workspace / "two")) < 1e-5
    scores = json.loads((workspace / "two" / "metrics.json").read_text(encoding="utf-8"))
    assert scores["validation/perplexity"] == pytest.approx(one.scores["validation"]["perplexity"], rel=1e-5)
    before, after = weights(model), weights(workspace / "one")
    assert largest_difference(before, {name: after.get(f"bert.{name}", before[name]) for name in before}) > 1e-3


def _flag(name: str, value: Any) -> list[str]:
    from attendrop.lab.cli.arguments import as_arguments

    return as_arguments({name: value})


@pytest.mark.parametrize("method", ["attendout:T=3,reward_on=held_out", "rdrop", "r3f"])
def test_other_methods_train_it(method: str, workspace: Path, tmp_path: Path) -> None:
    result = fine_tune(**settings(workspace, "", method=[method], output_dir=str(tmp_path / "out"), num_train_epochs=1))
    assert 1 < result.scores["validation"]["perplexity"] < 500


# ---- what cannot work -----------------------------------------------------------------------------------------


def test_bad_inputs_are_refused_in_one_sentence(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    causal, maskless = tmp_path / "gpt2", tmp_path / "maskless"
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, vocab_size=500)
    GPT2LMHeadModel(config).save_pretrained(causal)
    shutil.copytree(workspace / "model", maskless)
    tokenizer = load_tokenizer(workspace / "model")
    tokenizer.save_pretrained(causal)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(maskless)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model": str(causal)}, "is a gpt2 model, for which transformers has no head of kind mlm."),
        ({"model": str(maskless)}, "the tokenizer has no mask token, which masked language modelling needs"),
        ({"train_file": str(tmp_path / "empty.txt")}, "empty.txt is empty."),
        ({"label": "x"}, "--label is 'x', but masked language modelling reads one text column and no labels."),
        ({"mlm_probability": 0}, "mlm_probability is 0.0; it must be a number above 0 and below 1."),
        ({"shots": 3}, "--shots counts examples of each class"),
    ]
    for wrong, message in cases:
        values = settings(workspace, "", **{"output_dir": str(tmp_path / "out"), **wrong})
        assert run(["train", *(word for name, value in values.items() for word in _flag(name, value))]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
        assert not (tmp_path / "out").exists()


def test_an_encoder_decoder_is_refused(workspace: Path, tmp_path: Path) -> None:
    from helpers.cli_tools import save_translator

    model = save_translator(tmp_path / "bart", TEXTS)
    with pytest.raises(UserError, match="is a bart model, for which transformers has no head of kind mlm"):
        fine_tune(**settings(workspace, "", model=str(model), output_dir=str(tmp_path / "out")))


def test_the_collator_needs_a_mask_token() -> None:
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="has no mask token"):
        MaskingCollator(tokenizer)
