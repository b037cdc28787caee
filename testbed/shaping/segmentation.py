"""Cut super-packets on a device's way out.

A veth hands super-packets of up to 64 KiB from namespace to namespace, which makes 100 Gbps cheap. With
TCP segmentation offload off, the kernel cuts them to MTU-sized packets after the device's qdisc, so the
next hop's netem loses single packets, as a wire does. ioctl numbers: include/uapi/linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

from testbed import namespaces
from testbed.errors import Problem, ShapingError

_SIOCETHTOOL = 0x8946
_GET_TSO, _SET_TSO = 0x1E, 0x1F


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
