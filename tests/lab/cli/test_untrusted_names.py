"""Names of files and texts of users are shown as they are: no markup, no control of the terminal, no password."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.cli.arguments import as_arguments
from attendrop.lab.cli.console import _TextConsole, plain_table
from attendrop.lab.records import BaselineScores, FolderRecord, Kept
from attendrop.lab.records.record import Averaged
from attendrop.lab.report.card import make_card
from attendrop.lab.studies.design import parse_contender
from attendrop.utils.files import whole_file, whole_folder
from attendrop.utils.lock import LOCK_FILE, locked
from attendrop.utils.secrets import secrets_of, without_password
from helpers.forks import run_python

# ---- the card --------------------------------------------------------------------------------------------------------

NAMES = (
    "<img src=x onerror=alert(1)>",
    "`<script>alert(1)</script>`",
    "a\n\n<script>alert(1)</script>\n\n",
    "``` <b> ```",
    "x](javascript:alert(1)) ![y](http://z)",
    "a\n---\n<style>*{display:none}</style>",
)


@pytest.mark.parametrize("has_soup", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_no_name_becomes_markup_in_the_card(name: str, has_soup: bool) -> None:
    definition = {
        "name": name, "kind": "classification", "hub": None, "hub_config": None, "text": ["text", name],
        "label": name, "metrics": ["accuracy"], "splits": {}, "labels": ["a", name],
    }  # fmt: skip
    record = FolderRecord(
        task=name, seed=0, settings={"model": f"/models/{name}", "learning_rate": name}, task_definition=definition,
        max_length=8, regularizers=[{"method": name, "p": name}], versions={"attendrop": "0"}, device="cpu",
        examples={"train": 8, "validation": 4}, scores={"validation": {"accuracy": 1.0}}, notes=[name], caveats=[name],
        kept=Kept(sentences=[name]), soup=Averaged("greedy", name, [0], [name]) if has_soup else None,
        baselines=BaselineScores(sentence=name), threshold_note=name, temperature_note=name, model_class="Bert",
    )  # fmt: skip
    record.cost.steps, record.cost.total_seconds = 1, 1.0
    folder = Path("/runs", name.replace("/", "_"))
    card = str(make_card(record, folder))
    _, _, body = card.partition("\n---\n")
    assert body
    tokens = MarkdownIt("commonmark").parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    assert not [token for token in (*tokens, *inline) if token.type in ("html_block", "html_inline")]
    assert [child.attrs["src"] for child in inline if child.type == "image"] in ([], ["curves.png"])
    assert not [child.attrs for child in inline if child.type == "link_open"]


# ---- the terminal ----------------------------------------------------------------------------------------------------


def test_no_text_controls_the_terminal() -> None:
    stream = io.StringIO()
    screen = _TextConsole(file=stream, force_terminal=True, color_system="standard", highlight=False, width=200)
    name = "evil\x1b[2J\x1b]0;title\x07\x9b31m\x7f\r\u202e\u2067.csv"
    table = plain_table("file")
    table.add_row(name)
    for thing in (name, table, f"[bold]{name}[/bold]"):
        screen.print(thing)
    assert "evil\\x1b[2J" in stream.getvalue()
    assert "\x1b[1m" in stream.getvalue()  # our own colours stay
    left = stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert left.isprintable() or set(left) - {"\n"} == {c for c in left if c.isprintable()}


@pytest.mark.parametrize(
    "words", [["curves", "{}"], ["report", "{}"], ["study", "{}"], ["predict", "{}", "text"], ["check", "{}/x.csv"]]
)
def test_a_folder_with_an_escape_in_its_name_is_named_with_an_escape(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run\x1b[31m"
    folder.mkdir()
    (folder / "x.csv").write_text("text,label\nfine,\x1b[31mgood\ndull,bad\n")
    run([word.format(folder) for word in words])
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err


# ---- passwords -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_a_token_after_a_method_is_refused_and_never_shown_or_written(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--model", "m", "--task", "glue/rte", "--output-dir", "study", "--method", "ema@hub_token=hf_secret"]
    assert run([command, *words]) == 2
    shown = capsys.readouterr()
    assert "method 'ema' has hub_token after the @, which would be stored with the study" in " ".join(shown.err.split())
    assert "hf_secret" not in shown.out + shown.err
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="has hub-token after the @") as refused:
        parse_contender("ema@learning_rate=1e-5, hub-token=hf_secret")
    assert "hf_secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["hub_token", "hub-token", "push_to_hub_token", "HUB_TOKEN", " hub_token "])
def test_no_way_to_give_a_token_shows_or_stores_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a study is stored in study.json and shown on its page."""
    monkeypatch.chdir(tmp_path)
    assert as_arguments({name: "hf_secret", "seed": 1}) == ["--seed", "1"]
    (tmp_path / "run.yaml").write_text(json.dumps({name.strip().lower(): ["hf_secret"]}))
    for words in (["--method", f"ema@{name}=hf_secret"], ["--method", f"ema:decay=0.9@{name}=hf_secret"],
                  ["--config", "run.yaml"]):  # fmt: skip
        assert run(["train", "--model", "m", "--task", "glue/rte", *words]) == 2
        shown = capsys.readouterr()
        assert "hf_secret" not in shown.out + shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:SECRET@host/db",
        "postgresql://user:SEC@RET@host/db",
        "postgresql://user:SEC/RET@host/db",
        "redis://:SECRET@host:1/0",
        "postgresql://host/db?user=u&password=SECRET",
        "mysql+pymysql://u:SECRET@host/db?ssl_key=SECRET",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3DSECRET",
        "sqlite+pysqlcipher://:SECRET@/x.db?cipher=aes",
    ],
)
def test_no_form_of_a_storage_url_shows_its_password(url: str) -> None:
    hidden = without_password(url)
    assert not any(part in hidden for part in ("SEC", "RET"))
    assert hidden.partition("://")[0] == url.partition("://")[0]
    assert any("SEC" in secret for secret in secrets_of(url))
    assert without_password("sqlite:////a/b.db") == "sqlite:////a/b.db"


