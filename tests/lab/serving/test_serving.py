"""`attendrop serve`: the answers of `attendrop predict` over HTTP, errors as sentences, and the page in a browser."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs.predict import Predictor, read_finished, text_columns
from helpers.small_runs import KINDS, WIDTH, long_texts, save_sources, train_small

pytest.importorskip("fastapi")
pytest.importorskip("fastapi_offline")
uvicorn = pytest.importorskip("uvicorn")

from attendrop.lab.serving.app import LOOPBACK, Limits, make_app  # noqa: E402
from attendrop.lab.serving.run import listen  # noqa: E402

pytestmark = pytest.mark.xdist_group("small runs")

HOSTILE = "</script><img src=x onerror='window.hacked = true'>"


class Served:
    """A run that is served by uvicorn in a thread."""

    def __init__(self, predictor: Predictor, limits: Limits = Limits()) -> None:  # noqa: B008
        self.opened = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.opened.getsockname()[1]}"
        app = make_app(predictor, limits, hosts=LOOPBACK)
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.opened]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.01)
            assert self.thread.is_alive()

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of the answer."""
        request = urllib.request.Request(self.address + path, body, {"content-type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def predict(self, texts: Any) -> list[dict[str, Any]]:
        status, content = self.ask("/predict", json.dumps({"texts": texts}).encode())
        assert status == 200, content
        return content["answers"]

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.opened.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sources(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def single(sources: Path) -> Path:
    return train_small(sources, "single")


@pytest.fixture(scope="module")
def served(single: Path) -> Iterator[Served]:
    service = Served(read_finished(single).load())
    yield service
    service.close()


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_predict(kind: str, sources: Path, single: Path) -> None:
    folder = single if kind == "single" else train_small(sources, kind)
    texts = [text for text, _ in long_texts(10, seed=4)]
    examples = [texts[i : i + 2] for i in range(0, 10, 2)] if WIDTH.get(kind) == 2 else texts
    service = Served(read_finished(folder).load())
    answers = service.predict(examples)
    service.close()
    columns, task = text_columns(folder, texts)
    assert [answer["prediction"] for answer in answers] == columns["prediction"]
    for place, answer in enumerate(answers):
        if kind == "tokens":
            assert answer["words"] == texts[place].split()
            assert answer["probability"] == columns["probability"][place]
            assert answer["probability"][-1] is None  # it was cut off
        elif kind != "regression":
            shares = {label: columns[f"probability_{label}"][place] for label in task.labels}
            assert answer["probabilities"] == shares


def test_words_may_be_given_as_a_list(sources: Path) -> None:
    predictor = read_finished(train_small(sources, "tokens", output_dir=str(sources / "words"))).load()
    split, whole = (predictor.columns([text], 8)["prediction"] for text in (["a", "long", "film"], "a long film"))
    assert split == whole


def test_health_says_what_is_served(served: Served) -> None:
    status, content = served.ask("/health")
    assert (status, content["status"], content["labels"]) == (200, "ok", ["bad", "good"])


def test_documentation_needs_no_other_place(served: Served) -> None:
    page = urllib.request.urlopen(f"{served.address}/docs", timeout=10).read().decode()
    assert "http://" not in page.replace(served.address, "")
    assert "https://" not in page
    _, schema = served.ask("/openapi.json")
    assert set(schema["paths"]) == {"/predict", "/health"}
    assert {"200", "413", "422", "503"} <= set(schema["paths"]["/predict"]["post"]["responses"])


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 422, "the body: field required"),
        (b"{", 422, "the body is not JSON."),
        (b"\xff\xfe\x00", 422, "the body is not JSON."),
        (b"[" * 100_000, 422, "the body is not JSON."),
        (b"[1]", 422, "the body must be a JSON object"),
        (b'{"texts": "a film"}', 422, "texts: input should be a valid list"),
        (b'{"texts": [NaN]}', 422, "texts.0: input should be a valid string"),
        (b'{"texts": []}', 422, "texts: list should have at least 1 item"),
        (b'{"texts": [" "]}', 422, "text 1 of 1 is empty; give a text with at least one word"),
        (b'{"texts": ["a\\u0000"]}', 422, "text 1 of 1 has a NUL character"),
        (b'{"texts": ["a", "\\ud800"]}', 422, "text 2 of 2 has half of a surrogate pair"),
        (b'{"texts": ["a"], "temperature": 2}', 422, "temperature: extra inputs are not permitted"),
        (json.dumps({"texts": ["a"] * 257}).encode(), 422, "texts: list should have at most 256 items"),
        (b'{"texts": ["' + b"a" * 1_000_000 + b'"]}', 413, "the body has more than 1,000,000 bytes"),
    ],
)
def test_a_bad_request_is_answered_with_a_sentence(body: bytes, status: int, sentence: str, served: Served) -> None:
    answered, content = served.ask("/predict", body)
    assert (answered, list(content)) == (status, ["error"])
    assert sentence in content["error"]


