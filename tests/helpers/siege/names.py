"""Names that are markup or control the terminal, and secrets: shown as they are, or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

from .cases import Case, Siege

_NAMES = (
    "<img src=x onerror=alert(1)>", "<script>alert(1)<%script>", "a\x1b[2Jb", "a\x1b]0;title\x07b", "a\nb", "a\rb",
    "x](javascript:alert(1))", "`<b>`", "[bold]x[%bold]", "a\u202eb", "a' b\" c", "-x", "$(touch pwned)", "a;b&c",
    "\x9b31m",
    "%s{x}", "é", "x\x7fy", "--help", "]]>", "<!--",
)  # fmt: skip
_TOKEN = "hf_besiegedSECRETtoken"


def names(siege: Siege) -> Iterator[Case]:
    """Files, folders, columns and labels with such names, through a run and all that is done with it."""
    while True:
        draw = siege.draw
        # A slash cannot be in the name of a file.
        folder, file, column, label = (draw.choice(_NAMES) for _ in range(4))
        column, label = column.replace("%", "/"), label.replace("%", "/")
        run, table = f"./{folder}", f"./{file}.csv"

        def before(table: str = table, column: str = column, label: str = label) -> None:
            quoted = column.replace('"', '""'), label.replace('"', '""')
            rows = [f'a film {number},"{quoted[1] if number % 2 else "other"}"' for number in range(12)]
            Path(table).write_text("\n".join([f'text,"{quoted[0]}"', *rows]) + "\n", newline="")

        data = ["--text", "text", f"--label={column}"]
        after: list[list[object]] = [
            ["predict", run, "--file", table, "--output", f"{run}/out.csv"],
            ["evaluate", run, "--file", table, "--output", f"{run}/evaluated"],
            ["curves", run, "--output", f"{run}/c.png"],
            ["dropped", run, "--max-samples", 4],
            ["check", table, *data],
        ]
        words = siege.training(run, f"--train-file={table}", *data, "--max-steps", 1)
        yield Case(f"{[folder, file, column, label]}", words, after, before=before, check=_shown_as_text(run))


def _shown_as_text(run: str) -> Callable[[int, str], str | None]:
    def check(code: int, text: str) -> str | None:
        if controls := set(re.findall(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202e]", text)):
            return f"controls of the terminal: {controls}"
        if Path("pwned").exists():
            return "a name was run"
        card = Path(run, "README.md")
        if not card.exists():
            return None
        _, _, body = card.read_text().partition("\n---\n")
        tokens = MarkdownIt("commonmark").parse(body)
        inline = [child for token in tokens for child in token.children or ()]
        markup = [token.content for token in (*tokens, *inline) if token.type in ("html_block", "html_inline")]
        links = [child.attrs for child in inline if child.type == "link_open"]
        return f"markup in the card: {markup} {links}" if markup or links else None

    return check


def secrets(siege: Siege) -> Iterator[Case]:
    """Tokens and passwords, given in every way: they are in no output and in no file."""
    study = [
        "--model", siege.model, "--train-file", siege.train, "--use-cpu", "--max-steps", 1, "--workers", 0,
        "--output-dir", "out",
    ]  # fmt: skip
    url = f"postgresql://user:{_TOKEN}@127.0.0.1:1/db"
    yaml_file = ["--config", "given.yaml"]
    ways: list[tuple[list[object], dict[str, object]]] = [
        (siege.training("out", "--hub-token", _TOKEN), {}),
        (siege.training("out", "--hub-token", _TOKEN, "--push-to-hub", "--hub-model-id", "a/b"), {}),
        (siege.training("out", "--push-to-hub-token", _TOKEN), {}),
        (siege.training("out", *yaml_file), {"hub_token": _TOKEN}),
        (siege.training("out", *yaml_file), {"hub_token": {"a": _TOKEN}}),
        (siege.training("out", *yaml_file), {"hub_token": [_TOKEN]}),
        (["train", *yaml_file], {"model": str(siege.model), "train_file": str(siege.train), "hub-token": _TOKEN}),
        (siege.training("out", "--model", f"https://user:{_TOKEN}@example.org/model"), {}),
        *((words, {}) for words in _with_url(siege, study)),
        (["compare", *study, "--method", "rdrop", "--seeds", 2, "--hub-token", _TOKEN], {}),
        (["compare", *study, "--method", "rdrop", "--seeds", 2, *yaml_file], {"hub_token": _TOKEN}),
        (["plan", "plan.yaml", *study[:4], "--method", "rdrop", "--hub-token", _TOKEN], {}),
        (["plan", "plan.yaml", *study[:4], "--method", "rdrop", *yaml_file], {"hub_token": _TOKEN}),
        (["tune", *study, "--method", "rdrop", "--trials", 2, "--storage", url], {}),
        (["tune", *study, "--method", "rdrop", "--trials", 2, "--storage", url.replace("@", "%40@x")], {}),
        (["tune", *study, "--method", "rdrop", "--trials", 2, "--storage", f"redis://:{_TOKEN}@127.0.0.1:1"], {}),
        *((siege.training("out", "--method", f"{method}{_TOKEN}"), {}) for method in _BEFORE),
        *((["compare", *study, "--seeds", 2, "--method", f"{method}{_TOKEN}"], {}) for method in _BEFORE),
        *((["tune", *study, "--trials", 2, "--method", f"{method}{_TOKEN}"], {}) for method in _BEFORE),
        *((["plan", "plan.yaml", *study[:4], "--method", f"{method}{_TOKEN}"], {}) for method in _BEFORE),
    ]  # fmt: skip
    while True:
        words, settings = siege.draw.choice(ways)

        def before(settings: dict[str, object] = settings) -> None:
            Path("given.yaml").write_text(yaml.safe_dump(settings))

        yield Case(" ".join(map(str, words[-4:])), words, before=before, inside=_reports_here, check=_not_told)


def _with_url(siege: Siege, study: list[object]) -> list[list[object]]:
    """Commands that get a URL with a token where they expect a name, a file or a folder."""
    urls = [f"https://{user}{_TOKEN}@example.org/a" for user in ("", "user:", ":")]
    storage = f"sqlite:///file:t.db?mode=rwc&uri=true&password={_TOKEN}"
    return [
        ["tune", *study, "--method", "rdrop", "--trials", 1, "--final-seeds", 1, "--storage", storage],
        *(words for url in urls for words in (
            siege.training("out", "--train-file", url),
            siege.training("out", "--hub-model-id", url),
            siege.training("out", "--resume-from-checkpoint", url),
            siege.training("out", "--method", f"attendout:run={url}"),
            siege.training(url),
            ["compare", "--model", url, *study[2:], "--method", "rdrop", "--seeds", 1],
            ["compare", *study[:2], *study[4:], "--method", "rdrop", "--seeds", 1, "--data", f"a={url}"],
            ["tune", "--model", url, *study[2:], "--method", "rdrop", "--trials", 1],
            ["plan", "plan.yaml", "--model", url, *study[2:4], "--method", "rdrop"],
            ["plan", "plan.yaml", *study[:2], "--train-file", url, "--method", "rdrop"],
            ["plan", "plan.yaml", *study[:2], "--method", "rdrop", "--data", f"a={url}"],
            ["check", url], ["check", siege.train, "--model", url], ["predict", url, "a"], ["report", url],
            ["predict", siege.run, "--file", url, "--output", "out.csv"], ["evaluate", siege.run, "--file", url],
            ["reproduce", "addrop/table-2", "--model", url, "--scale", "small"], ["soup", url, "--output-dir", "out"],
            ["compress", url, "--target", "2x"], ["dropped", url], ["curves", url], ["demo", "--output-dir", url],
        )),
    ]  # fmt: skip


_BEFORE = ("ema@hub_token=", "ema@hub-token=", "ema@learning_rate=1e-5,hub_token=", "ema@push_to_hub_token=",
           "ema@HUB_TOKEN=", "ema@ hub_token =")  # fmt: skip


def _reports_here() -> None:
    os.environ["TMPDIR"] = os.getcwd()  # where the traceback of an internal error is kept


def _not_told(code: int, text: str) -> str | None:
    files = [path for path in Path().rglob("*") if path.is_file() and path.name != "given.yaml"]
    told = [str(path) for path in files if _TOKEN.encode() in path.read_bytes()]
    return f"in {told} {'and on the screen' * (_TOKEN in text)}" if told or _TOKEN in text else None
