"""Programs of the user's in the topology: any command, unmodified, in a container with a host's network.

They run as nobody, without capabilities, on this machine's root, read-only and without its home directories.
Their working directory holds the files that the plan names. Whatever they do wrong is noted and judged, and
never breaks the run off; one that cannot even be started is a reason not to trust it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from testbed import namespaces
from testbed.journal import Journal
from testbed.moments import until
from testbed.mounts import bind, memory, usual
from testbed.plan import Plan
from testbed.program import PATH, SCHEDULER, Program, obituary
from testbed.rundir import RunDir

PIDS_MAX = 256
OUTPUT_BYTES = 16 << 20
"""Of each of its outputs, as far as it is kept."""
CUT = b"\n[what came after 16 MiB was not kept]\n"
READY_S, GRACE_S = 10, 1
"""How long it may take to become ready, and to end once it was asked to."""
LAST_WORDS_BYTES = 2000
LAST_LINES = 3
NOBODY = 65534
PLACE = "/run/program"
HIDDEN = ("/root", "/home")
_CHUNK, _STEP_S = 65_536, 0.01
_LISTENS = "0A"  # include/net/tcp_states.h


@dataclass
class _Running:
    """A program that was started."""

    program: Program
    process: asyncio.subprocess.Process
    pid_file: Path
    last: dict[str, bytes] = field(default_factory=dict)
    """The end of each output."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False
    """It was asked to end."""

    def pid(self) -> int | None:
        """Its process id, as this process sees it, once it has come up so far."""
        try:
            return int(self.pid_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def said(self) -> str:
        """Its last words, for a message: what it wrote as an error comes first."""
        text = (self.last.get("err") or self.last.get("out") or b"").decode(errors="replace")
        return " | ".join(text.strip().splitlines()[-LAST_LINES:]) or "nothing"


class Programs:
    """All programs of a run; what they write goes to its directory, what becomes of them to `journal`."""

    def __init__(
        self, plan: Plan, directory: Path, run: RunDir, journal: Journal, addresses: Mapping[str, str]
    ) -> None:
        self._programs, self._directory, self._run = plan.programs, directory, run
        self._journal = journal
        self._end_ns = plan.duration_ns + plan.drain_ns
        self._running: dict[str, _Running] = {}
        self._up = {program.name: asyncio.Event() for program in plan.programs}
        self._jobs: set[asyncio.Task[None]] = set()
        self._closing = False
        if not self._programs:
            return
        run.programs.mkdir(exist_ok=True)
        (directory / "root").mkdir(parents=True)
        subprocess.run(["mount", "--bind", "/", str(directory / "root")], check=True)
        names = "".join(f"{address} {host}\n" for host, address in addresses.items())
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="ascii")

    async def come_up(self) -> None:
        """Start those that the run waits for, one by one, and wait until each is ready or has failed."""
        for program in self._programs:
            if program.comes_first:
                await self._come_up(program)

    def jobs(self, t0_ns: int) -> list[Coroutine[Any, Any, None]]:
        """What is to be done from t0 on: each ends with its program, with the drain at the latest."""
        ordered = sorted(self._programs, key=lambda program: program.at_ns)
        return [
            self._see_through(program, ordered[:number], t0_ns)
            for number, program in enumerate(ordered)
            if program.name != SCHEDULER
        ]

    async def close(self) -> None:
        """Kill those that are left, and wait until their containers are gone; nothing is noted any more."""
        self._closing = True
        for one in self._running.values():
            one.stopped = True
        for one in self._running.values():
            await self._kill(one, signal.SIGKILL)
            await one.ended.wait()

    async def _see_through(self, program: Program, earlier: Sequence[Program], t0_ns: int) -> None:
        await until(t0_ns + program.at_ns)
        if program.name not in self._running:
            for another in earlier:
                await self._up[another.name].wait()
            await self._come_up(program)
        one = self._running[program.name]
        last_ns = self._end_ns if program.until_ns is None else program.until_ns
        try:
            async with asyncio.timeout(max(0, t0_ns + last_ns - time.monotonic_ns()) / 1e9):
                await one.ended.wait()
        except TimeoutError:
            if program.until_ns is None:
                self._note(one, "failed", "was still running at the end of the run, without `until`")
            await self._stop(one)

    async def _come_up(self, program: Program) -> None:
        """Start it, and wait until it is ready; note when it does not become so."""
        one = await self._start(program)
        ready = asyncio.create_task(self._await_ready(one))
        ended = asyncio.create_task(one.ended.wait())
        done, pending = await asyncio.wait(
            {ready, ended}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        wanted = f"it never listened on port {program.listens}"
        if program.ready:
            wanted = f"it never said {program.ready!r}"
        if not done:
            self._note(one, "failed", f"was not ready within {READY_S} s: {wanted}; last words: {one.said()}")
        elif ready not in done:
            self._note(one, "failed", f"ended before it was ready: {wanted}; last words: {one.said()}")
        elif program.ready or program.listens:
            self._note(one, "ready", "")
        self._up[program.name].set()

    async def _await_ready(self, one: _Running) -> None:
        program = one.program
        if program.ready:
            await one.ready.wait()
        while program.listens:
            if _listening(one.pid(), program.listens):
                return
            await asyncio.sleep(_STEP_S)

    async def _start(self, program: Program) -> _Running:
        bundle = self._directory / program.name
        place = bundle / "files"
        place.mkdir(parents=True)
        for name, content in program.files.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755)
        (bundle / "config.json").write_bytes(msgspec.json.encode(self._specification(program, place)))
        process = await asyncio.create_subprocess_exec(
            "crun",
            f"--root={self._directory / 'crun'}",
            "--cgroup-manager=cgroupfs",
            "run",
            f"--bundle={bundle}",
            f"--pid-file={bundle / 'pid'}",
            f"{namespaces.label()}-program-{program.name}",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        one = self._running[program.name] = _Running(program, process, bundle / "pid")
        self._note(one, "started", "")
        task = asyncio.create_task(self._follow(one))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return one

    async def _follow(self, one: _Running) -> None:
        """Keep what it writes, and note its end."""
        process, program = one.process, one.program
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._keep(one, process.stdout, "out"), self._keep(one, process.stderr, "err"))
        status = await process.wait()
        if self._closing:
            one.ended.set()
            return
        if one.pid() is None and not one.stopped:
            what = f"the program {program.name} could not be started: {one.said()}"
            self._journal.note("trust", time.monotonic_ns(), what=what)
        elif one.stopped:
            self._note(one, "stopped", f"with status {status}")
        elif program.name == SCHEDULER:
            cause = f"ended with status {status}; last words: {one.said()}"
            self._note(one, "failed", cause)
            obituary(self._run.journal).write_text(f"the scheduler {cause}", encoding="utf-8")
        elif status == program.exit_code:
            self._note(one, "ended", f"with status {status}")
        else:
            cause = f"ended with status {status}, not {program.exit_code}; last words: {one.said()}"
            self._note(one, "failed", cause)
        one.ended.set()

    async def _keep(self, one: _Running, stream: asyncio.StreamReader, name: str) -> None:
        """Copy an output to its file, as far as it has room, and look for the word that it is ready."""
        room, wanted = OUTPUT_BYTES, one.program.ready.encode()
        with (self._run.programs / f"{one.program.name}.{name}").open("wb", buffering=0) as file:
            while chunk := await stream.read(_CHUNK):
                if 0 <= room < len(chunk):
                    file.write(chunk[:room] + CUT)
                    room = -1
                elif room >= 0:
                    file.write(chunk)
                    room -= len(chunk)
                tail = one.last.get(name, b"") + chunk
                if wanted and wanted in tail:
                    one.ready.set()
                one.last[name] = tail[-LAST_WORDS_BYTES:]

    async def _stop(self, one: _Running) -> None:
        """Ask it to end, and end it where it does not."""
        one.stopped = True
        await self._kill(one, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await one.ended.wait()
        await self._kill(one, signal.SIGKILL)
        await one.ended.wait()

    async def _kill(self, one: _Running, how: signal.Signals) -> None:
        """Send a signal to the program, as soon as it has come up far enough to have a process id."""
        while not one.ended.is_set() and one.process.returncode is None:
            pid = one.pid()
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
                return
            await asyncio.sleep(_STEP_S)

    def _note(self, one: _Running, state: str, detail: str) -> None:
        self._journal.note("program", time.monotonic_ns(), name=one.program.name, state=state, detail=detail)

    def _specification(self, program: Program, place: Path) -> dict[str, Any]:
        hidden = [memory(home, "755") for home in HIDDEN if Path(home).is_dir()]
        return {
            "ociVersion": "1.0.0",
            "hostname": program.host,
            "root": {"path": str(self._directory / "root"), "readonly": True},
            "process": {
                "args": list(program.command),
                "cwd": PLACE,
                "env": [f"PATH={PATH}", "LANG=C.UTF-8", "HOME=/tmp", "PYTHONHASHSEED=0"],
                "user": {"uid": NOBODY, "gid": NOBODY},
                "noNewPrivileges": True,
            },
            "mounts": [
                *usual(),
                *hidden,
                bind(place, PLACE, "ro"),
                bind(self._directory / "hosts", "/etc/hosts", "ro"),
            ],
            "linux": {
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                    {"type": "network", "path": str(namespaces.NETNS_DIR / program.host)},
                ],
                "cgroupsPath": f"/{namespaces.label()}/program-{program.name}",
                "resources": {"memory": {"limit": program.memory_bytes}, "pids": {"limit": PIDS_MAX}},
            },
        }


def _listening(pid: int | None, port: int) -> bool:
    """Whether something listens on a TCP port in the network of a process (proc_pid_net(5))."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        if any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENS for row in map(str.split, lines)):
            return True
    return False
