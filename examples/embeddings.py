"""Sentence embeddings: MiniLM with a regulariser in SentenceTransformerTrainer, beside plain training.

    python examples/embeddings.py                             # pairs of film reviews; no hub is needed
    python examples/embeddings.py --data nyu-mll/glue:stsb    # STS-B from the Hub
    python examples/embeddings.py --data pairs.csv            # sentence1, sentence2 and label (or score)

The similarity of two embeddings learns the label; a label above 1 is divided by 5, as in STS-B. The score is Spearman's
correlation on test pairs. What came out on STS-B is in docs/guides/examples.md.
"""

from __future__ import annotations

import tempfile
from typing import Any

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from side_by_side import Scores, compare, first, load_rows, minilm, read_options, review_pairs
from transformers import set_seed

from attendrop import regularized


def as_similarities(rows: Dataset) -> Dataset:
    """The columns that the loss reads, with a score from 0 to 1."""
    labels = rows["score" if "score" in rows.column_names else "label"]
    scale = 5.0 if max(labels) > 1 else 1.0
    scores = [label / scale for label in labels]
    return rows.select_columns(["sentence1", "sentence2"]).add_column("score", scores)


def main() -> None:
    options = read_options(__doc__ or "", "addrop:p=0.3,q=0.3,cross_tuning=false", train=300, test=300, epochs=2)
    train, test = load_rows(options.data) if options.data else review_pairs(options.train, options.test)
    train, test = as_similarities(first(train, options.train)), as_similarities(first(test, options.test))

    def run(seed: int, methods: list[Any]) -> Scores:
        set_seed(seed)
        model = SentenceTransformer(minilm(options), device=options.device)
        with tempfile.TemporaryDirectory() as folder:
            arguments = SentenceTransformerTrainingArguments(
                folder, seed=seed, num_train_epochs=options.epochs, per_device_train_batch_size=16,
                learning_rate=5e-5, warmup_steps=0.1, save_strategy="no", report_to="none", disable_tqdm=True,
                use_cpu=options.device == "cpu",
            )  # fmt: skip
            trainer = regularized(SentenceTransformerTrainer)(
                model=model, args=arguments, train_dataset=train, loss=CosineSimilarityLoss(model),
                regularizers=methods,
            )  # fmt: skip
            trainer.train()
        evaluate = EmbeddingSimilarityEvaluator(test["sentence1"], test["sentence2"], test["score"])
        return {"spearman": evaluate(model)["spearman_cosine"]}

    compare(run, options)


if __name__ == "__main__":
    main()
