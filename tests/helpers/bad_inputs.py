"""A table of bad inputs: what is typed, which files it meets, and words of the one sentence that must answer it."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow.parquet


@dataclass(frozen=True)
class File:
    """A file that the row needs, by its name in the working folder."""

    name: str
    content: str | bytes


@dataclass(frozen=True)
class Model:
    """A copy of the tiny model whose files are changed: None deletes a file, a function gets and returns its bytes."""

    changes: dict[str, str | Callable[[bytes], bytes] | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Run(Model):
    """The same for a copy of the folder of a finished run."""


@dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        words: A regular expression that the sentence must match.
        settings: The settings of `attendrop train` that differ from a run that works; None leaves one out.
        command: Instead of settings, the words after `attendrop`.
        files: Files in the working folder; `folder/` at the end of a name makes an empty folder.
    """

    words: str
    settings: dict[str, Any] | None = None
    command: tuple[Any, ...] = ()
    files: tuple[File, ...] = ()

    @property
    def name(self) -> str:
        shown = self.command or [f"{k}={v}" for k, v in (self.settings or {}).items()]
        text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(str(word) for word in shown))  # the same in every process
        return text[:70].encode("unicode_escape").decode()


def train(words: str, /, *, files: tuple[File, ...] = (), **settings: Any) -> Bad:
    return Bad(words, settings=settings, files=files)


def command(words: str, /, *arguments: Any, files: tuple[File, ...] = ()) -> Bad:
    return Bad(words, command=arguments, files=files)


def csv(content: str | bytes, name: str = "given.csv") -> File:
    return File(name, content)


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _config(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **changes}).encode()


# ---- words and flags that do not exist ---------------------------------------------------------------------------

WORDS = [
    command("no such command 'trian'; did you mean 'train'", "trian"),
    command("no such command 'fit'", "fit"),
    command("no such option: --verson; did you mean --version", "--verson"),
    command("no such option: --learnin-rate; did you mean --learning-rate", "train", "--learnin-rate", "1"),
    command("'--seed' requires an argument", "train", "--seed"),
    command("extra argument", "train", "roberta-base"),
    command("missing argument '(?i:folder)'", "predict"),
    command("no such option: --batch-sise; did you mean --batch-size", "predict", "x", "--batch-sise", "3"),
    command("invalid value for '--batch-size'", "predict", "x", "--batch-size", "many"),
    command("extra argument", "methods", "addrop", "rdrop"),
    command("extra argument", "tasks", "glue"),
    command("method is 'AD-DROP' .did you mean 'addrop'", "methods", "AD-DROP"),
    command("method is 'AttendOut' .did you mean 'attendout'", "methods", "AttendOut"),
    command("method is 'R-Drop' .did you mean 'rdrop'", "methods", "R-Drop"),
    command("method is ''; it must be one of addrop", "methods", ""),
    command("method is 'zebra'; it must be one of addrop", "methods", "zebra"),
    command("invalid value for '--epochs'", "demo", "--epochs", "two"),
    command("epochs is 1; it must be at least 2", "demo", "--epochs", "1"),
    command("train_samples is 10; it must be at least 50", "demo", "--train-samples", "10"),
    command("dev_samples is 0; it must be at least 2", "demo", "--dev-samples", "0"),
    command("seed is -1; it must be at least 0", "demo", "--seed", "-1"),
    command("seed is 4294967296; it must be a number from 0 to 4294967295", "demo", "--seed", "4294967296"),
    command("output_dir is 'taken'.*is a file", "demo", "--output-dir", "taken", files=(File("taken", "x"),)),
    command("output_dir is '/proc/demo'.*cannot be written", "demo", "--output-dir", "/proc/demo"),
    command(
        "output_dir is 'full', which holds no earlier demo",
        "demo",
        "--output-dir",
        "full",
        files=(File("full/mine.txt", "x"),),
    ),
]

# ---- settings of a run ---------------------------------------------------------------------------------------------

