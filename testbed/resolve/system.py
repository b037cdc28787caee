"""The system under test: topology, agents and their places, hardware profiles, policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final, Literal

from agents.cache.pool import Pool
from agents.config import Cache, Transport
from agents.model import Lengths, System
from agents.policies.failure import PolicyFailure
from agents.policies.guard import Guarded, NobodyThere
from agents.policies.view import Config, Egress, Request, Route, State, View
from agents.profiles import COMPRESSIONS, MODELS
from testbed import plan
from testbed.resolve.compute import kernel_memory_bytes, payload
from testbed.resolve.findings import Findings
from testbed.resolve.in_child import in_child
from testbed.resolve.own_policy import Given, check_log, find_policy
from testbed.resolve.profiles import Hardware
from testbed.resolve.programs import resolve_service
from testbed.scenario.model import Clusters, Scenario
from testbed.scenario.profile import profile_key
from testbed.scenario.workload import BulkWorkload
from testbed.units import format_size_bytes
from testbed.workload import Load
from topologies import TOPOLOGIES

Role = Literal["router", "prefill", "decode", "client", "reference"]
Cluster = Literal["prfaas", "pd"]

MIB: Final = 2**20
CONTROL_MEMORY_BYTES: Final = 512 * MIB
"""Limit of router and client: a Python process with a web server needs about a fifth of it."""
COMPUTE_MEMORY_BYTES: Final = 1024 * MIB
"""Limit of a prefill or decode instance before its socket buffers, which Linux counts as its memory."""
NOBODY: Final[dict[Route, tuple[str, str, str]]] = {
    "prfaas": ("PrfaaS", "clusters.prfaas.instances", "homogeneous"),
    "pd": ("PD", "clusters.pd.prefill", "naive_heterogeneous"),
}
"""A cluster without prefill: its name, the setting that would change that, a policy that can do without."""


def resolve_hosts(scenario: Scenario, findings: Findings) -> tuple[str, ...]:
    """The topology's end hosts, routers left out; none when its name is unknown."""
    spec = scenario.topology
    if findings.name_unknown(("topology", "name"), "topology", spec.name, TOPOLOGIES):
        return ()
    topo = TOPOLOGIES[spec.name](prefill_hosts=spec.prefill_hosts, pd_hosts=spec.pd_hosts)
    return tuple(name for name in topo.hosts() if "cls" not in topo.nodeInfo(name))


def check_sections(scenario: Scenario, findings: Findings) -> None:
    """Requests need a system to serve them; for bulk transfers it would be a setting without effect."""
    bulk = isinstance(scenario.workload, BulkWorkload)
    for name in ("model", "clusters", "policy", "cache"):
        given = getattr(scenario, name) is not None
        if bulk and given:
            findings.add((name,), "has no effect on a bulk workload", next_step="remove it")
        if not bulk and not given and name != "cache":
            findings.add((name,), "is missing", "needed by every workload that sends requests")


