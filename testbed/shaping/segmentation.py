"""Cut super-packets on a device's way out, where netem would lose them whole.

A veth hands super-packets of many packets from namespace to namespace, which makes 100 Gbps cheap. Our own
kernel's netem throws the dice for each packet of them (recipe/loss-per-packet.patch); a stock kernel's loses
all or nothing. With TCP segmentation offload off, a kernel cuts them after the device's qdisc, and the next
hop's netem sees single packets. ioctl numbers: include/uapi/linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

from testbed import namespaces
from testbed.errors import Problem, ShapingError

OUR_KERNEL = "-testbed"
"""CONFIG_LOCALVERSION of our recipe."""
_SIOCETHTOOL = 0x8946
_GET_TSO, _SET_TSO = 0x1E, 0x1F


def loses_super_packets_whole() -> bool:
    """Whether this kernel's netem takes a super-packet for one packet."""
    return OUR_KERNEL not in os.uname().release


def segment_on_transmit(namespace: str, device: str, *, wanted: bool) -> None:
    """Cut super-packets that leave `device` in `namespace`, or let them pass; reads back.

    Raises ShapingError when the device did not take it.
    """
    with namespaces.entered(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _ethtool(control, device, _SET_TSO, int(not wanted))
        offload = _ethtool(control, device, _GET_TSO, 0)
    if bool(offload) == wanted:
        raise ShapingError(Problem(f"{device}: TCP segmentation offload", f"kernel says {offload}"))


def _ethtool(control: socket.socket, device: str, command: int, value: int) -> int:
    """One `struct ethtool_value` call; returns the value as the kernel left it."""
    argument = ctypes.create_string_buffer(struct.pack("II", command, value))
    request = struct.pack("16sP", device.encode(), ctypes.addressof(argument))
    fcntl.ioctl(control, _SIOCETHTOOL, request)
    return int(struct.unpack("II", argument.raw[:8])[1])
