"""Mininet, speaking netlink.

Mininet keeps the graph, the naming and the building order. Stock Mininet starts a shell per node and
several processes per interface, which inside User-Mode Linux costs 23 s for twelve hosts; these
subclasses do the same work through netlink in a fraction of a second.
"""

from __future__ import annotations

import os
import time
from typing import Any

from testbed import namespaces, sysctl, wiring
from testbed.errors import Problem, ShapingError
from testbed.foreign import Host, Intf, Link, Mininet, Switch
from testbed.shaping.link import SUPER_PACKET_BYTES
from topologies import TOPOLOGIES

SETTLE_STEP_S, SETTLE_TRIES = 0.5, 60
BRIDGE = "br0"
Found = dict[str, dict[str, wiring.Interface]]
"""By node and name."""


class _Quiet:
    """What a node without a shell leaves out."""

    isSetup = True  # noqa: N815 - Mininet's name
    """Mininet would look for programs that nobody here starts."""

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: ARG002, N802 - Mininet's signature
        """Give the node its namespace; no shell."""
        name: str = self.name  # type: ignore[attr-defined]
        namespaces.create(name)
        self.wires = wiring.Wires(name)
        self.wires.change(wiring.set_up(wiring.LOOPBACK))

    def config(self, **_params: object) -> dict[str, object]:
        """Nothing: `Network` configures all nodes once all links are there."""
        return {}

    def mountPrivateDirs(self) -> None:  # noqa: N802 - Mininet's name
        """Containers bring their own."""

    def cleanup(self) -> None:
        """Close the netlink socket."""
        self.wires.close()

    terminate = cleanup


class NetlinkHost(_Quiet, Host):  # type: ignore[misc]
    """A network namespace; addresses and routes come from the topology's parameters."""


class NetlinkBridge(_Quiet, Switch):  # type: ignore[misc]
    """A Linux bridge in a namespace of its own."""

    def cmd(self, *_args: object, **_kwargs: object) -> str:
        """Mininet asks a switch's shell to bring lo up; it is up already."""
        return ""

    def start(self, _controllers: list[object]) -> None:
        """Make the bridge; `Network` puts the interfaces into it."""
        self.wires.change(wiring.bridge(BRIDGE))

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's signature
        """Nothing: interfaces go with the namespace."""


class NetlinkIntf(Intf):  # type: ignore[misc]
    """An interface that remembers its address; `Network` sets it."""

    def config(self, ip: str | None = None, **_params: object) -> dict[str, object]:
        """Keep the address."""
        self.address = ip
        return {}


