"""Other people's traffic: bursts, tenants that come and go, microbursts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from testbed.plan import Burst, Microbursts, Tenant
from testbed.resolve.findings import Findings
from testbed.resolve.seeds import derive_seed
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import BackgroundEntry, MicroburstsEntry, TenantsEntry
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps

MAX_BURSTS: Final = 10_000
MAX_MICROBURST_PACKETS: Final = 10_000_000
"""Of one entry. Each is a system call."""


def resolve_bursts(
    scenario: Scenario, scale: float, hosts: Collection[str], findings: Findings
) -> tuple[Burst, ...]:
    """Bursts one by one, from `at` on and before `until`, from every sender; sizes times `scale`."""
    bursts: list[Burst] = []
    for index, entry in enumerate(scenario.timeline):
        if not isinstance(entry, BackgroundEntry):
            continue
        spec = entry.background
        path: KeyPath = ("timeline", index, "background")
        for source in spec.sources:
            check_hosts(path, source, spec.sink, hosts, findings)
        if len(set(spec.sources)) < len(spec.sources):
            findings.add(
                (*path, "from"), "a sender stands here twice", "each once; flows says how often it sends"
            )
        if not _lasts(spec.until, entry.at, path, findings):
            continue
        if (
            spec.until
            and spec.every
            and (spec.until - entry.at) // spec.every * len(spec.sources) > MAX_BURSTS
        ):
            every = format_duration_ns(spec.every)
            findings.add((*path, "every"), f"{every} makes too many bursts", f"at most {MAX_BURSTS}")
            continue
        times = range(entry.at, spec.until, spec.every) if spec.until and spec.every else (entry.at,)
        bursts.extend(
            Burst(
                t_ns=t_ns,
                source=source,
                sink=spec.sink,
                flows=spec.flows,
                size_bytes=max(1, round(spec.burst * scale)),
                congestion_control=spec.congestion_control,
            )
            for t_ns in times
            for source in spec.sources
        )
    return tuple(sorted(bursts, key=lambda burst: burst.t_ns))


def resolve_tenants(
    scenario: Scenario, scale: float, seed: int, hosts: Collection[str], findings: Findings
) -> tuple[Tenant, ...]:
    """Tenants with a seed each; sizes are multiplied by `scale`."""
    tenants: list[Tenant] = []
    for index, entry in enumerate(scenario.timeline):
        if not isinstance(entry, TenantsEntry):
            continue
        spec = entry.tenants
        path: KeyPath = ("timeline", index, "tenants")
        check_hosts(path, spec.source, spec.sink, hosts, findings)
        if _lasts(spec.until, entry.at, path, findings):
            tenants.append(
                Tenant(
                    t_ns=entry.at,
                    until_ns=scenario.duration if spec.until is None else spec.until,
                    source=spec.source,
                    sink=spec.sink,
                    flows=spec.flows,
                    size_bytes=max(1, round(spec.size * scale)),
                    size_cv=spec.size_cv,
                    pause_ns=spec.pause,
                    congestion_control=spec.congestion_control,
                    seed=derive_seed(seed, "tenants", index),
                )
            )
    return tuple(sorted(tenants, key=lambda tenant: tenant.t_ns))


def resolve_microbursts(
    scenario: Scenario, scale: float, hosts: Collection[str], findings: Findings
) -> tuple[Microbursts, ...]:
    """Microbursts; rates are multiplied by `scale`."""
    microbursts: list[Microbursts] = []
    for index, entry in enumerate(scenario.timeline):
        if not isinstance(entry, MicroburstsEntry):
            continue
        spec = entry.microbursts
        path: KeyPath = ("timeline", index, "microbursts")
        check_hosts(path, spec.source, spec.sink, hosts, findings)
        if spec.packet > scenario.link.mtu:
            found = f"packets of {spec.packet} bytes do not fit the link's mtu of {scenario.link.mtu}"
            findings.add((*path, "packet"), found, f"up to {scenario.link.mtu}")
        if not _lasts(spec.until, entry.at, path, findings):
            continue
        until_ns = scenario.duration if spec.until is None else spec.until
        rate_bps = round(spec.rate * scale)
        if rate_bps * spec.length < spec.packet * 8 * NS_PER_S:
            found = f"a burst would not hold one packet at {format_rate_bps(rate_bps)}"
            findings.add(path, found, "a longer length, a higher rate, or a larger scale")
        bits = rate_bps * spec.length // NS_PER_S * -(-(until_ns - entry.at) // spec.every)
        if bits > MAX_MICROBURST_PACKETS * 8 * spec.packet:
            found = f"about {bits // (8 * spec.packet)} packets, each a system call"
            findings.add(
                path, found, f"at most {MAX_MICROBURST_PACKETS}", "a shorter length, or an earlier until"
            )
        microbursts.append(
            Microbursts(
                t_ns=entry.at,
                until_ns=until_ns,
                source=spec.source,
                sink=spec.sink,
                rate_bps=rate_bps,
                packet_bytes=spec.packet,
                length_ns=spec.length,
                every_ns=spec.every,
            )
        )
    return tuple(sorted(microbursts, key=lambda each: each.t_ns))


def check_hosts(path: KeyPath, source: str, sink: str, hosts: Collection[str], findings: Findings) -> None:
    """Both ends of a transfer must be hosts of the topology (none are known when it is wrong itself)."""
    for key, name in (("from", source), ("to", sink)):
        if hosts:
            findings.name_unknown((*path, key), "host", name, hosts)
    if source == sink:
        findings.add((*path, "to"), f"{sink} is both source and sink", "two different hosts")


def _lasts(until_ns: int | None, at_ns: int, path: KeyPath, findings: Findings) -> bool:
    """Whether `until`, if it is there, comes after `at`."""
    if until_ns is None or until_ns > at_ns:
        return True
    found = f"until {format_duration_ns(until_ns)} is not after at {format_duration_ns(at_ns)}"
    findings.add((*path, "until"), found, "a time after at")
    return False
