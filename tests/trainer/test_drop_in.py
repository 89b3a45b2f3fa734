"""Without methods, RegularizedTrainer resumes as the stock Trainer does; with methods, a changed setting is a warning.

Each way of resuming that the stock Trainer allows, and each that it refuses, runs with both and is compared: the
weights bit for bit, the log, the warnings, and the type and the text of an error.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

from attendrop import EMA, AttendOut, DropHead, Mixout, RegularizedTrainer, Regularizer, regularized
from attendrop.errors import DivergedError
from attendrop.utils.manifest import MANIFEST_FILE, read_manifest, seal
from helpers.data import make_arguments, make_examples, pad, same_bits, weights_of
from helpers.zoo import make_model

# One process runs all of these tests, so that their shared fixtures are created once.
pytestmark = pytest.mark.xdist_group("drop_in")

STOPPED = "checkpoint-4"  # in the middle of the second of two epochs with 3 steps each
OWN = ("model_init", "regularizers", "strict_resume", "check_finite")  # arguments of a Trainer and not of its settings
Change = Callable[[Path], object]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(make_examples("bert", 24))


def make_trainer(of: type, folder: Path, **options: Any) -> Any:
    """A Trainer of a tiny BERT. Options that are not its own are training arguments."""
    own = {"train_dataset": make_examples("bert", 12), "eval_dataset": make_examples("bert", 4, seed=5)}
    own |= {name: options.pop(name) for name in list(options) if name in (*own, *OWN)}
    kind = options.pop("kind", "bert")
    own["callbacks"] = [callback() for callback in options.pop("callbacks", ())]
    shape = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2, "logging_strategy": "steps",
             "logging_steps": 1, **options}  # fmt: skip
    model = None if "model_init" in own else make_model(kind)
    return of(model=model, args=make_arguments(folder, **shape), data_collator=pad, **own)


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def warnings_heard(*loggers: str) -> Iterator[list[str]]:
    """The warnings of these loggers; those that are given only once are given again."""
    transformers.utils.logging.warning_once.cache_clear()  # type: ignore[attr-defined]
    heard = Heard()
    for name in loggers:
        logging.getLogger(name).addHandler(heard)
    try:
        yield heard.messages
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(heard)


def outcome(of: type, folder: Path, resume: Any, **options: Any) -> dict[str, Any]:
    """All that a user can tell of a resumed run; the folder of the run is replaced in texts."""

    def plain(text: str) -> str:
        return text.replace(str(folder), "FOLDER")

    with warnings_heard("transformers", "attendrop") as messages:
        trainer = make_trainer(of, folder, **options)
        try:
            trainer.train(resume_from_checkpoint=str(folder / resume) if isinstance(resume, str) else resume)
        except Exception as error:
            seen = [plain(text) for text in messages]
            return {"error": type(error).__name__, "text": plain(str(error)), "messages": seen}
    timed = ("_runtime", "_per_second")
    history = [{k: k if k.endswith(timed) else v for k, v in line.items()} for line in trainer.state.log_history]
    return {
        "weights": weights_of(trainer.model), "history": repr(history), "messages": [plain(text) for text in messages],
        "step": trainer.state.global_step, "best": plain(str(trainer.state.best_model_checkpoint)),
        "batch size": trainer._train_batch_size, "saved": sorted(path.name for path in folder.glob("checkpoint-*")),
        "callbacks": [type(callback).__name__ for callback in trainer.callback_handler.callbacks],
    }  # fmt: skip


def assert_same_outcome(stock: dict[str, Any], ours: dict[str, Any]) -> None:
    assert {k: v for k, v in ours.items() if k != "weights"} == {k: v for k, v in stock.items() if k != "weights"}
    assert ("weights" in stock) == ("weights" in ours)
    if "weights" in stock:
        pairs = zip(stock["weights"].values(), ours["weights"].values(), strict=True)
        assert all(torch.equal(one.nan_to_num(7), other.nan_to_num(7)) for one, other in pairs)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Path]:
    """The checkpoints of a run that was stopped after four of six steps, for each of the two classes."""
    folders = {}
    for of in (Trainer, RegularizedTrainer):
        folders[of] = tmp_path_factory.mktemp(of.__name__) / "run"
        make_trainer(of, folders[of], callbacks=[Counting]).train()
        shutil.rmtree(folders[of] / "checkpoint-6")
    assert sorted(path.name for path in folders[Trainer].iterdir()) == ["checkpoint-2", STOPPED]
    return folders


class Counting(TrainerCallback, transformers.trainer_callback.ExportableState):
    """A callback with a state in the checkpoint."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"args": {"steps": self.steps}, "attributes": {}}


