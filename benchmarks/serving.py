"""Requests a second of `attendrop serve` beside a bare loop of the same predictor, its memory, and bad requests.

    python -m benchmarks.serving runs/reviews --requests 100000

The rows are in `results/serving.csv`. 500 damaged requests are sent too, and the service must not print a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.lab.runs.predict import Predictor, read_finished

from .records import RESULTS, append, conditions

TEXTS = [
    "a film that grows on you",
    "dull and far too long, with a plot that goes nowhere",
    "fine",
    "the music saves it",
]


def resident(pid: int) -> float:
    """The resident memory of a process in MiB."""
    line = next(of for of in Path(f"/proc/{pid}/status").read_text().splitlines() if of.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def bare_loop(predictor: Predictor, seconds: float) -> float:
    """Calls a second of the predictor in this process, one text each."""
    for text in TEXTS:
        predictor.columns([text], 32)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        predictor.columns([TEXTS[count % len(TEXTS)]], 32)
        count += 1
    return count / (time.perf_counter() - start)


async def load(
    port: int, pid: int, requests: int, connections: int, memory: dict[int, float] | None = None
) -> tuple[float, list[float]]:
    """Send requests over some connections; return the requests a second and the latencies.

    Args:
        port: Where the service listens on this machine.
        pid: The process of the service.
        requests: How many are sent.
        connections: How many are open at once.
        memory: After which requests the memory is read, which is stored as the value.
    """
    bodies = [json.dumps({"texts": [text]}).encode() for text in TEXTS]
    packets = [
        b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (len(body), body)
        for body in bodies
    ]
    done, latencies = 0, list[float]()

    async def client() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while done < requests:
            done += 1
            number, start = done, time.perf_counter()
            writer.write(packets[number % len(packets)])
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            latencies.append(time.perf_counter() - start)
            if memory is not None and number in memory:
                memory[number] = round(resident(pid), 1)
                print(f"{number:>7,} requests: {memory[number]} MiB", flush=True)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    return done / (time.perf_counter() - start), latencies


def bad_requests(port: int, count: int) -> dict[int, int]:
    """Send damaged requests, and return how often each status was answered."""
    draw, statuses = random.Random(0), Counter[int]()
    valid = b'{"texts": ["a film", "the plot"]}'
    for _ in range(count):
        body = bytearray(valid)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(body))
            body[place : place + draw.randint(0, 3)] = bytes([draw.randrange(256)])
        path = draw.choice(["/predict", "/predict", "/predict", "/health", "/nothing", "/../etc/passwd"])
        kind = draw.choice(["application/json", "text/plain", "multipart/form-data", ""])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(draw.choice(["POST", "POST", "PUT", "GET"]), path, bytes(body), {"content-type": kind})
        statuses[connection.getresponse().status] += 1
        connection.close()
    return dict(sorted(statuses.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--output", type=Path, default=RESULTS / "serving.csv")
    options = parser.parse_args()
    predictor = read_finished(options.folder).load()
    bare = bare_loop(predictor, 5)
    print(f"bare loop: {bare:.0f} predictions a second", flush=True)
    rows: list[dict[str, Any]] = [{"measure": "bare loop", "a second": round(bare, 1)}]
    command = [sys.executable, "-m", "attendrop", "serve", options.folder, "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1) as server,
    ):
        try:
            assert server.stdout is not None
            shown = ""
            while "http://127.0.0.1:" not in shown or "(documentation" not in shown:
                shown += server.stdout.readline()
            port = int(shown.split("http://127.0.0.1:")[1].split()[0])
            for connections in (1, options.connections):
                asyncio.run(load(port, server.pid, 200, connections))  # warms up
                rate, latencies = asyncio.run(load(port, server.pid, 1500, connections))
                p50, p95 = (round(value, 2) for value in np.percentile(latencies, [50, 95]) * 1000)
                print(
                    f"{connections} connections: {rate:.0f} requests a second, p50 {p50} ms, p95 {p95} ms", flush=True
                )
                row = {"measure": "service", "connections": connections, "requests": 1500, "a second": round(rate, 1)}
                rows.append({**row, "of the bare loop": round(rate / bare, 3), "p50 ms": p50, "p95 ms": p95})
            statuses = bad_requests(port, 500)
            print(f"500 bad requests: {statuses}", flush=True)
            marks = (1000, 10_000, 25_000, 50_000, 75_000, 100_000)
            memory = {number: 0.0 for number in marks if number <= options.requests}
            rate, _ = asyncio.run(load(port, server.pid, options.requests, options.connections, memory))
            print(f"{options.requests:,} requests: {rate:.0f} a second")
            for number, size in memory.items():
                rows.append({"measure": "memory", "requests": number, "MiB": size, "connections": options.connections})
            server.send_signal(signal.SIGINT)
            print(f"after Ctrl-C: exit code {server.wait(20)}")
            errors.seek(0)
            tracebacks = errors.read().count("Traceback")
            answers = " ".join(f"{status}: {count}" for status, count in statuses.items())
            rows.append({"measure": "bad requests", "requests": 500, "answers": answers, "tracebacks": tracebacks})
        finally:
            server.kill()
    parameters = sum(tensor.numel() for tensor in predictor.model.parameters())
    shared = conditions("cpu", parameters=parameters)
    names = "measure", "connections", "requests", "a second", "of the bare loop", "p50 ms", "p95 ms", "MiB", "answers"
    append(options.output, [{**dict.fromkeys((*names, "tracebacks"), ""), **row, **shared} for row in rows])


if __name__ == "__main__":
    main()