SETTINGS = [
    train("no model is given", model=None),
    train("no data are given", train_file=None),
    train("both task and train_file are given", task="glue/rte"),
    # numbers that are out of range, or no numbers
    train("num_train_epochs is 0.0; it must be a number above 0", num_train_epochs=0),
    train("num_train_epochs is -1.0; it must be a number above 0", num_train_epochs=-1),
    train("num_train_epochs is nan; it must be a number above 0", num_train_epochs="nan"),
    train("num_train_epochs is 'two'; it must be a number", num_train_epochs="two"),
    train("max_steps is 0; it must be a whole number of at least 1, or -1", max_steps=0),
    train("max_steps is -5; it must be a whole number of at least 1", max_steps=-5),
    train("max_steps is '1.5'; it must be a whole number", max_steps=1.5),
    train("learning_rate is 0.0; it must be a number above 0", learning_rate=0),
    train("learning_rate is -1.0; it must be a number above 0", learning_rate=-1),
    train("learning_rate is nan; it must be a number above 0", learning_rate="nan"),
    train("learning_rate is inf; it must be a number above 0", learning_rate="inf"),
    train("learning_rate is '2e-5,'; it must be a number", learning_rate="2e-5,"),
    train("weight_decay is -0.1; it must be a number from 0", weight_decay=-0.1),
    train("warmup_steps is -1.0; it must be a number from 0", warmup_steps=-1),
    train("max_grad_norm is -1.0; it must be a number from 0", max_grad_norm=-1),
    train("adam_beta1 is 1.0; it must be a number from 0 to below 1", adam_beta1=1),
    train("adam_beta2 is -0.5; it must be a number from 0 to below 1", adam_beta2=-0.5),
    train("adam_epsilon is 0.0; it must be a number above 0", adam_epsilon=0),
    train("label_smoothing_factor is 2.0; it must be a number from 0 to below 1", label_smoothing_factor=2),
    train("seed is -1; it must be a number from 0", seed=-1),
    train("seed is 4294967296; it must be a number from 0 to 4294967295", seed=2**32),
    train("seed is '1e400'; it must be a whole number", seed="1e400"),
    train("data_seed is -3; it must be a number from 0", data_seed=-3),
    train("per_device_train_batch_size is 0; it must be a whole number of at least 1", per_device_train_batch_size=0),
    train("per_device_eval_batch_size is -2; it must be a whole number", per_device_eval_batch_size=-2),
    train("gradient_accumulation_steps is 0; it must be a whole number", gradient_accumulation_steps=0),
    train("eval_accumulation_steps is 0; it must be a whole number", eval_accumulation_steps=0),
    train("save_total_limit is 0; it must be a whole number of at least 1", save_total_limit=0),
    train("dataloader_num_workers is -1; it must be a whole number of at least 0", dataloader_num_workers=-1),
    train("logging_steps is 0.0; it must be a number above 0", logging_steps=0),
    train("eval_steps is 0.0; it must be a number above 0", eval_strategy="steps", eval_steps=0),
    train("save_steps is -1.0; it must be a number above 0", save_strategy="steps", save_steps=-1),
    train("neftune_noise_alpha is -1.0; it must be a number above 0", neftune_noise_alpha=-1),
    train("max_length is 1; it must be a whole number of at least 2", max_length=1),
    train("max_length is 2; with the special tokens of this model it must be at least 3", max_length=2),
    train("max_length is 200; this model has positions for at most 64 tokens", max_length=200, model="short"),
    train("shots is 0; it must be a whole number of at least 1", shots=0),
    train("--shots is 500, but the class 'bad' has", shots=500),
    train("fraction is 0.0; it must be a number above 0 and at most 1", fraction=0),
    train("fraction is 1.5; it must be a number above 0 and at most 1", fraction=1.5),
    train("validation_share is 1.0; it must be a number above 0 and below 1", validation_share=1),
    train("validation_share is 0.0; it must be a number above 0", validation_share=0),
    train("too few to split", validation_share=0.001),
    train("max_train_samples is 0; it must be a whole number of at least 1", max_train_samples=0),
    train("max_eval_samples is -1; it must be a whole number of at least 1", max_eval_samples=-1),
    train("patience is 0; it must be a whole number of at least 1", patience=0),
    # names that are not known
    train("lr_scheduler_type is 'liner' .did you mean 'linear'", lr_scheduler_type="liner"),
    train("optim is 'adamw' .*it must be one of adamw_torch", optim="adamw"),
    train(
        "eval_strategy is 'epochs' .did you mean 'epoch'.*it must be one of no, steps, epoch", eval_strategy="epochs"
    ),
    train("save_strategy is 'never'; it must be one of", save_strategy="never"),
    train("logging_strategy is 'sometimes'; it must be one of", logging_strategy="sometimes"),
    train("hub_strategy is 'all'; it must be one of", hub_strategy="all"),
    train("report_to is 'wandbb' .did you mean 'wandb'", report_to="wandbb"),
    train("report_to is 'comet_ml', which is not installed", report_to="comet_ml"),
    train(
        "metric_for_best_model is 'acuracy' .did you mean 'accuracy'.*one of loss, accuracy",
        metric_for_best_model="acuracy",
    ),
    train("metric_for_best_model is 'eval_bleu'; for this task it must be one of", metric_for_best_model="eval_bleu"),
    train("preset is 'papers'; it must be one of 'paper', 'recommended'", preset="papers"),
    train("preset is 'paper' and task is", preset="paper"),
    train(
        "LabelSmoothing.epsilon changes the model's own loss, and another one is in use .label_smoothing_factor",
        method=["label_smoothing"],
        class_weights="balanced",
    ),
    train("R3F.loss is 'clean'.* and another one is in use.*set R3F.loss='both'", method=["r3f"], focal_gamma=2.0),
    train("SMART.weight is not 0.* and another one is in use", method=["smart"], label_smoothing_factor=0.1),
    train("HiddenMixup mixes the model's own loss, and", method=["hidden_mixup"], class_weights="balanced"),
    train("capture is 'graph'; it must be one of 'auto', 'eager', 'captured'", capture="graph"),
    train("capture is 'captured'.*because the model is on cpu", capture="captured"),
    train("--kind is 'sentiment'; for your own files it must be one of", kind="sentiment"),
    train("task is 'glue/rtee'; did you mean glue/rte", task="glue/rtee", train_file=None),
    train("task is 'sentiment'; it must be one of glue/cola", task="sentiment", train_file=None),
    train("also_eval is|task is 'hanns'; did you mean hans", also_eval=["hanns"]),
    # JSON
    train("lr_scheduler_kwargs is '{\"a\": '; it must be JSON", lr_scheduler_kwargs='{"a": '),
    train("lr_scheduler_kwargs is 'power=2'; it must be JSON", lr_scheduler_kwargs="power=2"),
    train(
        "lr_scheduler_kwargs is {'powr': 2}, which does not fit lr_scheduler_type 'linear'",
        lr_scheduler_kwargs='{"powr": 2}',
    ),
    train(
        "lr_scheduler_kwargs is {'num_cycles': 'two'}, which does not fit|not fit",
        lr_scheduler_type="polynomial",
        lr_scheduler_kwargs='{"poer": "two"}',
    ),
    train("optim is 'lomo', which does not work: .*lomo", optim="lomo"),
    train(
        "optim is 'stable_adamw' and optim_args is 'beta9=1'|optim is 'stable_adamw'",
        optim="stable_adamw",
        optim_args="beta9=1",
    ),
    train("a training argument is not allowed|accelerator_config", accelerator_config='{"splt_batches": true}'),
    # combinations
    train("both shots and fraction are given", shots=2, fraction=0.5),
    train("both resume and overwrite are given", resume=True, overwrite=True),
    train("patience is 2, and eval_strategy is 'no'", patience=2, eval_strategy="no"),
    train("keep_epoch is .best., and load_best_model_at_end is False", keep_epoch="best", load_best_model_at_end=False),
    train("load_best_model_at_end is True, and eval_strategy is 'no'", load_best_model_at_end=True, eval_strategy="no"),
    train("fp16 is True, and training runs on the CPU", fp16=True),
    train("fp16_full_eval is True, and training runs on the CPU", fp16_full_eval=True),
    train("At most one of fp16 and bf16", fp16=True, bf16=True),
    train("save.*eval", save_strategy="epoch", eval_strategy="steps", eval_steps=2),
    train(
        "text is 'sentence', and task is 'glue/rte'; text is for your own files",
        task="glue/rte",
        train_file=None,
        text="sentence",
    ),
    train("validation_file is 'dev.csv', and task is", task="glue/rte", train_file=None, validation_file="dev.csv"),
    train("data_dir is 'data', and train_file is", data_dir="data"),
    train("push_to_hub is True, and the Hub cannot be reached", push_to_hub=True),
    train("push_to_hub is True, and the Hub cannot be reached", push_to_hub=True, hub_token="hf_secret"),
    train("--data-dir is nowhere, which is not a folder", task="glue/rte", train_file=None, data_dir="nowhere"),
    train("has no folder glue/rte", task="glue/rte", train_file=None, data_dir=".", files=(File("note.txt", "x"),)),
    train("cannot be reached; check the connection", task="glue/rte", train_file=None),
    train("ptb is not on the Hub", task="ptb", train_file=None),
    # several processes
    train("nproc is 0; it must be at least 1", nproc=0),
    train("nproc is -2; it must be at least 1", nproc=-2),
    train("nnodes is 0; it must be at least 1", nnodes=0),
    train("nnodes is 2, and --main-address is missing", nnodes=2),
    train("node_rank is 3; it must be at least 0 and at most 1", nnodes=2, node_rank=3, main_address="10.0.0.1"),
    train("main_port is 99999; it must be at least 1 and at most 65535", main_port=99999),
    # folders
    train("output_dir is 'taken', but 'taken' is a file", output_dir="taken", files=(File("taken", "x"),)),
    train("output_dir is 'taken/run', but .*taken' is a file", output_dir="taken/run", files=(File("taken", "x"),)),
    train("output_dir is '/proc/attendrop/run', which cannot be written to", output_dir="/proc/attendrop/run"),
    train("output_dir is 'full', which is not empty", output_dir="full", files=(File("full/mine.txt", "x"),)),
    train(
        "has no run.yaml and therefore no earlier run",
        output_dir="full",
        overwrite=True,
        files=(File("full/mine.txt", "x"),),
    ),
    train("there is no checkpoint in 'new' to resume from", output_dir="new", resume=True),
    train(
        "resume_from_checkpoint is 'gone/checkpoint-3', which is not a folder",
        resume_from_checkpoint="gone/checkpoint-3",
    ),
    train("output_dir is .*cannot be written to .File name too long", output_dir="a" * 300),
    train("output_dir is 'a.*0b'; it must be text", output_dir="a\0b"),
]

