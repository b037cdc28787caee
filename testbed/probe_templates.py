"""A probe for each direction of the link, as scapy makes it, for the guest to number and send."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import msgspec

import topologies
from testbed import probes
from testbed.kernel import image
from testbed.kernel.build import cache_dir
from testbed.plan import DIRECTIONS, Direction, Plan
from testbed.rundir import RunDir


def write(run: RunDir, plan: Plan) -> None:
    """Put the probes, from tenant to tenant, into the run directory.

    Made out here because loading scapy takes 2 s in a guest; kept because it takes 0.4 s here, under the
    hash of all that they depend on.
    """
    sources = [*sorted(Path(topologies.__file__).parent.glob("*.py")), Path(probes.__file__), Path(__file__)]
    depends = (plan.topology, plan.topology_params, version("scapy"), [one.read_bytes() for one in sources])
    cached = cache_dir() / "probes" / f"{sha256(repr(depends).encode()).hexdigest()}.json"
    try:
        made = cached.read_bytes()
        image.used(cached)
    except OSError:
        made = msgspec.json.encode(_templates(plan))
        image.keep(cached, made)
    run.probes.write_bytes(made)


def _templates(plan: Plan) -> dict[Direction, bytes]:
    from scapy.layers.inet import IP, UDP  # noqa: PLC0415 - see above
    from scapy.packet import Raw  # noqa: PLC0415

    topology = topologies.TOPOLOGIES[plan.topology](**plan.topology_params)
    a, b = (topology.nodeInfo(host)["ip"].split("/")[0] for host in ("tenant-a", "tenant-b"))
    payload = Raw(bytes(probes.PACKET_BYTES - probes.PAYLOAD_AT))
    udp = UDP(sport=probes.PORT, dport=probes.PORT)
    return {
        name: bytes(IP(src=source, dst=sink, id=1, flags="DF") / udp / payload)
        for name, (source, sink) in zip(DIRECTIONS, ((a, b), (b, a)), strict=True)
    }
