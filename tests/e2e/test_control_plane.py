"""A run that is started over the API, loses its server, and is found and stopped by the next one."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import SCENARIOS, start, survivors, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


def served(runs: Path) -> tuple[subprocess.Popen[str], httpx.Client]:
    server = start(
        "testbed.serve", "--port", "0", "--runs", runs, "--scenarios", SCENARIOS, temporary=runs.parent
    )
    assert server.stdout is not None
    url = server.stdout.readline().split()[0]
    return server, httpx.Client(base_url=f"{url}api/v1", timeout=60)


def test_a_run_outlives_its_server_and_ends_as_the_next_one_says(tmp_path: Path) -> None:
    """Killed, the server takes no run with it; stopped, the run is judged UNKNOWN and nothing is left."""
    runs = tmp_path / "runs"
    server, client = served(runs)
    with server, client:
        asked = {"scenario": "small.yaml", "overrides": ["duration=3000s"]}
        answer = client.post("/runs", json=asked)
        assert answer.status_code == 202, answer.text
        status = answer.headers["location"].removeprefix("/api/v1")
        until(lambda: bool(client.get(status).json()["run"]))
        assert client.get(status).json() | {"said": ""} == {
            "start": 1, "run": "small-5", "exit_code": None, "said": "",
        }  # fmt: skip
        until(lambda: client.get("/runs/small-5/signals").json()["now"]["virtual_s"] > 1)
        server.kill()
    journal = runs / "small-5/journal/link.jsonl"
    size = journal.stat().st_size
    until(lambda: journal.stat().st_size > size)
    server, client = served(runs)
    with server, client:
        assert client.get("/runs", params={"state": "RUNNING"}).json()["total"] == 1
        with client.stream("GET", "/runs/small-5/events") as events:
            lines = events.iter_lines()
            assert next(lines) == "event: whole"
            assert client.post("/runs/small-5/stop", json={}).json() == {"told": True}
            assert json.loads(list(lines)[-2].removeprefix("data: ")) == {"state": "UNKNOWN"}
        assert client.get("/runs/small-5").json()["run"]["state"] == "UNKNOWN"
        assert client.post("/runs/small-5/stop", json={}).status_code == 409
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
    assert survivors(runs) == []
