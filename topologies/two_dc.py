"""Two datacenters and the WAN between them.

    a1..aN ─┐                                             ┌─ b1..bM
            sw-a ── edge-a ══════ wan ══════ edge-b ── sw-b
  tenant-a ─┘                                             ├─ router, client
                                                          └─ tenant-b

DC A is the prefill cluster (PrfaaS), DC B the PD cluster with the router and the clients. Each
tenant host stands for everybody else in its datacenter. Stock Mininet can draw it, too:

    sudo mn --custom topologies/two_dc.py --topo two_dc --switch lxbr --controller none
"""

from __future__ import annotations

from typing import Any, ClassVar

from mininet.topo import Topo

A_PREFIX, B_PREFIX = "10.1.0", "10.2.0"
WAN_A, WAN_B = "10.9.1", "10.9.2"
ROUTER_ID, CLIENT_ID, TENANT_ID, GATEWAY_ID = 100, 101, 200, 254


def router(name: str, **params: object) -> Any:
    """Make a node that forwards; `routes` are (destination, gateway) pairs.

    Used by stock Mininet only; the testbed does the same through netlink. So `mininet.node`, which loads
    all of setuptools for a version number, is left out until a node is wanted.
    """
    from mininet.node import Node  # noqa: PLC0415 - see above

    class Router(Node):  # type: ignore[misc]
        def config(self, routes: tuple[tuple[str, str], ...] = (), **params: object) -> dict[str, object]:
            result: dict[str, object] = super().config(**params)
            self.cmd("sysctl -w net.ipv4.ip_forward=1")
            for destination, gateway in routes:
                self.cmd(f"ip route replace {destination} via {gateway}")
            return result

    return Router(name, **params)


class TwoDC(Topo):  # type: ignore[misc]
    """`prefill_hosts` hosts in DC A, `pd_hosts` in DC B, plus router, client and one tenant host each."""

    wan: ClassVar[dict[str, tuple[tuple[str, str], tuple[str, str]]]] = {
        "a_to_b": (("edge-a", "edge-a-wan"), ("wan", "wan-b")),
        "b_to_a": (("edge-b", "edge-b-wan"), ("wan", "wan-a")),
    }
    """Per direction: node and interface of the rate stage, then of the delay stage."""
    feed: ClassVar[dict[str, tuple[str, str]]] = {
        "a_to_b": ("sw-a", "sw-a-edge"),
        "b_to_a": ("sw-b", "sw-b-edge"),
    }
    """Per direction: the LAN switch and its port towards the edge router."""

    def build(self, prefill_hosts: int = 4, pd_hosts: int = 8) -> None:
        """Add all nodes and links."""
        self.addSwitch("sw-a", dpid="1")
        self.addSwitch("sw-b", dpid="2")
        self.addHost(
            "edge-a",
            cls=router,
            ip=f"{A_PREFIX}.{GATEWAY_ID}/24",
            routes=((f"{B_PREFIX}.0/24", f"{WAN_A}.2"), (f"{WAN_B}.0/24", f"{WAN_A}.2")),
        )
        self.addHost(
            "wan",
            cls=router,
            ip=f"{WAN_A}.2/24",
            routes=((f"{A_PREFIX}.0/24", f"{WAN_A}.1"), (f"{B_PREFIX}.0/24", f"{WAN_B}.1")),
        )
        self.addHost(
            "edge-b",
            cls=router,
            ip=f"{B_PREFIX}.{GATEWAY_ID}/24",
            routes=((f"{A_PREFIX}.0/24", f"{WAN_B}.2"), (f"{WAN_A}.0/24", f"{WAN_B}.2")),
        )
        self.addLink("edge-a", "sw-a", intfName1="edge-a-lan", intfName2="sw-a-edge")
        self.addLink("edge-b", "sw-b", intfName1="edge-b-lan", intfName2="sw-b-edge")
        self.addLink(
            "edge-a",
            "wan",
            intfName1="edge-a-wan",
            intfName2="wan-a",
            params1={"ip": f"{WAN_A}.1/24"},
            params2={"ip": f"{WAN_A}.2/24"},
        )
        self.addLink(
            "edge-b",
            "wan",
            intfName1="edge-b-wan",
            intfName2="wan-b",
            params1={"ip": f"{WAN_B}.1/24"},
            params2={"ip": f"{WAN_B}.2/24"},
        )
        side_a = {f"a{i}": i for i in range(1, prefill_hosts + 1)} | {"tenant-a": TENANT_ID}
        side_b = {f"b{i}": i for i in range(1, pd_hosts + 1)}
        side_b |= {"router": ROUTER_ID, "client": CLIENT_ID, "tenant-b": TENANT_ID}
        for prefix, switch, hosts in ((A_PREFIX, "sw-a", side_a), (B_PREFIX, "sw-b", side_b)):
            for name, number in hosts.items():
                gateway = f"via {prefix}.{GATEWAY_ID}"
                self.addHost(name, ip=f"{prefix}.{number}/24", defaultRoute=gateway)
                self.addLink(name, switch, intfName1=f"{name}-eth0")


topos = {"two_dc": TwoDC}
