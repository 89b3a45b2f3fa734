"""A cross-encoder: MiniLM reads both texts of a pair at once, with a regulariser in CrossEncoderTrainer.

    python examples/cross_encoder.py                             # pairs of film reviews; no hub is needed
    python examples/cross_encoder.py --data nyu-mll/glue:mrpc    # MRPC from the Hub
    python examples/cross_encoder.py --data pairs.csv            # sentence1, sentence2 and label (0 or 1)

The score is the share of test pairs whose label is predicted right. What came out on MRPC is in
docs/guides/examples.md.
"""

from __future__ import annotations

import tempfile
from typing import Any

from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from side_by_side import Scores, compare, first, load_rows, minilm, read_options, review_pairs
from transformers import set_seed

from attendrop import regularized


def main() -> None:
    options = read_options(__doc__ or "", "addrop:p=0.3,q=0.3,cross_tuning=false", train=300, test=300, epochs=3)
    train, test = load_rows(options.data) if options.data else review_pairs(options.train, options.test)
    columns = ["sentence1", "sentence2", "label"]
    train, test = first(train, options.train).select_columns(columns), first(test, options.test).select_columns(columns)
    labels = [float(label) for label in train["label"]]
    train = train.remove_columns("label").add_column("label", labels)

    def run(seed: int, methods: list[Any]) -> Scores:
        set_seed(seed)  # the head is new: its weights depend on the seed
        model = CrossEncoder(minilm(options), num_labels=1, device=options.device)
        with tempfile.TemporaryDirectory() as folder:
            arguments = CrossEncoderTrainingArguments(
                folder, seed=seed, num_train_epochs=options.epochs, per_device_train_batch_size=16,
                learning_rate=1e-4, warmup_steps=0.1, save_strategy="no", report_to="none", disable_tqdm=True,
                use_cpu=options.device == "cpu",
            )  # fmt: skip
            trainer = regularized(CrossEncoderTrainer)(
                model=model, args=arguments, train_dataset=train, loss=BinaryCrossEntropyLoss(model),
                regularizers=methods,
            )  # fmt: skip
            trainer.train()
        pairs = list(zip(test["sentence1"], test["sentence2"], strict=True))
        scores = model.predict(pairs, show_progress_bar=False)
        right = [(score > 0.5) == bool(label) for score, label in zip(scores, test["label"], strict=True)]
        return {"accuracy": sum(right) / len(right)}

    compare(run, options)


if __name__ == "__main__":
    main()