# ---- what happens to the checkpoint ----------------------------------------------------------------------------------


def shard(folder: Path, kind: str = "safetensors") -> None:
    """Save the weights of a checkpoint again in three files with an index."""
    stem = "model" if kind == "safetensors" else "pytorch_model"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts, places = [dict(list(weights.items())[i::3]) for i in range(3)], {}
    for number, part in enumerate(parts, 1):
        name = f"{stem}-{number:05}-of-00003.{kind}"
        save(part, folder / name)
        places |= dict.fromkeys(part, name)
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def lose_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()


def save(weights: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(weights, path, {"format": "pt"})
    else:
        torch.save(weights, path)


def save_as_bin(folder: Path) -> None:
    save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def save_halved(folder: Path) -> None:
    weights = {name: value / 2 for name, value in load_file(folder / "model.safetensors").items()}
    save(weights, folder / "model.safetensors")


def drop_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("classifier.bias")
    save({**weights, "another": torch.zeros(2)}, folder / "model.safetensors")


def change_state(**values: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "trainer_state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def remove(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def truncate(name: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:100])

    return change


def remove_run(folder: Path) -> None:
    shutil.rmtree(folder.parent)
    folder.parent.mkdir()


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("mine"))


MORE, OTHER = make_examples("bert", 20), make_examples("bert", 12, seed=9)
WAYS: dict[str, tuple[dict[str, Any], Change | None, Any]] = {
    # changed arguments
    "unchanged": ({}, None, STOPPED),
    "newest": ({}, None, True),
    "from the start": ({}, None, False),
    "smaller batches": ({"per_device_train_batch_size": 2}, None, STOPPED),
    "larger batches": ({"per_device_train_batch_size": 6}, None, True),
    "accumulation": ({"gradient_accumulation_steps": 2}, None, True),
    "more epochs": ({"num_train_epochs": 3}, None, True),
    "more steps": ({"max_steps": 8}, None, STOPPED),
    "fewer steps": ({"max_steps": 5}, None, STOPPED),
    "no steps left": ({"max_steps": 3}, None, True),
    "learning rate": ({"learning_rate": 0.1}, None, STOPPED),
    "weight decay": ({"weight_decay": 0.5}, None, STOPPED),
    "schedule": ({"lr_scheduler_type": "cosine", "warmup_steps": 2}, None, STOPPED),
    "optimizer": ({"optim": "sgd"}, None, STOPPED),
    "seed": ({"seed": 12}, None, STOPPED),
    "clipping": ({"max_grad_norm": 0.01}, None, STOPPED),
    "label smoothing": ({"label_smoothing_factor": 0.1}, None, STOPPED),
    "data not skipped": ({"ignore_data_skip": True}, None, STOPPED),
    "other steps of saving and logging": ({"save_steps": 1, "logging_steps": 2}, None, STOPPED),
    "fewer checkpoints": ({"save_total_limit": 1}, None, STOPPED),
    "only models saved": ({"save_only_model": True}, None, STOPPED),
    "evaluation": ({"eval_strategy": "steps", "eval_steps": 1}, None, STOPPED),
    "evaluation first": ({"eval_strategy": "epoch", "eval_on_start": True}, None, STOPPED),
    "best model": ({"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}, None, STOPPED),
    "gradient checkpointing": ({"gradient_checkpointing": True}, None, STOPPED),
    "search of a batch size": ({"auto_find_batch_size": True, "per_device_train_batch_size": 2}, None, STOPPED),
    # changed data, model and callbacks
    "more data": ({"train_dataset": MORE}, None, STOPPED),
    "less data": ({"train_dataset": MORE[:8]}, None, STOPPED),
    "other data": ({"train_dataset": OTHER}, None, True),
    "a stream": ({"train_dataset": Stream(), "max_steps": 6}, None, STOPPED),
    "a model that is created": ({"model_init": lambda: make_model("bert")}, None, STOPPED),
    "another head": ({"kind": "regression"}, None, STOPPED),
    "callback with its state": (
        {"callbacks": [Counting], "restore_callback_states_from_checkpoint": True}, None, STOPPED
    ),
    "fewer callbacks": ({"restore_callback_states_from_checkpoint": True}, None, STOPPED),
    "more callbacks": (
        {"callbacks": [EarlyStoppingCallback], "restore_callback_states_from_checkpoint": True,
         "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}, None, STOPPED,
    ),
    # changed checkpoints
    "shards": ({}, shard, STOPPED),
    "shards as bin": ({}, lambda folder: shard(folder, "bin"), True),
    "a shard missing": ({}, lose_a_shard, True),
    "weights as bin": ({}, save_as_bin, STOPPED),
    "weights of one's own": ({}, save_halved, STOPPED),
    "weights with other names": ({}, drop_a_tensor, STOPPED),
    "no optimizer": ({}, remove("optimizer.pt"), STOPPED),
    "no optimizer and schedule": ({}, remove("optimizer.pt", "scheduler.pt"), STOPPED),
    "no random state": ({}, remove("rng_state.pth"), STOPPED),
    "no arguments": ({}, remove("training_args.bin"), STOPPED),
    "folder renamed": ({}, rename, "mine"),
    "state says another step": ({}, change_state(global_step=3), STOPPED),
    "state says a best checkpoint that is gone": (
        {}, change_state(best_model_checkpoint="gone/checkpoint-2", best_global_step=2), STOPPED
    ),
    # what is refused
    "no such checkpoint": ({}, None, "checkpoint-99"),
    "no checkpoint in the folder": ({}, remove_run, True),
    "no folder": ({}, lambda folder: shutil.rmtree(folder.parent), True),
    "no weights": ({}, remove("model.safetensors"), STOPPED),
    "no state": ({}, remove("trainer_state.json"), STOPPED),
    "weights cut off": ({}, truncate("model.safetensors"), STOPPED),
    "state cut off": ({}, truncate("trainer_state.json"), STOPPED),
    "optimizer cut off": ({}, truncate("optimizer.pt"), STOPPED),
    "random state cut off": ({}, truncate("rng_state.pth"), STOPPED),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_resumes_as_the_stock_trainer(stopped: dict[type, Path], tmp_path: Path, way: str) -> None:
    options, change, resume = WAYS[way]
    results = []
    for of in (Trainer, RegularizedTrainer):
        folder = shutil.copytree(stopped[of], tmp_path / of.__name__)
        if change is not None:
            change(folder / STOPPED)
        results.append(outcome(of, folder, resume, **options))
    assert_same_outcome(*results)


@pytest.mark.parametrize("is_filtered", [True, False], ids=["filtered", "logged"])
def test_diverges_as_the_stock_trainer(tmp_path: Path, is_filtered: bool) -> None:
    """The loss is not a number from the second step on, and checkpoints are written all the same."""
    options = {"learning_rate": 1e30, "max_grad_norm": 0.0, "max_steps": 12, "logging_nan_inf_filter": is_filtered}
    results = [outcome(of, tmp_path / of.__name__, None, **options) for of in (Trainer, RegularizedTrainer)]
    assert results[0]["step"] == 12
    assert not all(weights.isfinite().all() for weights in results[0]["weights"].values())
    assert_same_outcome(*results)
    for more in ({"check_finite": True}, {"regularizers": [DropHead(0.2)]}):
        with pytest.raises(DivergedError, match="training has diverged"):
            make_trainer(RegularizedTrainer, tmp_path / "ours", **options, **more).train()


def test_a_checkpoint_of_either_class_is_resumed_by_the_other(stopped: dict[type, Path], tmp_path: Path) -> None:
    results = []
    for written, read in ((Trainer, RegularizedTrainer), (RegularizedTrainer, Trainer), (Trainer, Trainer)):
        folder = shutil.copytree(stopped[written], tmp_path / f"{written.__name__}, {read.__name__}")
        results.append(outcome(read, folder, True))
    assert_same_outcome(results[2], results[0])
    assert_same_outcome(results[2], results[1])


def test_strict_resume_refuses_without_methods_too(stopped: dict[type, Path], tmp_path: Path) -> None:
    strict = {"strict_resume": True}
    run = shutil.copytree(stopped[RegularizedTrainer], tmp_path / "run")
    assert outcome(RegularizedTrainer, run, STOPPED, **strict)["step"] == 6
    shutil.rmtree(run / "checkpoint-6")
    for of in (RegularizedTrainer, regularized(Trainer)):
        refused = outcome(of, run, STOPPED, **strict, num_train_epochs=3)
        assert refused["text"].startswith(f"num_train_epochs is 3 and was 2 when {STOPPED} was written")
    shard(run / STOPPED)
    assert (
        "model-00001-of-00003.safetensors was added later"
        in outcome(RegularizedTrainer, run, STOPPED, **strict)["text"]
    )
    empty = outcome(RegularizedTrainer, tmp_path / "empty", True, **strict)
    assert empty["text"] == "there is no checkpoint in 'FOLDER' to resume from."


# ---- with methods ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regularized_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regularized") / "run"
    make_trainer(RegularizedTrainer, folder, regularizers=[Mixout(p=0.5)]).train()
    shutil.rmtree(folder / "checkpoint-6")
    return folder


@pytest.mark.parametrize(
    ("options", "change", "warning"),
    [
        ({}, None, None),
        ({"num_train_epochs": 3}, None, "num_train_epochs was 2 until step 4 and is 3 after it."),
        ({"per_device_train_batch_size": 2}, None, "per_device_train_batch_size was 4 until step 4 and is 2 after it."),
        ({"train_dataset": MORE}, None, "training data was '12 examples, "),
        ({"regularizers": [Mixout(p=0.2)]}, None, "mixout.p was "),
        (
            {"regularizers": [Mixout(p=0.5), DropHead(0.2)]},
            None,
            'methods was ["mixout"] until step 4 and is ["mixout",',
        ),
        (
            {"learning_rate": 0.1},
            None,
            "learning_rate is 0.1, and the optimizer of checkpoint-4 continues with 0.001, as ",
        ),
        ({}, shard, None),
        ({}, lambda folder: shard(folder, "bin"), None),
        ({}, remove(MANIFEST_FILE), f"the files of {STOPPED} are not verified, because it has no {MANIFEST_FILE}"),
        (
            {},
            remove(MANIFEST_FILE, "optimizer.pt"),
            f"{STOPPED} has no state of the optimizer, which begins anew.",
        ),
    ],
)
def test_with_methods_a_change_is_a_warning(
    regularized_run: Path, tmp_path: Path, options: dict[str, Any], change: Change | None, warning: str | None
) -> None:
    folder = shutil.copytree(regularized_run, tmp_path / "run")
    if change is not None:
        change(folder / STOPPED)
    options = {"regularizers": [Mixout(p=0.5)], **options}
    with warnings_heard("attendrop") as messages:
        trainer = make_trainer(RegularizedTrainer, folder, **options)
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == trainer.state.max_steps > 4
    if warning is None:
        assert messages == []
    else:
        assert any(text.startswith(warning) for text in messages), messages


def test_with_methods_weights_in_shards_continue_exactly(regularized_run: Path, tmp_path: Path) -> None:
    weights = []
    for change in (None, shard):
        folder = shutil.copytree(regularized_run, tmp_path / str(change))
        if change is not None:
            change(folder / STOPPED)
        trainer = make_trainer(RegularizedTrainer, folder, regularizers=[Mixout(p=0.5)])
        trainer.train(resume_from_checkpoint=True)
        weights.append(weights_of(trainer.model))
    assert same_bits(*weights)


def test_with_methods_a_new_learning_rate_is_used_on_request_only(regularized_run: Path, tmp_path: Path) -> None:
    """Without the request the weights are those of the old rate, and later checkpoints say so."""
    weights, rates, settings = [], [], []
    for rate, more in ((0.001, {}), (0.1, {}), (0.1, {"resume_changed": True})):
        folder = shutil.copytree(regularized_run, tmp_path / str(len(weights)))
        trainer = make_trainer(RegularizedTrainer, folder, regularizers=[Mixout(p=0.5)], learning_rate=rate)
        trainer.train(resume_from_checkpoint=True, **more)
        weights.append(weights_of(trainer.model))
        rates.append(trainer.optimizer.param_groups[0]["initial_lr"])
        settings.append(json.loads((folder / "checkpoint-6" / MANIFEST_FILE).read_text())["settings"]["learning_rate"])
    assert same_bits(weights[0], weights[1])
    assert not same_bits(weights[0], weights[2])
    assert rates == settings == [0.001, 0.001, 0.1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (truncate("model.safetensors"), "model.safetensors has 100 bytes and was written with "),
        (save_halved, "the content of model.safetensors was changed"),
        (remove("model.safetensors"), "model.safetensors is missing"),
        (remove("mixout.safetensors"), "mixout.safetensors is missing"),
        (remove("optimizer.pt"), "optimizer.pt is missing"),
        (
            remove(MANIFEST_FILE, "mixout.safetensors"),
            "it has no state of the method mixout; resume_changed=True begins",
        ),
    ],
)
def test_with_methods_damage_is_refused_or_skipped(
    regularized_run: Path, tmp_path: Path, change: Change, problem: str
) -> None:
    folder = shutil.copytree(regularized_run, tmp_path / "run")
    change(folder / STOPPED)
    refused = outcome(RegularizedTrainer, folder, STOPPED, regularizers=[Mixout(p=0.5)])
    assert refused["error"] == "ValueError"
    assert refused["text"].startswith(f"'FOLDER/{STOPPED}' cannot be resumed from: {problem}")
    resumed = outcome(RegularizedTrainer, folder, True, regularizers=[Mixout(p=0.5)])
    assert resumed["step"] == 6
    assert [text for text in resumed["messages"] if text.endswith("; the run continues from checkpoint-2.")]


def test_a_method_whose_state_is_missing_is_refused(stopped: dict[type, Path], tmp_path: Path) -> None:
    """A checkpoint of a run without the method has no pretrained weights, averages or networks for it."""
    for of in (Trainer, RegularizedTrainer):
        folder = shutil.copytree(stopped[of], tmp_path / of.__name__)
        for method in (Mixout(0.5), EMA(0.9), AttendOut(T=2)):
            refused = outcome(RegularizedTrainer, folder, STOPPED, regularizers=[method])
            assert f"it has no state of the method {method.name}; resume_changed=True" in refused["text"]
        assert outcome(RegularizedTrainer, folder, STOPPED, regularizers=[DropHead(0.2)])["step"] == 6  # it has none


@pytest.mark.parametrize(
    ("method", "is_refused"), [(Mixout(0.5), False), (AttendOut(T=2), True)], ids=["mixout", "attendout"]
)
def test_another_number_of_processes_is_refused_where_each_has_a_state_of_its_own(
    method: Regularizer, is_refused: bool, tmp_path: Path
) -> None:
    make_trainer(RegularizedTrainer, tmp_path, regularizers=[method]).train()
    manifest = read_manifest(tmp_path / STOPPED)
    manifest["settings"]["processes"] = 2
    seal(tmp_path / STOPPED, manifest, manifest["files"])
    resumed = outcome(RegularizedTrainer, tmp_path, STOPPED, regularizers=[method])
    if is_refused:
        assert resumed["text"].startswith(f"processes is 1 and was 2 when {STOPPED} was written; ")
    else:
        assert resumed["step"] == 6
        assert "processes was 2 until step 4 and is 1 after it." in resumed["messages"]


@pytest.mark.parametrize("core", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_a_checkpoint_of_another_numpy_continues_exactly(
    stopped: dict[type, Path], tmp_path: Path, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {}
    for name in ("own", "other"):
        folder = shutil.copytree(stopped[Trainer], tmp_path / name)
        path = folder / STOPPED / "rng_state.pth"
        if name == "other":  # numpy 1 and numpy 2 write different names of one function
            states = torch.load(path, weights_only=False)
            with monkeypatch.context() as patch:
                rebuild: Any = np.empty(0).__reduce__()[0]
                patch.setattr(rebuild, "__module__", core)
                patch.setitem(sys.modules, core, SimpleNamespace(_reconstruct=rebuild))
                torch.save(states, path)
            assert f"{core}\n_reconstruct".encode() in path.read_bytes()
        ended[name] = outcome(RegularizedTrainer, folder, STOPPED)
    assert_same_outcome(ended["own"], ended["other"])


def test_no_checkpoint_is_the_stock_error(tmp_path: Path) -> None:
    results = [outcome(of, tmp_path / of.__name__, True, **more) for of, more in (
        (Trainer, {}), (RegularizedTrainer, {"regularizers": [DropHead(0.2)]}))]  # fmt: skip
    assert_same_outcome(*results)


def test_a_missing_best_checkpoint_is_the_stock_warning(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True,
               "metric_for_best_model": "loss", "learning_rate": 0.5, "max_steps": 4}  # fmt: skip
    first = make_trainer(RegularizedTrainer, tmp_path, **options, regularizers=[DropHead(0.2)])
    first.train()
    best = Path(first.state.best_model_checkpoint)
    assert best.name != "checkpoint-4", "the test needs a best checkpoint that is not the last"
    shutil.rmtree(best)
    resumed = outcome(
        RegularizedTrainer, tmp_path, "checkpoint-4", **{**options, "max_steps": 5}, regularizers=[DropHead(0.2)]
    )
    assert resumed["step"] == 5
    assert any("does not exist anymore. Ignoring it for this run" in text for text in resumed["messages"])
