"""Simple baselines of a run, on the same split: models that take seconds, and that fine-tuning has to beat.

    words     TF-IDF of words and pairs of words; in tagging the word, its ends, its shape and its neighbours
    frozen    the linear model of the features of the untrained encoder that the head reads (`frozen.py`)
    means     where the head reads something else: of the mean hidden states of the text, or of each of two texts
    cosine    for pairs with a number: the cosine of the mean hidden states of the two texts

The first three are fitted as their kind of task says (`Kind.linear`). Labels are predicted above a threshold that is
chosen as that of the fine-tuned model is. Whether the difference to the fine-tuned model is more than noise is the
question of a test over the validation examples: of McNemar for an accuracy, and otherwise a
paired bootstrap, at 5 % divided by the number of baselines.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import set_seed

from ...model.modes import evaluating, is_sharded
from ...model.pooled import pair_features, pool
from ...model.pooled_config import encodes_apart, pooling_of
from ...model.sites import pretrained_part, unwrapped
from ...random import all_preserved
from ...utils.distributed import gather_objects
from .. import tasks
from ..evaluation.thresholds import choose_threshold
from ..records import BaselineScores
from ..statistics.calibration import score_interval
from ..statistics.linear import fit_ridge, stratified
from ..tasks.kinds import Answers
from ..tasks.metrics import metric_label
from ..tasks.pooling import can_have_pooling
from .frozen import BATCH, MOST_EXAMPLES, Frozen, fit_pairs
from .keeping import LEVEL, p_value
from .settings import RunConfig

Array = np.ndarray
MOST_ROWS = 20_000  # training examples, or words of tagging, that the baseline of words is fitted to
MOST_WEIGHTS = 4_000_000  # of the baseline of words: with thousands of classes it knows the most frequent words only
WORDS, FROZEN, MEANS, COSINE, TUNED = "words", "frozen", "means", "cosine", "fine-tuned"


class Baselines:
    """The simple baselines of a run, beside which its score is shown.

    Args:
        data: The data of the run.
        prepared: The tokenised data.
        frozen: The linear model of frozen features; None = the model and task have none.
    """

    def __init__(self, data: tasks.Data, prepared: tasks.Prepared, frozen: Frozen | None) -> None:
        self.data, self.prepared, self.frozen = data, prepared, frozen
        self.kind = tasks.kind_of(data.task)
        self._of_means: dict[str, Array] = {}  # outputs on the validation data

    def add_means(self, model: Any, tokenizer: Any, max_length: int) -> None:
        """Fit the linear model of the mean hidden states of the untrained model, and for numbers that of their cosine.

        Args:
            model: The untrained model.
            tokenizer: Its tokenizer.
            max_length: The length at which texts are cut.
        """
        train, validation, task, kind = self.data.train, self.data.validation, self.data.task, self.kind
        config, texts, linear = unwrapped(model).config, len(task.text), kind.linear
        if self.frozen is None or linear is None or train is None or validation is None or not can_have_pooling(task):
            return
        is_read = pooling_of(config) == "mean" and (texts == 1 or encodes_apart(config))
        has_cosine = kind.has_numbers and texts == 2
        if is_read and not has_cosine:
            return
        gold = kind.answers.of(task, None, train).gold
        rows = stratified(gold if kind.has_one_class else None, len(train), MOST_EXAMPLES)
        with torch.no_grad(), all_preserved(next(model.parameters()).device), evaluating(model):
            splits = (train.select(rows), validation)
            both = [_mean_states(model, tokenizer, split, task.text, max_length) for split in splits]
        if not (sides := [one for one in both if one is not None]):
            return
        if not is_read:
            mine, other = (one[0] if texts == 1 else _of_pairs(one) for one in sides)
            fit = linear.fit if texts == 1 else functools.partial(fit_pairs, linear)
            self._of_means[MEANS] = fit(mine, gold[rows], max(len(task.labels), 1))(other)
        if has_cosine:
            mine, other = ((one[0] * one[1]).sum(1) for one in map(_of_length_one, sides))
            self._of_means[COSINE] = fit_ridge(mine[:, None], gold[rows].astype(float), (1e-6,))(other[:, None])[:, 0]

    @property
    def flags_of_means(self) -> str:
        """The flags with which the head reads the mean hidden states."""
        return "--pooling mean" + (" --pairs separate" if len(self.data.task.text) == 2 else "")

    def compare(self, answers: Answers, world: int = 1) -> BaselineScores:
        """Compare the model with the baselines on the validation data.

        Args:
            answers: The answers of the fine-tuned model.
            world: The number of processes, of which the first one decides.
        """
        metric = tasks.METRICS[answers.task.metrics[0]]
        sign = 1 if metric.greater_is_better else -1
        others = self._answers(answers)
        score = {TUNED: metric(*answers.for_metrics(answers.predicted))}
        score |= {name: metric(*other.for_metrics(other.predicted)) for name, other in others.items()}
        fit = getattr(self.kind.linear, "fitted_by", "")
        words = f"word features with {fit}" if self.kind.is_per_word else f"TF-IDF with {fit}"
        names = {
            TUNED: "the fine-tuned model",
            WORDS: words,
            FROZEN: f"frozen features with {fit}",
            MEANS: f"the mean of frozen hidden states with {fit}",
            COSINE: "the cosine of frozen features",
        }
        baselines = BaselineScores(metric.name, score, {name: names[name] for name in score})
        if others:
            baselines.best = best = max(others, key=lambda name: sign * score[name])
            baselines.is_clear = _is_clear(metric, others[best], answers, LEVEL / len(others))
            if sign * score[best] >= sign * score[TUNED]:
                baselines.sentence = _sentence(baselines, best, self.flags_of_means)
        shared: BaselineScores = gather_objects(baselines, world)[0]
        return shared

    def _answers(self, tuned: Answers) -> dict[str, Answers]:
        """Return the answers of each baseline on the validation data."""
        answers = {}
        if (words := self._of_words()) is not None:
            answers[WORDS] = self._as_answers(words, tuned)
        if self.frozen is not None and self.frozen.validation is not None:
            values = self.frozen.validation
            if tuned.is_scored is not None:
                values = np.zeros((len(tuned.is_scored), values.shape[1]))
                values[tuned.is_scored] = self.frozen.validation
            answers[FROZEN] = self._as_answers(values, tuned)
        return answers | {name: self._as_answers(values, tuned) for name, values in self._of_means.items()}

    def _as_answers(self, values: Array, tuned: Answers) -> Answers:
        values = values[:, 0] if self.kind.has_numbers and values.ndim == 2 else values
        return choose_threshold(type(tuned)(tuned.task, values, tuned.gold, tuned.lengths, tuned.is_scored)).answers

    def _of_words(self) -> Array | None:
        """Return the outputs of the linear model of words on the validation data; None where there are no words."""
        task, linear, train, validation = self.data.task, self.kind.linear, self.data.train, self.data.validation
        if linear is None or train is None or validation is None or tasks.modality_of(task).name != "text":
            return None
        rows = _chosen(self.kind, linear, task, train)
        fitted = train.select(rows)
        starts = self.prepared.word_starts.get("train")
        gold = self.kind.answers.of(task, None, fitted, [starts[row] for row in rows] if starts else None).gold
        columns, outputs = self.kind.inputs(task), max(len(task.labels), 1)
        if self.kind.is_per_word:
            features = _tag_features(fitted, validation, columns)
        else:
            features = _text_features(fitted, validation, columns, max(MOST_WEIGHTS // outputs // len(columns), 1))
        return None if features is None else linear.fit(features[0], gold, outputs)(features[1])

    def replace(self, trainer: Any, config: RunConfig, baselines: BaselineScores) -> bool:
        """Give the model the untrained encoder and the frozen head, if that is better on the validation data.

        Args:
            trainer: The Trainer, after training.
            config: The configuration.
            baselines: From `compare`; it is noted there.
        """
        score, metric = baselines.scores, tasks.METRICS[baselines.metric]
        if self.frozen is None or FROZEN not in score or is_sharded(trainer.model):
            return False
        if not (score[FROZEN] > score[TUNED] if metric.greater_is_better else score[FROZEN] < score[TUNED]):
            return False
        device = next(trainer.model.parameters()).device
        with all_preserved(device), torch.no_grad():
            set_seed(trainer.args.seed)  # of the layers of the head below the last one
            fresh = tasks.load_model(config.model, self.data.task, trust_remote_code=config.trust_remote_code)
            self.frozen.write(self.frozen.solution, fresh)
            unwrapped(trainer.model).load_state_dict(fresh.state_dict())
        baselines.kept = FROZEN
        baselines.sentence = f"{baselines.sentence}; the model here is the untrained encoder with that head"
        return True


def _sentence(baselines: BaselineScores, best: str, flags_of_means: str) -> str:
    """Return what to know first about a run that the best baseline equals or beats."""
    score, label = baselines.scores, metric_label(baselines.metric)
    beaten = f"{baselines.names[best]} reaches a validation {label} of {_number(score[best])}, the fine-tuned model "
    beaten += _number(score[TUNED])
    if score[best] == score[TUNED]:
        text = f"{beaten}: a tie"
    else:
        text = f"{beaten}: " + ("it is better" if baselines.is_clear else "the difference is within noise")
    if best == FROZEN and score[best] != score[TUNED]:
        return f"{text} (--keep-best-of keeps it)"
    if best == MEANS and score[best] != score[TUNED]:
        return f"{text} (try {flags_of_means})"
    return f"{text}; train longer, try another --learning-rate or more data" if baselines.is_clear else text


def _number(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if abs(value) < 10 else f"{value:.4g}"


def _is_clear(metric: Any, one: Answers, other: Answers, level: float) -> bool:
    """Return whether a score is better than another one on the same examples by more than noise.

    An accuracy is tested exactly (McNemar). Of another score the percentiles of a bootstrap decide, as they are and
    shifted (`score_interval`): of few examples they are coarse, and the shift alone would move them over zero.
    """
    if metric.name == "accuracy" and one.has_confusion and one.is_scored is None:
        right, right_other = (np.asarray(of.predicted) == np.asarray(of.gold) for of in (one, other))
        return p_value(right, right_other) <= level
    sign = 1 if metric.greater_is_better else -1
    score, columns = metric.statistic(*one.for_metrics(one.predicted))
    score_other, columns_other = metric.statistic(*other.for_metrics(other.predicted))
    count, differences = len(columns), list[float]()

    def difference(*both: Any) -> float:
        differences.append(sign * float(score(*both[:count]) - score_other(*both[count:])))
        return differences[-1]

    with np.errstate(all="ignore"):
        low, _ = score_interval(difference, *columns, *columns_other, confidence=1 - level)
    return bool(low > 0 and np.quantile(differences, level / 2) > 0)


# ---- features of words ------------------------------------------------------------------------------------------


def _chosen(kind: tasks.Kind, linear: Any, task: tasks.Task, train: Any) -> Array:
    """Return the training examples that the words are learned from."""
    if kind.is_per_word:
        counts = np.cumsum([len(words) for words in train[task.text[0]][:]])
        return np.arange(max(1, int(np.searchsorted(counts, MOST_ROWS, side="right"))))[: len(train)]
    groups = np.asarray(train[task.label][:]) if kind.has_one_class else None
    return stratified(groups, len(train), MOST_ROWS)


def _text_features(train: Any, validation: Any, columns: Sequence[str], most: int) -> tuple[Any, Any] | None:
    """TF-IDF of the most frequent words and pairs of words of each text column; None if there are no words."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    parts = []
    for column in columns:
        vectors = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b|[^\w\s]", max_features=most
        )
        texts = [[str(text) for text in split[column][:]] for split in (train, validation)]
        try:
            parts.append((vectors.fit_transform(texts[0]), vectors.transform(texts[1])))
        except ValueError:  # the vocabulary is empty
            continue
    if not parts:
        return None
    mine, other = zip(*parts, strict=True)
    return hstack(mine).tocsr() / len(parts) ** 0.5, hstack(other).tocsr() / len(parts) ** 0.5


