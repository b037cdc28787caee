"""Netlink for the bench: pyroute2's messages over plain sockets, many questions at once.

pyroute2 makes an event loop for each call and asks for all qdiscs to find one; a trace changes a link 100
times a second. Here a change is one message and its acknowledgement. Questions go out together, in one system
call, and all their answers are there when it ends: another one takes them in.
Layouts: include/uapi/linux/netlink.h, rtnetlink.h; struct mmsghdr of recvmmsg(2), 64 bits.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from testbed import namespaces
from testbed.errors import Problem, ShapingError
from testbed.foreign import tcmsg
from testbed.shaping import attributes

NEW_LINK, GET_LINK = 16, 18
NEW_ROUTE, GET_ROUTE = 24, 26
NEW_QDISC, DEL_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, DEL_CLASS, GET_CLASS = 40, 41, 42
NEW_FILTER, DEL_FILTER, GET_FILTER = 44, 45, 46
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
ROOT, CLSACT_PARENT = 0xFFFFFFFF, 0xFFFFFFF1
ERROR, DONE = 2, 3
REQUEST, ECHO, DUMP = 0x1, 0x8, 0x300
_MULTI, _ACK = 0x2, 0x4
HEADER = struct.Struct("=IHHII")
LINK, TC = struct.Struct("=BxHiII"), struct.Struct("=B3xiIII")
"""struct ifinfomsg and struct tcmsg."""
ATTRIBUTE_BYTES = 4
_STATS, _XSTATS, _STATS2 = 3, 4, 7
ANSWER_TIMEOUT_S = 5

OWN_PORTS: set[tuple[str, int]] = set()
"""Namespace and port of every socket of the bench: whoever else changes something is somebody else."""


class _Inbox:
    """Room for the answers that one recvmmsg() takes in; the bench talks to the kernel in one thread only."""

    _MESSAGES, _MESSAGE_BYTES = 16, 1 << 15  # the kernel makes no part of a dump larger (af_netlink.c)
    _HEADER, _LENGTH_AT = struct.Struct("=QIxxxxQQQQIxxxxIxxxx"), 56
    _WAIT_FOR_ONE = 0x10000

    def __init__(self) -> None:
        self._data = ctypes.create_string_buffer(self._MESSAGES * self._MESSAGE_BYTES)
        starts = range(0, len(self._data), self._MESSAGE_BYTES)
        at = ctypes.addressof(self._data)
        places = b"".join(struct.pack("=QQ", at + start, self._MESSAGE_BYTES) for start in starts)
        self._places = ctypes.create_string_buffer(places, len(places))
        at = ctypes.addressof(self._places)
        headers = b"".join(
            self._HEADER.pack(0, 0, at + 16 * number, 1, 0, 0, 0, 0) for number in range(self._MESSAGES)
        )
        self._headers = ctypes.create_string_buffer(headers, len(headers))
        self._receive = ctypes.CDLL(None, use_errno=True).recvmmsg

    def receive(self, file: int) -> Iterator[bytes]:
        """What is there, at least one; OSError after the socket's own timeout."""
        got = self._receive(file, self._headers, self._MESSAGES, self._WAIT_FOR_ONE, None)
        if got < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        data = memoryview(self._data)
        for number in range(got):
            (size,) = struct.unpack_from("=I", self._headers, number * self._HEADER.size + self._LENGTH_AT)
            start = number * self._MESSAGE_BYTES
            yield bytes(data[start : start + size])


_INBOX = _Inbox()


