"""Traffic between topology hosts from this process's own sockets in their namespaces: real TCP and UDP."""

from __future__ import annotations

from testbed.traffic.tcp import Transfer, start

__all__ = ["Transfer", "start"]
