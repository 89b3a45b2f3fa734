"""Requests a second of `attendrop serve` beside a bare loop of the same predictor, and the memory of the service.

python -m benchmarks.serving runs/reviews --requests 100000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

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


def bare_loop(folder: str, seconds: float) -> float:
    """Calls a second of the predictor in this process, one text each."""
    from attendrop.lab.runs.predict import read_finished

    predictor = read_finished(folder).load()
    for text in TEXTS:
        predictor.columns([text], 32)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        predictor.columns([TEXTS[count % len(TEXTS)]], 32)
        count += 1
    return count / (time.perf_counter() - start)


async def load(port: int, pid: int, requests: int, connections: int, marks: list[int]) -> tuple[float, list[float]]:
    """Send requests over some connections; return the requests a second and the latencies."""
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
            if number in marks:
                print(f"{number:>7,} requests: {resident(pid):.1f} MiB", flush=True)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    return done / (time.perf_counter() - start), latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    print(f"bare loop: {bare_loop(options.folder, 5):.0f} predictions a second", flush=True)
    command = [sys.executable, "-m", "attendrop", "serve", options.folder, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as server:
        try:
            assert server.stdout is not None
            shown = ""
            while "http://127.0.0.1:" not in shown or "(documentation" not in shown:
                shown += server.stdout.readline()
            port = int(shown.split("http://127.0.0.1:")[1].split()[0])
            for connections in (1, options.connections):
                rate, latencies = asyncio.run(load(port, server.pid, 200, connections, []))  # warms up
                rate, latencies = asyncio.run(load(port, server.pid, 1500, connections, []))
                p50, p95 = np.percentile(latencies, [50, 95]) * 1000
                speed = f"{rate:.0f} requests a second, p50 {p50:.1f} ms, p95 {p95:.1f} ms"
                print(f"{connections} connections: {speed}", flush=True)
            marks = [number for number in (1000, 10_000, 50_000, 100_000) if number <= options.requests]
            rate, _ = asyncio.run(load(port, server.pid, options.requests, options.connections, marks))
            print(f"{options.requests:,} requests: {rate:.0f} a second")
            server.send_signal(signal.SIGINT)
            print(f"after Ctrl-C: exit code {server.wait(20)}")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