class Line:
    """A netlink socket of the bench in a namespace."""

    def __init__(self, namespace: str, protocol: int = socket.NETLINK_ROUTE) -> None:
        with namespaces.entered(namespace):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.bind((0, 0))
        # not settimeout(): that makes a poll() and two clock readings of every call
        timeout = struct.pack("ll", ANSWER_TIMEOUT_S, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        if protocol == socket.NETLINK_ROUTE:
            OWN_PORTS.add((namespace, self._socket.getsockname()[0]))

    def send(self, requests: bytes) -> None:
        """Send requests; they are answered, but for the rest of a dump, when this returns."""
        self._socket.send(requests)

    def receive(self) -> Iterator[bytes]:
        """What has come, at least one: the answer to a request each, refusals too, or a part of a dump."""
        return _INBOX.receive(self._socket.fileno())

    def ask(self, requests: bytes, number: int) -> list[bytes]:
        """Send `number` requests, at most the last of them a dump; each message of the answers, in order.

        Refusals and the end of the dump are among them.
        """
        self.send(requests)
        found = []
        while number:
            for data in self.receive():
                at = 0
                while at < len(data):
                    size, kind, flags, *_ = HEADER.unpack_from(data, at)
                    found.append(data[at : at + size])
                    at += (size + 3) & ~3
                    number -= kind == DONE or not flags & _MULTI
        return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Question:
    """What there is of a kind: one object, or all of the namespace (`every`)."""

    kind: int
    body: bytes
    every: bool = False


class Device:
    """A network device and a netlink socket in its namespace."""

    def __init__(self, namespace: str, name: str) -> None:
        attributes.install()
        self.namespace, self.name = namespace, name
        self._line = Line(namespace)
        with namespaces.entered(namespace):
            self.index = socket.if_nametoindex(name)

    def change(self, kind: int, body: bytes, flags: int = 0) -> None:
        """Send one message that changes something; OSError with the kernel's reason when it refuses."""
        (answer,) = self._line.ask(request(kind, REQUEST | _ACK | flags, body), 1)
        code = refusal(answer)
        if code:
            raise OSError(code, os.strerror(code))

    def question(self, kind: int, handle: int, parent: int = 0, info: int = 0) -> Question:
        """About a qdisc, class or filter of this device, by the fields of struct tcmsg."""
        return Question(kind, TC.pack(0, self.index, handle, parent, info))

    def answers(self, questions: Sequence[Question]) -> list[list[bytes]]:
        """The kernel's answer to each, with its header: none where there is no such object.

        At most the last one may ask for all of a kind. OSError when the kernel refuses that.
        """
        found: list[list[bytes]] = [[] for _ in questions]
        # without NLM_F_ECHO the kernel answers some of these questions only to a multicast group
        requests = [
            request(one.kind, REQUEST | (DUMP if one.every else ECHO), one.body, number)
            for number, one in enumerate(questions)
        ]
        for answer in self._line.ask(b"".join(requests), len(requests)) if requests else ():
            kind, number = HEADER.unpack_from(answer)[1:4:2]
            code = refusal(answer)
            if code and questions[number].every:
                raise OSError(code, os.strerror(code))
            if kind not in (ERROR, DONE):
                found[number].append(answer)
        return found

    def tc(self, kind: int, discipline: str, options: Any = None, flags: int = 0, **fields: int) -> None:
        """Add, change or remove a qdisc, class or filter.

        `fields`: handle, parent, info of struct tcmsg. ShapingError with the kernel's reason when refused.
        """
        message = tcmsg()
        message["index"] = self.index
        for name, value in fields.items():
            message[name] = value
        message["attrs"] = [("TCA_KIND", discipline)]
        if options is not None:
            message["attrs"].append(("TCA_OPTIONS", options))
        message.encode()
        try:
            self.change(kind, bytes(message.data[HEADER.size :]), flags)
        except OSError as error:
            raise self.refused(discipline, error) from error

    def refused(self, what: str, error: OSError) -> ShapingError:
        """What to say when the kernel refuses."""
        reason = os.strerror(error.errno or 0)
        return ShapingError(
            Problem(f"{self.name} in {self.namespace}: {what}", f"the kernel refuses: {reason}")
        )


def request(kind: int, flags: int, body: bytes, number: int = 0) -> bytes:
    """A request with its header; its answers will have the same number."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, number, 0) + body


def refusal(answer: bytes) -> int:
    """The error number of an answer; 0 of any that is none, an acknowledgement too."""
    if HEADER.unpack_from(answer)[1] not in (ERROR, DONE):
        return 0
    return -int(struct.unpack_from("=i", answer, HEADER.size)[0])


def decoded(answers: Sequence[bytes]) -> Any:
    """A qdisc, class or filter, decoded by pyroute2; None when there is none."""
    if not answers:
        return None
    answer = tcmsg(answers[0])
    answer.decode()
    return answer


def without_counters(kind: int, answer: bytes) -> bytes:
    """An answer to a question of that kind without its header and what a qdisc or class has counted."""
    if kind not in (GET_QDISC, GET_CLASS):
        return answer[HEADER.size :]
    at = HEADER.size + TC.size
    kept = [answer[HEADER.size : at]]
    while at < len(answer):
        size, attribute_kind = struct.unpack_from("=HH", answer, at)
        end = at + ((size + 3) & ~3)
        if attribute_kind not in (_STATS, _XSTATS, _STATS2):
            kept.append(answer[at:end])
        at = end
    return b"".join(kept)


def attribute(kind: int, value: bytes) -> bytes:
    """One netlink attribute, padded."""
    size = ATTRIBUTE_BYTES + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def places(data: bytes, at: int) -> dict[int, tuple[int, int]]:
    """First and last byte of the value of each attribute of a message, from its byte `at` on, by kind."""
    found = {}
    while at + ATTRIBUTE_BYTES <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        found[kind & 0x3FFF] = (at + ATTRIBUTE_BYTES, at + size)
        at += (size + 3) & ~3
    return found


def split(data: bytes, at: int) -> dict[int, bytes]:
    """The attributes of a message, from its byte `at` on, by kind."""
    return {kind: data[slice(*place)] for kind, place in places(data, at).items()}
