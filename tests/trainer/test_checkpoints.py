"""Checkpoints are whole or refused, changed settings are refused or recorded, and one run at a time uses a folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback

from attendrop import Mixout, RegularizedTrainer
from attendrop.errors import UserError
from attendrop.lab.cli.arguments import as_arguments as flags
from attendrop.lab.runs import fine_tune
from attendrop.trainer.checkpoint_folders import delete_old_checkpoints, newest_checkpoint
from attendrop.trainer.fingerprint import data_fingerprint
from attendrop.trainer.trajectory import Change, find_changes
from attendrop.utils.lock import LOCK_FILE, locked
from attendrop.utils.manifest import MANIFEST_FILE, find_problem, seal
from helpers.cli_tools import ENVIRONMENT, attendrop, save_encoder, sentences, write_csv
from helpers.data import make_arguments, make_examples, pad, same_bits, weights_of
from helpers.forks import Fork
from helpers.zoo import make_model

# One process runs all of these tests, so that their shared fixtures are created once.
pytestmark = pytest.mark.xdist_group("checkpoints")

FAULTS = str(Path(__file__).parents[1] / "scripts" / "faults.py")


# ---- the manifest --------------------------------------------------------------------------------------------------


def sealed(folder: Path) -> Path:
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "0.bin").write_bytes(b"weights")
    (folder / "trainer_state.json").write_text("{}")
    seal(folder, {"step": 3})
    return folder


def test_manifest_check_names_the_damaged_file(tmp_path: Path) -> None:
    good = sealed(tmp_path / "checkpoint-3")
    assert find_problem(good) is None
    for number, (name, change, problem) in enumerate(
        [
            ("shards/0.bin", lambda path: path.write_bytes(b"Weights"), "the content of shards/0.bin was changed"),
            (
                "shards/0.bin",
                lambda path: path.write_bytes(b"weigh"),
                "shards/0.bin has 5 bytes and was written with 7",
            ),
            ("shards/0.bin", lambda path: path.unlink(), "shards/0.bin is missing"),
            ("shards/1.bin", lambda path: path.write_bytes(b"x"), "shards/1.bin was added later"),
            (MANIFEST_FILE, lambda path: path.unlink(), f"it has no {MANIFEST_FILE}"),
            (MANIFEST_FILE, lambda path: path.write_text("[1, 2]"), f"{MANIFEST_FILE} cannot be read"),
            (
                MANIFEST_FILE,
                lambda path: path.write_text(path.read_text().replace('"step": 3', '"step": 4')),
                f"{MANIFEST_FILE} was changed",
            ),
        ]
    ):
        damaged = shutil.copytree(good, tmp_path / f"damaged{number}")
        change(damaged / name)
        assert str(find_problem(damaged)).startswith(problem)
    (good / "notes.txt").write_text("mine")  # nothing that would be loaded
    assert find_problem(good) is None


def test_newest_complete_checkpoint_is_chosen(tmp_path: Path) -> None:
    good = sealed(tmp_path / "checkpoint-3")
    (sealed(tmp_path / "checkpoint-20") / "shards" / "0.bin").write_bytes(b"weigh")
    (tmp_path / "checkpoint-100").mkdir()
    assert newest_checkpoint(tmp_path) == good


def test_old_checkpoints_are_chosen_by_their_steps_and_not_by_the_clock(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=6, save_steps=1, save_total_limit=2)

    class ClockThatIsSetBack(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for path in tmp_path.glob("checkpoint-*"):
                moment = 2_000_000_000 - 1000 * int(path.name.rpartition("-")[2])
                os.utime(path, (moment, moment))

    trainer.add_callback(ClockThatIsSetBack())
    trainer.train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-6"}


@pytest.mark.parametrize(
    ("limit", "step", "best", "left"),
    [
        (2, 30, None, {20, 30}),
        (1, 30, "runs/checkpoint-10", {10, 30}),
        (2, 30, "runs/checkpoint-10", {10, 30}),
        (2, 20, None, {10, 20}),  # the run went back to step 10, and 30 belongs to the attempt before
        (1, 100, None, {100}),
        (None, 30, None, {10, 20, 30, 100}),
    ],
)
def test_the_latest_and_the_best_checkpoint_stay(
    tmp_path: Path, limit: int | None, step: int, best: str | None, left: set[int]
) -> None:
    for number in {10, 20, 30, *left}:
        (tmp_path / f"checkpoint-{number}").mkdir()
    delete_old_checkpoints(tmp_path, limit, step, best)
    assert {int(path.name[11:]) for path in tmp_path.iterdir()} == left


def test_a_fingerprint_depends_on_the_examples_only() -> None:
    from datasets import Dataset

    rows = [{"input_ids": list(range(n % 7)), "label": n % 2} for n in range(2500)]
    data = Dataset.from_list(rows)
    assert data_fingerprint(data) == data_fingerprint(Dataset.from_list([rows[5], *rows]).select(range(1, 2501)))
    changed = [*rows[:-1], {**rows[-1], "label": 5}]
    assert data_fingerprint(data) != data_fingerprint(Dataset.from_list(changed))
    assert data_fingerprint(rows) == data_fingerprint([dict(row) for row in rows])
    assert data_fingerprint(rows) != data_fingerprint(changed)


# ---- RegularizedTrainer --------------------------------------------------------------------------------------------


def make_trainer(folder: Path, of: type = RegularizedTrainer, count: int = 16, dev: Any = None, **options: Any) -> Any:
    ours = {} if of is Trainer else {
        "regularizers": [Mixout(p=options.pop("p", 0.5))], "strict_resume": options.pop("strict_resume", False)
    }  # fmt: skip
    shape = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, **options}
    return of(
        model=make_model("bert"), args=make_arguments(folder, **shape), train_dataset=make_examples("bert", count),
        eval_dataset=dev, data_collator=pad, **ours,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    make_trainer(folder).train()
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 2e-3}, "learning_rate is 0.002 and was 0.001 when checkpoint-2 was written"),
        ({"seed": 12}, "seed is 12 and was 11"),
        ({"per_device_train_batch_size": 2}, "per_device_train_batch_size is 2 and was 4"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2 and was 1"),
        ({"bf16": True}, "bf16 is True and was False"),
        ({"max_steps": 6}, "max_steps is 6 and was 4"),
        ({"p": 0.4}, "mixout.p is .*0.4.* and was .*0.5"),
        ({"count": 12}, "training data is '12 examples, .* and was '16 examples"),
    ],
)
def test_changed_settings_are_refused(trained: Path, options: dict[str, Any], message: str) -> None:
    trainer = make_trainer(trained, strict_resume=True, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(trained / "checkpoint-2"))


def test_settings_without_effect_may_change(trained: Path) -> None:
    trainer = make_trainer(trained, logging_steps=3, dataloader_num_workers=0, save_steps=1)
    trainer.args.output_dir = str(trained.parent / "elsewhere")
    trainer.train(resume_from_checkpoint=str(trained / "checkpoint-2"))
    assert trainer.state.global_step == 4


def test_a_setting_of_an_older_manifest_is_compared_under_its_new_name() -> None:
    assert find_changes({"step": "eager"}, {"capture": "captured"}, 2) == [Change(2, "capture", "eager", "captured")]
    assert not find_changes({"step": "eager"}, {"capture": "eager"}, 2)


def test_allowed_change_takes_effect_and_is_recorded_in_later_checkpoints(trained: Path, tmp_path: Path) -> None:
    """The learning rate comes from the optimizer's state, so that the Trainer alone would ignore a new one."""
    shape = {"lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.1}
    make_trainer(tmp_path, **shape).train()
    whole = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    trainer = make_trainer(tmp_path, **{**shape, "learning_rate": 0.2})
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"), resume_changed=True)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.2
    assert not same_bits(whole, load_file(tmp_path / "checkpoint-4" / "model.safetensors"))
    changes = json.loads((tmp_path / "checkpoint-4" / MANIFEST_FILE).read_text())["changes"]
    assert changes == [{"step": 2, "name": "learning_rate", "before": 0.1, "now": 0.2}]
    with pytest.raises(ValueError, match="no step is left to train"):
        make_trainer(tmp_path, **shape).train(resume_from_checkpoint=True, resume_changed=True)


def test_plain_trainer_checkpoint_is_resumed_only_on_request(tmp_path: Path) -> None:
    make_trainer(tmp_path, of=Trainer).train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match=f"has no {MANIFEST_FILE}.*resume_changed=True"):
        make_trainer(tmp_path, strict_resume=True).train(resume_from_checkpoint=True)
    trainer = make_trainer(tmp_path)
    trainer.train(resume_from_checkpoint=True, resume_changed=True)
    assert trainer.state.global_step == 4


