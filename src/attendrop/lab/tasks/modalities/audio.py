"""Sounds: .wav is read with scipy; .flac, .ogg and .mp3 with soundfile, where it is installed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from ..catalogue import Task
from ..files import Table
from ..findings import WARNING, Finding, listed, plural
from .media import Facts, Media, Unreadable

_WITH_SOUNDFILE = (".flac", ".ogg", ".mp3")


class Audio(Media):
    """Sounds. They are mixed to one channel, resampled to the rate of the model, and cut to a number of seconds."""

    name, noun, example, unit = "audio", "sound", "sound.wav", "seconds"
    processor_class, processor_called = "AutoFeatureExtractor", "feature_extractor"
    suffixes = (".wav", *_WITH_SOUNDFILE)
    default_length = 30

    def model_class(self, task: Task) -> str:
        return "AutoModelForAudioClassification"

    def match(self, name: str, model: Any, processor: Any, notes: list[str]) -> None:
        super().match(name, model, processor, notes)
        if hasattr(model, "freeze_feature_encoder"):
            model.freeze_feature_encoder()
            notes.append(f"the convolutions of {name} that read the samples are frozen, as is usual")

    def check_length(self, model: Any, processor: Any, max_length: int | None, task: Task, notes: list[str]) -> int:
        return self.length_limit(task, processor, max_length, notes)

    def length_limit(self, task: Task, processor: Any, max_length: int | None, notes: list[str]) -> int:
        """The number of seconds. Whisper's feature extractor has a limit of its own."""
        length = task.max_length if max_length is None else max_length
        most = getattr(processor, "chunk_length", None)
        if most is not None and most < length:
            if max_length is not None:
                notes.append(f"max_length {length} is above the {most} seconds that the model takes, which are used")
            return int(most)
        return length

    def how_cut(self, task: Task, max_length: int) -> str:
        return f"Sounds are cut to {max_length} seconds."

    def facts(self, path: Path) -> Facts:
        samples, rate = _read(path)
        if not len(samples):
            raise Unreadable("it has no samples")
        return Facts(seconds=round(len(samples) / rate, 2), rate=rate, is_silent=not samples.any())

    def blank(self, processor: Any) -> Any:
        return np.zeros(processor.sampling_rate, dtype=np.float32)

    def read(self, path: str, processor: Any, max_length: int) -> Any:
        from scipy.signal import resample_poly

        samples, rate = _read(Path(path))
        samples, wanted = samples[: max_length * rate], processor.sampling_rate
        if rate != wanted:
            common = gcd(rate, wanted)
            samples = resample_poly(samples, wanted // common, rate // common).astype(np.float32)
        return samples

    def inputs(self, examples: Sequence[Any], processor: Any) -> dict[str, Any]:
        # Whisper always gets 30 seconds; its extractor pads by itself.
        padding = {"padding": True} if "input_values" in processor.model_input_names else {}
        made = processor(list(examples), sampling_rate=processor.sampling_rate, return_tensors="pt", **padding)
        return dict(made)

    def examine(self, task: Task, tables: Mapping[str, Table]) -> list[Finding]:
        findings = []
        rates: Counter[int] = Counter()
        for table in tables.values():
            facts = [self.facts_of(path) for path in table.columns[task.text[0]]]
            rates.update(fact.rate for fact in facts)
            silent = [row for row, fact in enumerate(facts) if fact.is_silent]
            if silent:
                text = f"{plural(len(silent), 'sound')} of {table.path} {'is' if len(silent) == 1 else 'are'} silent"
                findings.append(Finding(WARNING, f"{text} (first: {table.place(silent[0])})"))
        if len(rates) > 1:
            shown = listed(f"{rate:,} Hz ({plural(count, 'file')})" for rate, count in rates.most_common())
            text = f"the sounds have different sampling rates: {shown}; all are resampled to the rate of the model"
            findings.append(Finding(WARNING, f"{text}, and a rate that goes with a class would give the class away"))
        return findings


def _read(path: Path) -> tuple[np.ndarray, int]:
    """The samples of a sound in one channel, from -1 to 1, and their number in a second."""
    samples, rate = (_read_wav if path.suffix.lower() == ".wav" else _read_with_soundfile)(path)
    return samples if samples.ndim == 1 else samples.mean(-1, dtype=np.float32), rate


def _read_wav(path: Path) -> tuple[np.ndarray, int]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Chunk", wavfile.WavFileWarning)  # notes that editors write
            warnings.filterwarnings("error", "Reached EOF", wavfile.WavFileWarning)
            rate, samples = wavfile.read(path)
    except (ValueError, wavfile.WavFileWarning, EOFError, ZeroDivisionError) as error:
        raise Unreadable(" ".join(str(error).split()).rstrip(".") or "it is damaged") from None
    if np.issubdtype(samples.dtype, np.floating):
        return samples.astype(np.float32), int(rate)
    middle = 128 if samples.dtype == np.uint8 else 0  # 8 bits are written without a sign
    largest = 128 if samples.dtype == np.uint8 else -float(np.iinfo(samples.dtype).min)
    return ((samples.astype(np.float32) - middle) / largest).astype(np.float32), int(rate)


def _read_with_soundfile(path: Path) -> tuple[np.ndarray, int]:
    if find_spec("soundfile") is None:
        raise Unreadable("soundfile is not installed (pip install 'attendrop[audio]')")
    import soundfile

    try:
        samples, rate = soundfile.read(path, dtype="float32")
    except (RuntimeError, ValueError) as error:
        raise Unreadable(str(error).rstrip(".")) from None
    return samples, int(rate)
