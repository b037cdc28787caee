"""The control plane: `python -m testbed.serve`, a page and an API for scenarios, runs and their history."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sqlite3
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from testbed.command import run_command
from testbed.errors import MachineError, Problem, ScenarioError
from testbed.serve.guard import LEAST_TOKEN, LOOPBACK, TOKEN_VARIABLE, named

app = typer.Typer(add_completion=False)
GRACE_S: Final = 3
HIGHEST_PORT: Final = 65535


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address or name to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: one that is free.")] = 8070,
    name: Annotated[
        list[str] | None, typer.Option(help="Another name to be called by, such as that of a proxy.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run directories lie, and go.")] = Path("runs"),
    scenarios: Annotated[Path, typer.Option(help="The scenarios that can be run.")] = Path("scenarios"),
) -> None:
    """Serve the control plane until Ctrl-C. Runs that are under way then go on, and are found again."""
    # A second, which `--help` does not need.
    import uvicorn  # noqa: PLC0415

    from testbed.serve import application  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE, "")
    _check(host, port, name or [], scenarios, token)
    listening = _listen(host, port)
    address, bound = listening.getsockname()[:2]
    unbound = ipaddress.ip_address(address).is_unspecified
    names = {host, address, *(name or [])} | ({socket.gethostname()} if unbound else set())
    try:
        guarded, parts = application.make(runs, scenarios, token=token, names=names, any_address=unbound)
    except (OSError, sqlite3.Error) as error:
        listening.close()
        raise ScenarioError(
            Problem(f"--runs {runs}", f"cannot be used: {error}", "a writable directory")
        ) from None

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Send watchers, and who waits for a check, away first: the server waits for all to leave."""
            parts.live.closing = True
            parts.checks.end()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        guarded,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="on",
    )
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{bound}/   runs in {runs}, scenarios in {scenarios}", flush=True)
    for ending in (signal.SIGINT, signal.SIGTERM):
        # The server raises once more what ended it: nobody is to be interrupted by that.
        signal.signal(ending, lambda *_: None)
    Server(config).run(sockets=[listening])


def _check(host: str, port: int, names: list[str], scenarios: Path, token: str) -> None:
    problems = []
    if not 0 <= port <= HIGHEST_PORT:
        problems.append(Problem(f"--port {port}", "is no port", f"0 to {HIGHEST_PORT}"))
    if not scenarios.is_dir():
        problems.append(
            Problem(f"--scenarios {scenarios}", "is no directory", "a directory of scenario files")
        )
    for name in names:
        if not named(name):
            allowed = "a name or an address alone, in ASCII, such as testbed.example"
            problems.append(Problem(f"--name {name}", "no request can call this server so", allowed))
    reached = [] if host.lower() in LOOPBACK else [(f"--host {host}", ", or 127.0.0.1")]
    reached += [(f"--name {name}", "") for name in names]
    found = "without a token, whoever reaches this machine could run programs on it"
    for where, otherwise in reached if not token else []:
        problems.append(Problem(where, found, f"a token in the variable {TOKEN_VARIABLE}{otherwise}"))
    if token and len(token) < LEAST_TOKEN:
        found = f"has {len(token)} characters"
        problems.append(
            Problem(TOKEN_VARIABLE, found, f"{LEAST_TOKEN} or more, such as `openssl rand -hex 16`")
        )
    if not token.isascii() or not token.isprintable() or token != token.strip():
        found = "has characters that no header can bring"
        problems.append(Problem(TOKEN_VARIABLE, found, "letters, digits and signs of ASCII"))
    if problems:
        raise ScenarioError(*problems)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        found = f"cannot be listened at: {error.strerror or error}"
        raise MachineError(
            Problem(f"--host {host} --port {port}", found, "an address of this machine")
        ) from None


if __name__ == "__main__":
    sys.exit(run_command(app))
