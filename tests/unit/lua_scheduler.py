"""The scheduler in Lua, started as a user would start it, for tests only."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.config import Service
from agents.policies.http_service import HttpService

SCRIPT = Path(__file__).parents[2] / "scenarios/own/bandwidth_aware.lua"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def lua_scheduler() -> Iterator[HttpService]:
    """A policy that asks it; it has ended afterwards."""
    port = free_port()
    with subprocess.Popen(["lua5.4", SCRIPT, str(port)]) as process:
        try:
            policy = HttpService(Service(port, 10_000_000_000))
            _wait_for(port)
            yield policy
            policy._connection.close()
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    listening = f"0100007F:{port:04X} 00000000:0000 0A"
    deadline_s = time.monotonic() + 30
    while listening not in Path("/proc/net/tcp").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
