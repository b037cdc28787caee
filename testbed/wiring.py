"""Links, addresses, routes and neighbours of a node, by netlink: all changes of a node in one system call.

Layouts: kernel include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h, neighbour.h, veth.h.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from dataclasses import dataclass

from testbed.errors import Problem, ShapingError
from testbed.shaping.netlink import (
    CREATE,
    DUMP,
    EXCLUSIVE,
    GET_LINK,
    HEADER,
    LINK,
    NEW_LINK,
    NEW_ROUTE,
    REQUEST,
    Line,
    attribute,
    refusal,
    request,
    split,
)

LOOPBACK = 1
"""Its index, in every namespace."""
_NEW_ADDRESS, _NEW_NEIGHBOUR, _ACK = 20, 28, 0x4
_ADDRESS = struct.Struct("=4BI")
_ROUTE, _NEIGHBOUR = struct.Struct("=8BI"), struct.Struct("=B3xiHBB")
_LLADDR, _NAME, _MTU, _MASTER, _STATE, _INFO, _NAMESPACE, _MASK, _GSO_IPV4 = 1, 3, 4, 10, 16, 18, 28, 29, 63
_INFO_KIND, _INFO_DATA, _PEER = 1, 2, 1
_IS_UP, _WITHOUT_COUNTERS, _OPERATIONAL = 0x1, 0x8, 6
_MAIN_TABLE, _STATIC, _UNICAST, _PERMANENT = 254, 4, 1, 0x80


@dataclass(frozen=True, slots=True)
class Interface:
    """One end of a link, as the kernel has it."""

    index: int
    lladdr: bytes
    passes_packets: bool
    """Its operational state (RFC 2863) is up."""


class Wires:
    """A netlink socket in the namespace of a node."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._line = Line(namespace)

    def change(self, *requests: bytes) -> None:
        """Let the kernel carry out all of them; ShapingError with its reason when it refuses one."""
        for answer in self._line.ask(b"".join(requests), len(requests)):
            if code := refusal(answer):
                raise ShapingError(Problem(f"topology: {self._namespace}", f"refused: {os.strerror(code)}"))

    def interfaces(self) -> dict[str, Interface]:
        """All of the node by name, its loopback too."""
        body = LINK.pack(0, 0, 0, 0, 0) + attribute(_MASK, struct.pack("=I", _WITHOUT_COUNTERS))
        found = {}
        for answer in self._line.ask(request(GET_LINK, REQUEST | DUMP, body), 1):
            kind = HEADER.unpack_from(answer)[1]
            if kind == NEW_LINK:
                index = LINK.unpack_from(answer, HEADER.size)[2]
                told = split(answer, HEADER.size + LINK.size)
                name = told[_NAME].rstrip(b"\0").decode()
                found[name] = Interface(index, told.get(_LLADDR, b""), told[_STATE] == bytes([_OPERATIONAL]))
        return found

    def close(self) -> None:
        """Close the socket; the namespace goes with the mount namespace of this process."""
        self._line.close()


def veth(name: str, peer: str, peer_namespace: int, mtu_bytes: int) -> bytes:
    """Make a pair; the peer lies in the namespace of that open file."""
    mtu = attribute(_MTU, struct.pack("=I", mtu_bytes))
    there = attribute(_NAMESPACE, struct.pack("=I", peer_namespace))
    other = LINK.pack(0, 0, 0, 0, 0) + _name(peer) + mtu + there
    return _new(
        NEW_LINK, LINK.pack(0, 0, 0, 0, 0) + _name(name) + mtu + _kind("veth", attribute(_PEER, other))
    )


def bridge(name: str) -> bytes:
    """Make a Linux bridge."""
    return _new(NEW_LINK, LINK.pack(0, 0, 0, 0, 0) + _name(name) + _kind("bridge"))


def set_up(index: int, *, master: int = 0, super_packet_bytes: int = 0) -> bytes:
    """Switch an interface on, as a port of the bridge `master` and with super-packets, if they are given."""
    body = LINK.pack(0, 0, index, _IS_UP, _IS_UP)
    if master:
        body += attribute(_MASTER, struct.pack("=I", master))
    if super_packet_bytes:
        body += attribute(_GSO_IPV4, struct.pack("=I", super_packet_bytes))
    return request(NEW_LINK, REQUEST | _ACK, body)


def address(index: int, text: str) -> bytes:
    """Give an interface an IPv4 address, such as 10.1.0.1/24."""
    host, prefix = text.split("/")
    packed = socket.inet_aton(host)
    body = _ADDRESS.pack(socket.AF_INET, int(prefix), 0, 0, index)
    return _new(_NEW_ADDRESS, body + attribute(1, packed) + attribute(2, packed))


def route(destination: str, gateway: str) -> bytes:
    """Lead packets to a network, or all with 0.0.0.0/0, by way of a gateway."""
    network = ipaddress.IPv4Network(destination)
    body = _ROUTE.pack(socket.AF_INET, network.prefixlen, 0, 0, _MAIN_TABLE, _STATIC, 0, _UNICAST, 0)
    if network.prefixlen:
        body += attribute(1, network.network_address.packed)
    return _new(NEW_ROUTE, body + attribute(5, socket.inet_aton(gateway)))


def neighbour(index: int, host: str, lladdr: bytes) -> bytes:
    """Say for good which link-layer address a neighbour has."""
    body = _NEIGHBOUR.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
    return _new(_NEW_NEIGHBOUR, body + attribute(1, socket.inet_aton(host)) + attribute(2, lladdr))


def _new(kind: int, body: bytes) -> bytes:
    return request(kind, REQUEST | _ACK | CREATE | EXCLUSIVE, body)


def _name(name: str) -> bytes:
    return attribute(_NAME, name.encode() + b"\0")


def _kind(kind: str, data: bytes = b"") -> bytes:
    told = attribute(_INFO_KIND, kind.encode())
    return attribute(_INFO, told + (attribute(_INFO_DATA, data) if data else b""))
