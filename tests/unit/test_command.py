"""How a command ends when it is not by itself."""

from __future__ import annotations

import os
import pty
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


SAYS = """
import os, pathlib, signal, sys, time
import typer
from testbed.command import run_command, terminal

app = typer.Typer()

@app.command()
def command(place: pathlib.Path, code: int) -> None:
    print("begins", flush=True)
    try:
        for _ in range(int(place.stem) * 1000):
            time.sleep(0.01)
            terminal().print("goes on")
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGHUP)
    print("is told to standard error", file=sys.stderr)
    sys.stdout.buffer.write(b"ends")
    place.write_text("judged")
    raise typer.Exit(code)

sys.exit(run_command(app))
"""
"""Says something for `place.stem` times ten seconds or until it is interrupted, and ends with `code`."""


def saying(place: Path, code: int) -> list[str]:
    return [sys.executable, "-c", SAYS, str(place), str(code)]


@pytest.mark.parametrize(("unbuffered", "code"), [("", 0), ("1", 0), ("", 1)])
def test_a_command_that_nobody_reads_goes_on_to_its_own_end(
    tmp_path: Path, unbuffered: str, code: int
) -> None:
    """Both outputs are a pipe that is closed: what was asked is done, and the code is the command's."""
    read, write = os.pipe()
    os.close(read)
    place = tmp_path / "0"
    ended = subprocess.run(
        saying(place, code),
        cwd=PROJECT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=write,
        stderr=write,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, place.read_text()) == (code, "judged")


@pytest.mark.parametrize("arguments", [["--help"], ["no number"]])
def test_what_typer_says_to_nobody_changes_no_code(arguments: list[str]) -> None:
    """Help ends with 0, wrong arguments with 3, also into a closed pipe."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", SAYS, *arguments]
    ended = subprocess.run(command, cwd=PROJECT, stdout=write, stderr=write, check=False)
    os.close(write)
    assert ended.returncode == (0 if arguments == ["--help"] else 3)


def test_a_wrong_value_is_told_with_its_option() -> None:
    """Else nobody knows which of several options is meant."""
    command = [sys.executable, "-m", "testbed.report", "runs/c-1", "--format", "pdf"]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    said = "arguments: Invalid value for '--format': 'pdf' is not one of 'html', 'md', 'png'."
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (3, said)


def test_a_disk_that_is_full_is_told_at_the_end(tmp_path: Path) -> None:
    """The command has done its work, and whoever asked has no answer: 2."""
    place = tmp_path / "0"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            saying(place, 0), cwd=PROJECT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, place.read_text()) == (2, "judged")
    assert ended.stderr.splitlines()[1:] == ["this machine: [Errno 28] No space left on device"]


def test_a_command_without_an_output_does_its_work(tmp_path: Path) -> None:
    """A program may be started with standard output closed."""
    place = tmp_path / "0"
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *saying(place, 1)]
    ended = subprocess.run(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "is told to standard error\n")
    assert place.read_text() == "judged"


def test_a_terminal_that_is_closed_ends_a_command_in_good_order(tmp_path: Path) -> None:
    """It is interrupted once, by terminal and shell together, and does what it does then."""
    ours, its = pty.openpty()
    place = tmp_path / "1"
    process = subprocess.Popen(
        ["setsid", "--ctty", *saying(place, 0)], cwd=PROJECT, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    said = b""
    while b"goes on" not in said:
        said += os.read(ours, 1024)
    os.close(ours)
    assert (process.wait(20), place.read_text()) == (0, "judged")


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
