"""Trains every method on the tiny models and prints a hash of the weights, one line a run.

    python tests/scripts/fingerprint.py > after.txt

Two versions of the library that print the same lines train the same, bit for bit: run it before and after a change that
must not change behaviour, on the same machine, and compare.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformers import TrainingArguments

from attendrop import KeepsState, RegularizedTrainer, attribute, parse_method
from attendrop.methods import make_method
from helpers import zoo
from helpers.settings import SETTINGS

MORE = [
    "addrop:p=0.3..0.8,q=0.5,layers=all",
    "addrop:attribution=iga,ig_rule=gauss,ig_steps=3,layers=all,cross_tuning=False,p=0.5,q=0.5",
    "addrop:attribution=aa,layers=all,cross_tuning=False,p=0.5,q=0.5,direction=low",
    "addrop:attribution=rd,layers=all,cross_tuning=False,p=0.5,q=0.5",
    "attendout:T=2,init_drop=0.4,reward_on=dev,samples=6",
    "attendout:T=2,init_drop=0.4,reward_on=held_out,samples=6,select=better,reward=metric",
    "attendout:T=2,init_drop=0.4,reward_on=cached,monte_carlo=2,active=0.5,reward=win",
    "attendout:T=2,init_drop=0.4,mode=prune",
    "child_tuning:variant=D,p=0.5,samples=4",
    "mixout:p=0.5,pattern=element",
    "hiddencut:ratio=0.3",
    "scores_dropout:p=0.3,pattern=span",
]


def digest(tensors: dict[str, Any]) -> str:
    checksum = hashlib.sha256()
    for name in sorted(tensors):
        checksum.update(name.encode())
        checksum.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()[:16]


def train(kind: str, regularizers: list, columns: dict[str, Any], **options: Any) -> str:
    batch = zoo.make_batch(kind, size=12, seed=4) | columns
    data = [{k: v[i] for k, v in batch.items()} for i in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-3, save_strategy="no",
            logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, seed=3, **options,
        )  # fmt: skip
        trainer = RegularizedTrainer(
            model=zoo.make_model(kind), args=args, train_dataset=data, eval_dataset=data, regularizers=regularizers
        )
        trainer.log = lambda logs, *rest, **more: trainer.state.log_history.append(logs)
        trainer.train()
        states: dict[str, Any] = {}
        for regularizer in (method for method in regularizers if isinstance(method, KeepsState)):
            states |= {f"state.{k}": v for k, v in regularizer.state()[0].items()}
        return digest({**trainer.model.state_dict(), **states})


def main() -> None:
    torch.set_num_threads(1)
    for kind in zoo.ARCHITECTURES:
        print("plain", kind, train(kind, [], {}), flush=True)
        for method in ("ga", "aa", "iga"):
            model, batch = zoo.make_model(kind), zoo.make_batch(kind)
            actual = attribute(model, batch, method)
            print("attribute", method, kind, digest({str(k): v for k, v in actual.items()}), flush=True)
    for method, setting in SETTINGS.items():
        for kind in setting.models:
            columns = setting.columns(zoo.make_batch(kind, size=12, seed=4), "usual")
            for accumulate in (1, 2):
                made = [make_method(method, setting.usual)]
                actual = train(kind, made, columns, gradient_accumulation_steps=accumulate)
                print(method, kind, f"accumulation {accumulate}", actual, flush=True)
    for text in MORE:
        for kind in ("bert", "gpt2", "bart"):
            print(text, kind, train(kind, [parse_method(text)], {}), flush=True)
    pair = [parse_method("addrop:p=0.5,q=0.5,layers=all,cross_tuning=False"), parse_method("rdrop:alpha=1.0")]
    print("addrop and rdrop", train("bert", pair, {}), flush=True)


if __name__ == "__main__":
    main()
