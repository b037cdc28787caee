"""Everything that anybody changes in the network's namespaces while a run goes on, told by the kernel.

The kernel sends each change of a qdisc, class, filter or route to whoever listens, with the port of the
socket that asked for it (kernel: net/sched/sch_api.c `qdisc_notify`, cls_api.c `tfilter_notify`). The bench
knows its own ports, so nobody else goes unseen, however short it lasts. Of devices it tells the new values.
"""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from testbed import namespaces
from testbed.shaping import netlink
from testbed.shaping.attributes import U32_MAX

_GROUPS = (1, 4, 7)
"""RTNLGRP_LINK, RTNLGRP_TC, RTNLGRP_IPV4_ROUTE."""
_SOL_NETLINK, _ADD_MEMBERSHIP, _SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 270, 1, 33, 26
_BUFFER_BYTES, _RECEIVE_BYTES = 64 << 20, 1 << 16
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
    """Listens in every namespace from its making on.

    What the bench asks for is told to listeners, too, even the answers to some of its questions: the kernel
    leaves out what concerns the sockets that the bench has by then.
    """

    def __init__(self, cut: Container[Place]) -> None:
        """`cut`: devices whose segmentation the bench itself changes (and reads back)."""
        names = sorted(path.name for path in namespaces.NETNS_DIR.iterdir())
        self._nodes = [_Node(name, cut) for name in names]
        self._waiting = select.epoll()
        for node in self._nodes:
            self._waiting.register(node.socket, select.EPOLLIN)

    def read(self) -> list[Change]:
        """All changes since the last call."""
        told = {file for file, _ in self._waiting.poll(0)}
        nodes = [node for node in self._nodes if node.socket.fileno() in told] if told else []
        return [change for node in nodes for change in node.changes()]


class _Node:
    def __init__(self, name: str, cut: Container[Place]) -> None:
        self._name, self._cut = name, cut
        with namespaces.entered(name):
            self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        _leave_out(self.socket, sorted(port for place, port in netlink.OWN_PORTS if place == name))
        self.socket.bind((0, 0))
        for group in _GROUPS:
            self.socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        self.socket.setblocking(False)
        self._names: dict[int, str] = {}
        self._values: dict[int, Values] = {}
        every = netlink.Question(netlink.GET_LINK, netlink.LINK.pack(0, 0, 0, 0, 0), every=True)
        for answer in netlink.Device(name, "lo").answers([every])[0]:
            index, device, values = self._device(answer)
            self._names[index], self._values[index] = device, values

    def changes(self) -> Iterator[Change]:
        while True:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield Change(self._name, "all", "more changes than can be watched", outgoing=False)
                continue
            at = 0
            while at < len(data):  # what was replaced and what replaced it come together
                size, kind, _, _, port = netlink.HEADER.unpack_from(data, at)
                message = data[at : at + size]
                at += (size + 3) & ~3
                if kind in {netlink.NEW_LINK, netlink.NEW_LINK + 1}:
                    yield from self._link(message, gone=kind != netlink.NEW_LINK)
                elif port and (self._name, port) not in netlink.OWN_PORTS:
                    yield self._foreign(message, kind)

    def _device(self, message: bytes) -> tuple[int, str, Values]:
        _, _, index, flags, _ = netlink.LINK.unpack_from(message, netlink.HEADER.size)
        found = netlink.split(message, netlink.HEADER.size + netlink.LINK.size)
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
        _, index, handle, parent, _ = netlink.TC.unpack_from(message, netlink.HEADER.size)
        discipline = (
            netlink.split(message, netlink.HEADER.size + netlink.TC.size).get(1, b"").rstrip(b"\0").decode()
        )
        said = f"{what} {discipline} was changed by somebody else"
        ingress = _INGRESS in {handle & _INGRESS, parent & _INGRESS} and parent != netlink.ROOT
        return Change(self._name, self._names.get(index, str(index)), said, outgoing=not ingress)


_INSTRUCTION = struct.Struct("=HBBI")
"""struct sock_filter: code, jumps if true and if false, value."""
_LOAD_HALF, _LOAD_WORD, _IF_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_KIND_AT, _PORT_AT = 4, 12


def own_left_out(ports: Sequence[int]) -> bytes:
    """A classic BPF program: passes messages about links, and of all others those of no port of `ports`.

    It loads numbers in the order of the network, netlink has the machine's (kernel: net/core/filter.c).
    """
    program = [(_LOAD_HALF, 0, 0, _KIND_AT)]
    for kind in (netlink.NEW_LINK, netlink.NEW_LINK + 1):
        program += [(_IF_EQUAL, 0, 1, socket.htons(kind)), (_RETURN, 0, 0, U32_MAX)]
    program.append((_LOAD_WORD, 0, 0, _PORT_AT))
    for port in ports:
        program += [(_IF_EQUAL, 0, 1, socket.htonl(port)), (_RETURN, 0, 0, 0)]
    program.append((_RETURN, 0, 0, U32_MAX))
    return b"".join(_INSTRUCTION.pack(*one) for one in program)


def _leave_out(listener: socket.socket, ports: Sequence[int]) -> None:
    program = own_left_out(ports)
    kept = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _INSTRUCTION.size
    attached = struct.pack("=HxxxxxxQ", count, ctypes.addressof(kept))  # struct sock_fprog
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
