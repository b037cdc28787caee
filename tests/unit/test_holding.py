"""A network that is held: who waits for whom, and Mininet's prompt on it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from testbed import holding
from testbed.errors import ScenarioError
from testbed.holding import Holding, held, require
from testbed.rundir import RunDir
from tests.unit.link_plans import planned

PROJECT = Path(__file__).resolve().parents[2]
TALK = """
import os, sys
from pathlib import Path
from testbed import namespaces
from testbed.prompt import prompt
from testbed.topology import Network
namespaces.private_mounts()
params = {"prefill_hosts": 1, "pd_hosts": 1}
Network("two_dc", params, mtu_bytes=1500, window_bytes=1 << 20)
prompt("two_dc", params, Path(f"/proc/{os.getpid()}/root/run/netns"))
"""
PING = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from testbed import namespaces
from testbed.holding import Holding
from testbed.rundir import RunDir
from testbed.topology import Network
signal.signal(signal.SIGINT, signal.default_int_handler)
namespaces.private_mounts()
params = {"prefill_hosts": 1, "pd_hosts": 1}
Network("two_dc", params, mtu_bytes=1500, window_bytes=1 << 20)
run = RunDir(Path(sys.argv[1]))
holder = Holding("cli", run, SimpleNamespace(topology="two_dc", topology_params=params), print)
holder.hear(f"@held {os.getpid()}")
while run.hold.exists():
    time.sleep(0.05)
holder.close()
"""


def test_who_does_not_hold_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that nobody holds goes on at once, without a word."""
    asyncio.run(held(RunDir(tmp_path)))
    assert capsys.readouterr().out == ""


def test_a_held_run_waits_until_it_is_let_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says by which process it is reached, and goes on when the file is gone."""
    run = RunDir(tmp_path)
    run.hold.touch()
    threading.Timer(0.2, run.hold.unlink).start()
    begin_s = time.monotonic()
    asyncio.run(held(run))
    assert time.monotonic() - begin_s >= 0.2
    assert f"@held {os.getpid()}\n" in capsys.readouterr().out


def test_enter_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said has a command that can be pasted; other lines of the run are not taken."""
    run, said = RunDir(tmp_path), list[str]()
    read, write = os.pipe()
    with os.fdopen(read) as stdin, os.fdopen(write, "w") as keyboard:
        monkeypatch.setattr(sys, "stdin", stdin)
        holder = Holding("hold", run, planned(), said.append)
        assert not holder.hear("@stage running")
        assert run.hold.exists()
        assert holder.hear("@held 4711")
        assert "  nsenter --net=/proc/4711/root/run/netns/a1 bash" in said
        print(file=keyboard, flush=True)
        deadline_s = time.monotonic() + 10
        while run.hold.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not run.hold.exists()
        holder.close()


def test_ctrl_c_lets_go_and_is_no_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the network is held, SIGINT ends that; afterwards it means again what it meant before."""
    run = RunDir(tmp_path)
    monkeypatch.setattr(holding.Holding, "_wait", lambda _self, _place: None)
    before = holding.signal.getsignal(holding.signal.SIGINT)
    holder = Holding("hold", run, planned(), lambda _said: None)
    holder.hear("@held 4711")
    holding.signal.raise_signal(holding.signal.SIGINT)
    assert not run.hold.exists()
    holder.close()
    assert holding.signal.getsignal(holding.signal.SIGINT) is before


def test_a_guest_s_network_cannot_be_held() -> None:
    """The message says why, and where it can be."""
    require(None, "uml")
    require("hold", "host")
    with pytest.raises(ScenarioError, match="--hold: the network of kernel uml is inside of it"):
        require("hold", "uml")


def test_a_prompt_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, --hold is what to take."""
    with Path(os.devnull).open(encoding="ascii") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(ScenarioError, match="--cli: the input is no terminal"):
            require("cli", "host")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_mininet_s_prompt_reaches_every_node() -> None:
    """Names become addresses, bridges are nodes, too, and what a command says is shown."""
    said = subprocess.run(
        [sys.executable, "-c", TALK],
        input="nodes\na1 ip route get b1\nsw-a ip -br link\nexit\n",
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "a1 b1 client edge-a edge-b router sw-a sw-b tenant-a tenant-b wan" in said.stderr
    assert "10.2.0.1 via 10.1.0." in said.stderr
    assert "br0" in said.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_ends_a_command_before_it_ends_the_network(stubborn: bool, tmp_path: Path) -> None:
    """It reaches no node by itself, as each is in a session of its own.

    At the prompt it lets go, and where it was heard once and the command goes on all the same.
    """
    with subprocess.Popen(
        [sys.executable, "-c", PING, tmp_path],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    ) as process:
        said = b""

        def until(what: bytes) -> None:
            nonlocal said
            assert process.stdout is not None
            while what not in said:
                assert select.select([process.stdout], [], [], 30)[0], said
                more = process.stdout.read(4096)
                assert more, said
                said += more
            said = said.partition(what)[2]

        def enter(command: bytes) -> None:
            assert process.stdin is not None
            until(b"mininet> ")  # what is typed earlier goes to the command before
            process.stdin.write(command + b"\n")

        try:
            enter(b"a1 sh -c 'echo has $((40 + 2)) begun; exec sleep 300'")
            until(b"has 42 begun")
            process.send_signal(signal.SIGINT)
            enter(b"a1 echo goes $((40 + 3)) on")
            until(b"goes 43 on")
            assert RunDir(tmp_path).hold.exists()
            if stubborn:
                enter(b"a1 sh -c 'trap \"\" INT; echo has $((50 + 2)) begun; exec sleep 300'")
                until(b"has 52 begun")
                process.send_signal(signal.SIGINT)
                assert not select.select([process.stdout], [], [], 1)[0]
                assert RunDir(tmp_path).hold.exists()
            else:
                until(b"mininet> ")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
