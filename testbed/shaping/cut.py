"""Cut super-packets on a device's way out, for whatever comes behind it and takes one for a single packet.

A device that takes super-packets of at most one segment has all of them cut, TCP's and UDP's, after its qdisc
and before the next hop (IFLA_GSO_MAX_SEGS; kernel net/core/dev.c, `gso_features_check`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from testbed.plan import LinkState
from testbed.shaping import netlink
from testbed.shaping.netlink import HEADER, LINK, Device, Question, attribute, split

ONE_SEGMENT, ANY_SEGMENTS = 1, 65535
_EXTENSIONS, _MAX_SEGMENTS = 29, 40
_SKIP_STATS = 1 << 3  # RTEXT_FILTER_SKIP_STATS

Values = dict[str, Any]


class Cut:
    """Whether a device cuts super-packets: in those states for which `needed` says so."""

    def __init__(self, device: Device, needed: Callable[[LinkState], bool]) -> None:
        self._device, self._needed = device, needed
        self.written: Values = {"segments": ANY_SEGMENTS}

    def apply(self, state: LinkState) -> bool:
        """Set it if it differs; says whether it does. What waits in the qdisc is cut or not as it leaves."""
        wanted = {"segments": ONE_SEGMENT if self._needed(state) else ANY_SEGMENTS}
        if wanted == self.written:
            return False
        body = LINK.pack(0, 0, self._device.index, 0, 0)
        body += attribute(_MAX_SEGMENTS, struct.pack("=I", wanted["segments"]))
        try:
            self._device.change(netlink.NEW_LINK, body)
        except OSError as error:
            raise self._device.refused("segmentation", error) from error
        self.written = wanted
        return True

    @property
    def questions(self) -> Sequence[Question]:
        body = LINK.pack(0, 0, self._device.index, 0, 0)
        return (Question(netlink.GET_LINK, body + attribute(_EXTENSIONS, struct.pack("=I", _SKIP_STATS))),)

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        if not answers[0]:
            return {}
        values = split(answers[0][0], HEADER.size + LINK.size)
        return {"segments": struct.unpack("=I", values[_MAX_SEGMENTS])[0]}
