"""Few-shot classification with setfit: MiniLM learns from eight examples of each class, with a regulariser.

    python examples/setfit_few_shot.py                     # film reviews; no hub is needed
    python examples/setfit_few_shot.py --data tickets.csv  # text and label

setfit makes pairs of the few examples, trains the embeddings on them, and fits a classifier on top. The regulariser
acts while the embeddings are trained. Each seed draws other examples. The score is the accuracy on test examples.
"""

from __future__ import annotations

import tempfile
from typing import Any

from setfit import SetFitModel, Trainer, TrainingArguments, sample_dataset
from side_by_side import Scores, compare, film_reviews, first, load_rows, minilm, read_options
from transformers import set_seed

from attendrop import regularized


def main() -> None:
    options = read_options(__doc__ or "", "addrop:p=0.3,q=0.3,cross_tuning=false", train=16, test=300, epochs=1)
    train, test = load_rows(options.data) if options.data else film_reviews(2000, options.test)
    test = first(test, options.test)
    each = max(1, options.train // len(set(train["label"])))

    def run(seed: int, methods: list[Any]) -> Scores:
        set_seed(seed)
        model = SetFitModel.from_pretrained(minilm(options), device=options.device)
        few = sample_dataset(train, label_column="label", num_samples=each, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder, seed=seed, batch_size=16, num_epochs=options.epochs, num_iterations=1 if options.quick else 20,
                save_strategy="no", report_to="none", show_progress_bar=False,
            )  # fmt: skip
            trainer = regularized(Trainer)(model=model, args=arguments, train_dataset=few, regularizers=methods)
            trainer.train()
        predicted = model.predict(test["text"], show_progress_bar=False)
        right = [str(answer) == str(label) for answer, label in zip(predicted.tolist(), test["label"], strict=True)]
        return {"accuracy": sum(right) / len(right)}

    compare(run, options)


if __name__ == "__main__":
    main()