# ---- YAML files ----------------------------------------------------------------------------------------------------


def yaml(words: str, content: str | bytes) -> Bad:
    return Bad(words, settings={"config": File("run.yaml", content)})


YAML = [
    train("the configuration 'nowhere.yaml' does not exist", config="nowhere.yaml"),
    train("the configuration '.' is a folder", config="."),
    yaml("is empty; it must hold `name: value` lines", ""),
    yaml("must hold `name: value` lines", "- model\n- task\n"),
    yaml("must hold `name: value` lines", "just words"),
    yaml("is not YAML: .*line 2", "model: m\n  task: : t\n"),
    yaml("is not YAML", "model: [a, b\n"),
    yaml("is not YAML", "\tmodel: m\n"),
    yaml("is not YAML", b"model: \xff\xfe\n"),
    yaml("is not YAML: could not determine a constructor", "model: !!python/object/apply:os.system ['echo hello']\n"),
    yaml("there is no setting 'learning_rat'; did you mean 'learning_rate'", "learning_rat: 1\n"),
    yaml("there is no setting 'lr'; did you mean 'learning_rate'", "lr: 1\n"),
    yaml("there is no setting 'epochs'; did you mean 'num_train_epochs'", "epochs: 1\n"),
    yaml("there is no setting 3", "3: 1\n"),
    yaml("there is no setting 'training'", "training: {learning_rate: 1}\n"),
    yaml("weight_decay is 'much'; it must be a number", "weight_decay: much\n"),
    yaml("weight_decay is True; it must be a number", "weight_decay: true\n"),
    yaml("weight_decay is \\[1\\]; it must be a number", "weight_decay: [1]\n"),
    yaml("max_steps is True; it must be a whole number", "max_steps: yes\n"),
    yaml("max_steps is 1.5; it must be a whole number", "max_steps: 1.5\n"),
    yaml("bf16 is 'maybe'; it must be true or false", "bf16: maybe\n"),
    yaml("bf16 is 2; it must be true or false", "bf16: 2\n"),
    yaml("text is \\['a', 'b'\\]; it must be text", "text: [a, b]\n"),
    yaml("label is {'a': 1}; it must be text", "label: {a: 1}\n"),
    yaml("method is \\[{'name': 'addrop'}\\]; it must be text", "method: [{name: addrop}]\n"),
    yaml("method is {'addrop': None}; it must be text", "method: {addrop: }\n"),
    yaml("lr_scheduler_kwargs is 3; it must be JSON", "lr_scheduler_kwargs: 3\n"),
    yaml("resume_from_checkpoint is 'gone', which is not a folder", "resume_from_checkpoint: gone\n"),
    yaml(
        "has more than 100,000 values when its aliases",  # a bomb: nine levels of ten references each
        "a: &a [x]\n"
        + "".join(
            f"b{i}: &b{i} [{', '.join([f'*{chr(98) + str(i - 1) if i else chr(97)}'] * 10)}]\n" for i in range(9)
        ),
    ),
]

# ---- methods -------------------------------------------------------------------------------------------------------