def test_500_bad_requests_leave_no_traceback(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)
    valid = b'{"texts": ["a film", "the plot"]}'
    for number in range(500):
        body = bytearray(valid)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(body))
            body[place : place + draw.randint(0, 3)] = bytes([draw.randrange(256)])
        path = draw.choice(["/predict", "/predict", "/predict", "/health", "/nothing", "/../etc/passwd"])
        kind = draw.choice(["application/json", "text/plain", "multipart/form-data", ""])
        status, content = served.ask(path, bytes(body), **{"content-type": kind})
        assert status in (200, 404, 405, 413, 422), (number, status, content)
        assert ("error" in content) == (status != 200)
    assert served.predict(["a film"])
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_body_without_its_length_is_limited_too(served: Served) -> None:
    with socket.create_connection(served.opened.getsockname(), timeout=10) as client:
        head = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(40):
            client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        client.sendall(b"0\r\n\r\n")
        answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_another_host_is_refused(served: Served) -> None:
    assert served.ask("/health", host="attacker.example")[0] == 421
    assert served.ask("/health", host="localhost:80")[0] == 200


def test_a_failing_model_is_one_line_in_the_log(single: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = read_finished(single).load()
    service = Served(predictor)
    predictor.model = None
    status, content = service.ask("/predict", b'{"texts": ["a film"]}')
    service.close()
    assert status == 500
    assert "failed" in content["error"]
    (line,) = [entry for entry in caplog.records if entry.name == "attendrop.serve"]
    assert "NoneType" in line.getMessage()
    assert line.exc_info is None


def test_requests_beyond_the_limit_of_waiting_ones_are_refused(single: Path) -> None:
    predictor = read_finished(single).load()
    begun, go, columns = threading.Event(), threading.Event(), predictor.columns

    def slow(*arguments: Any) -> Any:
        begun.set()
        go.wait(30)
        return columns(*arguments)

    predictor.columns = slow  # type: ignore[method-assign]
    service = Served(predictor, Limits(waiting=1))
    first = threading.Thread(target=service.predict, args=(["a film"],))
    first.start()
    begun.wait(30)
    assert service.ask("/health")[0] == 200  # while the model runs
    status, content = service.ask("/predict", b'{"texts": ["a film"]}')
    go.set()
    first.join()
    service.close()
    assert status == 503
    assert "try again later" in content["error"]


def test_command_line_refuses_what_cannot_be_served(single: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        for words, sentence in (
            ([single, "--port", port], f"127.0.0.1 port {port} cannot be opened"),
            ([single, "--port", 65536], "port is 65536; it must be from 0 to 65535."),
            ([single, "--max-texts", 0], "max_texts is 0; it must be a whole number of at least 1."),
            ([single / "none"], "has no record.json"),
            ([single, "--host", "no such host"], "cannot be opened"),
        ):
            assert run(["serve", *map(str, words)]) == 2
            assert sentence in " ".join(capsys.readouterr().err.split())


def test_images_cannot_be_served(single: Path) -> None:
    predictor = read_finished(single).load()
    predictor.run.task = dataclasses.replace(predictor.run.task, modality="image")
    with pytest.raises(UserError, match="predicts images, and only texts can be served"):
        make_app(predictor)


# ---- the page, in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_texts_are_tried_on_the_page(served: Served, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 700})
    problems: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.address)
    page.get_by_label("text").fill(f"a film\n\n{HOSTILE}")
    page.get_by_role("button", name="Predict").press("Enter")
    page.wait_for_selector("li >> nth=1")
    answers = served.predict(["a film", HOSTILE])
    assert page.locator("li .prediction").all_text_contents() == [answer["prediction"] for answer in answers]
    assert HOSTILE in page.locator("li >> nth=1").text_content()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {url.removeprefix(served.address) for url in asked} <= {"/", "/predict", "data:,"}
    page.get_by_label("text").fill("x\n" * 300)
    page.get_by_role("button").click()
    page.wait_for_selector("[role=alert]:not(:empty)")
    assert "at most 256 items" in page.locator("[role=alert]").text_content()
    assert [problem for problem in problems if "422" not in problem] == []  # the browser logs the refused request
    page.close()


def test_axe_finds_nothing_serious_on_the_page(served: Served, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for theme in ("light", "dark"):
        context = browser.new_context(color_scheme=theme, bypass_csp=True)  # axe brings a script of its own
        page = context.new_page()
        page.goto(served.address)
        page.get_by_label("text").fill("a film")
        page.get_by_role("button").click()
        page.wait_for_selector("button:enabled")
        page.wait_for_selector("li")
        violations = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []
        context.close()


@pytest.mark.parametrize("kind", ["pairs", "tokens", "multilabel"])
def test_page_has_a_field_for_each_text_and_shows_every_kind(kind: str, sources: Path, browser: Any) -> None:
    folder = sources / "runs" / kind
    service = Served(read_finished(folder if folder.is_dir() else train_small(sources, kind)).load())
    page = browser.new_page()
    page.goto(service.address)
    for field in page.locator("textarea").all():
        field.fill("a film with music")
    page.get_by_role("button").click()
    page.wait_for_selector("li")
    assert page.locator("textarea").count() == WIDTH.get(kind, 1)
    assert page.locator("ruby").count() == (4 if kind == "tokens" else 0)
    assert page.locator("li progress").count() == (0 if kind == "tokens" else 2)
    page.close()
    service.close()
