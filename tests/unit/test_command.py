"""How a command ends when it is not by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from testbed.command import run_command

PROJECT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("module", ["testbed.run", "testbed.clean", "testbed"])
def test_ctrl_c_while_modules_are_loaded_leaves_no_traceback(module: str, tmp_path: Path) -> None:
    """A command that has not begun ends as one that has: a word, and exit code 2."""
    (tmp_path / "typer.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(30)\n")
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", module, "--help"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "loading\n"
        command.send_signal(signal.SIGINT)
        _, said = command.communicate()
    assert (command.returncode, said) == (2, "interrupted\n")


def test_a_library_changes_no_signals() -> None:
    """Whoever imports the project keeps Python's own Ctrl-C."""
    script = "import signal, testbed; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    said = subprocess.run(
        ["env", "--default-signal=INT", sys.executable, "-c", script],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "True\n"
