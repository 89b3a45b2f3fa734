"""How often the right class is in the prediction set, and how accurate the answers are that are given, on twelve sets.

    python -m studies.selective --data ../shared/data/arena --model sentence-transformers/all-MiniLM-L6-v2

A logistic regression reads the mean-pooled features of an untrained encoder. In each of the repetitions other 500
examples choose the temperature, the threshold and the cut, and others measure them: `studies/results/selective.csv`.
`chosen` is the share of the repetitions in which there is a threshold, and `missed` that in which the accuracy of the
answers is below the target on the other examples, which may happen in 10 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.lab.statistics.calibration import fit_temperature, softmax
from attendrop.lab.statistics.selective import choose_confidence, conformal_cut, prediction_sets
from benchmarks.records import append, conditions

from . import RESULTS as FOLDER

RESULTS = FOLDER / "selective.csv"
TRAIN, VALIDATION, TEST = 500, 500, 500
COVERAGE, ACCURACIES = 0.9, (0.9, 0.95)


def features(model: Any, tokenizer: Any, rows: Any) -> np.ndarray:
    """Mean-pooled features; of a pair [u, v, |u − v|, u ∗ v]."""
    import torch

    def pooled(texts: list[str]) -> np.ndarray:
        order, parts = np.argsort([len(text) for text in texts]), []
        for first in range(0, len(order), 64):
            batch = tokenizer(
                [texts[i] for i in order[first : first + 64]], truncation=True, max_length=64, padding=True,
                return_tensors="pt",
            )  # fmt: skip
            with torch.inference_mode():
                hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            parts.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).numpy())
        return np.concatenate(parts)[np.argsort(order)]

    u = pooled(rows["text"].tolist())
    if "text_pair" not in rows or rows["text_pair"].isna().all():
        return u
    v = pooled(rows["text_pair"].tolist())
    return np.concatenate([u, v, np.abs(u - v), u * v], -1)


def measure(logits: np.ndarray, gold: np.ndarray, draw: np.random.Generator) -> dict[str, float]:
    """Choose on 500 examples and measure on the others."""
    order = draw.permutation(len(gold))
    validation, test = order[:VALIDATION], order[VALIDATION : VALIDATION + TEST]
    temperature = fit_temperature(logits[validation], gold[validation])
    known, new = softmax(logits[validation], temperature), softmax(logits[test], temperature)
    cut = conformal_cut(known[np.arange(len(validation)), gold[validation]], COVERAGE)
    assert cut is not None
    sets = prediction_sets(new, cut)
    is_correct = new.argmax(-1) == gold[test]
    row = {
        "accuracy": is_correct.mean(),
        "coverage": sets[np.arange(len(test)), gold[test]].mean(),
        "classes_in_set": sets.sum(-1).mean(),
    }
    for accuracy in ACCURACIES:
        chosen = choose_confidence(known.max(-1), known.argmax(-1) == gold[validation], accuracy)
        is_answered = new.max(-1) >= chosen.threshold if chosen is not None else np.zeros(len(test), bool)
        row[f"answered_{accuracy}"] = is_answered.mean()
        row[f"expected_{accuracy}"] = 0.0 if chosen is None else chosen.answered
        row[f"accuracy_{accuracy}"] = is_correct[is_answered].mean() if is_answered.any() else np.nan
    return row


def main() -> None:
    import pandas as pd
    import transformers
    from sklearn.linear_model import LogisticRegression

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repetitions", type=int, default=100)
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModel.from_pretrained(options.model).eval()
    rows = []
    for folder in sorted(path for path in options.data.iterdir() if path.is_dir()):
        draw = np.random.default_rng(0)
        train, test = (pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "test"))
        train = train.sample(min(TRAIN, len(train)), random_state=0)
        test = test.sample(min(VALIDATION + TEST, len(test)), random_state=0)
        names = sorted(train["label"].unique())
        test = test[test["label"].isin(names)]
        gold = np.searchsorted(names, test["label"].to_numpy())
        probe = LogisticRegression(max_iter=2000, C=10).fit(features(model, tokenizer, train), train["label"])
        logits = np.log(probe.predict_proba(features(model, tokenizer, test)))
        of_set = [measure(logits, gold, draw) for _ in range(options.repetitions)]
        measured = pd.DataFrame(of_set)
        means = measured.mean().to_dict()  # the accuracy of answers is that of the repetitions that have any
        for accuracy in ACCURACIES:
            means[f"missed_{accuracy}"] = (measured[f"accuracy_{accuracy}"] < accuracy).mean()
            means[f"chosen_{accuracy}"] = measured[f"accuracy_{accuracy}"].notna().mean()
        row = {"set": folder.name, "classes": len(names), "repetitions": options.repetitions}
        row |= {name: "" if np.isnan(value) else round(float(value), 4) for name, value in means.items()}
        rows.append({**row, "model": Path(options.model).name, **conditions("cpu")})
        print(rows[-1], flush=True)
    append(RESULTS, rows)


if __name__ == "__main__":
    main()
