"""What a scenario file may say: one class per section, every field with its unit parsed.

Nothing here looks at the machine, at other files or at the lists of policies, profiles and hosts:
those names are checked by `resolve`. docs/writing-a-scenario.md shows each field in use.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import Field, Strict

from testbed.scenario.expectations import Expectation
from testbed.scenario.faults import DrawnFaults
from testbed.scenario.link import Link
from testbed.scenario.profile import Profile
from testbed.scenario.programs import Program, Service
from testbed.scenario.quantities import (
    Count,
    CountOrZero,
    Duration,
    LineOfText,
    Number,
    PositiveDuration,
    Section,
    parsed,
)
from testbed.scenario.timeline import Capture, TimelineEntry
from testbed.scenario.transport import Failures, Flaws, Timeouts, Transport
from testbed.scenario.workload import Workload
from testbed.units import parse_duration_ns, parse_size_bytes

MIN_SCALE: Final = 1e-4
SizeOrZero = Annotated[int, parsed(parse_size_bytes)]


class Topology(Section):
    """A key of `topologies.TOPOLOGIES` and how many hosts each datacenter has."""

    name: str
    prefill_hosts: Annotated[int, Strict(), Ge(1), Le(99)] = 4
    pd_hosts: Annotated[int, Strict(), Ge(1), Le(99)] = 8


class PrefillCluster(Section):
    """The PrfaaS cluster in DC A: prefill instances on hosts a1, a2, ..."""

    instances: CountOrZero
    profile: Profile


class PdCluster(Section):
    """The PD cluster in DC B: prefill instances on b1, b2, ..., decode instances on the hosts after them.

    `conversion` is what an instance needs to change its role when the policy wants it to, once it is idle.
    """

    prefill: CountOrZero
    decode: Count
    profile: Profile
    conversion: Annotated[Duration, Le(3_600_000_000_000)] = parse_duration_ns("10s")


class Clusters(Section):
    """Who computes where."""

    prfaas: PrefillCluster
    pd: PdCluster


class Cache(Section):
    """Memory for the KV of cached prefixes in each cluster, all instances together (0: none); not scaled."""

    prfaas: SizeOrZero
    pd: SizeOrZero


class Policy(Section):
    """The scheduler under test: its name, its first threshold, its parameters.

    A key of `agents.policies.POLICIES`, an import path `module:Class`, or `recorded` with the `log` of a run.
    """

    name: str
    threshold: CountOrZero
    interval: Annotated[PositiveDuration, Ge(10_000_000), Le(60_000_000_000)] = parse_duration_ns("250ms")
    params: dict[str, Number] = Field(default_factory=dict)
    log: Annotated[str, MinLen(1)] | None = None
    service: Service | None = None
    """Of the policy `http`: who is asked."""


class Scenario(Section):
    """One question, and all it takes to answer it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,60}$")]
    question: Annotated[LineOfText, MinLen(1)]
    control: Annotated[bool, Strict()] = False
    """Must not PASS, for who runs the file as a test; the verdict itself stays what it is."""
    seed: Annotated[int, Strict(), Ge(0), Le(2**63 - 1)] = 1
    scale: Annotated[float, Strict(), Ge(MIN_SCALE), Le(1)] = 1.0
    duration: PositiveDuration
    drain: Duration = parse_duration_ns("60s")
    sample: PositiveDuration = parse_duration_ns("100ms")
    topology: Topology
    model: str | None = None
    compute: Literal["replay", "real"] = "replay"
    """`real`: prefill and decode run the model with torch, in real time; else they replay profiles."""
    clusters: Clusters | None = None
    transport: Transport = Transport()
    timeouts: Timeouts = Timeouts()
    failures: Failures = Failures()
    flaws: Flaws = ()
    """What the system under test is to do wrong, for controls that must fail."""
    policy: Policy | None = None
    cache: Cache | None = None
    stream_interval: Count = 256
    link: Link
    workload: Workload
    timeline: tuple[TimelineEntry, ...] = ()
    faults: DrawnFaults | None = None
    """Drawn in addition to those of the timeline."""
    programs: tuple[Program, ...] = ()
    capture: tuple[Capture, ...] = ()
    expect: tuple[Expectation, ...] = ()
