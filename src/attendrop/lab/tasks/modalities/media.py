"""The common part of images and sounds: examples are files, which a column of paths or a folder of classes names.

Every file is read once before training, so that a file that cannot be read is named with its row. Batches are made of
the files when they are needed: all of them would not fit into the memory.
"""

from __future__ import annotations

import hashlib
import stat
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from ....errors import UserError, on_one_line
from ....utils.files import CONTENT
from ..catalogue import Task
from ..files import Problem, Table
from ..kinds import KINDS
from .base import Encoder, Modality

FILE = "file"  # the column of paths, of a folder and of encoded examples


@dataclass(frozen=True)
class Facts:
    """Facts about a file.

    Attributes:
        digest: A checksum of its content.
        problem: Why it cannot be used; None if it can.
        seconds: The length of a sound.
        rate: The sampling rate of a sound, in Hz.
        is_silent: Whether a sound is nothing but zeros.
    """

    digest: str = ""
    problem: str | None = None
    seconds: float = 0.0
    rate: int = 0
    is_silent: bool = False


class Unreadable(Exception):
    """A file cannot be read. The message is the end of a sentence: `which` ..."""


class Media(Modality):
    """Files of one type."""

    reads_files = True
    suffixes: ClassVar[tuple[str, ...]]
    default_length: ClassVar[int]  # `Task.max_length`

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the kinds of tasks that such examples may have."""
        return tuple(name for name, kind in KINDS.items() if self.name in kind.modalities)

    @abstractmethod
    def facts(self, path: Path) -> Facts:
        """Read a file that exists; `Unreadable` says what is wrong with it."""

    @abstractmethod
    def blank(self, processor: Any) -> Any:
        """Return an example without content, as `inputs` takes it."""

    @abstractmethod
    def read(self, path: str, processor: Any, max_length: int) -> Any:
        """Return an example, as `inputs` takes it."""

    @abstractmethod
    def inputs(self, examples: Sequence[Any], processor: Any) -> dict[str, Any]:
        """Return the inputs of the model for a batch."""

    # ---- the model ---------------------------------------------------------------------------------------------

    def pipeline_tag(self, task: Task) -> str:
        return f"{self.name}-classification"

    def load_processor(self, name: str, *, trust_remote_code: bool = False) -> Any:
        import transformers

        from ..models import load_processor_of  # `models` imports this package

        called = self.processor_called.replace("_", " ")
        return load_processor_of(getattr(transformers, self.processor_class), name, called, trust_remote_code)

    def match(self, name: str, model: Any, processor: Any, notes: list[str]) -> None:
        """Run the model on an example without content."""
        import torch

        inputs = self.inputs([self.blank(processor)], processor)
        is_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                model(**{key: value.to(model.device) for key, value in inputs.items()})
        except (ValueError, RuntimeError, TypeError) as error:
            raise UserError(
                f"{name} does not take the {self.noun}s that its {type(processor).__name__} makes: "
                f"{on_one_line(error)}."
            ) from None
        finally:
            model.train(is_training)

    def how_cut(self, task: Task, max_length: int) -> str:
        return ""

    # ---- the inputs of the model -------------------------------------------------------------------------------

    def encoder(self, task: Task, processor: Any, max_length: int | None) -> Encoder:
        """Keep paths, and checksums of the files for a resumed run; `length` is what batches are grouped by."""

        def encode(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
            paths = batch[task.text[0]]
            facts = [self.facts_of(path) for path in paths]
            digests = [of.digest for of in facts]
            return {FILE: list(paths), f"{FILE}{CONTENT}": digests, "length": [of.seconds for of in facts]}

        return encode

    def collator(self, task: Task, processor: Any, max_length: int, seed: int, mlm_probability: float) -> Any:
        return MediaCollator(self, processor, max_length)

    # ---- the user's files --------------------------------------------------------------------------------------

    def located(self, table: Table, columns: Sequence[str]) -> Table:
        """Resolve paths in a table, relative to the folder of the table."""
        folder = table.path.parent
        resolved = {
            name: [
                str(folder / value.strip()) if isinstance(value, str) and value.strip() else value for value in paths
            ]
            for name, paths in table.columns.items()
            if name in columns
        }
        return replace(table, columns={**table.columns, **resolved})

    def check_column(self, table: Table, task: Task, column: str) -> None:
        """Read all files in parallel; `facts_of` caches the results."""
        paths = [value for value in table.columns[column] if isinstance(value, str) and value.strip()]
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(self.facts_of, paths):
                pass

    def problem(self, task: Task, column: str, value: Any) -> Problem | None:
        if not isinstance(value, str) or not value.strip():
            return Problem(f"has no path in column {column!r}", "fill it in or remove the row", f"path {column}")
        text = f"has the file {value!r} in column {column!r}, which"
        if not Path(value).exists():
            return Problem(f"{text} does not exist", "paths are relative to the folder of the table", "no file")
        if (problem := self.facts_of(value).problem) is not None:
            return Problem(f"{text} {problem}", "replace the file or remove the row", f"unreadable {column}")
        return None

    def keys(self, task: Task, values: Sequence[Any]) -> list[Hashable]:
        """Return the checksums of the files: a copy with another name is the same."""
        return [self.facts_of(value).digest for value in values]

    def facts_of(self, path: str) -> Facts:
        """Return facts about a file, which is only read again if it has changed."""
        try:
            status = Path(path).stat()
        except (OSError, ValueError) as error:
            return Facts(problem=f"cannot be read: {getattr(error, 'strerror', None) or error}")
        if not stat.S_ISREG(status.st_mode):
            return Facts(problem="is a folder, a pipe or a device, and no file")
        return _facts(self, path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1_000_000)
def _facts(media: Media, path: str, changed: int, size: int) -> Facts:
    if Path(path).suffix.lower() not in media.suffixes:
        return Facts(problem=f"is no {media.noun} that can be read ({', '.join(media.suffixes)})")
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return replace(media.facts(Path(path)), digest=digest)
    except Unreadable as error:
        return Facts(problem=f"cannot be read: {error}")
    except OSError as error:
        return Facts(problem=f"cannot be read: {error.strerror or on_one_line(error)}")


@dataclass
class MediaCollator:
    """Read the files of a batch.

    Args:
        media: The kind of the files.
        processor: The processor of the model.
        max_length: The maximum length of an example.
    """

    media: Media
    processor: Any
    max_length: int

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        read = [self.media.read(example[FILE], self.processor, self.max_length) for example in examples]
        batch = self.media.inputs(read, self.processor)
        if "labels" in examples[0]:
            batch["labels"] = torch.tensor([example["labels"] for example in examples])
        return batch
