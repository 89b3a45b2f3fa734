"""Commands that are shown can be copied: a shell reads the same words, and nothing controls the terminal."""

from __future__ import annotations

import os
import subprocess

import pytest

from attendrop.utils.shell import command_line

WORDS = (
    "plain", "two words", "it's", "", "-x", "$(touch pwned)", "`a`", "a\\b", "é", "\x1b[2J", "a\x07b", "a\nb",
    "a\u202eb", "a\x7f'\"\\n", "\udcff", "\u00a0", "a\tb",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_shell_reads_the_same_word(word: str) -> None:
    line = command_line("printf", "%s", word)
    assert line.isprintable()
    read = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert read == os.fsencode(word)
