"""Checks of a policy that misbehaves: it learns nothing of the server, holds nobody up, and does not stay."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from testbed.serve import application, checks
from tests.unit.serve_client import client_of

TEXT = (Path(__file__).parents[2] / "scenarios/full_rate.yaml").read_text(encoding="utf-8")
TOKEN = "0123456789abcdef"
SLEEPER = """
import os, time
open(f"{PLACE}/{os.getpid()}.pid", "w").close()
time.sleep(1000)
"""
SPY = """
import json, os
kinds = [os.readlink(f"/proc/self/fd/{one}").partition(":")[0] for one in os.listdir("/proc/self/fd")
         if os.path.lexists(f"/proc/self/fd/{one}")]
with open(f"{PLACE}/seen.json", "w") as file:
    json.dump({"token": os.environ.get("TESTBED_TOKEN"), "kinds": kinds}, file)
"""
LEAVER = """
import subprocess, sys
left = "import os, time; open(f'{PLACE}/{os.getpid()}.pid', 'w').close(); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", f"PLACE = {PLACE!r}; {left}"], start_new_session=True)
import glob, time
while not glob.glob(f"{PLACE}/*.pid"):
    time.sleep(0.01)
"""
SLEEP = {"scenario": "full_rate.yaml", "overrides": ["policy.name=slp:X", "policy.threshold=1000"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "scenarios"
    found.mkdir()
    (found / "full_rate.yaml").write_text(TEXT)
    (found / "slp.py").write_text(f"PLACE = {str(found)!r}{SLEEPER}")
    (found / "leaver.py").write_text(f"PLACE = {str(found)!r}{LEAVER}")
    (found / "stayer.py").write_text(f"PLACE = {str(found)!r}{LEAVER}time.sleep(1000)\n")
    (found / "spy.py").write_text(f"PLACE = {str(found)!r}{SPY}")
    return found


@pytest.fixture
def client(root: Path) -> Iterator[httpx.Client]:
    app, _ = application.make(root.parent / "runs", root)
    with client_of(app) as opened:
        yield opened


def alive(root: Path) -> list[str]:
    """The policies that are still tried."""
    pids = [path.stem for path in root.glob("*.pid")]
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and _state(pid) not in "ZX"]


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def until(came_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not came_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_policy_sees_neither_the_token_nor_what_the_server_has_open(
    client: httpx.Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was not forked off the server."""
    monkeypatch.setenv("TESTBED_TOKEN", TOKEN)
    answer = client.post(
        "/api/v1/check", json={**SLEEP, "overrides": ["policy.name=spy:X", "policy.threshold=1000"]}
    )
    assert "spy:X" in answer.text
    seen = json.loads((root / "seen.json").read_text())
    assert seen["token"] is None
    assert "socket" not in seen["kinds"]
    assert not any("history.sqlite" in kind for kind in seen["kinds"])


def test_the_newest_checks_are_made_whatever_older_ones_do(client: httpx.Client, root: Path) -> None:
    """The oldest gives way, its policy is ended, and everything else is answered meanwhile."""
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(client.post, "/api/v1/check", json=SLEEP)]
        until(lambda: len(alive(root)) == 1)
        slow.append(pool.submit(client.post, "/api/v1/check", json=SLEEP))
        until(lambda: len(alive(root)) == 2)
        assert client.get("/api/v1/runs").status_code == 200
        assert client.post("/api/v1/check", json={"text": TEXT}).json()["problems"] == []
        assert slow[0].result().status_code == 503
        assert "newer" in slow[0].result().json()["problems"][0]["found"]
        assert not slow[1].done()
        assert len(alive(root)) == 1
        for one in [pool.submit(client.post, "/api/v1/check", json={"text": TEXT}) for _ in slow]:
            assert one.result().status_code == 200
        assert slow[1].result().status_code == 503


def test_a_start_gives_way_to_no_check(client: httpx.Client, root: Path) -> None:
    """Somebody may type on after it; when only starts are under way, the next one is told to try again."""
    with ThreadPoolExecutor() as pool:
        starts = [pool.submit(client.post, "/api/v1/runs", json=SLEEP)]
        until(lambda: len(alive(root)) == 1)
        for _ in range(3):
            assert client.post("/api/v1/check", json={"text": TEXT}).json()["problems"] == []
        assert not starts[0].done()
        starts.append(pool.submit(client.post, "/api/v1/runs", json=SLEEP))
        until(lambda: len(alive(root)) == 2)
        refused = client.post("/api/v1/runs", json=SLEEP)
        assert refused.status_code == 503
        assert refused.json()["problems"][0]["next_step"] == "try again"
        for pid in alive(root):
            os.kill(int(pid), signal.SIGKILL)
        for one in starts:
            assert "slp:X" in one.result().text


def test_whoever_leaves_leaves_no_check_behind(client: httpx.Client, root: Path) -> None:
    """Many at once, too: all that was started has ended, and stopping and listing go on."""
    body = json.dumps(SLEEP)
    for number in range(8):
        connection = HTTPConnection(client.base_url.host, client.base_url.port)
        connection.request("POST", "/api/v1/check", body, {"content-type": "application/json"})
        if number > 5:
            until(lambda: len(alive(root)) > 0)
        connection.close()
        assert client.get("/api/v1/runs").status_code == 200
        assert client.post("/api/v1/runs/x/stop", json={}).status_code == 404
    until(lambda: not alive(root))


@pytest.mark.parametrize("policy", ["leaver", "stayer"])
def test_what_a_policy_has_left_behind_is_ended(
    client: httpx.Client, root: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session of its own, too; whether the check comes to its end or is ended."""
    monkeypatch.setattr(checks, "LIMIT_S", 4.0)
    asked = {**SLEEP, "overrides": [f"policy.name={policy}:X", "policy.threshold=1000"]}
    client.post("/api/v1/check", json=asked)
    assert len(list(root.glob("*.pid"))) == 1
    until(lambda: not alive(root))


def test_a_check_has_a_limit(client: httpx.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and its policy is ended."""
    monkeypatch.setattr(checks, "LIMIT_S", 1.5)
    found = client.post("/api/v1/check", json=SLEEP)
    assert found.status_code == 422
    assert "did not come to an end" in found.json()["problems"][0]["found"]
    assert not alive(root)


def test_a_check_whose_process_dies_says_so(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than nothing."""
    monkeypatch.setattr(checks, "COMMAND", ["false"])
    assert client.post("/api/v1/check", json={"text": TEXT}).status_code == 500


def test_a_server_that_ends_waits_for_no_check(root: Path) -> None:
    """Whoever asked is told, and the policy is ended."""
    app, parts = application.make(root.parent / "runs", root)
    with client_of(app) as client, ThreadPoolExecutor() as pool:
        slow = pool.submit(client.post, "/api/v1/check", json=SLEEP)
        until(lambda: len(alive(root)) == 1)
        parts.checks.end()
        assert slow.result().status_code == 503
        assert alive(root) == []
