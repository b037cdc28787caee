"""tcpdump in a node's namespace, from before the workload until after its end.

It sees what the interface's driver sees: on the way out after the qdisc, so behind the rate stage. Where
super-packets travel, it sees those: one record of up to 184,000 bytes, which is cut to the snap length.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from testbed import namespaces
from testbed.errors import MachineError, Problem, ShapingError
from testbed.journal import Journal
from testbed.plan import Capture

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for in the run's kernel."""
BUFFER_KIB = 64 << 10
"""Ring that the kernel writes to, in blocks; in virtual time tcpdump never falls behind."""
FLUSH_S = 1.5
"""The kernel hands over a block that is not full after a second (libpcap: the packet buffer timeout)."""
ENDS_WITHIN_S = 30
_COUNTS = re.compile(r"(\d+) packets? (captured|received by filter|dropped by kernel)")


def require(captures: Sequence[Capture]) -> None:
    """MachineError when there is something to capture and no tcpdump on this machine."""
    if captures and shutil.which("tcpdump", path=PATH) is None:
        raise MachineError(
            Problem(
                "capture",
                "the program tcpdump is missing",
                next_step="apt-get install tcpdump (make setup does), or leave `capture` out",
            )
        )


class Captures:
    """All captures of a run."""

    def __init__(self, captures: Iterable[Capture], directory: Path, journal: Journal) -> None:
        """`directory` gets <device>.pcap of each, `journal` its lines."""
        self._captures, self._directory, self._journal = tuple(captures), directory, journal
        self._running: list[tuple[Capture, subprocess.Popen[str]]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to capture."""
        return bool(self._captures)

    def start(self) -> None:
        """Start all of them and wait until each listens. ShapingError when one does not."""
        for capture in self._captures:
            self._directory.mkdir(exist_ok=True)
            file = self._directory / f"{capture.device}.pcap"
            with file.open("wb") as sink, namespaces.entered(capture.node):
                process = subprocess.Popen(
                    _command(capture),
                    env={"PATH": PATH},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            self._running.append((capture, process))
            assert process.stderr is not None
            said: list[str] = []
            while "listening on" not in (line := process.stderr.readline()):
                if not line:
                    raise ShapingError(_refused(capture, "".join(said)))
                said.append(line)
            # tcpdump stamps packets with CLOCK_REALTIME: this line ties it to the journal's clock
            self._journal.note(
                "capture", time.monotonic_ns(), device=capture.device, realtime_ns=time.time_ns()
            )

    def stop(self, distrust: Callable[[str], None]) -> None:
        """End all of them, FLUSH_S after the last packet that matters; an incomplete one is distrusted."""
        for capture, process in self._running:
            process.send_signal(signal.SIGINT)
            try:
                _, said = process.communicate(timeout=ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                _, said = process.communicate()
            counts = {what: int(number) for number, what in _COUNTS.findall(said)}
            if process.returncode or "captured" not in counts:
                distrust(f"capture of {capture.device}: tcpdump ended early: {' '.join(said.split())}")
                continue
            dropped = counts.get("dropped by kernel", 0)
            if dropped:
                distrust(f"capture of {capture.device} lost {dropped} packets")
            self._journal.note(
                "captured",
                time.monotonic_ns(),
                device=capture.device,
                packets=counts["captured"],
                dropped_packets=dropped,
            )
        self._running.clear()

    def kill(self) -> None:
        """End what still runs, whatever becomes of it."""
        for _, process in self._running:
            process.kill()
            process.wait()
        self._running.clear()


def _command(capture: Capture) -> list[str]:
    """It writes to stdout: a file that it opens itself it gives to root, which an ordinary user may not."""
    return [
        "tcpdump",
        "-i", capture.device,
        "-s", str(capture.snap_bytes),
        "-B", str(BUFFER_KIB),
        "--time-stamp-precision=nano",
        "-n",
        "-Z", "root",
        "-w", "-",
        "--", capture.filter,
    ]  # fmt: skip


def _refused(capture: Capture, said: str) -> Problem:
    return Problem(
        f"capture of {capture.device}",
        f"filter {capture.filter!r}: {' '.join(said.split())}",
        allowed="what tcpdump takes: man pcap-filter",
    )
