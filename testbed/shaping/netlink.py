"""Netlink for shaping: pyroute2's messages over one plain socket per namespace.

pyroute2 makes an event loop for each call and asks for all qdiscs to find one; a trace changes a link 100
times a second. Here a change is one message and its acknowledgement, a reading one message and its answer.
Layouts: include/uapi/linux/netlink.h, rtnetlink.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed import namespaces
from testbed.errors import Problem, ShapingError
from testbed.shaping import attributes

NEW_LINK, GET_LINK = 16, 18
NEW_ROUTE, GET_ROUTE = 24, 26
NEW_QDISC, DEL_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, DEL_CLASS, GET_CLASS = 40, 41, 42
NEW_FILTER, DEL_FILTER, GET_FILTER = 44, 45, 46
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
ROOT, CLSACT_PARENT = 0xFFFFFFFF, 0xFFFFFFF1
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _ECHO, _DUMP = 0x1, 0x4, 0x8, 0x300
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE_BYTES = 4
_RECEIVE_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 5


OWN_PORTS: set[tuple[str, int]] = set()
"""Namespace and port of every socket of the bench: whoever else changes something is somebody else."""


def connect(namespace: str) -> socket.socket:
    """A netlink socket of the bench in this namespace."""
    with namespaces.entered(namespace):
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    made.bind((0, 0))
    # not settimeout(): that makes a poll() and two clock readings of every recv()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_TIMEOUT_S, 0))
    OWN_PORTS.add((namespace, made.getsockname()[0]))
    return made


class Device:
    """A network device and a netlink socket in its namespace."""

    def __init__(self, namespace: str, name: str) -> None:
        attributes.install()
        self.namespace, self.name = namespace, name
        self._socket = connect(namespace)
        with namespaces.entered(namespace):
            self.index = socket.if_nametoindex(name)

    def change(self, kind: int, body: bytes, flags: int = 0) -> None:
        """Send one message that changes something; OSError with the kernel's reason when it refuses."""
        self._send(kind, _REQUEST | _ACK | flags, body)
        self._receive()

    def ask(self, kind: int, body: bytes) -> bytes:
        """The kernel's answer to a question about one object, with its header; OSError if it has none."""
        # without NLM_F_ECHO the kernel answers some of these questions only to a multicast group
        self._send(kind, _REQUEST | _ECHO, body)
        return self._receive()

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """All objects of a kind, each with its header."""
        self._send(kind, _REQUEST | _DUMP, body)
        while True:
            data, at = self._receive(), 0
            while at < len(data):
                size, answer, *_ = _HEADER.unpack_from(data, at)
                if answer == _DONE:
                    return
                yield data[at : at + size]
                at += (size + 3) & ~3

    def tc(self, kind: int, discipline: str, options: Any = None, flags: int = 0, **fields: int) -> None:
        """Add, change or remove a qdisc, class or filter.

        `fields`: handle, parent, info of struct tcmsg. ShapingError with the kernel's reason when refused.
        """
        message = self._message(**fields)
        message["attrs"] = [("TCA_KIND", discipline)]
        if options is not None:
            message["attrs"].append(("TCA_OPTIONS", options))
        message.encode()
        try:
            self.change(kind, bytes(message.data[_HEADER.size :]), flags)
        except OSError as error:
            raise self.refused(discipline, error) from error

    def read(self, kind: int, **fields: int) -> Any:
        """A qdisc, class or filter as the kernel has it, decoded by pyroute2; None when there is none."""
        message = self._message(**fields)
        message.encode()
        try:
            answer = tcmsg(self.ask(kind, bytes(message.data[_HEADER.size :])))
        except OSError:
            return None
        answer.decode()
        return answer

    def refused(self, what: str, error: OSError) -> ShapingError:
        """What to say when the kernel refuses."""
        reason = os.strerror(error.errno or 0)
        return ShapingError(
            Problem(f"{self.name} in {self.namespace}: {what}", f"the kernel refuses: {reason}")
        )

    def _message(self, **fields: int) -> Any:
        message = tcmsg()
        message["index"] = self.index
        for name, value in fields.items():
            message[name] = value
        return message

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body)

    def _receive(self) -> bytes:
        data = self._socket.recv(_RECEIVE_BYTES)
        if _HEADER.unpack_from(data)[1] == _ERROR:
            code = struct.unpack_from("=i", data, _HEADER.size)[0]
            if code:
                raise OSError(-code, os.strerror(-code))
        return data


def attribute(kind: int, value: bytes) -> bytes:
    """One netlink attribute, padded."""
    size = _ATTRIBUTE_BYTES + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def split(data: bytes, at: int) -> dict[int, bytes]:
    """The attributes of a message, from its byte `at` on, by kind."""
    found = {}
    while at + _ATTRIBUTE_BYTES <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        found[kind & 0x3FFF] = data[at + _ATTRIBUTE_BYTES : at + size]
        at += (size + 3) & ~3
    return found
