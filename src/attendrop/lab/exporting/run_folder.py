"""Exports the model of a finished run to ONNX, fp32 or int8, or with torch.export, after a check of its score.

The exported model answers the same examples as the model of the run. In fp32 its outputs must be within 1e-4; of int8
the loss of the score must be within the tolerance. Otherwise nothing is written.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...errors import UserError, on_one_line
from ...prune import export_onnx, export_program, quantize_onnx
from ...utils.checks import check_choice, check_number, check_whole
from ...utils.files import write_json
from .. import tasks
from ..evaluation.answers_compared import compare_answers, score_sentence
from ..records import FolderRecord
from ..runs.data import data_of_run
from ..runs.folder import RECORD_FILE, check_writable, read_record
from ..runs.inference import Rows
from ..runs.onnx_model import EXPORT_FILE, FILES, ONNX, ONNX_INT8, OnnxModel, digest_of, exported_files
from ..runs.predict import Finished, Outputs, Predictor, read_finished
from ..statistics.paired_scores import Difference

FORMATS = ("onnx", "torch")
TOLERANCE = 0.01  # a loss of the score of int8 that counts as none, where the user names no other
CLOSE = 1e-4  # of the outputs in fp32, times the largest
CALIBRATION = 128  # training examples on which the ways of quantisation are compared
Note = Callable[[str], None]


@dataclasses.dataclass
class Exported:
    """An exported model.

    Attributes:
        path: The file.
        sentences: Its size, how near it is, and its score.
        script: Lines of Python that run it.
    """

    path: Path
    sentences: list[str]
    script: str


def export_run(
    folder: str | Path,
    to: str = "onnx",
    *,
    int8: bool = False,
    tolerance: float = TOLERANCE,
    file: str | Path | None = None,
    batch_size: int = 32,
    overwrite: bool = False,
    note: Note = lambda text: None,
) -> Exported:
    """Export the model of a finished run into its folder, as `attendrop export` does.

    Args:
        folder: The folder of the run.
        to: "onnx", or "torch" for a program of torch.export.
        int8: Whether weights and activations are int8; for ONNX.
        tolerance: The loss of the score that int8 may have.
        file: A file with labels to check the score on; None = the validation data of the run.
        batch_size: The number of examples in a batch of the check.
        overwrite: Whether an earlier file is replaced.
        note: Called with sentences for the user before the end.

    Example:
        ```python
        print(export_run("runs/reviews", int8=True).script)
        ```
    """
    check_choice("to", to, FORMATS)
    check_number("tolerance", tolerance, 0, 1, is_below=True)
    check_whole("batch_size", batch_size, 1)
    if int8 and to != "onnx":
        raise UserError("int8 is for ONNX; leave out --int8 or --to torch.")
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if to == "onnx" and find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {' and '.join(missing)}: pip install 'attendrop[onnx]'.")
    record, run = read_record(folder), read_finished(folder)
    _check_task(folder, run.task)
    path = Path(folder, FILES["program" if to == "torch" else ONNX_INT8 if int8 else ONNX])
    check_writable(path.parent, "folder", path.parent, may_create=False)
    if path.exists() and not overwrite:
        raise UserError(f"{str(path)!r} exists; replace it with --overwrite.")
    work = _Work(run, record, _labelled(folder, record, run.task, file), batch_size, note)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as draft:
        made, facts, sentences = work.export(Path(draft), to, int8, tolerance)
        for each in sorted(made.parent.glob(f"{made.name}*")):  # large weights are in a second file
            each.replace(path.with_name(each.name.replace(made.name, path.name)))
    files = exported_files(folder)
    files[path.name] = {"sha256": digest_of(path), **facts}
    write_json(Path(folder, EXPORT_FILE), {"record": digest_of(Path(folder, RECORD_FILE)), "files": files})
    return Exported(path, sentences, script_of(run, path))


def _check_task(folder: str | Path, task: tasks.Task) -> None:
    kind, modality = tasks.kind_of(task), tasks.modality_of(task).name
    if kind.is_generated:
        raise UserError(
            f"{str(folder)!r} holds a model for {kind.spoken or kind.name}, which has a decoder; only encoders with a "
            "head can be exported."
        )
    if modality != "text":
        raise UserError(
            f"{str(folder)!r} holds a model of the modality {modality!r}; only those of texts are exported."
        )


def _labelled(folder: str | Path, record: FolderRecord, task: tasks.Task, file: str | Path | None) -> tasks.Data:
    """Return the examples of the check as `Data.test`, and training examples where the run has them."""
    if file is not None:
        data = tasks.load_inputs(file, task)
        if data.test is None or tasks.kind_of(task).target(task) not in data.test.column_names:
            raise UserError(f"{file} has no labels, and without them there is no score to check.")
        return data
    own = data_of_run(folder, record)
    if own.validation is None:
        raise UserError(f"{str(folder)!r} has no validation data; name a file with labels with --file.")
    return tasks.Data(task, own.train, None, own.validation)


@dataclasses.dataclass
class _Work:
    """One export."""

    run: Finished
    record: FolderRecord
    data: tasks.Data
    batch_size: int
    note: Note

    def export(self, draft: Path, to: str, int8: bool, tolerance: float) -> tuple[Path, dict[str, Any], list[str]]:
        """Return the file that was made, what `export.json` says about it, and sentences."""
        loaded = self.run.load()
        model = loaded.model.to("cpu").eval()
        self.reference = Predictor(self.run, loaded.tokenizer, model)
        before = self._outputs(model)
        batch = self._examples(loaded.tokenizer, 2)
        if to == "torch":
            path = _made(lambda: export_program(model, draft / FILES["program"], batch), model, "torch.export")
            program: Any = torch.export.load(path).module()
            names = list(batch)
            after = self._outputs(_Callable(lambda inputs: program(*(inputs[name] for name in names))[0], model.config))
        else:
            path = _made(lambda: export_onnx(model, draft / FILES[ONNX], batch), model, "ONNX")
            after = self._outputs(OnnxModel(path, model.config))
        largest = float(np.abs(after.values - before.values).max())
        if not largest <= CLOSE * max(1.0, float(np.abs(before.values).max())):
            raise UserError(
                f"the exported {type(model).__name__} gives outputs that are {largest:.2g} off those of the model; "
                "nothing is written."
            )
        if int8:
            path, largest = self._quantized(path, model)
            after = self._outputs(OnnxModel(path, model.config))
        sentences = [f"{_megabytes(path):,.1f} MB; outputs differ from those of the model by at most {largest:.2g}"]
        facts: dict[str, Any] = {"largest_difference": largest}
        if int8:
            difference, sentence = self._compared(after, before, tolerance)
            if -difference.value > tolerance:
                raise UserError(
                    f"{path.name} loses more than tolerance {tolerance:g}, and nothing is written: {sentence}; allow "
                    "more with --tolerance, or leave out --int8."
                )
            if difference.verdict(tolerance) != "no worse":
                self.note(f"warning: {sentence}")
            else:
                sentences.append(sentence)
            facts["difference"] = dataclasses.asdict(difference)
        return path, facts, sentences

    def _compared(self, after: Outputs, before: Outputs, tolerance: float) -> tuple[Difference, str]:
        """Return the difference of the scores, and a sentence about it."""
        new, old = after.answers(), before.answers()
        assert new is not None
        assert old is not None
        metric = self.record.metric or self.run.task.metrics[0]
        difference = compare_answers(new, old, metric)
        score = tasks.METRICS[metric](*old.for_metrics(old.predicted))
        return difference, score_sentence(difference, metric, score, tolerance)

    def _outputs(self, model: Any, data: tasks.Data | None = None) -> Outputs:
        predictor = Predictor(self.run, self.reference.tokenizer, model)
        return predictor.outputs(self.data if data is None else data, self.batch_size)

    def _examples(self, tokenizer: Any, count: int) -> dict[str, torch.Tensor]:
        """Return a batch of the first examples, as `predict` makes them."""
        assert self.data.test is not None
        few = tasks.Data(self.run.task, None, None, self.data.test.select(range(min(count, len(self.data.test)))))
        split = tasks.prepare(few, tokenizer, self.run.max_length).test
        assert split is not None
        rows = Rows.of_split(split, tokenizer, tasks.kind_of(self.run.task).has_endings)
        return rows.batch(rows.order, rows.length(rows.order))

    def _quantized(self, path: Path, model: Any) -> tuple[Path, float]:
        """Return the int8 file that is nearest to the model on training examples, and its largest difference."""
        source = self.data.train if self.data.train is not None else self.data.test
        assert source is not None
        few = source.shuffle(seed=0).select(range(min(CALIBRATION, len(source))))
        data = tasks.Data(self.run.task, None, None, few)
        truth, best = self._outputs(model, data).values, (float("inf"), path, 0.0)
        for reduce_range in (False, True):
            made = path.parent / str(int(reduce_range)) / FILES[ONNX_INT8]
            made.parent.mkdir()
            _made(lambda: quantize_onnx(path, made, reduce_range=reduce_range), model, "int8")  # noqa: B023
            off = np.abs(self._outputs(OnnxModel(made, model.config), data).values - truth)
            best = min(best, (float(np.square(off).mean()), made, float(off.max())))
        return best[1], best[2]


def _megabytes(path: Path) -> float:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*")) / 1e6


def _made(make: Callable[[], Path], model: Any, what: str) -> Path:
    try:
        return make()
    except Exception as error:  # exporters raise many classes of errors
        raise UserError(f"{type(model).__name__} cannot be exported ({what}: {on_one_line(error)[:300]}).") from error


class _Callable:
    """A function of a batch in the place of a model."""

    device = torch.device("cpu")

    def __init__(self, function: Callable[[Any], torch.Tensor], config: Any) -> None:
        self.function, self.config = function, config

    def eval(self) -> _Callable:
        """Do nothing: there is no other mode."""
        return self

    def __call__(self, **inputs: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.function(inputs))


def script_of(run: Finished, path: Path) -> str:
    """Return lines of Python that run an exported model without attendrop and, of ONNX, without PyTorch.

    Args:
        run: The run.
        path: The exported file.
    """
    task, is_onnx = run.task, path.suffix == ".onnx"
    has_rows = tasks.kind_of(task).has_endings
    texts = '["a text"]'
    if task.is_encoded_apart:
        texts = '["a text", "its second text"]'
    elif has_rows:
        texts = '["a text", "a text"], ["one ending", "another ending"]'
    elif len(task.text) == 2:
        texts += ', ["its second text"]'
    tensors, row = ("np" if is_onnx else "pt"), ("[None]" if has_rows else "")
    given = f"{{i.name: batch[i.name]{row} for i in session.get_inputs()}}"
    lines = [
        f"import {'onnxruntime' if is_onnx else 'torch'}, transformers",
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(run.folder)!r})",
        f"session = onnxruntime.InferenceSession({str(path)!r})"
        if is_onnx
        else f"model = torch.export.load({str(path)!r}).module()",
        f'batch = tokenizer({texts}, padding=True, truncation=True, return_tensors="{tensors}")',
        f'print(session.run(["logits"], {given})[0])'
        if is_onnx
        else f"print(model(*(batch[name]{row} for name in tokenizer.model_input_names if name in batch))[0])",
    ]
    return "\n".join(lines)
