"""Everything that anybody changes in the network's namespaces while a run goes on, told by the kernel.

The kernel sends each change of a qdisc, class, filter or route to whoever listens, with the port of the
socket that asked for it (kernel: net/sched/sch_api.c `qdisc_notify`, cls_api.c `tfilter_notify`). The bench
knows its own ports, so nobody else goes unseen, however short it lasts. Of devices it tells the new values.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass

from testbed import namespaces
from testbed.shaping import netlink

_GROUPS = (1, 4, 7)
"""RTNLGRP_LINK, RTNLGRP_TC, RTNLGRP_IPV4_ROUTE."""
_SOL_NETLINK, _ADD_MEMBERSHIP, _SO_RCVBUFFORCE = 270, 1, 33
_BUFFER_BYTES, _RECEIVE_BYTES = 64 << 20, 1 << 16
_HEADER, _LINK, _TC = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=B3xiIII")
_KINDS = {36: "qdisc", 37: "qdisc", 40: "class", 41: "class", 44: "filter", 45: "filter"}
_UP, _IFNAME = 1, 3
_VALUES = {4: "MTU", 40: "gso_max_segs", 41: "gso_max_size", 63: "gso_ipv4_max_size"}
_INGRESS = 0xFFFF0000
"""The handle of ingress and clsact, whose filters may see either direction."""

Place = tuple[str, str]
Values = dict[str, int]


@dataclass(frozen=True, slots=True)
class Change:
    """What somebody else did: to which node's device, and in words."""

    node: str
    device: str
    said: str
    outgoing: bool
    """Only what leaves by this device is concerned."""

    @property
    def sentence(self) -> str:
        return f"{self.device} in {self.node}: {self.said}"


class Watch:
    """Listens in every namespace from its making on."""

    def __init__(self, cut: Container[Place]) -> None:
        """`cut`: devices whose segmentation the bench itself changes (and reads back)."""
        names = sorted(path.name for path in namespaces.NETNS_DIR.iterdir())
        self._nodes = [_Node(name, cut) for name in names]

    def read(self) -> list[Change]:
        """All changes since the last call."""
        return [change for node in self._nodes for change in node.changes()]


class _Node:
    def __init__(self, name: str, cut: Container[Place]) -> None:
        self._name, self._cut = name, cut
        with namespaces.entered(name):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.bind((0, 0))
        for group in _GROUPS:
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        self._socket.setblocking(False)
        self._names: dict[int, str] = {}
        self._values: dict[int, Values] = {}
        for answer in netlink.Device(name, "lo").dump(netlink.GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
            index, device, values = self._device(answer)
            self._names[index], self._values[index] = device, values

    def changes(self) -> Iterator[Change]:
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield Change(self._name, "all", "more changes than can be watched", outgoing=False)
                continue
            at = 0
            while at < len(data):  # what was replaced and what replaced it come together
                size, kind, _, _, port = _HEADER.unpack_from(data, at)
                message = data[at : at + size]
                at += (size + 3) & ~3
                if kind in {netlink.NEW_LINK, netlink.NEW_LINK + 1}:
                    yield from self._link(message, gone=kind != netlink.NEW_LINK)
                elif port and (self._name, port) not in netlink.OWN_PORTS:
                    yield self._foreign(message, kind)

    def _device(self, message: bytes) -> tuple[int, str, Values]:
        _, _, index, flags, _ = _LINK.unpack_from(message, _HEADER.size)
        found = netlink.split(message, _HEADER.size + _LINK.size)
        device = found[_IFNAME].rstrip(b"\0").decode()
        values = {"up": flags & _UP}
        for kind, name in _VALUES.items():
            if kind in found and not (name.startswith("gso") and (self._name, device) in self._cut):
                (values[name],) = struct.unpack("=I", found[kind])
        return index, device, values

    def _link(self, message: bytes, *, gone: bool) -> Iterator[Change]:
        index, device, values = self._device(message)
        if index not in self._values or gone:
            said = "has gone" if gone else "has come"
            yield Change(self._name, device, said, outgoing=False)
            self._names.setdefault(index, device)
            return
        for name, value in values.items():  # a bridge tells of its ports without some of them
            wanted = self._values[index].get(name, value)
            if value != wanted:
                said = f"{name} was {value} where {wanted} was set"
                yield Change(self._name, device, said, outgoing=False)

    def _foreign(self, message: bytes, kind: int) -> Change:
        what = _KINDS.get(kind)
        if what is None:
            return Change(self._name, "routes", "changed by somebody else", outgoing=False)
        _, index, handle, parent, _ = _TC.unpack_from(message, _HEADER.size)
        discipline = netlink.split(message, _HEADER.size + _TC.size).get(1, b"").rstrip(b"\0").decode()
        said = f"{what} {discipline} was changed by somebody else"
        ingress = _INGRESS in {handle & _INGRESS, parent & _INGRESS} and parent != netlink.ROOT
        return Change(self._name, self._names.get(index, str(index)), said, outgoing=not ingress)