METHODS = [
    train(words, method=[text])
    for text, words in (
        ("adrop", "method is 'adrop' .did you mean 'addrop'"),
        ("AD-DROP", "method is 'AD-DROP' .did you mean 'addrop'"),
        ("", "method is ''; it must be one of addrop"),
        ("addrop:r=0.3", "method 'addrop' has no field 'r'; its fields are p, q"),
        ("addrop:p", "has 'p'; fields are written name=value"),
        ("addrop:p=0.3,,q=1", "fields are written name=value"),
        ("addrop:=3", "fields are written name=value"),
        ("addrop p=0.3", "method is 'addrop p=0.3'"),
        ("addrop:p=2", "ADDrop.p is 2; it must be from 0 to 1"),
        ("addrop:p=-0.1", "ADDrop.p is -0.1; it must be from 0 to 1"),
        ("addrop:p=None", "ADDrop.p is None; it must be a number"),
        ("addrop:q=much", "ADDrop.q is 'much'; it must be a number from 0 to 1"),
        ("addrop:q=0.1..1.5", "ADDrop.q is .*it must be from 0 to 1"),
        ("addrop:layers=[99]", "ADDrop.layers is \\[99\\], but there is no layer 99"),
        ("addrop:layers=last", "ADDrop.layers is 'last'; it must be"),
        ("addrop:layers=7:9", "ADDrop.layers is .*selects no layer"),
        ("addrop:layers={}", "ADDrop.layers is {}"),
        ("addrop:layers=[a]", "ADDrop.layers is"),
        ("addrop:attribution=lime", "ADDrop.attribution is 'lime'; it must be one of"),
        ("addrop:label=silver", "ADDrop.label is 'silver'; it must be one of"),
        ("addrop:direction=up", "ADDrop.direction is 'up'; it must be one of"),
        ("addrop:cross_tuning=maybe", "ADDrop.cross_tuning is 'maybe'; it must be one of"),
        ("addrop:end_on=x", "ADDrop.end_on is 'x'; it must be one of"),
        ("addrop:ig_rule=simpson", "ADDrop.ig_rule is 'simpson'; it must be one of"),
        ("addrop:ig_steps=0", "ADDrop.ig_steps is 0; it must be a whole number of at least 1"),
        ("attendout:T=0", "AttendOut.T is 0; it must be a whole number"),
        ("attendout:reward_on=train", "AttendOut.reward_on is 'train'; it must be one of"),
        ("attendout:reward=f1", "AttendOut.reward is 'f1'; it must be one of"),
        ("attendout:samples=-1", "AttendOut.samples is -1; it must be a whole number"),
        ("attendout:select=best", "AttendOut.select is 'best'; it must be one of"),
        ("attendout:generator_lr=-1", "AttendOut.generator_lr is -1; it must be a number from 0"),
        ("attendout:offset_lr=x", "AttendOut.offset_lr is 'x'; it must be a number"),
        ("attendout:init_drop=1", "AttendOut.init_drop is 1; it must be a number from 0 to below 1"),
        ("attendout:monte_carlo=0", "AttendOut.monte_carlo is 0; it must be a whole number"),
        ("attendout:temperature=0", "AttendOut.temperature is 0; it must be a number above 0"),
        ("attendout:layer_offsets=2", "AttendOut.layer_offsets is 2; it must be one of"),
        ("attendout:active=1.5", "AttendOut.active is 1.5; it must be a number"),
        ("attendout:credit=all", "AttendOut.credit is 'all'; it must be one of"),
        ("attendout:explore=-1", "AttendOut.explore is -1; it must be a number from 0"),
        ("attendout:explore=1,layer_offsets=false", "AttendOut.explore is 1, which teaches the offsets"),
        ("attendout:common_dropout=2", "AttendOut.common_dropout is 2; it must be one of"),
        ("attendout:normalize=x", "AttendOut.normalize is 'x'; it must be one of"),
        ("attendout:decay=2", "AttendOut.decay is 2; it must be a number"),
        ("attendout:hold_out=0,reward_on=held_out", "AttendOut.hold_out is 0; it must be a number above 0"),
        ("attendout:noise=-1", "AttendOut.noise is -1; it must be a number"),
        ("attendout:mode=x", "AttendOut.mode is 'x'; it must be one of"),
        ("attention_dropout:p=1.1", "AttentionDropout.p is 1.1; it must be from 0 to 1"),
        ("attention_dropout:pattern=row", "AttentionDropout.pattern is 'row'; it must be one of"),
        ("attention_dropout:renormalise=x", "AttentionDropout.renormalise is 'x'"),
        ("attention_dropout:layers=[9]", "AttentionDropout.layers is \\[9\\]"),
        ("attention_dropout:span=0,pattern=span", "AttentionDropout.span is 0"),
        ("attention_layerdrop:p=1.5", "AttentionLayerDrop.p is 1.5; it must be from 0 to 1"),
        ("child_tuning:p=0", "ChildTuning.p is 0; it is the share of weights that train, and must be above 0"),
        ("child_tuning:variant=G", "ChildTuning.variant is 'G'; it must be one of"),
        ("child_tuning:samples=-1,variant=D", "ChildTuning.samples is -1; it must be a whole number"),
        ("child_tuning:fisher_batch=0,variant=D", "ChildTuning.fisher_batch is 0; it must be a whole number"),
        ("concrete_dropout:init=1", "ConcreteDropout.init is 1"),
        ("concrete_dropout:lr=-1", "ConcreteDropout.lr is -1"),
        ("concrete_dropout:entropy=-1", "ConcreteDropout.entropy is -1"),
        ("concrete_dropout:temperature=0", "ConcreteDropout.temperature is 0"),
        ("dropconnect:p=1", "DropConnect.p is 1"),
        ("drophead:p=2", "DropHead.p is 2; it must be from 0 to 1"),
        ("drophead:schedule=w", "DropHead.schedule is 'w'; it must be one of"),
        ("drophead:warmup=2", "DropHead.warmup is 2"),
        ("headmask:n=-1", "HeadMask.n is -1"),
        ("headmask:n=99", "HeadMask.n is 99"),
        ("headmask:share=2", "HeadMask.share is 2"),
        ("headmask:by=size", "HeadMask.by is 'size'; it must be one of"),
        ("hiddencut:ratio=2", "HiddenCut.ratio is 2"),
        ("hiddencut:by=x", "HiddenCut.by is 'x'; it must be one of"),
        ("hiddencut:pool=-1", "HiddenCut.pool is -1"),
        ("hiddencut:weight=-1", "HiddenCut.weight is -1"),
        ("hiddencut:layers=[9]", "HiddenCut.layers is \\[9\\]"),
        ("layerdrop:p=1", "LayerDrop.p is 1; it must be from 0 to below 1"),
        ("layerdrop:p=[1]", "LayerDrop.p is \\[1\\]; it must be a number"),
        ("mixout:p=1", "Mixout.p is 1"),
        ("mixout:pattern=x", "Mixout.pattern is 'x'; it must be one of"),
        ("noisytune:strength=-1", "NoisyTune.strength is -1; it must be a number from 0 to 1"),
        ("neftune:alpha=-1", "NEFTune.alpha is -1; it must be from 0"),
        ("hype:sigma=-1", "HyPe.sigma is -1; it must be from 0"),
        ("hype:noise=x", "HyPe.noise is 'x'; it must be one of"),
        ("confidence_penalty:beta=-1", "ConfidencePenalty.beta is -1; it must be from 0"),
        ("label_smoothing:epsilon=2", "LabelSmoothing.epsilon is 2; it must be from 0 to 1"),
        ("sam:rho=-1", "SAM.rho is -1; it must be from 0"),
        ("asam:rho=-1", "ASAM.rho is -1; it must be from 0"),
        ("asam:eta=-1", "ASAM.eta is -1; it must be a number from 0"),
        ("freelb:epsilon=-1", "FreeLB.epsilon is -1; it must be from 0"),
        ("freelb:steps=0", "FreeLB.steps is 0; it must be a whole number of at least 1"),
        ("smart:beta=2", "SMART.beta is 2; it must be from 0 to 1"),
        ("smart:steps=1.5", "SMART.steps is 1.5; it must be a whole number of at least 1"),
        ("lora_dropout:p=1", "LoRADropout.p is 1; it must be from 0 to below 1"),
        ("lora_dropout", "has no LoRA layer that is trained, so LoRADropout has nothing to drop"),
        ("hiddenkey:p_key=2", "HiddenKey.p_key is 2; it must be from 0 to 1"),
        ("hiddenkey:p_hidden=1", "HiddenKey.p_hidden is 1; it must be from 0 to below 1"),
        ("hiddenkey:alpha=-1", "HiddenKey.alpha is -1; it must be from 0"),
        ("cutoff:ratio=2", "Cutoff.ratio is 2; it must be from 0 to 1"),
        ("cutoff:kind=x", "Cutoff.kind is 'x'; it must be one of"),
        ("cutoff:weight=-1", "Cutoff.weight is -1; it must be from 0"),
        ("hidden_mixup:alpha=-1", "HiddenMixup.alpha is -1; it must be from 0"),
        ("r3f:epsilon=-1", "R3F.epsilon is -1"),
        ("r3f:weight=-1", "R3F.weight is -1"),
        ("r3f:noise=x", "R3F.noise is 'x'; it must be one of"),
        ("r3f:loss=x", "R3F.loss is 'x'; it must be one of"),
        ("rdrop:alpha=-1", "RDrop.alpha is -1"),
        ("rdrop:reduction=max", "RDrop.reduction is 'max'; it must be one of"),
        ("scal:epsilon=-1", "SCAL.epsilon is -1"),
        ("scal:alpha=-1", "SCAL.alpha is -1"),
        ("scal:tau=0", "SCAL.tau is 0"),
        ("scheduled_dropout:start=2", "ScheduledDropout.start is 2"),
        ("scheduled_dropout:slopes=1", "ScheduledDropout.slopes is 1"),
        ("scheduled_dropout:curves=x", "ScheduledDropout.curves is 'x'"),
        ("scheduled_dropout:run=no.json", "ScheduledDropout.run is 'no.json', which has no attendout_run.json"),
        ("scheduled_dropout:run=.", "ScheduledDropout.run is '.', which has no attendout_run.json"),
        ("scores_dropout:p=-1", "ScoresDropout.p is -1; it must be from 0 to 1"),
        ("scores_dropout:pattern=x", "ScoresDropout.pattern is 'x'; it must be one of"),
        ("scores_dropout:layers=none", "ScoresDropout.layers is 'none'"),
        ("scores_dropout:span=0,pattern=span", "ScoresDropout.span is 0"),
        ("structure_mask", "structure_mask"),
        ("structure_mask:column=3", "StructureMask.column is 3"),
        ("structure_mask:layers=[9]", "StructureMask.layers is \\[9\\]"),
        ("r3f:weight=inf", "R3F.weight is 'inf'; it must be from 0"),
        ("supertickets", "SuperTickets.tickets is empty, so nothing would be masked"),
        ("supertickets:tickets=3", "tickets is 3"),
        ("unidrop:fd1=2", "UniDrop.fd1 is 2; it must be from 0 to 1"),
        ("unidrop:fd2=-1", "UniDrop.fd2 is -1; it must be from 0 to 1"),
        ("unidrop:fd3=x", "UniDrop.fd3 is 'x'; it must be a number"),
        ("unidrop:fd4=9", "UniDrop.fd4 is 9; it must be from 0 to 1"),
        ("unidrop:layerdrop=1", "UniDrop.layerdrop is 1; it must be from 0 to below 1"),
        ("unidrop:p_k=2", "UniDrop.p_k is 2; it must be from 0 to 1"),
        ("unidrop:p_d=2", "UniDrop.p_d is 2; it must be from 0 to 1"),
    )
] + [
    train("training has 1 epoch .*train for at least 2 epochs", method=["addrop"], num_train_epochs=1),
    train("training has 1 epoch .*max_steps", method=["addrop"], max_steps=1, num_train_epochs=None),
    train("Mixout and DropConnect|cannot|both", method=["mixout", "dropconnect"]),
    train("regularizers has ADDrop 2 times; it must have each method once", method=["addrop", "addrop:p=0.5"]),
]

