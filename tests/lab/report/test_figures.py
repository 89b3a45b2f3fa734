"""The figure of a sentence is drawn with a model from a folder, without a network."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attendrop.lab.report.masks import main
from attendrop.lab.report.style import saved
from helpers import zoo

WORDS = ["[PAD]", "[UNK]", "the", "film", "is", "not", "bad", "at", "all"]


def test_sentence_with_its_dropped_positions_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(tmp_path)
    zoo.make_model("bert").save_pretrained(tmp_path)
    path = tmp_path / "out.png"
    main(["the film is not bad at all", "--model", str(tmp_path), "--p", "0.5", "--q", "1", "--output", str(path)])
    assert path.read_bytes().startswith(b"\x89PNG")
    # 7 tokens: 7 − int(3.5) = 4 candidates in each of 7 rows, all dropped
    assert "28 of 49 positions dropped" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_signs_without_a_shape_in_the_font_are_no_warning(suffix: str, tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.add_subplot().set_title("a run \x1b[2J of 映画 \x07")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one would bring the sign to the terminal
        saved(figure, tmp_path / f"figure{suffix}")
    assert (tmp_path / f"figure{suffix}").stat().st_size > 1000