# ---- links and sockets -----------------------------------------------------------------------------------------------


def test_locks_and_unfinished_files_follow_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK_FILE).symlink_to(mine)
    with (
        pytest.raises(UserError, match=f"{LOCK_FILE}' is a symbolic link, and no lock of a run; delete it"),
        locked(folder),
    ):
        pass
    (folder / LOCK_FILE).unlink()
    (folder / LOCK_FILE).symlink_to(tmp_path / "created")
    with pytest.raises(UserError, match="is a symbolic link"), locked(folder):
        pass
    assert not (tmp_path / "created").exists()
    (folder / "out.csv.unfinished").symlink_to(mine)
    with whole_file(folder / "out.csv", is_text=True) as file:
        file.write("new")
    (tmp_path / "place.unfinished").symlink_to(folder)
    with whole_folder(tmp_path / "place") as draft:
        (draft / "x").write_text("new")
    assert mine.read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, "out.csv"]


SCRIPT = """
import contextlib, json, os, pathlib, sys
if "RANK" in os.environ:
    import torch.distributed
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    listening = {}
    for line in [l.split() for n in ("tcp", "tcp6") for l in open(f"/proc/net/{n}").read().splitlines()[1:]]:
        if line[3] == "0A":
            listening[line[9]] = line[1]
    addresses = []
    for pid in (os.getpid(), os.getppid()):
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the file that lists them
                inode = os.readlink(fd).removeprefix("socket:[").removesuffix("]")
                addresses += [listening[inode].partition(":")[0]] if inode in listening else []
    pathlib.Path(os.environ["FOLDER"], os.environ["RANK"]).write_text(json.dumps(addresses))
    torch.distributed.barrier()
else:
    from attendrop.lab.cli.launch import Processes, _launch_by_torch
    sys.exit(_launch_by_torch([__file__], Processes(2, 1, 0, None, 29500)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the sockets of Linux")
def test_several_processes_of_one_machine_listen_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python(str(script), FOLDER=str(tmp_path))
    assert done.code == 0, done.err
    of_ranks = [json.loads((tmp_path / rank).read_text()) for rank in ("0", "1")]
    assert {address for addresses in of_ranks for address in addresses} == {"0100007F"}
