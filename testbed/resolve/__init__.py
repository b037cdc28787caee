"""From a scenario to a plan: names looked up, defaults filled in, all randomness spent.

This is the half that depends on the environment: the topologies, policies and profiles that this
installation has, and the trace files. Like `load` it reports all its problems at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.plan import Plan
from testbed.prefix_room import cluster_room_bytes
from testbed.resolve.captures import resolve_captures
from testbed.resolve.compute import check_compute, kernel_memory_bytes
from testbed.resolve.events import resolve_events
from testbed.resolve.expectations import resolve_expectations
from testbed.resolve.fault_draws import with_drawn
from testbed.resolve.faults import resolve_faults
from testbed.resolve.findings import Findings
from testbed.resolve.link import resolve_link
from testbed.resolve.profiles import check_contexts, check_extrapolation, resolve_profiles
from testbed.resolve.programs import SOCKETS, resolve_programs
from testbed.resolve.system import (
    MIB,
    check_sections,
    resolve_agents,
    resolve_cache,
    resolve_hosts,
    resolve_policy,
    resolve_transport,
)
from testbed.resolve.traffic import resolve_bursts, resolve_microbursts, resolve_tenants
from testbed.resolve.workload import TRACES_VARIABLE, resolve_bulk, resolve_load, without_idle
from testbed.scenario.load import Loaded, load
from testbed.scenario.model import MIN_SCALE, Scenario

PLAN_VERSION: Final = 1
MIN_WINDOW_BYTES: Final = 16 * MIB
SMALLEST_WINDOW_BYTES: Final = 4096
"""Linux's least socket buffer."""
MAX_WINDOW_BYTES: Final = 2**31 - 1
"""tcp_rmem and tcp_wmem are ints in the kernel."""
BASE_MEMORY_BYTES: Final = 3 * 1024 * MIB
"""Guest memory before socket buffers: kernel, page tables and about twenty Python processes."""
MIN_SAMPLE_NS: Final = 1_000_000


def load_and_resolve(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    scale: float | None = None,
    traces: Path | None = None,
) -> tuple[Loaded, Plan]:
    """Read a scenario, apply `--set`, `--seed` and `--scale`, and make the plan; raises ScenarioError.

    Traces lie in `traces` (else in $TESTBED_TRACES), or beside the scenario file.
    """
    loaded = load(path, overrides)
    variable = os.environ.get(TRACES_VARIABLE)
    directory = traces or (Path(variable) if variable else None)
    return loaded, resolve(loaded, seed=seed, scale=scale, base_dir=path.parent, traces=directory)