# ---- data files ----------------------------------------------------------------------------------------------------

_PAIR = '{"text": "a b", "label": "x"}\n{"text": "c d", "label": "y"}\n'

DATA = [
    train("nowhere.csv does not exist", train_file="nowhere.csv"),
    train("folder.csv is a folder; give the file itself", train_file="folder.csv", files=(File("folder.csv/", ""),)),
    train("given.csv is empty", train_file=csv("")),
    train("given.csv is empty", train_file=csv("\n\n")),
    train("given.csv has no examples, only a header", train_file=csv("text,label\n")),
    train(
        "given.csv looks like UTF-16 without a byte order mark; read it with --encoding utf-16-le",
        train_file=csv("text,label\na b,x\n".encode("utf-16-le")),
    ),
    train(
        "given.csv is not UTF-8: line 3 has the byte 0xe9; if 'café' is right there, read it with --encoding latin-1",
        train_file=csv("text,label\na b,x\ncafé,y\n".encode("latin-1")),
    ),
    train(
        "given.csv cannot be read as ascii: line 3 has the byte 0xe9; name another encoding",
        encoding="ascii",
        train_file=csv("text,label\na b,x\ncafé,y\n".encode("latin-1")),
    ),
    train("encoding is 'utf-99', which is no encoding of files that Python knows; it must be", encoding="utf-99"),
    train("encoding is 'base64', which is no encoding of files that Python knows; it must be", encoding="base64"),
    train("separator is 'ab'; it must be one sign, or one of tab", separator="ab"),
    train("separator is ''; it must be one sign", separator=""),
    train("label_separator is ' '; it must be a sign such as a comma", label_separator=" "),
    train("label_separator is ';', and kind is 'classification'", label_separator=";", kind="classification"),
    train("encoding is 'latin-1', and task is", encoding="latin-1", task="glue/rte", train_file=None),
    train("drop_bad_rows is True, and task is", drop_bad_rows=True, task="glue/rte", train_file=None),
    train("choices is .'text'., and task is", choices=["text"], task="glue/rte", train_file=None),
    train(
        "separator is ';', and given.jsonl is no table with one",
        separator=";",
        train_file=csv('{"text": "a", "label": "x"}\n', "given.jsonl"),
    ),
    train(
        "encoding is 'latin-1', and given.xlsx is no text file", encoding="latin-1", train_file=csv("PK", "given.xlsx")
    ),
    train(
        "the first line of given.csv looks like data and not like a header: its 'x' is also the value of 2 rows",
        train_file=csv("x,a b\nx,c d\ny,e f\nx,g h\n"),
    ),
    train(
        "the labels 'HAM' .1 row. and 'ham' .2 rows. in column 'label' of given.csv differ only by case or spaces",
        train_file=csv("text,label\na b,ham\nc d,HAM\ne f,spam\ng h,ham\n"),
    ),
    train(
        "holds 2 numbers with a decimal comma, such as '1,5' in line 2",
        train_file=csv('text,score\na b,"1,5"\nc d,2\ne f,"3,25"\n'),
    ),
    train(
        "1 tag of given.conll is not written as O, B-… or I-…: line 2 has 'B_LOC'",
        train_file=csv("EU B-ORG\nRome B_LOC\nis O\n\nPeter B-PER\n", "given.conll"),
    ),
    train(
        "2 of 2 rows of dev.csv are also in the training data .*its scores would say nothing",
        train_file=csv("text,label\na b,x\nc d,y\ne f,x\n"),
        validation_file=csv("text,label\na b,x\nc d,y\n", "dev.csv"),
    ),
    train(
        "line 2 of given.csv has no text in column 'text'; .*; --drop-bad-rows leaves such rows out .1 more: ",
        train_file=csv("text,label\n,x\nc d,\ne f,y\ng h,x\n"),
    ),
    train("given.csv has no row that can be used", drop_bad_rows=True, train_file=csv("text,label\n,x\n,y\n")),
    train(
        "column 'label' of given.csv holds texts, such as 'x', and no lists",
        kind="multilabel",
        train_file=csv("text,label\na b,x\nc d,y\n"),
    ),
    train("a multiple choice needs at least two answers; name them with --choices", kind="multiple_choice"),
    train("choices is .'text'.; it is for the kind multiple_choice", choices=["text"]),
    train("class_weights names the label 'ugly'; train.csv has bad, good", class_weights=["ugly=2"]),
    train(
        "class_weights is 'balance'; it must be balanced, sqrt, none, or pairs of a label and a weight",
        class_weights=["balance"],
    ),
    train("class_weights is 'good=0'; it must be balanced, sqrt, none, or pairs", class_weights=["good=0"]),
    train("focal_gamma is -1.0; it must be a number from 0", focal_gamma=-1),
    *(
        train(
            f"{name} is .*, and given.csv is of kind regression; it is for the kind",
            train_file=csv("text,label\n" + "".join(f"a {i},{i}.5\n" for i in range(20))),
            **{name: value},
        )
        for name, value in (
            ("class_weights", ["balanced"]),
            ("focal_gamma", 2),
            ("balanced_sampling", True),
            ("label_smoothing_factor", 0.1),
        )
    ),
    train("given.csv is not plain text: line 2 has a NUL byte", train_file=csv("text,label\na\0b,x\nc,y\n")),
    train("given.xlsx is incomplete or not an Excel file", train_file=csv("PK", "given.xlsx")),
    train("given.ods is an old or other spreadsheet; save it as .xlsx or CSV", train_file=csv("PK", "given.ods")),
    train("given.csv.gz is incomplete or not a gzip file", train_file=csv("x", "given.csv.gz")),
    train("given.xml.gz is incomplete or not a gzip file", train_file=csv("x", "given.xml.gz")),
    train("given.zip is compressed; unpack it first", train_file=csv("x", "given.zip")),
    train("given.pkl is a pickle.*save the table as CSV", train_file=csv("x", "given.pkl")),
    train("given.xml has the unknown suffix '.xml', and its .*the formats are .csv", train_file=csv("x", "given.xml")),
    train("given has no suffix, and its content is neither a table nor words", train_file=csv("x", "given")),
    train(
        "line 3 of given.csv has 3 fields, but the header has 2.*quotation marks",
        train_file=csv("text,label\na b,x\nc, d,y\n"),
    ),
    train("line 2 of given.csv cannot be read.*unpaired quotation mark", train_file=csv('text,label\n"a b,x\nc,y\n')),
    train("given.csv has the column 'text' 2 times", train_file=csv("text,text,label\na,b,x\n")),
    train(
        "--text is 'words', but given.csv has the columns text, label",
        text="words",
        train_file=csv("text,label\na b,x\nc d,y\n"),
    ),
    train(
        "--label is 'mark', but given.csv has the columns", label="mark", train_file=csv("text,label\na b,x\nc d,y\n")
    ),
    train("name the same column 'text'", text="text", label="text", train_file=csv("text,label\na b,x\nc d,y\n")),
    train("none is clearly the text or the label; name them with --text", train_file=csv("a,b,c\n1,2,3\n")),
    train("not clear which of them is the text", train_file=csv("one,two,label\na b,c d,x\n")),
    train("has one column, 'text', and the label must be in another one.$", train_file=csv("text\na b\nc d\n")),
    train("one column, 'text~label'.*the delimiter with --separator", train_file=csv("text~label\na b~x\n")),
    train("line 3 of given.csv has no text in column 'text'", train_file=csv("text,label\na b,x\n ,y\n")),
    train("line 3 of given.csv has no label in column 'label'", train_file=csv("text,label\na b,x\nc d,\n")),
    train(
        "given.csv has one class only: every label in column 'label' is 'x'",
        train_file=csv("text,label\na b,x\nc d,x\n"),
    ),
    train(
        "looks like an id and not a label",
        train_file=csv("text,label\n" + "".join(f"a {i},id{i}\n" for i in range(50))),
    ),
    train(
        "holds 30 different whole numbers; choose --kind",
        train_file=csv("text,label\n" + "".join(f"a {i},{i}\n" for i in range(30))),
    ),
    train("has the label 'high' among numbers", train_file=csv("text,label\na b,1.5\nc d,high\n")),
    train(
        "has the label 'high' in column 'label'; a regression needs numbers",
        kind="regression",
        train_file=csv("text,label\na b,1\nc d,high\n"),
    ),
    train(
        "has the label 'inf' in column 'label'; a regression needs numbers",
        kind="regression",
        train_file=csv("text,label\na b,1\nc d,inf\n"),
    ),
    train("line 2 of given.jsonl is not JSON", train_file=csv(_PAIR.splitlines()[0] + "\n{oops\n", "given.jsonl")),
    train(
        "line 2 of given.jsonl is not an object with columns",
        train_file=csv(_PAIR.splitlines()[0] + "\n3\n", "given.jsonl"),
    ),
    train("has the column 'text' twice", train_file=csv('{"text": "a", "text": "b", "label": "x"}\n', "given.jsonl")),
    train(
        "column 'text' does not hold text: line 1 of given.jsonl has 3",
        train_file=csv('{"text": 3, "label": "x"}\n{"text": 4, "label": "y"}\n', "given.jsonl"),
    ),
    train(
        "holds objects; name another column with --label",
        train_file=csv('{"text": "a b", "label": {"x": 1}}\n', "given.jsonl"),
    ),
    train("nested too deeply", train_file=csv("[" * 100_000, "given.json")),
    train("given.json has no examples", train_file=csv("[]", "given.json")),
    train(
        "given.parquet is incomplete or not a Parquet file", train_file=csv(b"PAR1 and then nothing", "given.parquet")
    ),
    train("given.parquet is empty", train_file=csv(b"", "given.parquet")),
    train(
        "line 2 of given.conll has 1 column, but the lines before it have 2",
        train_file=csv("EU B-ORG\nrejects\n", "given.conll"),
    ),
    train("has words without tags", train_file=csv("EU\nrejects\n", "given.conll")),
    train("given.conll has no examples", train_file=csv("-DOCSTART- O\n", "given.conll")),
    train(
        "1 word and 2 tags|2 words and 1 tag",
        kind="token_classification",
        train_file=csv('{"tokens": ["a", "b"], "tags": ["O"]}\n', "given.jsonl"),
    ),
    train("given.csv has the label 'ugly'|'ugly'", validation_file=csv("text,label\na b,good\nc d,ugly\n")),
    train("given.csv has no column 'label'", validation_file=csv("text,mark\na b,good\n")),
    train("given.csv has no column 'text'", test_file=csv("words\na b\n")),
    train("gone.csv does not exist", validation_file="gone.csv"),
    train("gone.csv does not exist", test_file="gone.csv"),
    train("--text-pair is 'label'|name the same column", text_pair="label", label="label"),
    train("so --text must name the first text", text_pair="text"),
    train(
        "--shots counts examples of each class",
        kind="regression",
        shots=2,
        train_file=csv("text,label\n" + "a b,1.5\nc d,2.5\n" * 20),
    ),
    train("no such file|does not exist", train_file="line\nbreak.csv"),
    train("does not exist", train_file="[red]markup[/red].csv"),
]

