"""Path MTU: the WAN node forwards nothing larger in this direction, and says so.

The MTU of the WAN node's routes out of the device (`ip route ... mtu N`), which forwarding honours
(kernel net/ipv4/ip_forward.c, include/net/ip.h `ip_dst_mtu_maybe_forward`). Not the device's own MTU: a veth
also refuses what is larger on its way in, so that would be a black hole for the other direction.

A sender remembers a path MTU for ten minutes (RFC 1191, 6.3). When the path gets wider the hosts are made to
forget, so that connections, old and new, use it at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed import namespaces
from testbed.plan import LinkState
from testbed.shaping import netlink
from testbed.shaping.netlink import HEADER, Device, Question, attribute, split

_ROUTE = struct.Struct("=8BI")
"""struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags."""
_IPV4, _MAIN = 2, 254
_DESTINATION, _OUTPUT, _GATEWAY, _METRICS, _MTU = 1, 4, 5, 8, 2

Values = dict[str, Any]


class PathMtu:
    """The routes out of a device; `hosts`: the namespaces whose connections may cross them."""

    def __init__(self, device: Device, hosts: Sequence[str]) -> None:
        self._device, self._hosts = device, hosts
        self.written: Values = {"path_mtu": None}

    def apply(self, state: LinkState) -> bool:
        """Write every route anew if the MTU differs; says whether it does. If it grew the hosts forget it."""
        mtu, before = state.path_mtu_bytes, self.written["path_mtu"]
        if mtu == before:
            return False
        for head, attributes in self._routes(*self._device.answers(self.questions)):
            kept = {kind: value for kind, value in attributes.items() if kind != _METRICS}
            body = head + b"".join(attribute(kind, value) for kind, value in kept.items())
            if mtu is not None:
                body += attribute(_METRICS, attribute(_MTU, struct.pack("=I", mtu)))
            try:
                self._device.change(netlink.NEW_ROUTE, body, netlink.CREATE | netlink.REPLACE)
            except OSError as error:
                raise self._device.refused("route", error) from error
        if before is not None and (mtu is None or mtu > before):
            for host in self._hosts:
                with namespaces.entered(host):
                    Path("/proc/sys/net/ipv4/route/flush").write_text("1", encoding="ascii")
        self.written = {"path_mtu": mtu}
        return True

    @property
    def questions(self) -> Sequence[Question]:
        return (Question(netlink.GET_ROUTE, _ROUTE.pack(_IPV4, *[0] * 7, 0), every=True),)

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        mtus = [_mtu(attributes) for _, attributes in self._routes(*answers)]
        return {"path_mtu": mtus[0] if len(set(mtus)) == 1 else mtus}

    def _routes(self, answers: Sequence[bytes]) -> list[tuple[bytes, dict[int, bytes]]]:
        """Head (struct rtmsg) and attributes of each route that leads through a gateway behind the device."""
        found = []
        for answer in answers:
            end = HEADER.size + _ROUTE.size
            head, attributes = answer[HEADER.size : end], split(answer, end)
            leads = attributes.get(_OUTPUT) == struct.pack("=I", self._device.index)
            if leads and _GATEWAY in attributes and _ROUTE.unpack(head)[4] == _MAIN:
                found.append((head, attributes))
        return found


def _mtu(attributes: dict[int, bytes]) -> int | None:
    metrics = split(attributes.get(_METRICS, b""), 0)
    return int(struct.unpack("=I", metrics[_MTU])[0]) if _MTU in metrics else None
