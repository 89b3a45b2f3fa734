"""Supervised fine-tuning with LoRA: SmolLM2-135M learns to judge film reviews, with a regulariser in TRL's SFTTrainer.

    python examples/sft_lora.py                     # film reviews; no hub is needed
    python examples/sft_lora.py --data reviews.csv  # text and label (0 or 1)

Only the loss of the answer counts, as TRL does it for data with `prompt` and `completion`. The scores are the loss of
the right answers to test prompts, and the share of them that the model prefers to the wrong one.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from side_by_side import Scores, compare, film_reviews, first, load_rows, read_options
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from attendrop import regularized
from attendrop.lab.tasks.downloads import SMOLLM2, fetch

ANSWERS = (" negative", " positive")
(WEIGHTS,) = SMOLLM2.files  # the name of the GGUF file


def as_prompts(rows: Dataset) -> Dataset:
    """Prompts and the answers to them."""
    return Dataset.from_list(
        [{"prompt": f"Review: {row['text']}\nThe review is", "completion": ANSWERS[int(row["label"])]} for row in rows]
    )


@torch.inference_mode()
def judge(model: Any, tokenizer: Any, test: Dataset) -> Scores:
    """The mean loss of the right answer, and how often it is more likely than the wrong one."""
    model.eval()
    first_tokens = [tokenizer(answer, add_special_tokens=False)["input_ids"][0] for answer in ANSWERS]
    likelihoods = []
    for rows in test.batch(32):
        batch = tokenizer(rows["prompt"], return_tensors="pt", padding=True, padding_side="right").to(model.device)
        last = batch["attention_mask"].sum(-1) - 1  # the position of the last token of each prompt
        logits = model(**batch).logits[torch.arange(len(last)), last].float()
        likelihoods.append(logits.log_softmax(-1)[:, first_tokens].cpu())
    scores = torch.cat(likelihoods)
    gold = torch.tensor([ANSWERS.index(answer) for answer in test["completion"]])
    right = scores.argmax(-1) == gold
    return {
        "test loss": -scores.gather(1, gold.unsqueeze(1)).mean().item(),
        "accuracy": right.float().mean().item(),
    }


def main() -> None:
    options = read_options(__doc__ or "", "hiddenkey", train=48, test=60, epochs=2)
    train, test = load_rows(options.data) if options.data else film_reviews(options.train, options.test)
    train, test = as_prompts(first(train, options.train)), as_prompts(first(test, options.test))
    source = options.model or str(fetch(SMOLLM2))
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS)
    # transformers unpacks the 4 bits of the file to float32, but refuses to train the result: it counts as quantised.
    # An ordinary model with the same weights is trained.
    config = AutoConfig.from_pretrained(source, gguf_file=WEIGHTS)
    weights = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype=torch.float32).state_dict()

    def run(seed: int, methods: list[Any]) -> Scores:
        set_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(weights)
        with tempfile.TemporaryDirectory() as folder:
            arguments = SFTConfig(
                folder, seed=seed, num_train_epochs=options.epochs, per_device_train_batch_size=8, learning_rate=2e-4,
                max_length=128, bf16=False, save_strategy="no", report_to="none", disable_tqdm=True,
                use_cpu=options.device == "cpu", gradient_checkpointing=False,
            )  # fmt: skip
            trainer = regularized(SFTTrainer)(
                model=model, args=arguments, train_dataset=train, processing_class=tokenizer, regularizers=methods,
                peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
            )  # fmt: skip
            trainer.train()
        return judge(trainer.model, tokenizer, test)

    compare(run, options)


if __name__ == "__main__":
    main()
