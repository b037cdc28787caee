"""The control plane under load: 10,000 runs in its history, 20 watchers of a run whose journal grows.

The runs are small files and no more, as lists and searches see nothing else of a run. The journal that grows
is written by this process, in the form and at the pace of a run at ten times real time.
"""

from __future__ import annotations

import http.client
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, Target, figure
from benchmarks.measuring import Effort
from benchmarks.scenario_runs import BenchmarkError
from testbed import carriers
from testbed.journal import Journal
from testbed.rundir import RunDir

ROOT: Final = Path(__file__).parents[1]
RUNS, WATCHERS, ASKED = 10_000, 20, 1_000
LIVE: Final = "live-1"
PACE: Final = 10
"""Virtual seconds in a second."""
LIVE_S: Final = 3600
S: Final = 1_000_000_000
PAGE: Final = ("/", *(f"/page/{name}" for name in (
    "page.css", "main.js", "api.js", "dom.js", "compare.js", "charts.js", "numbers.js", "editor.js",
    "start.js", "run.js", "runs.js", "scenarios.js", "trends.js",
)), "/api/v1/runs?limit=50")  # fmt: skip
"""What a browser fetches to show the list of runs."""
OPENED: Final = {"the list": ("#/runs", "tbody tr"), "a live run": ("#/run/live-1", "figure > svg path.area")}
"""Pages by name, and what shows that one is there."""


