"""Mininet, speaking netlink.

Mininet keeps the graph, the naming and the building order. Stock Mininet starts a shell per node and
several processes per interface, which inside User-Mode Linux costs 23 s for twelve hosts; these
subclasses do the same work through netlink in a fraction of a second.
"""

from __future__ import annotations

import time
from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Switch
from pyroute2 import IPRoute

from testbed import namespaces, sysctl
from testbed.errors import Problem, ShapingError
from testbed.shaping import attributes
from testbed.shaping.link import SUPER_PACKET_BYTES
from topologies import TOPOLOGIES

SETTLE_STEP_S, SETTLE_TRIES = 0.5, 60


class _Quiet:
    """What a node without a shell leaves out."""

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: ARG002, N802 - Mininet's signature
        """Give the node its namespace; no shell."""
        name: str = self.name  # type: ignore[attr-defined]
        namespaces.create(name)
        with namespaces.entered(name):
            self.netlink = IPRoute()
        lo = self.netlink.link_lookup(ifname="lo")[0]
        self.netlink.link("set", index=lo, state="up")

    def config(self, **_params: object) -> dict[str, object]:
        """Nothing: `Network` configures all nodes once all links are there."""
        return {}

    def mountPrivateDirs(self) -> None:  # noqa: N802 - Mininet's name
        """Containers bring their own."""

    def cleanup(self) -> None:
        """Close the netlink socket; the namespace goes with the mount namespace of this process."""
        self.netlink.close()

    terminate = cleanup


class NetlinkHost(_Quiet, Host):  # type: ignore[misc]
    """A network namespace; addresses and routes come from the topology's parameters."""


class NetlinkBridge(_Quiet, Switch):  # type: ignore[misc]
    """A Linux bridge in a namespace of its own."""

    def cmd(self, *_args: object, **_kwargs: object) -> str:
        """Mininet asks a switch's shell to bring lo up; it is up already."""
        return ""

    def start(self, _controllers: list[object]) -> None:
        """Make the bridge and put every interface into it."""
        self.netlink.link("add", ifname="br0", kind="bridge")
        bridge = self.netlink.link_lookup(ifname="br0")[0]
        for intf in self.intfList():
            if intf.name == "lo":
                continue
            index = self.netlink.link_lookup(ifname=intf.name)[0]
            self.netlink.link("set", index=index, master=bridge, state="up")
        self.netlink.link("set", index=bridge, state="up")

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
    super_packet_bytes = 65_536

    @classmethod
    def makeIntfPair(  # noqa: N802 - Mininet's name
        cls, intfname1: str, intfname2: str, _addr1: str, _addr2: str, node1: Any, node2: Any, **_: Any
    ) -> None:
        """One end in each node's namespace."""
        node1.netlink.link(
            "add",
            ifname=intfname1,
            kind="veth",
            mtu=cls.mtu_bytes,
            peer={
                "ifname": intfname2,
                "mtu": cls.mtu_bytes,
                "net_ns_fd": str(namespaces.NETNS_DIR / node2.name),
            },
        )
        for node, name in ((node1, intfname1), (node2, intfname2)):
            index = node.netlink.link_lookup(ifname=name)[0]
            node.netlink.link("set", index=index, gso_ipv4_max_size=cls.super_packet_bytes)


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
        attributes.install()
        sizes = {"mtu_bytes": mtu_bytes, "super_packet_bytes": super_packet_bytes}
        link = type("SizedLink", (NetlinkLink,), sizes)
        Mininet.inited = True  # its init() only raises limits of this machine, by shell
        self._net = _Net(
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
        for node in self._net.hosts:
            _configure(node)
        for link in self._net.links:
            if all("routes" in intf.node.params for intf in (link.intf1, link.intf2)):
                _introduce(link.intf1, link.intf2)
                _introduce(link.intf2, link.intf1)
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

    def netlink(self, name: str) -> IPRoute:
        """The netlink socket inside the node's namespace."""
        return self._net[name].netlink

    def address(self, name: str) -> str:
        """The node's first IPv4 address, without the prefix length."""
        return str(self._net[name].params["ip"]).split("/")[0]

    def close(self) -> None:
        """Let go of all namespaces."""
        for node in [*self._net.hosts, *self._net.switches]:
            node.terminate()


class _Net(Mininet):  # type: ignore[misc]
    def addHost(self, name: str, cls: object = None, **params: Any) -> Any:  # noqa: ARG002, N802
        """Routers of the topology are hosts with `routes`: their class serves stock Mininet only."""
        return super().addHost(name, cls=None, **params)

    def configHosts(self) -> None:  # noqa: N802 - Mininet's name
        """Nothing: addresses need all links first."""


def _is_up(node: Any) -> bool:
    """Whether all interfaces of a node but its loopback are operational (RFC 2863)."""
    links = node.netlink.get_links()
    states = {link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_OPERSTATE") for link in links}
    return all(state == "UP" for name, state in states.items() if name != "lo")


def _introduce(intf: Any, other: Any) -> None:
    """Routers know each other for good: no address resolution is lost, or counted, on the WAN."""
    index, there = (one.node.netlink.link_lookup(ifname=one.name)[0] for one in (intf, other))
    (peer,) = other.node.netlink.link("get", index=there)
    address = other.address.split("/")[0]
    intf.node.netlink.neigh(
        "add", ifindex=index, dst=address, lladdr=peer.get_attr("IFLA_ADDRESS"), state="permanent"
    )


def _configure(node: Any) -> None:
    """Addresses and routes of one node, as its topology parameters say."""
    netlink, params = node.netlink, node.params
    for number, intf in enumerate(node.intfList()):
        index = netlink.link_lookup(ifname=intf.name)[0]
        address = intf.address or (params["ip"] if number == 0 else None)
        if address is None:
            raise ShapingError(Problem(f"topology: {intf.name}", "has no address"))
        host, prefixlen = address.split("/")
        netlink.link("set", index=index, state="up")
        netlink.addr("add", index=index, address=host, prefixlen=int(prefixlen))
    if "defaultRoute" in params:
        netlink.route("add", dst="default", gateway=params["defaultRoute"].removeprefix("via "))
    if "routes" in params:
        for destination, gateway in params["routes"]:
            netlink.route("add", dst=destination, gateway=gateway)