class NetlinkLink(Link):  # type: ignore[misc]
    """A veth pair made by one netlink message."""

    mtu_bytes = 1500

    @classmethod
    def makeIntfPair(  # noqa: N802 - Mininet's name
        cls, intfname1: str, intfname2: str, _addr1: str, _addr2: str, node1: Any, node2: Any, **_: Any
    ) -> None:
        """One end in each node's namespace."""
        there = os.open(namespaces.NETNS_DIR / node2.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            node1.wires.change(wiring.veth(intfname1, intfname2, there, cls.mtu_bytes))
        finally:
            os.close(there)


class Network:
    """A built topology: nodes by name, their addresses, their netlink sockets."""

    def __init__(
        self,
        topology: str,
        params: dict[str, int],
        *,
        mtu_bytes: int,
        window_bytes: int,
        super_packet_bytes: int = SUPER_PACKET_BYTES,
        ecn: bool = False,
    ) -> None:
        """`ecn`: hosts ask for ECN on every TCP connection (RFC 3168), not only where dctcp needs it."""
        link = type("SizedLink", (NetlinkLink,), {"mtu_bytes": mtu_bytes})
        Mininet.inited = True  # its init() only raises limits of this machine, by shell
        self._net = Unconfigured(
            topo=TOPOLOGIES[topology](**params),
            host=NetlinkHost,
            switch=NetlinkBridge,
            link=link,
            intf=NetlinkIntf,
            controller=None,
            build=True,
        )
        for node in [*self._net.hosts, *self._net.switches]:
            sysctl.for_namespace(node.name, window_bytes, forward="routes" in node.params, ecn=ecn)
        self._net.start()
        found = {node.name: node.wires.interfaces() for node in [*self._net.hosts, *self._net.switches]}
        for node in self._net.hosts:
            _configure(node, found[node.name], super_packet_bytes)
        for switch in self._net.switches:
            _join(switch, found[switch.name], super_packet_bytes)
        for link in self._net.links:
            if all("routes" in intf.node.params for intf in (link.intf1, link.intf2)):
                _introduce(link.intf1, link.intf2, found)
                _introduce(link.intf2, link.intf1, found)
        self._settle()

    def _settle(self) -> None:
        """Wait until every interface passes packets; ShapingError when one never does.

        A new interface drops everything until the kernel has noticed its carrier, which it does for a
        hundred interfaces a second (net/core/link_watch.c).
        """
        waiting = [*self._net.hosts, *self._net.switches]
        for _ in range(SETTLE_TRIES):
            time.sleep(SETTLE_STEP_S)
            waiting = [node for node in waiting if not _is_up(node)]
            if not waiting:
                return
        names = ", ".join(node.name for node in waiting)
        raise ShapingError(Problem(f"topology: {names}", "interfaces that never came up"))

    @property
    def hosts(self) -> list[str]:
        """The nodes where connections end: all but routers and switches."""
        return [node.name for node in self._net.hosts if "routes" not in node.params]

    def address(self, name: str) -> str:
        """The node's first IPv4 address, without the prefix length."""
        return str(self._net[name].params["ip"]).split("/")[0]

    def close(self) -> None:
        """Let go of all namespaces."""
        for node in [*self._net.hosts, *self._net.switches]:
            node.terminate()


class Unconfigured(Mininet):  # type: ignore[misc]
    """Mininet, without what it does to hosts by their shells."""

    def addHost(self, name: str, cls: object = None, **params: Any) -> Any:  # noqa: ARG002, N802
        """Routers of the topology are hosts with `routes`: their class serves stock Mininet only."""
        return super().addHost(name, cls=None, **params)

    def configHosts(self) -> None:  # noqa: N802 - Mininet's name
        """Nothing: addresses need all links first."""


def _is_up(node: Any) -> bool:
    """Whether all interfaces of a node but its loopback pass packets."""
    return all(one.passes_packets for name, one in node.wires.interfaces().items() if name != "lo")


def _introduce(intf: Any, other: Any, found: Found) -> None:
    """Routers know each other for good: no address resolution is lost, or counted, on the WAN."""
    index, peer = found[intf.node.name][intf.name].index, found[other.node.name][other.name]
    intf.node.wires.change(wiring.neighbour(index, other.address.split("/")[0], peer.lladdr))


def _configure(node: Any, interfaces: dict[str, wiring.Interface], super_packet_bytes: int) -> None:
    """Addresses and routes of one node, as its topology parameters say."""
    params = node.params
    changes = []
    for number, intf in enumerate(node.intfList()):
        index = interfaces[intf.name].index
        address = intf.address or (params["ip"] if number == 0 else None)
        if address is None:
            raise ShapingError(Problem(f"topology: {intf.name}", "has no address"))
        changes.append(wiring.set_up(index, super_packet_bytes=super_packet_bytes))
        changes.append(wiring.address(index, address))
    if "defaultRoute" in params:
        changes.append(wiring.route("0.0.0.0/0", params["defaultRoute"].removeprefix("via ")))
    changes += [wiring.route(destination, gateway) for destination, gateway in params.get("routes", ())]
    node.wires.change(*changes)


def _join(switch: Any, interfaces: dict[str, wiring.Interface], super_packet_bytes: int) -> None:
    """Put every interface of a switch into its bridge."""
    bridge = interfaces[BRIDGE].index
    ports = [interfaces[intf.name].index for intf in switch.intfList() if intf.name != "lo"]
    switch.wires.change(
        *(wiring.set_up(port, master=bridge, super_packet_bytes=super_packet_bytes) for port in ports),
        wiring.set_up(bridge),
    )
