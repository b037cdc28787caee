"""Mininet's prompt on a network that another process has built: `a1 ping b1`, `pingall`, `nodes`, `net`.

The nodes here are shells in its namespaces, one each, as Mininet has them; the graph is made once more,
without interfaces.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from testbed.foreign import Host, Mininet, Switch, prompt_class
from testbed.topology import NetlinkIntf, NetlinkLink, Unconfigured
from topologies import TOPOLOGIES


class _Entered:
    """A shell in a namespace that is there already."""

    isSetup = True  # noqa: N815 - Mininet's name
    place: Path
    name: str
    told = False
    """Whether the command that goes on was told to end."""

    def sendCmd(self, *args: Any, **params: Any) -> None:  # noqa: N802 - Mininet's name
        self.told = False
        super().sendCmd(*args, **params)  # type: ignore[misc]

    def interrupt(self) -> bool:
        """Tell the command that goes on to end, once; whether there was one to tell."""
        if self.told or not self.waiting:  # type: ignore[attr-defined]
            return False
        self.told = True
        self.sendInt()  # type: ignore[attr-defined]
        return True

    def _popen(self, command: list[str], **params: Any) -> Any:
        """`command` begins with Mininet's program to make a namespace, and its options."""
        entered = ["setsid", "nsenter", f"--net={self.place / self.name}", *command[2:]]
        return super()._popen(entered, **params)  # type: ignore[misc]


class _Host(_Entered, Host):  # type: ignore[misc]
    """A host or a router."""


class _Switch(_Entered, Switch):  # type: ignore[misc]
    """A bridge."""

    def start(self, _controllers: list[object]) -> None:
        """Nothing: it runs."""

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803, ARG002 - Mininet's signature
        """Leave its shell."""
        self.terminate()


class _Intf(NetlinkIntf):
    def updateIP(self) -> str | None:  # noqa: N802 - Mininet's name
        """The address as it is known, for which Mininet would ask ifconfig."""
        return self.ip or None


class _Link(NetlinkLink):
    @classmethod
    def makeIntfPair(cls, *_args: object, **_params: object) -> None:  # noqa: N802 - Mininet's name
        """Nothing: both ends are there."""


def prompt(
    topology: str,
    params: dict[str, int],
    place: Path,
    stdin: TextIO = sys.stdin,
    ready: Callable[[Callable[[], bool]], None] = lambda _interrupt: None,
) -> None:
    """Read commands and carry them out until `exit` or the end of input; `place` has a namespace per node.

    `ready` is given what interrupts the commands that go on in nodes, and says whether there were any: the
    nodes are in sessions of their own, so that a terminal's Ctrl-C reaches none of them.
    """
    letters = {"identchars": string.ascii_letters + string.digits + "_-"}  # nodes have names such as tenant-a
    Mininet.inited = True  # its init() only raises limits of this machine, by shell
    kinds: dict[str, type] = {"host": _Host, "switch": _Switch}
    kinds = {kind: type(cls.__name__, (cls,), {"place": place}) for kind, cls in kinds.items()}
    net = Unconfigured(
        topo=TOPOLOGIES[topology](**params),
        **kinds,
        link=_Link,
        intf=_Intf,
        controller=None,
        build=True,
    )
    try:
        ready(partial(_interrupt, net))
        for node in net.hosts:
            for intf in node.intfList():
                address = intf.address or node.params.get("ip", "")
                intf.ip, _, intf.prefixLen = address.partition("/")
        type("Prompt", (prompt_class(),), letters)(net, stdin=stdin)
    finally:
        for node in [*net.hosts, *net.switches]:
            node.terminate()


def _interrupt(net: Mininet) -> bool:
    """A command that does not listen keeps nobody: it is told once."""
    told = [node.interrupt() for node in [*net.hosts, *net.switches]]
    return any(told)
