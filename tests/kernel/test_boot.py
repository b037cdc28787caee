"""The UML kernel as a place to run: what the guest sees, how it ends, and that nothing of it stays."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import KernelError
from testbed.kernel import Clock, Needs
from testbed.kernel.uml import Uml, fixed_addresses
from testbed.rundir import RunDir

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

Boot = Callable[..., list[str]]


def write_payload(run_dir: Path, script: str) -> Uml:
    """A kernel that runs `script` from the run directory."""
    run_dir.mkdir(exist_ok=True)
    (run_dir / "guest.py").write_text(textwrap.dedent(script), encoding="utf-8")
    return Uml(payload=("/run/testbed/run/guest.py",))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def boot(run_dir: Path) -> Boot:
    """Run a script in a guest and return the lines it printed."""

    def run(
        script: str, *, clock: Clock = "virtual", wall_limit_s: float = 60, memory_mib: int = 512
    ) -> list[str]:
        lines: list[str] = []
        needs = Needs(memory_bytes=memory_mib << 20, clock=clock, seed=7, wall_limit_s=wall_limit_s)
        write_payload(run_dir, script).execute(run_dir, needs, lines.append)
        return lines

    return run


def survivors(place: Path) -> list[str]:
    """Command lines of the processes that work below `place`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(place)):
                found.append((process / "cmdline").read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue
    return found


def test_a_limit_on_open_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has every file open that its guest has looked at; a low hard limit cannot be raised."""
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (300, 300))
    assert any("300 files open" in problem.found for problem in Uml().probe("virtual"))


def test_the_guest_writes_only_into_its_run_directory(boot: Boot, run_dir: Path) -> None:
    """The host's files are there to read; what is written elsewhere than in the run directory is gone."""
    marker = Path("/usr/written-by-a-guest")
    lines = boot(f"""
        from pathlib import Path
        print(Path("{Path(__file__)}").stat().st_size)
        Path("{marker}").write_text("x")
        print(Path("{marker}").read_text())
        Path("/run/testbed/run/result").write_text("y")
        try:
            Path("/opt/testbed/testbed/new").write_text("z")
        except OSError as error:
            print(error.strerror)
    """)
    assert [str(Path(__file__).stat().st_size), "x", "Read-only file system"] == lines
    assert not marker.exists()
    assert (run_dir / "result").read_text() == "y"
    assert RunDir(run_dir).console.read_text().splitlines()[:3] == lines


def test_sleep_costs_no_wall_time(boot: Boot) -> None:
    """A hundred virtual seconds pass to the millisecond, and in far less than a hundred seconds."""
    start = time.monotonic()
    lines = boot("""
        import time
        start = time.monotonic()
        time.sleep(100)
        print(time.monotonic() - start)
    """)
    assert float(lines[0]) == pytest.approx(100, abs=1e-3)
    assert time.monotonic() - start < 50


def test_a_real_clock_is_the_host_s(boot: Boot) -> None:
    """Without virtual time the guest's clock is that of the host."""
    before = time.time()
    lines = boot("import time; print(time.time())", clock="real")
    assert before <= float(lines[0]) <= time.time()


DETERMINISM = """
    import os, random, socket, subprocess, threading, time
    readings = [time.time_ns(), time.monotonic_ns()]
    for _ in range(3):
        subprocess.run(["ls", "-la", "/usr/bin"], stdout=subprocess.DEVNULL)
        readings.append(time.monotonic_ns())
    server = socket.create_server(("127.0.0.1", 9000))
    def send():
        with socket.create_connection(("127.0.0.1", 9000)) as connection:
            for _ in range(100):
                connection.sendall(bytes(100_000))
    threading.Thread(target=send).start()
    connection, _ = server.accept()
    while connection.recv(65536):
        pass
    readings.append(time.monotonic_ns())
    time.sleep(100)
    print(*readings, time.monotonic_ns())
    print(os.urandom(8).hex(), random.random(), hash("x"))
    print(os.getpid(), os.getcwd(), sorted(os.environ.items()), os.listdir("/run/testbed"))
    print(open("/proc/meminfo").readline())  # MemTotal
"""


@pytest.mark.skipif(not fixed_addresses(), reason="address randomization cannot be switched off here")
def test_two_runs_are_the_same_to_the_nanosecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clock readings, random numbers, process ids, memory: nothing of the host differs between two boots."""
    needs = Needs(memory_bytes=512 << 20, clock="virtual", seed=7, wall_limit_s=60)
    results = []
    for run_dir, variable in ((tmp_path / "a", "1"), (tmp_path / "deeper/and/longer", "2" * 100)):
        run_dir.mkdir(parents=True)
        monkeypatch.setenv("COLUMNS", variable)
        monkeypatch.setattr(tempfile, "tempdir", str(run_dir.parent))
        lines: list[str] = []
        write_payload(run_dir, DETERMINISM).execute(run_dir, needs, lines.append)
        results.append(lines)
    assert results[0] == results[1]


def test_another_seed_gives_other_random_numbers(run_dir: Path) -> None:
    """The guest's randomness comes from the run's seed."""
    results = []
    for seed in (1, 2):
        lines: list[str] = []
        needs = Needs(memory_bytes=512 << 20, clock="virtual", seed=seed, wall_limit_s=60)
        write_payload(run_dir, "import os; print(os.urandom(8).hex())").execute(run_dir, needs, lines.append)
        results += lines
    assert len(set(results)) == 2


def test_the_watchdog_ends_a_busy_guest(boot: Boot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that outlives its wall limit is ended, said to be so, and leaves nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KernelError, match="more than 4 s of wall time"):
        boot("print('busy')\nwhile True: pass", wall_limit_s=4)
    assert survivors(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run/console.log").read_text() == "busy\n"


def test_a_guest_that_waits_for_ever_is_told_apart(boot: Boot) -> None:
    """When everything in the guest sleeps without end, the error says that and not just `too long`."""
    with pytest.raises(KernelError, match="everything in the guest waits for ever"):
        boot("import signal; print('waiting'); signal.pause()")


def test_a_guest_without_memory_is_told_apart(boot: Boot) -> None:
    """When the guest's memory is used up, the error says how much it had."""
    with pytest.raises(KernelError, match="ran out of its 128 MiB"):
        boot("x = []\nwhile True: x.append(b'x' * (1 << 22))", memory_mib=128)


def test_a_panic_is_an_error(boot: Boot) -> None:
    """A guest kernel that panics is not mistaken for the end of a run."""
    with pytest.raises(KernelError, match=r"the guest died.*Kernel panic"):
        boot("open('/proc/sysrq-trigger', 'w').write('c')")


def test_a_failed_payload_is_no_kernel_error(boot: Boot) -> None:
    """How a payload ended is told on the console; the run directory says the rest."""
    lines = boot("raise SystemExit(3)")
    assert lines == ["guest: python ended with status 3"]


def test_an_exception_in_on_line_leaves_nothing(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or whatever else is raised meanwhile, goes on only after the guest has ended."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    needs = Needs(memory_bytes=512 << 20, clock="virtual", seed=7, wall_limit_s=60)
    with pytest.raises(KeyboardInterrupt):
        write_payload(run_dir, "print('ready')\nwhile True: pass").execute(run_dir, needs, interrupt)
    assert survivors(tmp_path) == []


def test_the_guest_dies_with_its_parent(run_dir: Path, tmp_path: Path) -> None:
    """A run that is killed outright leaves no process of the guest."""
    write_payload(
        run_dir, "import subprocess\nprint('ready')\nsubprocess.run(['sh', '-c', 'while :; do :; done'])"
    )
    program = f"""
from pathlib import Path
from testbed.kernel import Needs
from testbed.kernel.uml import Uml, fixed_addresses
def show(line):
    print(line, flush=True)
needs = Needs(memory_bytes=512 << 20, clock="virtual", seed=7, wall_limit_s=60)
Uml(payload=("/run/testbed/run/guest.py",)).execute(Path("{run_dir}"), needs, show)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "ready\n"
        assert survivors(tmp_path)
        parent.kill()
    deadline = time.monotonic() + 10
    while survivors(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert survivors(tmp_path) == []