def resolve(
    loaded: Loaded, *, seed: int | None, scale: float | None, base_dir: Path, traces: Path | None
) -> Plan:
    """The plan of a scenario; `seed` and `scale` replace the scenario's. Raises ScenarioError."""
    scenario = loaded.scenario
    seed = scenario.seed if seed is None else seed
    scale = scenario.scale if scale is None else scale
    _check_options(seed, scale)
    findings = Findings(loaded.source)
    check_sections(scenario, findings)
    _check_sampling(scenario, findings)
    check_compute(scenario, scale, findings)
    hosts = resolve_hosts(scenario, findings)
    hardware = resolve_profiles(scenario, base_dir, findings)
    places = (traces, base_dir) if traces and traces != base_dir else (base_dir,)
    requests = resolve_load(scenario, seed, places, hardware.covered(), findings)
    check_contexts(hardware, scenario, requests, findings)
    check_extrapolation(hardware, scenario, requests, findings)
    scenario = with_drawn(scenario, seed, hosts, requests, findings)
    requests = without_idle(requests, scenario, findings)
    link = resolve_link(scenario, scale, seed, base_dir, findings)
    cache, asked = resolve_cache(scenario, findings), requests.requests if requests else ()
    prefix_bytes = cluster_room_bytes(scenario.compute, cache, scenario.model or "", asked)
    agents = resolve_agents(scenario, hosts, 4 * link.need_bytes + prefix_bytes, findings)
    tenants = sorted({request.tenant for request in asked})
    window_bytes = _window_bytes(scenario, scale, link.need_bytes)
    programs = resolve_programs(scenario, base_dir, hosts, agents, findings, window_bytes=window_bytes)
    plan = Plan(
        version=PLAN_VERSION,
        name=scenario.name,
        question=scenario.question,
        seed=seed,
        scale=scale,
        duration_ns=scenario.duration,
        drain_ns=scenario.drain,
        topology=scenario.topology.name,
        topology_params=scenario.topology.model_dump(exclude={"name"}),
        mtu_bytes=scenario.link.mtu,
        model=scenario.model or "",
        compute=scenario.compute,
        link=link.initial,
        changes=link.changes,
        delay_tables=link.delay_tables,
        offload=scenario.link.offload,
        bursts=resolve_bursts(scenario, scale, hosts, findings),
        tenants=resolve_tenants(scenario, scale, seed, hosts, findings),
        microbursts=resolve_microbursts(scenario, scale, hosts, findings),
        captures=resolve_captures(scenario, hosts, findings),
        faults=resolve_faults(scenario, agents, findings),
        programs=programs,
        events=resolve_events(scenario, seed, findings),
        requests=asked,
        traces=requests.notes if requests else (),
        bulk=resolve_bulk(scenario, scale, hosts, findings),
        agents=agents,
        profiles=hardware.files,
        transport=resolve_transport(scenario, scale, link.initial["a_to_b"].rate_bps),
        timeouts=scenario.timeouts.resolved(),
        failures=scenario.failures.resolved(),
        flaws=scenario.flaws,
        cache=cache,
        policy=resolve_policy(scenario, scale, requests, hardware, findings, directory=base_dir),
        expectations=resolve_expectations(scenario, scale, seed, tenants, findings),
        sample_ns=scenario.sample,
        window_bytes=window_bytes,
        memory_bytes=_memory_bytes(scenario, link.need_bytes, prefix_bytes, window_bytes),
        stream_interval_tokens=scenario.stream_interval,
    )
    findings.raise_if_any()
    return plan


def _memory_bytes(scenario: Scenario, need_bytes: int, prefix_bytes: int, window_bytes: int) -> int:
    """Of the guest: itself, socket buffers, cached prefixes, what real kernels and programs' sockets hold."""
    clusters = scenario.clusters
    computing = clusters.prfaas.instances + clusters.pd.prefill + clusters.pd.decode + 1 if clusters else 0
    more = (4 * need_bytes, 2 * prefix_bytes, len(scenario.programs) * SOCKETS * window_bytes)
    rounded = sum(-(-size_bytes // MIB) * MIB for size_bytes in more)
    return BASE_MEMORY_BYTES + rounded + computing * kernel_memory_bytes(scenario)


def _window_bytes(scenario: Scenario, scale: float, need_bytes: int) -> int:
    """The scenario's window, multiplied by `scale` as the link is; else twice what the link needs."""
    if scenario.transport.window is not None:
        return max(round(scenario.transport.window * scale), SMALLEST_WINDOW_BYTES)
    return min(max(2 * need_bytes, MIN_WINDOW_BYTES), MAX_WINDOW_BYTES)


def _check_options(seed: int, scale: float) -> None:
    """The scenario's own values were checked when it was read; these are for the command line."""
    problems = []
    if not 0 <= seed < 2**63:
        problems.append(Problem(f"--seed {seed}", "is no seed", "a whole number from 0 to 2^63 - 1"))
    if not MIN_SCALE <= scale <= 1:
        problems.append(Problem(f"--scale {scale:g}", "is no scale", "a number from 0.0001 to 1"))
    if problems:
        raise ScenarioError(*problems)


def _check_sampling(scenario: Scenario, findings: Findings) -> None:
    if scenario.sample < MIN_SAMPLE_NS:
        findings.add(("sample",), "samples would be less than 1 ms apart", "1ms or more")