def control_plane(effort: Effort) -> list[Figure]:
    """The first index of all runs, the page, and the API while everybody watches."""
    many, asked = (200, 50) if effort.quick else (RUNS, ASKED)

    def measure() -> Mapping[str, float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            runs = Path(directory) / "runs"
            write_history(runs, many)
            with served(runs) as port, live_run(runs), watched(port) as counts:
                index_s = until_indexed(port, many + 1)
                page_s = sum(_ask(port, path) for path in PAGE)
                opened = {name: opened_s(port, place, sign) for name, (place, sign) in OPENED.items()}
                before, begun_s = sum(counts), time.monotonic()
                answers_s = sorted(_ask(port, path) for path in _questions(asked, many))
                span_s = time.monotonic() - begun_s
                events_per_s = (sum(counts) - before) / WATCHERS / span_s
        return {
            "index_s": index_s,
            "page_s": page_s,
            **{name: took_s for name, took_s in opened.items() if took_s is not None},
            "p50_ms": 1000 * answers_s[len(answers_s) // 2],
            "p99_ms": 1000 * answers_s[int(0.99 * len(answers_s))],
            "events_per_s": events_per_s,
        }

    readings = effort.samples("control_plane", measure)
    load = f"{many:,} runs, {WATCHERS} watchers of a live run"
    median_ms = ", ".join(f"{one.values['p50_ms']:.3g}" for one in readings)
    return [
        figure(f"control plane: all files of the page and its list, {load}", "s", readings, "page_s",
               target=Target("at most", 1.0)),
        *(
            figure(f"control plane: {name} in Chromium, from its address to its first sign, {load}", "s",
                   readings, name, target=Target("at most", 1.0))
            for name in OPENED
            if all(name in one.values for one in readings)
        ),
        figure(f"control plane: P99 of {asked} questions to the API, {load}", "ms", readings, "p99_ms",
               target=Target("at most", 200.0), made_of=f"P50 {median_ms} ms"),
        figure("control plane: events that each watcher gets", "per s", readings, "events_per_s"),
        figure(f"control plane: first index of {many:,} runs", "s", readings, "index_s"),
    ]  # fmt: skip


def write_history(runs: Path, many: int) -> None:
    """So many judged runs of 40 scenarios."""
    dice = random.Random(1)
    for number in range(many):
        name, seed = f"scenario-{number % 40}", number // 40
        run = RunDir(runs / f"{name}-{seed}")
        run.path.mkdir(parents=True)
        head = {"name": name, "question": f"What becomes of {name}?", "seed": seed, "scale": 1.0}
        run.plan.write_text(json.dumps({**head, "duration_ns": 120 * S}))
        moment_s = 1_700_000_000 + 60 * number
        os.utime(run.plan, (moment_s, moment_s))
        status = dice.choice(("PASS", "PASS", "PASS", "FAIL", "UNKNOWN"))
        results = [
            {
                "name": f"expectation {index}", "kind": "bound", "metric": "ttft_s.p90", "status": status,
                "measured": dice.uniform(1, 20), "unit": "s", "bound": "at most 16 s", "margin": 1.0,
                "sentence": "ttft_s.p90 was measured", "line": index,
            }
            for index in range(6)
        ]  # fmt: skip
        run.verdict.write_text(json.dumps({"status": status, "results": results, "trust": [], "note": "so"}))
        manifest = {"virtual_s": 152.0, "wall_s": 49.4, "record_digest": f"{dice.getrandbits(256):064x}"}
        run.manifest.write_text(json.dumps(manifest))


@contextmanager
def served(runs: Path) -> Iterator[int]:
    """A server in a process of its own; its port."""
    command = [sys.executable, "-m", "testbed.serve", "--port", "0", "--runs", str(runs)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            if not first:
                raise BenchmarkError("testbed.serve did not start")
            yield int(first.split("/   ")[0].rpartition(":")[2])
        finally:
            process.terminate()


@contextmanager
def live_run(runs: Path) -> Iterator[None]:
    """A run under way, as far as a watcher can tell."""
    run = RunDir(runs / LIVE)
    run.journal.mkdir(parents=True)
    head = {"name": "live", "question": "Does it move?", "seed": 1, "scale": 1.0, "duration_ns": LIVE_S * S}
    carriers.note(run)
    run.plan.write_text(json.dumps(head))
    ending = threading.Event()
    writer = threading.Thread(target=_write_on, args=(run, ending))
    writer.start()
    try:
        yield
    finally:
        ending.set()
        writer.join()


def _write_on(run: RunDir, ending: threading.Event) -> None:
    """Write until told to end: a tenth of a virtual second at each step."""
    with ExitStack() as stack:
        journals = {
            name: stack.enter_context(closing(Journal(run.journal / f"{name}.jsonl")))
            for name in ("bench", "link", "tcp", "router", "client")
        }
        journals["bench"].note("start", S)
        step = 0
        while not ending.wait(0.1 / PACE):
            step += 1
            _write_step(journals, step)


def _write_step(journals: Mapping[str, Journal], step: int) -> None:
    """The link every 100 ms, 16 sockets and the scheduler every second, 2.5 requests a second."""
    t_ns = S + step * S // 10
    for direction in ("a_to_b", "b_to_a"):
        journals["link"].note(
            "link", t_ns, direction=direction, rate_bps=10**11, delay_ns=1, jitter_ns=0, loss_ratio=0.0,
            tx_bytes=step * 10**8, drops=0, backlog_bytes=step % 7, lost_packets=0, flight_packets=0,
        )  # fmt: skip
    if step % 4 == 0:
        journals["client"].note(
            "request", t_ns, id=step, t_first_ns=t_ns + S, t_last_ns=t_ns + 2 * S, t_end_ns=t_ns + 2 * S,
            tokens=9, state="completed", cause=None,
        )  # fmt: skip
    if step % 10 == 0:
        journals["router"].note(
            "control", t_ns, threshold_tokens=19_400 + step % 50, previous_tokens=1, reason="",
            queue_prfaas=1, queue_pd=2, queue_decode=step % 30,
        )  # fmt: skip
        for socket in range(16):
            journals["tcp"].note(
                "tcp", t_ns, host="a1", local=f"10.0.1.1:{socket}", remote="10.0.2.1:7000", use="kv",
                cwnd_packets=9, rtt_ns=1, bytes_acked=step, bytes_retrans=step, delivery_bps=1.0,
                notsent_bytes=0, congestion_control="cubic",
            )  # fmt: skip


@contextmanager
def watched(port: int) -> Iterator[list[int]]:
    """WATCHERS connections that read events; how many each has got, growing."""
    counts = [0] * WATCHERS
    connections: list[http.client.HTTPConnection] = []

    def watch(number: int, response: http.client.HTTPResponse) -> None:
        try:
            for line in response:
                counts[number] += line.startswith(b"event:")
        except (OSError, AttributeError, ValueError):
            return  # closed below, in the middle of a read

    threads = []
    for number in range(WATCHERS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", f"/api/v1/runs/{LIVE}/events")
        connections.append(connection)
        threads.append(threading.Thread(target=watch, args=(number, connection.getresponse()), daemon=True))
        threads[-1].start()
    try:
        yield counts
    finally:
        for connection in connections:
            connection.close()


def opened_s(port: int, place: str, sign: str) -> float | None:
    """Seconds until a page in Chromium shows `sign`; None where it, or playwright, is missing."""
    chromium = shutil.which("chromium")
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        return None
    if chromium is None:
        return None
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/{place}")
        page.locator(sign).first.wait_for()
        took_s = float(page.evaluate("performance.now()")) / 1000
        browser.close()
    return took_s


def until_indexed(port: int, many: int) -> float:
    begun_s = time.monotonic()
    while json.loads(_body(port, "/api/v1/runs?limit=1"))["total"] < many:
        if time.monotonic() - begun_s > 300:  # noqa: PLR2004 - far more than it takes
            raise BenchmarkError(f"not all of {many} runs came into the history")
        time.sleep(0.05)
    return time.monotonic() - begun_s


def _questions(asked: int, many: int) -> Iterator[str]:
    """What pages ask for, in turn."""
    dice = random.Random(2)
    for number in range(asked):
        name = f"scenario-{dice.randrange(40)}"
        yield (
            f"/api/v1/runs?limit=50&offset={50 * dice.randrange(max(1, many // 50))}",
            f"/api/v1/runs?query={name}+becomes",
            f"/api/v1/runs/{name}-{dice.randrange(many // 40)}",
            f"/api/v1/trends?name={name}",
            f"/api/v1/trend?name={name}&metric=expectation+1",
            "/api/v1/scenarios",
            "/api/v1/runs?state=RUNNING&limit=1",
        )[number % 7]


def _ask(port: int, path: str) -> float:
    """Seconds from connecting to the whole answer."""
    begun_s = time.perf_counter()
    _body(port, path)
    return time.perf_counter() - begun_s


def _body(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise BenchmarkError(f"{path}: {response.status} {body[:200]!r}")
    return body