# ---- models --------------------------------------------------------------------------------------------------------

MODELS = [
    train("model is 'no/such-model'.*the Hub cannot be reached", model="no/such-model"),
    train("did you mean roberta-base", model="robertabase"),
    train("the folder ./nowhere does not exist", model="./nowhere"),
    train("which is a file; use the folder", model=File("weights.safetensors", "x")),
    train("has no config.json: it holds no model of transformers", model=Model({"config.json": None})),
    train(
        "holds an adapter; merge it into its model first",
        model=Model({"config.json": None, "adapter_config.json": "{}"}),
    ),
    train("JSON|config.json", model=Model({"config.json": "{"})),
    train("cannot be loaded|model_type", model=Model({"config.json": "{}"})),
    train("model", model=Model({"config.json": _config(model_type="no_such_type")})),
    train("has no weights", model=Model({"model.safetensors": None})),
    train("model.safetensors is incomplete or not a safetensors file", model=Model({"model.safetensors": _half})),
    train("model.safetensors is incomplete or not a safetensors file", model=Model({"model.safetensors": ""})),
    train(
        "is a pickle, and loading a pickle runs the code in it",
        model=Model({"model.safetensors": None, "pytorch_model.bin": "x"}),
    ),
    train("has no tokenizer", model=Model({"tokenizer.json": None, "tokenizer_config.json": None})),
    train("cannot be loaded|JSON|broken", model=Model({"tokenizer.json": _half})),
    train(
        "not of the shapes that its config.json says .*word_embeddings",
        model=Model({"config.json": _config(vocab_size=20)}),
    ),
    train(
        "needs code from its own repository",
        model=Model({"config.json": _config(model_type="new", auto_map={"AutoConfig": "code.C"}), "code.py": "1/0"}),
    ),
    train("for which transformers has no head of kind translation", kind="translation", text="text", label="label"),
    train("model is '.*'; it must be text", model="a\0b"),
]

