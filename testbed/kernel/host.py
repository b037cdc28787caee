"""The kernel that is already there: in real time, as root, with what it happens to offer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import KernelError, Problem
from testbed.kernel import Clock, Needs, enclosed, groups, lacking
from testbed.kernel.image import PROJECT
from testbed.kernel.supervise import OutlivedError, supervise
from testbed.rundir import RunDir

WHERE = "--kernel host"
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "crun": "crun", "ethtool": "ethtool"}
"""Programs a run calls, and the Debian packages they come in."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of a run; that of whoever starts it may lack the places of root's programs."""
QDISCS = {"netem": "delay 1ms", "htb": "default 1", "tbf": "rate 1gbit burst 64kb limit 1mb"}
"""Queueing disciplines a run sets, with the arguments of a try."""
GRACE_S = enclosed.PATIENCE_S + 7
"""How long `inside` may take to put its network and its containers away, and what encloses it the rest."""
USE_UML = "use --kernel uml, which brings a kernel of its own"


class Host:
    """Runs the payload (Python arguments, the run directory is added) on the present kernel."""

    name = "host"

    def __init__(self, *, payload: Sequence[str] = ("-m", "testbed.inside")) -> None:
        self._payload = tuple(payload)

    def probe(self, clock: Clock) -> list[Problem]:
        """Everything this machine lacks; root tries qdiscs out in a network namespace of their own."""
        problems = []
        if clock == "virtual":
            problems.append(
                Problem(
                    WHERE, "this kernel has no virtual clock", next_step=f"use --clock real, or {USE_UML}"
                )
            )
        steps = {one: f"apt-get install {package} (make setup does)" for one, package in PACKAGES.items()}
        missing = lacking.missing(WHERE, steps, PATH)
        problems += missing
        problems += _missing_groups()
        if os.geteuid() != 0:
            return [*problems, Problem(WHERE, "you are not root", next_step=f"use sudo, or {USE_UML}")]
        if not missing:
            problems += _missing_qdiscs()
        return problems

    def execute(self, run_dir: Path, needs: Needs, on_line: Callable[[str], None]) -> None:
        """Run the payload until it ends; `console.log` keeps its output.

        Raises KernelError when it is killed, takes too long, or ends before the payload has begun.
        """
        last: list[str] = []

        def hear(line: str) -> None:
            last[:] = [*last[-4:], line]
            on_line(line)

        environment = {
            "PATH": PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONPATH": str(PROJECT),
            "PYTHONHASHSEED": "0",
        }
        try:
            status = supervise(
                [
                    sys.executable,
                    "-m",
                    enclosed.__name__,
                    sys.executable,
                    *self._payload,
                    str(run_dir.resolve()),
                ],
                cwd=PROJECT,
                env=environment,
                log=RunDir(run_dir).console,
                wall_limit_s=needs.wall_limit_s,
                grace_s=GRACE_S,
                on_line=hear,
            )
        except OutlivedError:
            raise KernelError(
                Problem(
                    WHERE,
                    f"the run took more than {needs.wall_limit_s:g} s and was ended",
                    next_step=f"see {RunDir(run_dir).console}",
                )
            ) from None
        _judge(status, last, RunDir(run_dir))


def _judge(status: int, last: Sequence[str], run: RunDir) -> None:
    """Raise KernelError unless the run ended by itself, and says how; `last`: its last lines."""
    if status < 0:
        how = f"the run was ended by {signal.Signals(-status).name}"
    elif status and not run.outcome.exists():
        how = f"the run could not begin (status {status}); its last words: {' | '.join(last) or 'nothing'}"
    else:
        return
    raise KernelError(Problem(WHERE, how, next_step=f"see {run.console}"))


def _missing_qdiscs() -> list[Problem]:
    """One problem for each queueing discipline that cannot be set on a device of a fresh namespace.

    One for all where there can be no such namespace, as in most containers.
    """
    problems = []
    if said := _fails(["unshare", "--net", "true"]):
        next_step = f"give the container the right to (docker run --privileged), or {USE_UML}"
        return [Problem(WHERE, f"no network namespace can be made: {said}", next_step=next_step)]
    for name, arguments in QDISCS.items():
        script = (
            f"ip link add probe type veth peer name probed; tc qdisc add dev probe root {name} {arguments}"
        )
        if said := _fails(["unshare", "--net", "sh", "-ec", script]):
            problems.append(
                Problem(
                    WHERE,
                    f"sch_{name} cannot be used: {said}",
                    next_step=f"modprobe sch_{name} (package linux-modules-extra on Ubuntu), or {USE_UML}",
                )
            )
    return problems


def _fails(command: list[str]) -> str:
    """What a command says that fails; empty when it does not."""
    tried = subprocess.run(
        command, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, check=False
    )
    return (" ".join(tried.stderr.split()) or f"status {tried.returncode}") if tried.returncode else ""


def _missing_groups(root: Path = groups.ROOT) -> list[Problem]:
    """One problem for each controller that agents are limited, stopped or ended by."""
    kind = groups.layout(root)
    problems = [
        Problem(
            WHERE,
            f"{root} has no {name}" + ("" if kind == "none" else f" controller (control groups: {kind})"),
            "control groups of version 1, 2 or both",
            f"mount them, or boot with cgroup_enable={name}; or {USE_UML}"
            if kind != "none"
            else f"mount -t cgroup2 cgroup2 {root}; or {USE_UML}",
        )
        for name in groups.missing(root)
    ]
    if not problems and (names := groups.withheld(root)):
        problems.append(
            Problem(
                WHERE,
                f"{root} has processes of its own, so groups in it get no controller for {', '.join(names)}",
                "the top of this machine's control groups, or one without processes",
                f"docker run --privileged --cgroupns=host, or {USE_UML}",
            )
        )
    return problems