def _tag_features(train: Any, validation: Any, columns: Sequence[str]) -> tuple[Any, Any] | None:
    """Return indicators of each word: itself, its ends, its shape and its neighbours."""
    from sklearn.feature_extraction import DictVectorizer

    vectors = DictVectorizer()
    described = [
        [features for words in split[columns[0]][:] for features in _described([str(word) for word in words])]
        for split in (train, validation)
    ]
    if not described[0]:
        return None
    mine, other = vectors.fit_transform(described[0]), vectors.transform(described[1])
    size = len(described[0][0]) ** 0.5
    return mine / size, other / size


def _described(words: Sequence[str]) -> list[dict[str, float]]:
    features = []
    for place, word in enumerate(words):
        before = words[place - 1] if place else "^"
        after = words[place + 1] if place + 1 < len(words) else "$"
        shape = "".join("X" if c.isupper() else "x" if c.islower() else "0" if c.isdigit() else c for c in word)
        names = (
            f"w={word}", f"l={word.lower()}", f"e3={word[-3:].lower()}", f"e2={word[-2:].lower()}",
            f"b3={word[:3].lower()}", f"s={_squeezed(shape)}", f"-1={before.lower()}", f"+1={after.lower()}",
            f"-1s={_squeezed('X' if before[:1].isupper() else 'x')}", f"first={place == 0}",
        )  # fmt: skip
        features.append(dict.fromkeys(names, 1.0))
    return features