def resolve_agents(
    scenario: Scenario, hosts: tuple[str, ...], buffer_bytes: int, findings: Findings
) -> tuple[plan.Agent, ...]:
    """The router, the client, and one agent per instance on the hosts of its datacenter in order.

    `buffer_bytes` is what an instance's sockets may hold, and files that it writes into memory, on top of its
    own memory.
    """
    clusters = scenario.clusters
    if clusters is None:
        return ()
    _check_names(scenario, findings)
    _check_counts(clusters, hosts, findings)
    model_bytes = kernel_memory_bytes(scenario)
    memory = COMPUTE_MEMORY_BYTES + -(-buffer_bytes // MIB) * MIB + model_bytes
    agents: list[plan.Agent] = []
    prfaas, pd = profile_key(clusters.prfaas.profile), profile_key(clusters.pd.profile)

    def place(name: str, role: Role, host: str, cluster: Cluster, profile: str = "") -> None:
        limit = memory if profile else CONTROL_MEMORY_BYTES
        agents.append(
            plan.Agent(name=name, role=role, host=host, cluster=cluster, profile=profile, memory_bytes=limit)
        )

    place("router", "router", "router", "pd")
    place("client", "client", "client", "pd")
    for n in range(1, clusters.prfaas.instances + 1):
        place(f"prfaas-{n}", "prefill", f"a{n}", "prfaas", prfaas)
    for n in range(1, clusters.pd.prefill + 1):
        place(f"prefill-{n}", "prefill", f"b{n}", "pd", pd)
    for n in range(1, clusters.pd.decode + 1):
        place(f"decode-{n}", "decode", f"b{clusters.pd.prefill + n}", "pd", pd)
    if scenario.compute == "real":
        place("reference", "reference", "client", "pd", pd)
    return tuple(agents)


def resolve_policy(
    scenario: Scenario,
    scale: float,
    load: Load | None,
    hardware: Hardware,
    findings: Findings,
    *,
    directory: Path,
) -> plan.Policy:
    """The policy and what it may know beforehand: the length distribution and the arrival rate.

    A policy of the user's own, and a log, are looked for in `directory`, the scenario's. Without a policy
    (a bulk workload) its name is empty. `load` is None when the workload has problems.
    """
    spec = scenario.policy
    if spec is None:
        return plan.Policy(
            name="",
            threshold_tokens=0,
            interval_ns=1,
            params={},
            length_quantiles=(),
            prior_arrival_per_s=0.0,
            conversion_ns=0,
        )
    given = find_policy(spec, directory, findings)
    if given is not None and load is not None:
        _check_parameters(scenario, scale, load, hardware, findings, given=given)
    conversion_ns = scenario.clusters.pd.conversion if scenario.clusters else 0
    prior = _prior(scenario, load) if load else ()
    return plan.Policy(
        name=spec.name,
        threshold_tokens=spec.threshold,
        interval_ns=spec.interval,
        params=dict(sorted(spec.params.items())),
        length_quantiles=prior,
        prior_arrival_per_s=load.arrival_per_s if load else 0.0,
        conversion_ns=conversion_ns,
        files=given.files if given else {},
        directory=given.directory if given else "",
        log=given.log if given else None,
        log_sha256=given.log_sha256 if given else "",
        service=resolve_service(scenario, findings),
    )


def _prior(scenario: Scenario, load: Load) -> tuple[int, ...]:
    """The distribution of lengths to compute that a scheduler has been told: with a cache, what it leaves."""
    return load.length_quantiles if scenario.cache is None else load.increment_quantiles


def resolve_cache(scenario: Scenario, findings: Findings) -> Cache:
    """Memory for cached prefixes; a model without blocks to cache is a problem, and so is no room for one."""
    spec = scenario.cache
    if spec is None:
        return Cache()
    if spec.prfaas == spec.pd == 0:
        findings.add(("cache",), "has no effect, as both sizes are zero", next_step="remove it")
    model = MODELS.get(scenario.model or "")
    for name, size_bytes in (("prfaas", spec.prfaas), ("pd", spec.pd)):
        if model is None:
            break
        try:
            pool = Pool(model, size_bytes)
        except ValueError as error:
            findings.add(("cache",), str(error), "a model with full attention, or no cache")
            break
        least = 1 + pool.state_blocks
        if size_bytes > 0 and pool.total_blocks < least:
            found = f"{format_size_bytes(size_bytes)} do not hold a single prefix of {model.name}"
            allowed = f"at least {format_size_bytes(least * pool.block_bytes)}, or 0B for none"
            findings.add(("cache", name), found, allowed)
    return Cache(prfaas_bytes=spec.prfaas, pd_bytes=spec.pd)


def resolve_transport(scenario: Scenario, scale: float, rate_bps: int) -> Transport:
    """How KV crosses; `rate_bps` is the link's from DC A at the start, which pacing takes a share of."""
    spec, cluster = scenario.transport, scenario.clusters
    pairs = cluster.prfaas.instances * cluster.pd.decode if cluster else 0
    lanes = max(pairs, 1) * spec.connections
    pools = {
        f"{name}_bytes": round(size_bytes * scale)
        for name in ("send_pool", "receive_pool")
        if (size_bytes := getattr(spec, name)) is not None
    }
    return Transport(
        payload=payload(scenario),
        connections=spec.connections,
        chunk_bytes=spec.chunk,
        layer_group=spec.layer_group,
        congestion_control=spec.congestion_control.wan,
        lan_congestion_control=spec.congestion_control.lan,
        control_congestion_control=spec.congestion_control.control,
        compression=spec.compression or "",
        handover=spec.handover,
        priority=spec.priority,
        ttft_target_ns=spec.ttft_target or 0,
        pacing_bps=max(8, round(spec.pacing * rate_bps / lanes)) if spec.pacing is not None else 0,
        **pools,
    )


def _check_parameters(
    scenario: Scenario, scale: float, load: Load, hardware: Hardware, findings: Findings, *, given: Given
) -> None:
    """Let the policy look at its parameters, as it will at the start of the run, place two requests, and look
    at an interval in which nothing happened. Of a log see that it places every request.

    Not with profiles that have problems: what the policy says then is not about its parameters.
    """
    clusters, spec = scenario.clusters, scenario.policy
    if clusters is None or spec is None or scenario.model not in MODELS:
        return
    prfaas, pd = hardware.prfaas, hardware.pd
    if prfaas is None or pd is None or pd.batches != (1, pd.bs_max) or not pd.bs_max:
        return
    system = System(
        prfaas=prfaas,
        pd=pd,
        model=MODELS[scenario.model],
        n_prfaas=clusters.prfaas.instances,
        n_p=clusters.pd.prefill,
        n_d=clusters.pd.decode,
        output_tokens=round(fmean(request.output_tokens for request in load.requests)),
        scale=scale,
        compression=COMPRESSIONS.get(scenario.transport.compression or ""),
    )
    config = Config(
        threshold_tokens=spec.threshold,
        params=spec.params,
        lengths=Lengths.from_quantiles(_prior(scenario, load)),
        system=system,
        prior_arrival_per_s=load.arrival_per_s,
        log=given.log,
    )
    if given.log is not None:
        check_log(given, load.requests, {"prfaas": system.n_prfaas, "pd": system.n_p}, findings)

    def ask() -> Findings:
        found = Findings(findings.source)
        _ask(given, config, hardware.covered()[:2], found)
        return found

    try:
        findings.add_all(ask() if given.policy is not None else in_child(ask))
    except PolicyFailure as failure:
        findings.add(("policy", "name"), f"{spec.name}: {failure}")


def _ask(given: Given, config: Config, lengths_tokens: tuple[int, ...], findings: Findings) -> None:
    """Start the policy, and let it play; one that follows a log has been looked at."""
    try:
        policy = given.made()
        state = policy.start(config)
    except ValueError as error:
        findings.add(("policy", "params"), str(error))
        return
    except PolicyFailure as failure:
        findings.add(("policy", "name"), f"{given.name}: {failure}")
        return
    if given.log is None and (config.system.n_prfaas or config.system.n_p):  # else `_check_counts` says so
        _play(policy, config, state, lengths_tokens, findings, name=given.name)


def _play(
    policy: Guarded,
    config: Config,
    state: State,
    lengths_tokens: tuple[int, ...],
    findings: Findings,
    *,
    name: str,
) -> None:
    """Let the policy place prompts of these lengths, as at the start of the run, and look at an interval.

    A cluster without prefill instances would fail every one of them.
    """
    system = config.system
    view = View(0.0, Egress(0.0, 0, 0, 0, 0.0, 0.0), 0, 0, 0, 0, 0, 0, n_p=system.n_p, n_d=system.n_d)
    try:
        for tokens in lengths_tokens:
            request = Request("0", tokens, system.output_tokens)
            policy.route(config, state, view, request)
        policy.update(config, state, replace(view, t_s=0.25))
    except NobodyThere as failure:
        where, setting, instead = NOBODY[failure.route]
        findings.add(
            ("policy", "name"),
            f"{name} sends {tokens}-token prompts to the {where} cluster, which has no prefill instance",
            f"a policy that sends nothing there, such as {instead}",
            f"1 or more in {setting}, or another policy or threshold",
        )
    except PolicyFailure as failure:
        findings.add(("policy", "name"), f"{name}: {failure}")


def _check_names(scenario: Scenario, findings: Findings) -> None:
    if scenario.model is not None:
        findings.name_unknown(("model",), "model", scenario.model, MODELS)
    if scenario.transport.compression is not None:
        compression = scenario.transport.compression
        findings.name_unknown(("transport", "compression"), "compression", compression, COMPRESSIONS)


def _check_counts(clusters: Clusters, hosts: tuple[str, ...], findings: Findings) -> None:
    """Every instance has a host of its own, and somebody does prefill."""
    placed = {
        ("prfaas",): [f"a{n}" for n in range(1, clusters.prfaas.instances + 1)],
        ("pd",): [f"b{n}" for n in range(1, clusters.pd.prefill + clusters.pd.decode + 1)],
    }
    for path, names in placed.items():
        if hosts and any(name not in hosts for name in names):
            there = sum(name[0] == names[0][0] and name[1:].isdecimal() for name in hosts)
            found = f"{len(names)} instances need hosts {names[0]} to {names[-1]}, the topology has {there}"
            findings.add(
                ("clusters", *path), found, f"at most {there}", "fewer instances, or more hosts in topology"
            )
    if clusters.prfaas.instances == 0 and clusters.pd.prefill == 0:
        findings.add(("clusters",), "no prefill instance at all", "at least one in prfaas or pd")
