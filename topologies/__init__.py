"""Network topologies: names and wiring, nothing else. One file each, one line here."""

from __future__ import annotations

from mininet.topo import Topo

from topologies.two_dc import TwoDC

TOPOLOGIES: dict[str, type[Topo]] = {"two_dc": TwoDC}
