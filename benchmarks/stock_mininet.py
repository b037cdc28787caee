"""What a user would take to build a network: stock Mininet, its shells, its hosts, its links.

`stock_mininet.py [PREFILL_HOSTS PD_HOSTS] [RUN_DIR]` builds the network of the scenarios and says
`@begin`, `@built SECONDS`. Runs on this machine's kernel (as root, in namespaces of its own) and in a guest.
"""

from __future__ import annotations

import sys
import time

from mininet.net import Mininet
from mininet.node import Switch

from topologies import TOPOLOGIES


class Bridge(Switch):  # type: ignore[misc]
    """A Linux bridge by iproute2; Mininet's own LinuxBridge wants brctl, which takes as many processes."""

    def start(self, _controllers: list[object]) -> None:
        """Make the bridge and put every interface into it, a command each."""
        self.cmd(f"ip link add {self.name} type bridge")
        for intf in self.intfList():
            if intf.name != "lo":
                self.cmd(f"ip link set {intf.name} master {self.name}")
        self.cmd(f"ip link set {self.name} up")


def main() -> None:
    """Build and start; Mininet's init(), which raises limits of the whole machine, is left out."""
    counts = [int(word) for word in sys.argv[1:] if word.isdecimal()] or [4, 8]
    print("@begin", flush=True)
    begun_s = time.monotonic()
    Mininet.inited = True
    topo = TOPOLOGIES["two_dc"](prefill_hosts=counts[0], pd_hosts=counts[1])
    net = Mininet(topo=topo, switch=Bridge, controller=None)
    net.start()
    print(f"@built {time.monotonic() - begun_s:.3f}", flush=True)
    net.stop()


if __name__ == "__main__":
    main()