def test_an_unfinished_folder_that_is_a_link_is_replaced_and_never_followed(trained: Path, tmp_path: Path) -> None:
    folder, mine = shutil.copytree(trained, tmp_path / "run"), tmp_path / "mine"
    shutil.rmtree(folder / "checkpoint-4")
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    (folder / "unfinished").symlink_to(mine)
    make_trainer(folder).train(resume_from_checkpoint=True)
    assert (folder / "checkpoint-4" / MANIFEST_FILE).is_file()
    assert not (folder / "unfinished").is_symlink()
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


def test_damaged_checkpoint_is_skipped(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    file = folder / "checkpoint-4" / "mixout.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="'.*checkpoint-4' cannot be resumed from: the content of mixout.safetensors"):
        make_trainer(folder).train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    trainer = make_trainer(folder)
    trainer.train(resume_from_checkpoint=True)
    (note,) = trainer.checkpoints.notes
    assert "mixout.safetensors was changed; the run continues from checkpoint-2" in note
    assert same_bits(load_file(trained / "checkpoint-4" / "model.safetensors"), weights_of_file(folder, 4))
    for step in (2, 4):
        (folder / f"checkpoint-{step}" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="there is no complete checkpoint .* checkpoint-2 .* optimizer.pt is missing"):
        make_trainer(folder).train(resume_from_checkpoint=True)


def weights_of_file(folder: Path, step: int) -> Any:
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def test_best_checkpoint_must_be_complete(tmp_path: Path) -> None:
    """Without it the run would end with another model. A folder that was moved keeps its best checkpoint."""
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True,
            "metric_for_best_model": "loss", "learning_rate": 0.5}  # fmt: skip

    def make(folder: Path) -> Any:
        return make_trainer(folder, dev=make_examples("bert", 4, seed=5), **best)

    first = make(tmp_path / "first")
    first.train()
    name = Path(first.state.best_model_checkpoint).name
    assert name != "checkpoint-4", "the test needs a best checkpoint that is not the last"
    moved = tmp_path / "moved"
    (tmp_path / "first").rename(moved)
    again = make(moved)
    again.train(resume_from_checkpoint=True)
    assert again.state.best_model_checkpoint == str(moved / name)
    assert same_bits(weights_of(first.model), weights_of(again.model))
    (moved / name / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match=f"the best checkpoint so far is {name}, and model.safetensors has 6 bytes"):
        make(moved).train(resume_from_checkpoint=str(moved / "checkpoint-4"))


