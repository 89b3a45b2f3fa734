"""Trains a tiny model on two CPU processes: `torchrun --nproc_per_node 2 train_distributed.py MODE METHOD FOLDER`.

With --resume it continues from the last checkpoint in FOLDER. Each rank writes its results to FOLDER/rank<r>.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from accelerate import DistributedType, PartialState
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from attendrop import Plan, RegularizedTrainer, Seams, bind, parse_method
from helpers.data import SGD, make_arguments, make_examples, pad
from helpers.precision import float64
from helpers.zoo import make_model

STEPS = 6
SAVE_STEPS = 4  # in the middle of a round
ATTENDOUT_STEPS = 8  # two rounds of three and two steps of a third, in which the two networks go different ways
METHODS = {
    "addrop": "addrop:p=0.5,q=0.5,layers=all,cross_tuning=false",
    "dev": "attendout:T=3,init_drop=0.5,samples=8,reward_on=dev,select=attacker",
    # rewards differ between the processes, and so would the choice, if each went by its own
    "cached": "attendout:T=3,init_drop=0.5,reward_on=cached,select=better,active=0.5",
}
MODES: dict[str, dict[str, Any]] = {
    "alone": {"per_device_train_batch_size": 8},
    "ddp": {"per_device_train_batch_size": 4},
    "ddp_saved": {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": SAVE_STEPS},
    "fsdp": {
        "per_device_train_batch_size": 4,
        "fsdp": True,
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]},
    },
    "sharded_at_load": {"per_device_train_batch_size": 4},
}


def load_sharded(folder: str) -> Any:
    """The second way to use FSDP2: transformers shards the model while loading it, before the seams are bound."""
    model, path = make_model("bert", dropout=False), Path(folder, "model")
    model.save_pretrained(path)  # the first process writes
    PartialState().wait_for_everyone()
    return type(model).from_pretrained(path, distributed_config=DistributedConfig(fsdp_size=2))


def make_trainer(mode: str, method: str, folder: str, **fields: Any) -> Any:
    """The same run for any number of processes: no ordinary dropout, batches padded to their longest example."""
    # Averaging over tokens is for language models: BERT's loss ignores it, and the Trainer would double the gradient.
    regularizer = parse_method(METHODS[method])
    for name, value in fields.items():
        setattr(regularizer, name, value)
    args = make_arguments(
        folder,
        max_steps=STEPS if method == "addrop" else ATTENDOUT_STEPS,
        average_tokens_across_devices=False,
        logging_strategy="steps",
        logging_steps=1,
        **{**SGD, **MODES[mode]},
    )
    if mode == "fsdp":
        # Accelerate lets FSDP be used with several GPUs only, though nothing in it needs one: on CPUs it would train
        # with DDP instead and say nothing.
        PartialState().distributed_type = DistributedType.MULTI_GPU
    return RegularizedTrainer(
        model=load_sharded(folder) if mode == "sharded_at_load" else make_model("bert", dropout=False),
        args=args,
        train_dataset=make_examples("bert", 64),
        eval_dataset=make_examples("bert", 16, seed=8),
        data_collator=pad,
        regularizers=[regularizer],
    )


def full_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights; sharded ones are gathered from all processes."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in model.state_dict().items()
    }


def networks_of(trainer: Any) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of all networks that were trained."""
    method = trainer.regularizers[0]
    beside = {name: getattr(method, name, None) for name in ("defender", "generator")}
    return {"model": full_weights(trainer.model)} | {
        name: full_weights(network) for name, network in beside.items() if network is not None
    }


def edits_of_block(model: torch.nn.Module) -> int:
    """How often the edit after one block runs in one pass when the trained model is bound again."""
    runs = []

    def edit(hidden: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return hidden

    seams = bind(model)
    with torch.no_grad(), seams.applied(Plan(edits={0: (edit,)})):
        model(**pad(make_examples("bert", 2)))
    seams.unbind()
    return len(runs)


def main() -> None:
    mode, method, folder, *options = sys.argv[1:]
    torch.set_num_threads(1)
    with float64():  # so that rounding plays no part in comparisons with one process
        train(mode, method, folder, "--resume" in options)


def train(mode: str, method: str, folder: str, resume: bool) -> None:
    trainer = make_trainer(mode, method, folder)
    trainer.train(resume_from_checkpoint=resume)
    saved = {
        "networks": networks_of(trainer),
        "record": trainer.regularizers[0].record() if method != "addrop" else [],
        "logs": trainer.state.log_history,
        "world": trainer.args.world_size,
        "strategy": trainer.accelerator.distributed_type.value,
        "sharded": sum(isinstance(parameter, DTensor) for parameter in trainer.model.parameters()),
        "unbound": Seams.of(trainer.model) is None,
        "edits": edits_of_block(trainer.model),
    }
    torch.save(saved, Path(folder, f"rank{trainer.args.process_index}.pt"))


if __name__ == "__main__":
    main()