def _squeezed(shape: str) -> str:
    """Return a shape without its repetitions."""
    return "".join(c for i, c in enumerate(shape) if i == 0 or c != shape[i - 1])


def _mean_states(model: Any, tokenizer: Any, split: Any, columns: Sequence[str], max_length: int) -> list[Array] | None:
    """Return the mean hidden state of each text, an array for each column; None for encoder-decoders."""
    encoder, device = pretrained_part(model), next(model.parameters()).device
    if getattr(encoder.config, "is_encoder_decoder", False):
        return None
    sides = []
    for column in columns:
        texts = [str(text) for text in split[column][:]]
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        means: list[Any] = [None] * len(texts)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            part, options = [texts[row] for row in places], {"truncation": True, "max_length": max_length}
            batch = tokenizer(part, **options, padding=True, return_tensors="pt").to(device)
            batch.pop("token_type_ids", None)
            values = pool(encoder(**batch)[0], batch.get("attention_mask"), "mean").float().cpu().numpy()
            for place, row in zip(places, values, strict=True):
                means[place] = row
        sides.append(np.stack(means))
    return sides


def _of_pairs(sides: Sequence[Array]) -> Array:
    return pair_features(torch.as_tensor(np.stack(sides, 1)).flatten(0, 1)).numpy()


def _of_length_one(sides: Sequence[Array]) -> list[Array]:
    return [side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in sides]