# ---- predict -------------------------------------------------------------------------------------------------------

_TEXTS = csv("text\na film\n", "texts.csv")

PREDICT = [
    command("'nowhere' has no record.json", "predict", "nowhere", "a text"),
    command("has no record.json; it must be the folder of a finished", "predict", Model(), "a text"),
    command("give either texts or --file", "predict", Run()),
    command("give either texts or --file", "predict", Run(), "a text", "--file", "texts.csv", files=(_TEXTS,)),
    command("text 1 of 1 is empty", "predict", Run(), ""),
    command("text 2 of 2 is empty", "predict", Run(), "a film", "  "),
    command("text 1 of 1 has a NUL character", "predict", Run(), "a\0b"),
    command("batch_size is 0; it must be a whole number of at least 1", "predict", Run(), "a", "--batch-size", "0"),
    command(
        "batch_size is -3; it must be", "predict", Run(), "--file", "texts.csv", "--batch-size", "-3", files=(_TEXTS,)
    ),
    command("gone.csv does not exist", "predict", Run(), "--file", "gone.csv"),
    command("is a folder", "predict", Run(), "--file", "f.csv", files=(File("f.csv/", ""),)),
    command("texts.ods is an old or other", "predict", Run(), "--file", "texts.ods", files=(csv("x", "texts.ods"),)),
    command("separator is 'ab'", "predict", Run(), "--file", "texts.csv", "--separator", "ab", files=(_TEXTS,)),
    command("has no column 'text'", "predict", Run(), "--file", "t.csv", files=(csv("words\na\n", "t.csv"),)),
    command("t.csv is empty", "predict", Run(), "--file", "t.csv", files=(csv("", "t.csv"),)),
    command("'ugly'", "predict", Run(), "--file", "t.csv", files=(csv("text,label\na b,ugly\n", "t.csv"),)),
    command(
        "the folder 'none' does not exist",
        "predict",
        Run(),
        "--file",
        "texts.csv",
        "--output",
        "none/a.csv",
        files=(_TEXTS,),
    ),
    command(
        "output is 'a.pdf'; it must end in .csv, .tsv",
        "predict",
        Run(),
        "--file",
        "texts.csv",
        "--output",
        "a.pdf",
        files=(_TEXTS,),
    ),
    command(
        "output is 'there.csv', which exists",
        "predict",
        Run(),
        "--file",
        "texts.csv",
        "--output",
        "there.csv",
        files=(_TEXTS, csv("x", "there.csv")),
    ),
    command(
        "which is the input file",
        "predict",
        Run(),
        "--file",
        "texts.csv",
        "--output",
        "texts.csv",
        "--overwrite",
        files=(_TEXTS,),
    ),
    command(
        "which is a folder; it must be a file",
        "predict",
        Run(),
        "--file",
        "texts.csv",
        "--output",
        "d.csv",
        files=(_TEXTS, File("d.csv/", "")),
    ),
    command(
        "cannot be written to", "predict", Run(), "--file", "texts.csv", "--output", "/proc/a.csv", files=(_TEXTS,)
    ),
    command("record.json' is damaged", "predict", Run({"record.json": _half}), "a text"),
    command("record.json' is damaged", "predict", Run({"record.json": ""}), "a text"),
    command("record.json' is damaged", "predict", Run({"record.json": "[]"}), "a text"),
    command("record.json' is damaged .'config' is missing.", "predict", Run({"record.json": "{}"}), "a text"),
    command(
        "record.json' is damaged", "predict", Run({"record.json": _config(task_definition={"name": "x"})}), "a text"
    ),
    command(
        "record.json' is damaged.*'max_length' is 'long'; it must be a whole number",
        "predict",
        Run({"record.json": _config(max_length="long")}),
        "a",
    ),
    command("model.safetensors is incomplete", "predict", Run({"model.safetensors": _half}), "a text"),
    command("has no weights", "predict", Run({"model.safetensors": None}), "a text"),
    command("has no config.json", "predict", Run({"config.json": None}), "a text"),
]

