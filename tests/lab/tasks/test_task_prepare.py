"""Examples to model inputs and back: alignment checked by hand, and every task with real data through a Trainer."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import sacrebleu
import scipy.stats
import seqeval.metrics
import sklearn.metrics
import torch
import transformers as hf
from datasets import Dataset
from tokenizers import ByteLevelBPETokenizer

from attendrop.errors import UserError
from attendrop.lab.tasks import (
    Data,
    Task,
    find_task,
    keep_logits,
    load_model,
    load_task,
    load_tokenizer,
    prepare,
    write_predictions,
    write_submission,
)
from helpers.wordpiece import make_tokenizer, save_model

REAL = Path(__file__).resolve().parents[4] / "shared" / "data"
ROWS = 64

CONLL = find_task("conll2003")
WORDS = ["EU", "rejects", "German", "call", "to", "boycott", "British", "lamb", "."]
TAGS = ["B-ORG", "O", "B-MISC", "O", "O", "O", "B-MISC", "O", "O"]


def tagging(words: list[list[str]], tags: list[list[str]] | None = None, split: str = "validation") -> Data:
    columns: dict[str, Any] = {"tokens": words}
    if tags:
        columns["ner_tags"] = [[CONLL.labels.index(tag) for tag in row] for row in tags]
    splits = {"train": None, "validation": None, "test": None, split: Dataset.from_dict(columns)}
    return Data(CONLL, **splits)


def logits_of(classes: list[list[int]], count: int) -> np.ndarray:
    return np.eye(count)[np.array(classes)]


def test_tags_are_aligned_with_the_first_sub_word() -> None:
    tokenizer = make_tokenizer(
        ["eu", "reject", "##s", "ger", "##man", "call", "to", "boy", "##co", "##tt", "british", "lamb", "."]
    )
    prepared = prepare(tagging([WORDS], [TAGS]), tokenizer)
    assert prepared.validation is not None
    row = prepared.validation[0]
    # By hand: the tag at the first piece of its word, nothing at the other pieces and the special tokens.
    by_hand = [
        ("[CLS]", None), ("eu", "B-ORG"), ("reject", "O"), ("##s", None), ("ger", "B-MISC"), ("##man", None),
        ("call", "O"), ("to", "O"), ("boy", "O"), ("##co", None), ("##tt", None), ("british", "B-MISC"), ("lamb", "O"),
        (".", "O"), ("[SEP]", None),
    ]  # fmt: skip
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == [piece for piece, _ in by_hand]
    assert row["labels"] == [-100 if tag is None else CONLL.labels.index(tag) for _, tag in by_hand]
    assert row["length"] == len(by_hand)

    # A model that is right at first pieces and predicts B-PER everywhere else.
    predicted = [CONLL.labels.index(tag or "B-PER") for _, tag in by_hand]
    logits = logits_of([[*predicted, 1, 1]], 9)  # padded by the Trainer
    assert prepared.decode(logits, "validation") == [TAGS]
    gold = np.array([[*row["labels"], -100, -100]])
    assert prepared.compute_metrics(hf.EvalPrediction(logits, gold)) == {
        "entity_f1": 1.0, "entity_precision": 1.0, "entity_recall": 1.0, "token_accuracy": 1.0,
    }  # fmt: skip


def test_truncated_words_are_not_scored_and_decoded_as_outside() -> None:
    tokenizer = make_tokenizer(["eu", "reject", "##s", "ger", "##man", "call"])
    prepared = prepare(tagging([WORDS, ["EU"]], [TAGS, ["B-ORG"]]), tokenizer, max_length=6)
    assert prepared.validation is not None
    assert tokenizer.convert_ids_to_tokens(prepared.validation[0]["input_ids"])[-2:] == ["ger", "[SEP]"]
    assert prepared.validation[0]["labels"] == [-100, 3, 0, -100, 7, -100]
    assert prepared.notes == ["6 of 10 words of validation are truncated at 6 tokens and not scored"]
    classes = [[0, 3, 0, 0, 7, 0], [0, 3, 0, 0, 0, 0]]
    decoded = prepared.decode(logits_of(classes, 9), "validation")
    assert decoded == [["B-ORG", "O", "B-MISC", "O", "O", "O", "O", "O", "O"], ["B-ORG"]]
    pos = Task(
        "mine", "token_classification", ("tokens",), "ner_tags", tuple(f"T{i}" for i in range(9)), ("token_accuracy",)
    )
    without = prepare(dataclasses.replace(tagging([WORDS], [TAGS]), task=pos), tokenizer, max_length=4)
    assert without.decode(logits_of([[0, 3, 0, 0]], 9), "validation") == [["T3", "T0", *["_"] * 7]]


def test_a_word_without_a_sub_word_is_decoded_as_outside() -> None:
    prepared = prepare(tagging([["EU", "\u200b\u200d", "won"]], split="test"), make_tokenizer(["eu", "won"]))
    assert prepared.test is not None
    assert "labels" not in prepared.test.column_names
    assert prepared.decode(logits_of([[0, 3, 5, 0]], 9), "test") == [["B-ORG", "O", "B-LOC"]]


@pytest.mark.parametrize("of", [hf.RobertaTokenizer, hf.GPT2Tokenizer])
def test_words_are_tokenised_as_in_running_text(of: Any, tmp_path: Path) -> None:
    text = " ".join(WORDS)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([text] * 9, 400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    trained.save_model(str(tmp_path))
    tokenizer = of(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"), pad_token="<pad>")
    prepared = prepare(tagging([WORDS], [TAGS]), tokenizer)
    assert prepared.validation is not None
    row = prepared.validation[0]
    assert row["input_ids"] == tokenizer(text)["input_ids"]
    assert [CONLL.labels[tag] for tag in row["labels"] if tag != -100] == TAGS


@pytest.mark.skipif("ATTENDROP_MINILM" not in os.environ, reason="ATTENDROP_MINILM names the folder of MiniLM")
def test_tags_are_aligned_by_a_real_tokenizer() -> None:
    tokenizer = load_tokenizer(os.environ["ATTENDROP_MINILM"])
    prepared = prepare(tagging([[*WORDS[:-1], "Wolfsburg-based", "."]], [[*TAGS[:-1], "B-MISC", "O"]]), tokenizer)
    assert prepared.validation is not None
    row = prepared.validation[0]
    pieces = tokenizer.convert_ids_to_tokens(row["input_ids"])
    assert pieces == [
        "[CLS]", "eu", "rejects", "german", "call", "to", "boycott", "british", "lamb", "wolf", "##sburg", "-", "based",
        ".", "[SEP]",
    ]  # fmt: skip
    assert row["labels"] == [-100, 3, 0, 7, 0, 0, 0, 7, 0, 7, -100, -100, -100, 0, -100]


def test_slow_tokenizer_is_refused_for_tagging() -> None:
    class Slow:
        is_fast = False
        model_max_length = 100
        padding_side = "right"
        pad_token = "x"

        def num_special_tokens_to_add(self, pair: bool) -> int:
            return 2

    with pytest.raises(UserError, match="Slow is not a fast tokenizer"):
        prepare(tagging([WORDS], [TAGS]), Slow())


def test_lengths_and_padding_are_checked() -> None:
    tokenizer = make_tokenizer(max_length=16)
    data = tagging([WORDS], [TAGS])
    with pytest.raises(UserError, match="max_length is 2; with the special tokens of this model it must be at least 3"):
        prepare(data, tokenizer, 2)
    prepared = prepare(data, tokenizer, 99)
    assert prepared.max_length == 16
    assert prepared.notes[0] == "max_length 99 is above the limit of the tokenizer; 16 is used instead"
    tokenizer.padding_side = "left"
    with pytest.raises(UserError, match="pads on the left"):
        prepare(data, tokenizer)
    tokenizer.padding_side, tokenizer.pad_token = "right", None
    with pytest.raises(UserError, match="no padding token"):
        prepare(data, tokenizer)


def hans(labels: list[int]) -> Data:
    columns = {"premise": ["a b"] * len(labels), "hypothesis": ["c d"] * len(labels), "label": labels}
    return Data(find_task("hans"), None, Dataset.from_dict(columns))


@pytest.mark.parametrize(
    "labels",
    [
        ("entailment", "neutral", "contradiction"),
        ("contradiction", "neutral", "entailment"),  # as some models on the Hub have them
        ("not_entailment", "entailment"),
    ],
)
def test_hans_is_scored_with_the_labels_of_another_nli_task(labels: tuple[str, ...]) -> None:
    gold = [0, 1, 1, 0, 1]
    prepared = prepare(hans(gold), make_tokenizer(), labels=labels)
    assert prepared.validation is not None
    predicted = ["entailment", "entailment", labels[0], labels[1], labels[-1]]
    mapped = ["entailment" if name == "entailment" else "non-entailment" for name in predicted]
    logits = logits_of([[labels.index(name)] for name in predicted], len(labels))[:, 0]
    assert prepared.decode(logits) == mapped
    given = np.array(prepared.validation["labels"][:])
    assert set(given) <= set(range(len(labels)))
    expected = sklearn.metrics.accuracy_score(["entailment" if g == 0 else "non-entailment" for g in gold], mapped)
    assert prepared.compute_metrics(hf.EvalPrediction(logits, given)) == {"accuracy": expected}


def test_labels_of_an_unrelated_task_are_refused() -> None:
    for labels in (("positive", "negative"), ("neutral", "contradiction"), ()):
        with pytest.raises(UserError, match="hans has the labels entailment, non-entailment and cannot score a model"):
            prepare(hans([0, 1]), make_tokenizer(), labels=labels)


def test_nothing_is_written_and_no_random_number_is_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "hans"
    folder.mkdir()
    columns = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [0, 1]}
    Dataset.from_dict(columns).to_parquet(str(folder / "validation.parquet"))
    state = torch.get_rng_state()
    before = sorted(tmp_path.rglob("*"))
    first, second = (prepare(load_task("hans", tmp_path, evaluation=True), make_tokenizer()) for _ in range(2))
    assert sorted(tmp_path.rglob("*")) == before
    assert first.validation is not None
    assert second.validation is not None
    assert first.validation[:] == second.validation[:]
    assert first.validation.cache_files == []
    assert torch.equal(torch.get_rng_state(), state)


def test_references_of_a_translation_are_the_original_texts() -> None:
    tokenizer = make_tokenizer(["a", "dog", "ein", "hund"])
    long = "ein Hund ein Hund ein großer Hund"  # truncated, in lower case, and with an unknown word
    data = Data(find_task("multi30k"), None, Dataset.from_dict({"en": ["a dog", "a"], "de": [long, "Ein  Hund"]}))
    prepared = prepare(data, tokenizer, 6)
    assert prepared.validation is not None
    batch = prepared.collator([dict(row) for row in prepared.validation])
    assert batch["labels"].shape == (2, 6)
    predicted = tokenizer(["ein hund ein hund", "ein"], padding=True)["input_ids"]
    ids = np.array([[*row, -100] for row in predicted])
    expected = sacrebleu.corpus_bleu(["ein hund ein hund", "ein"], [[long, "Ein  Hund"]]).score
    assert prepared.decode(ids) == ["ein hund ein hund", "ein"]
    assert prepared.compute_metrics(hf.EvalPrediction(ids, batch["labels"].numpy())) == {"bleu": expected}
    with pytest.raises(UserError, match="predict_with_generate"):
        prepared.compute_metrics(hf.EvalPrediction(np.zeros((2, 6, 9)), batch["labels"].numpy()))


def test_endings_of_multiple_choice_are_padded_together() -> None:
    tokenizer = make_tokenizer(["a", "b", "c"])
    task = Task("mine", "multiple_choice", ("x", "e0", "e1"), "label", ("0", "1"))
    columns = {"x": ["a", "a a"], "e0": ["b", "b b"], "e1": ["c", "c c c"]}
    data = Data(task, Dataset.from_dict({**columns, "label": [1, 0]}), None, Dataset.from_dict(columns))
    prepared = prepare(data, tokenizer)
    assert prepared.train is not None
    assert prepared.test is not None
    assert prepared.train["length"][:] == [5, 8]
    batch = prepared.collator([dict(row) for row in prepared.train])
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (2, 2, 8), "token_type_ids": (2, 2, 8), "attention_mask": (2, 2, 8), "labels": (2,),
    }  # fmt: skip
    pieces = [tokenizer.decode(row) for row in batch["input_ids"].flatten(0, 1)]
    assert [text.replace(" [PAD]", "") for text in pieces] == [
        "[CLS] a [SEP] b [SEP]", "[CLS] a [SEP] c [SEP]", "[CLS] a a [SEP] b b [SEP]", "[CLS] a a [SEP] c c c [SEP]",
    ]  # fmt: skip
    assert batch["labels"].tolist() == [1, 0]
    assert "labels" not in prepared.collator([dict(row) for row in prepared.test])
    assert prepared.decode(np.array([[0.1, 0.2], [3.0, -1.0]])) == [1, 0]


def test_hidden_states_are_dropped() -> None:
    logits = torch.zeros(2, 3)
    assert keep_logits((logits, torch.zeros(9)), None) is logits
    assert keep_logits(logits, None) is logits


REAL_TASKS = [
    "glue/cola", "glue/sst2", "glue/mrpc", "glue/stsb", "glue/qqp", "glue/mnli", "glue/qnli", "glue/rte", "imdb",
    "conll2003", "ptb", "swag", "hans", "wmt16/en-ro", "wmt16/ro-en", "multi30k/en-de",
]  # fmt: skip


def raw_rows(task: Task, part: str) -> Any:
    """The same rows read without the library under test."""
    folder = next(REAL / name for name in task.folders if (REAL / name).is_dir())
    return pandas.read_parquet(next(iter(sorted(folder.glob(f"{part}*.parquet"))))).head(ROWS)


def expected_scores(task: Task, decoded: list[Any], raw: Any) -> dict[str, float]:
    """Scores by a direct call of each library, from the decoded predictions and the raw file."""
    if task.kind == "translation":
        return {"bleu": sacrebleu.corpus_bleu(decoded, [raw[task.text[1]].tolist()]).score}
    if task.kind == "token_classification":
        gold = [list(tags) for tags in raw[task.label]]
        flat = sklearn.metrics.accuracy_score([t for row in gold for t in row], [t for row in decoded for t in row])
        if task.name == "ptb":
            return {"token_accuracy": flat}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {
                "entity_f1": seqeval.metrics.f1_score(gold, decoded),
                "entity_precision": seqeval.metrics.precision_score(gold, decoded),
                "entity_recall": seqeval.metrics.recall_score(gold, decoded),
                "token_accuracy": flat,
            }
    gold = raw[task.label].tolist()
    if task.kind == "regression":
        values = (scipy.stats.pearsonr(decoded, gold).statistic, scipy.stats.spearmanr(decoded, gold).statistic)
        return dict(zip(("pearson", "spearman"), values, strict=True))
    predicted = decoded if task.kind == "multiple_choice" else [task.labels.index(name) for name in decoded]
    direct = {
        "accuracy": sklearn.metrics.accuracy_score,
        "f1": sklearn.metrics.f1_score,
        "mcc": sklearn.metrics.matthews_corrcoef,
    }
    return {name: direct[name](gold, predicted) for name in task.metrics}


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the real data in ../shared/data")
@pytest.mark.parametrize("name", REAL_TASKS)
def test_real_task_trains_and_scores_match_the_libraries(name: str, tmp_path: Path) -> None:
    data = load_task(name, REAL, evaluation=True)
    train, validation = data.train, data.validation
    assert validation is not None
    data = Data(data.task, train and train.select(range(ROWS)), validation.select(range(ROWS)))
    tokenizer = make_tokenizer(max_length=256)
    prepared = prepare(data, tokenizer, 256)
    assert prepared.metric == data.task.metrics[0]
    assert prepared.greater_is_better
    translates = data.task.kind == "translation"
    folder = save_model(tmp_path / "model", tokenizer, data.task.kind)
    torch.manual_seed(1)
    model = load_model(folder, data.task, tokenizer=tokenizer)
    options = {"predict_with_generate": True, "generation_max_length": 12, "generation_num_beams": 1}
    arguments = (hf.Seq2SeqTrainingArguments if translates else hf.TrainingArguments)(
        str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=4, per_device_eval_batch_size=32, seed=1,
        report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no", logging_strategy="no",
        **(options if translates else {}),
    )  # fmt: skip
    trainer = (hf.Seq2SeqTrainer if translates else hf.Trainer)(
        model=model, args=arguments, train_dataset=prepared.train, data_collator=prepared.collator,
        compute_metrics=prepared.compute_metrics,
    )  # fmt: skip
    if prepared.train is not None:
        assert np.isfinite(trainer.train().training_loss)
    output = trainer.predict(prepared.validation)
    decoded = prepared.decode(output.predictions, "validation")
    raw = raw_rows(data.task, "test" if name == "imdb" else "validation")
    assert len(decoded) == len(raw) == ROWS
    if data.task.kind == "token_classification":
        assert [len(tags) for tags in decoded] == [len(words) for words in raw["tokens"]]
        assert prepared.notes == []
    expected = expected_scores(data.task, decoded, raw)
    assert {key: output.metrics[f"test_{key}"] for key in data.task.metrics} == pytest.approx(expected, abs=1e-6)

    table = pandas.read_csv(
        write_predictions(tmp_path / "said.tsv", validation.select(range(ROWS)), decoded, data.task),
        sep="\t", keep_default_na=False,
    )  # fmt: skip
    assert len(table) == ROWS
    text = [" ".join(value) if data.task.kind == "token_classification" else value for value in raw[data.task.text[0]]]
    assert table[data.task.text[0]].tolist() == text
    answers = [" ".join(answer) if isinstance(answer, list) else answer for answer in decoded]
    assert table["prediction"].tolist() == (pytest.approx(answers) if name == "glue/stsb" else answers)
    if data.task.submission:
        path = write_submission(tmp_path, data.task, decoded)
        assert len(path.read_text().splitlines()) == ROWS + 1


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the real data in ../shared/data")
def test_the_labels_of_all_of_conll_survive() -> None:
    """For every validation sentence, right predictions at first pieces give the tags of the file, and an F1 of 1."""
    data = load_task("conll2003", REAL)
    data = Data(data.task, None, data.validation)
    prepared = prepare(data, make_tokenizer(max_length=512), 512)
    raw = [list(tags) for tags in pandas.read_parquet(REAL / "conll2003" / "validation.parquet")["ner_tags"]]
    assert prepared.validation is not None
    longest = max(prepared.validation["length"])
    gold = np.full((len(raw), longest), -100)
    for row, labels in enumerate(prepared.validation["labels"]):
        gold[row, : len(labels)] = labels
    logits = np.eye(9, dtype=np.float32)[np.where(gold < 0, 1, gold)]
    assert prepared.decode(logits, "validation") == raw
    assert prepared.compute_metrics(hf.EvalPrediction(logits, gold))["entity_f1"] == 1.0


@pytest.mark.parametrize(
    ("name", "part", "decoded", "file", "lines"),
    [
        ("glue/rte", "test", ["not_entailment", "entailment"], "RTE.tsv", ["0\tnot_entailment", "1\tentailment"]),
        ("glue/qnli", "test", ["entailment"], "QNLI.tsv", ["0\tentailment"]),
        ("glue/mnli", "test", ["neutral", "contradiction"], "MNLI-m.tsv", ["0\tneutral", "1\tcontradiction"]),
        ("glue/mnli", "test_mismatched", ["entailment"], "MNLI-mm.tsv", ["0\tentailment"]),
        ("glue/cola", "test", ["acceptable", "unacceptable"], "CoLA.tsv", ["0\t1", "1\t0"]),
        ("glue/sst2", "test", ["positive"], "SST-2.tsv", ["0\t1"]),
        ("glue/mrpc", "test", ["not_equivalent"], "MRPC.tsv", ["0\t0"]),
        ("glue/qqp", "test", ["duplicate"], "QQP.tsv", ["0\t1"]),
        ("glue/wnli", "test", ["entailment", "not_entailment"], "WNLI.tsv", ["0\t1", "1\t0"]),
        ("glue/stsb", "test", [5.3, -0.1, 2.71828], "STS-B.tsv", ["0\t5.000", "1\t0.000", "2\t2.718"]),
    ],
)
def test_submissions_have_the_format_of_the_glue_website(
    name: str, part: str, decoded: list[Any], file: str, lines: list[str], tmp_path: Path
) -> None:
    path = write_submission(tmp_path, find_task(name), decoded, part)
    assert path == tmp_path / file
    assert path.read_text().split("\n") == ["index\tprediction", *lines, ""]


def test_predictions_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the GLUE website accepts no predictions for test of hans"):
        write_submission(tmp_path, find_task("hans"), ["entailment"])
    part = Dataset.from_dict({"premise": ["a"], "hypothesis": ["b"]})
    with pytest.raises(UserError, match=r"must end in \.csv or \.tsv"):
        write_predictions(tmp_path / "a.xlsx", part, ["entailment"], find_task("hans"))
    with pytest.raises(UserError, match="2 predictions for 1 examples"):
        write_predictions(tmp_path / "a.csv", part, ["entailment"] * 2, find_task("hans"))
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_predictions_has_texts_labels_and_predictions(tmp_path: Path) -> None:
    part = Dataset.from_dict({"premise": ['a, "b"'], "hypothesis": ["c\td"], "label": [1], "subcase": ["x"]})
    path = write_predictions(tmp_path / "a.csv", part, ["entailment"], find_task("hans"))
    assert path.read_text() == 'premise,hypothesis,label,prediction\n"a, ""b""",c\td,non-entailment,entailment\n'
    tokens = Dataset.from_dict({"tokens": [["EU", "won"]], "ner_tags": [[3, 0]]})
    path = write_predictions(tmp_path / "b.csv", tokens, [["B-ORG", "B-PER"]], CONLL)
    assert path.read_text() == "tokens,ner_tags,prediction\nEU won,B-ORG O,B-ORG B-PER\n"
