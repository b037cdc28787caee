"""`python -m testbed.serve`: what it refuses to be, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from testbed import carriers
from testbed.command import run_command
from testbed.serve.__main__ import app
from testbed.serve.guard import TOKEN_VARIABLE
from tests.unit.serve_runs import write_small

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "token", "said"),
    [
        (
            ["--host", "0.0.0.0"],
            "",
            (
                "--host 0.0.0.0: without a token, whoever reaches this machine could run programs on it\n"
                "    allowed: a token in the variable TESTBED_TOKEN, or 127.0.0.1\n"
            ),
        ),
        (
            ["--name", "box.example"],
            "",
            (
                "--name box.example: without a token, whoever reaches this machine could run programs on it\n"
                "    allowed: a token in the variable TESTBED_TOKEN\n"
            ),
        ),
        (
            ["--name", "box.example:8443", "--name", "https://box.example"],
            "0123456789abcdef",
            (
                "--name box.example:8443: no request can call this server so\n"
                "    allowed: a name or an address alone, in ASCII, such as testbed.example\n"
                "--name https://box.example: no request can call this server so\n"
                "    allowed: a name or an address alone, in ASCII, such as testbed.example\n"
            ),
        ),
        (
            [],
            "short",
            "TESTBED_TOKEN: has 5 characters\n    allowed: 16 or more, such as `openssl rand -hex 16`\n",
        ),
        (
            [],
            "0123456789abcd\xe9\udcff",
            (
                "TESTBED_TOKEN: has characters that no header can bring\n"
                "    allowed: letters, digits and signs of ASCII\n"
            ),
        ),
        (
            ["--port", "70000", "--scenarios", "/nowhere"],
            "",
            (
                "--port 70000: is no port\n    allowed: 0 to 65535\n"
                "--scenarios /nowhere: is no directory\n    allowed: a directory of scenario files\n"
            ),
        ),
    ],
)
def test_options_that_would_be_unsafe_or_wrong_are_refused(
    options: list[str],
    token: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All at once, with what is allowed; nothing is opened."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    kept = {ending: signal.getsignal(ending) for ending in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert run_command(app, options) == 3
    finally:
        for ending, handler in kept.items():
            signal.signal(ending, handler)
    assert capsys.readouterr().err == said


def test_a_server_that_is_told_to_end_sends_its_watchers_away(tmp_path: Path) -> None:
    """At once, with exit code 0; the run that they watched is still under way."""
    run = write_small(tmp_path / "runs", status=None)
    carriers.note(run)
    command = ["env", "--default-signal=INT", sys.executable, "-m", "testbed.serve", "--port", "0"]
    with subprocess.Popen(
        [*command, "--runs", tmp_path / "runs"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
    ) as server:  # fmt: skip
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        with httpx.stream("GET", f"{url}api/v1/runs/{run.path.name}/events", timeout=20) as events:
            lines = events.iter_lines()
            assert next(lines) == "event: whole"
            server.send_signal(signal.SIGINT)
            asked_s = time.monotonic()
            assert "event: end" not in list(lines)
        assert server.wait(20) == 0
        assert time.monotonic() - asked_s < 10
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_where_no_history_can_be_kept_is_said(tmp_path: Path) -> None:
    """As on a full disk: what cannot be used and why, and no traceback."""
    serve = [sys.executable, "-m", "testbed.serve", "--port", "0", "--runs", tmp_path]
    ended = subprocess.run(
        ["env", "-u", TOKEN_VARIABLE, "prlimit", "--fsize=0", *serve],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith(f"--runs {tmp_path}: cannot be used: ")
    assert "Traceback" not in ended.stderr


def test_a_server_is_called_by_the_name_of_a_proxy(tmp_path: Path) -> None:
    """Which hands on the header Host and speaks TLS to the browser; other names stay refused."""
    serve = ["env", "--default-signal=INT", sys.executable, "-m", "testbed.serve", "--port", "0"]
    with subprocess.Popen(
        [*serve, "--name", "Bench.example.", "--runs", tmp_path / "runs"], cwd=ROOT, stdout=subprocess.PIPE,
        text=True, env={**os.environ, TOKEN_VARIABLE: "0123456789abcdef"},
    ) as server:  # fmt: skip
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        for name, status in (("bench.example", 204), ("other.example", 421)):
            headers = {"host": name, "origin": f"https://{name}"}
            answer = httpx.post(
                f"{url}api/v1/session", json={"token": "0123456789abcdef"}, headers=headers, timeout=20
            )
            assert answer.status_code == status
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