PREDICT += [
    command("format is 'xml'; it must be one of", "predict", Run(), "--file", "texts.csv", "--format", "xml",
            files=(_TEXTS,)),
    command("format is 'parquet', which cannot go", "predict", Run(), "--file", "-", "--format", "parquet"),
    command("output is 'a.csv', but format is 'jsonl'", "predict", Run(), "--file", "texts.csv", "--output", "a.csv",
            "--format", "jsonl", files=(_TEXTS,)),
    command("temperature is 0.0; it must be a number from 0.01", "predict", Run(), "a", "--temperature", "0"),
    command("output is 'a.csv'; it is for --file", "predict", Run(), "a", "--output", "a.csv"),
    command("missing option '--file'", "evaluate", Run()),
    command("texts.csv has no labels", "evaluate", Run(), "--file", "texts.csv", files=(_TEXTS,)),
    command("gone.csv does not exist", "evaluate", Run(), "--file", "gone.csv"),
    command("batch_size is 0", "evaluate", Run(), "--file", "texts.csv", "--batch-size", "0", files=(_TEXTS,)),
]  # fmt: skip

# ---- check ---------------------------------------------------------------------------------------------------------

CHECK = [
    command("missing argument '(?i:files)", "check"),
    command("gone.csv does not exist", "check", "gone.csv"),
    command("4 files are given; give a training file", "check", "a.csv", "b.csv", "c.csv", "d.csv"),
    command("encoding is 'utf-99', which is no encoding", "check", "a.csv", "--encoding", "utf-99"),
    command("--kind is 'sentiment'; for your own files", "check", "a.csv", "--kind", "sentiment"),
    command(
        "model is 'no/such-model'",
        "check",
        "a.csv",
        "--model",
        "no/such-model",
        files=(csv("text,label\na b,x\nc d,y\ne f,y\n", "a.csv"),),
    ),
    command(
        "line 3 of a.csv has no label in column 'label'",
        "check",
        "a.csv",
        files=(csv("text,label\na b,x\nc d,\ne f,y\n", "a.csv"),),
    ),
]

# ---- values that break the reader of a value or of a file -----------------------------------------------------------


def _table_of(suffix: str, change: str) -> bytes:
    """A Parquet file with odd metadata of datasets, or an Excel file without a part."""
    file = io.BytesIO()
    if suffix == "parquet":
        table = pyarrow.table({"text": ["a b", "c d"], "label": ["x", "y"]})
        pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": change}), file)
        return file.getvalue()
    openpyxl.Workbook().save(file)
    whole, broken = zipfile.ZipFile(file), io.BytesIO()
    with zipfile.ZipFile(broken, "w") as archive:
        for name in whole.namelist():
            if name != change:
                archive.writestr(name, whole.read(name))
    return broken.getvalue()


_MANY = "1" + "0" * 5000  # digits
_NESTED = "[" * 3000 + "]" * 3000

ODD = [
    train("p is|addrop:p", method=[f"addrop:p={_MANY}"]),
    train("layers", method=["addrop:layers=None"]),
    train("layers|nested|brackets", method=[f"addrop:layers={_NESTED}"]),
    train("log_level is 'x'", log_level="x"),
    train("label_names|no label", label_names=["no"]),
    train("seed", seed=_MANY),
    train("learning_rate is inf", learning_rate=_MANY),
    train("lr_scheduler_kwargs", lr_scheduler_kwargs='{"a":' * 3000 + "1" + "}" * 3000),
    train("lr_scheduler_kwargs", lr_scheduler_kwargs='{"a": ' + _MANY + "}"),
    train("output_dir is .* no text in UTF-8", output_dir="a\udcff"),
    train("encoding is 'punycode'", encoding="punycode"),
    train("run.yaml", config=csv(f"model: {_NESTED}", "run.yaml")),
    train("run.yaml|seed", config=csv(f"seed: {_MANY}", "run.yaml")),
    train("number", train_file=csv('[{"text": "a b", "label": ' + _MANY + "}]", "given.json")),
    train("given.jsonl", train_file=csv('{"text": "a b", "label": ' + _NESTED + "}", "given.jsonl")),
    train("given.xlsx", train_file=csv(_table_of("xlsx", "xl/workbook.xml"), "given.xlsx")),
    train("other.xlsx", train_file=csv(_table_of("xlsx", "xl/worksheets/sheet1.xml"), "other.xlsx")),
    train("cannot be loaded", model=Model({"config.json": _config(num_hidden_layers=_NESTED)})),
    train("cannot be loaded", model=Model({"config.json": '{"a": ' + _MANY + "}"})),
    command("record.json' is damaged", "predict", Run({"record.json": _NESTED}), "a text"),
    command("record.json' is damaged", "predict", Run({"record.json": '{"schema": ' + _MANY + "}"}), "a text"),
    *(
        command("study.json' is damaged", "study", f"s{number}", files=(csv(content, f"s{number}/study.json"),))
        for number, content in enumerate(("", "[]", "3", _NESTED, '{"schema": ' + _MANY + "}"))
    ),
    command("worker_timeout is 1e.300; it must be", "compare", "--model", Model(), "--train-file", "t.csv", "--method",
            "rdrop", "--worker-timeout", "1e300", files=(csv("text,label\na b,x\nc d,y\n", "t.csv"),)),
]  # fmt: skip

BAD_INPUTS = [*ODD, *WORDS, *SETTINGS, *YAML, *METHODS, *DATA, *MODELS, *PREDICT, *CHECK]


def written(folder: Path) -> dict[str, int]:
    """Every file and folder below a folder, with the time of its last change."""
    return {
        str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*") if not path.is_dir()
    } | {f"{path.relative_to(folder)}/": 0 for path in folder.rglob("*") if path.is_dir()}
