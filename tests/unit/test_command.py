"""How a command ends when it is not by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import typer

from testbed.command import run_command


@pytest.fixture
def hearing() -> Iterator[None]:
    """SIGINT is heard as in a terminal; whoever started the tests may have told them to ignore it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("hearing")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_says_so(
    capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Ctrl-C, a signal to end, a terminal that is closed: 2, one word, no traceback."""
    app = typer.Typer()

    @app.command()
    def command() -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    assert run_command(app, []) == 2
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_a_command_has_its_own_code(capsys: pytest.CaptureFixture[str], code: int) -> None:
    """What it ends with itself is passed on, silently."""
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise typer.Exit(code)

    assert run_command(app, []) == code
    assert capsys.readouterr().err == ""