# ---- whole runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    rows = sentences(32, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", sentences(8, seed=2))
    return folder


def settings(workspace: Path, output: str, **more: Any) -> dict[str, Any]:
    return {
        "model": str(workspace / "model"), "train_file": str(workspace / "train.csv"),
        "validation_file": str(workspace / "dev.csv"), "method": ["mixout:p=0.5"], "num_train_epochs": 2,
        "per_device_train_batch_size": 8, "learning_rate": 1e-3, "use_cpu": True,
        "output_dir": str(workspace / output), "keep_checkpoints": True, **more,
    }  # fmt: skip


def test_finished_run_is_not_resumed_but_can_be_extended(workspace: Path) -> None:
    fine_tune(**settings(workspace, "run"))
    folder = workspace / "run"
    record, config = (folder / "record.json").read_bytes(), (folder / "run.yaml").read_bytes()
    with pytest.raises(UserError, match="is finished, after 8 steps; train on with --resume --resume-changed"):
        fine_tune(**settings(workspace, "run", resume=True))
    with pytest.raises(UserError, match="learning_rate is 0.01 and was 0.001"):
        fine_tune(**settings(workspace, "run", resume=True, learning_rate=0.01))
    with pytest.raises(UserError, match="no step is left to train with the changed settings"):
        fine_tune(**settings(workspace, "run", resume=True, resume_changed=True, learning_rate=0.01))
    with pytest.raises(UserError, match="resume_changed is given without resume"):
        fine_tune(**settings(workspace, "run", resume_changed=True))
    assert (record, config) == ((folder / "record.json").read_bytes(), (folder / "run.yaml").read_bytes())
    result = fine_tune(**settings(workspace, "run", resume=True, resume_changed=True, num_train_epochs=3))
    assert result.record.cost.steps == 12
    assert [(change["name"], change["step"]) for change in result.record.changes] == [("num_train_epochs", 8)]
    assert "num_train_epochs was 2 until step 8 and is 3" in (folder / "run.yaml").read_text()
    assert "num_train_epochs was 2 until step 8 and is 3" in (folder / "README.md").read_text()
    assert "resume_changed" not in yaml.safe_load((folder / "run.yaml").read_text())


def test_two_runs_do_not_share_a_folder(workspace: Path) -> None:
    folder = workspace / "shared"
    with locked(folder):
        holder = json.loads((folder / LOCK_FILE).read_text())
        assert holder["pid"] == os.getpid()
        with pytest.raises(UserError, match=rf"another run uses \(process {os.getpid()} on .*, since 2"):
            fine_tune(**settings(workspace, "shared"))
        assert [path.name for path in folder.iterdir()] == [LOCK_FILE]
    assert not (folder / LOCK_FILE).exists()


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from attendrop.utils.lock import locked\n"
    code += "with locked(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "held"
    with pytest.raises(UserError, match=f"process {child.pid} "), locked(tmp_path):
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    assert (tmp_path / LOCK_FILE).exists()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    (tmp_path / LOCK_FILE).write_text('{"pid": 1, "host": "another", "started": "2026-01-01 00:00:00"}')
    with pytest.raises(UserError, match=f"process 1 on another, .* delete {LOCK_FILE}"), locked(tmp_path):
        pass


@pytest.mark.slow
def test_workers_end_with_their_launcher_and_resuming_needs_the_same_number(workspace: Path) -> None:
    shape = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "no", "num_train_epochs": 200}
    words = flags(settings(workspace, "two", **shape))
    command = [sys.executable, "-m", "attendrop", "train", *words, "--nproc", "2"]
    launcher = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_for(lambda: newest_checkpoint(workspace / "two") is not None and len(_workers(str(workspace / "two"))) >= 2)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    _wait_for(lambda: not _workers(str(workspace / "two")), 30)
    one = attendrop("train", *words, "--resume")
    assert one.code == 2
    assert "processes is 1 and was 2" in one.err
    assert "Traceback" not in one.err


def _workers(folder: str) -> list[int]:
    """The processes whose command line names a folder, besides the launcher."""
    ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if folder.encode() in words and b"--nproc" not in words:
            ids.append(int(path.parent.name))
    return ids


def _wait_for(condition: Any, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


# ---- injected faults -----------------------------------------------------------------------------------------------


def run_faults(folder: Path, *more: str, timeout: float) -> dict[str, int]:
    done = Fork([FAULTS, folder, *more]).wait(timeout)
    assert done.code == 0, done.err[-2000:]
    result = json.loads(done.out.splitlines()[-1])
    assert result["bad"] == []
    counts: dict[str, int] = result["counts"]
    print(counts)
    return counts


def test_faults_are_survived_or_refused(tmp_path: Path) -> None:
    """A sample of the next test."""
    counts = run_faults(tmp_path, "--method", "mixout", "--sample", "3", timeout=500)
    assert counts["kill equal"] == 3
    assert counts["full refused"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["attendout", "mixout", "concrete_dropout", "child_tuning", "noisytune", "supertickets"]
)
def test_every_fault_is_survived_or_refused(tmp_path: Path, method: str) -> None:
    """Killed at every write of a checkpoint, every file damaged in every way, disks of five sizes."""
    counts = run_faults(tmp_path, "--method", method, timeout=7200)
    assert counts["kill equal"] > 30
    for damage in ("truncated", "zeroed", "deleted", "flipped", "swapped"):
        assert counts[f"{damage} equal"] >= 5
        assert counts[f"{damage} refused"] == counts[f"{damage} equal"]
