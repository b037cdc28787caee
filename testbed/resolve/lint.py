"""What a scenario may say but its author can hardly mean: warnings, why, and what to write instead.

Each rule looks at the plan, which has every state of the link, and at the scenario for the place. A warning
never stops a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from testbed.errors import Problem
from testbed.metrics import FEWEST_PER_CYCLE, METRICS
from testbed.plan import DIRECTIONS, Expectation, LinkState, Plan
from testbed.resolve.findings import Findings
from testbed.resolve.link_checks import MAX_WINDOW_BYTES, bandwidth_delay
from testbed.resolve.lint_link import LINK_RULES
from testbed.resolve.lint_system import SYSTEM_RULES
from testbed.resolve.view import Clock, View, Warned
from testbed.scenario.load import Loaded
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import BackgroundEntry, TenantsEntry
from testbed.shaping import limits
from testbed.shaping.distributions import UNIT
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes
from topologies import TOPOLOGIES

REAL_TIME_BPS: Final = 10**10
"""Beyond this, a machine's own pace is likely to be what is measured (a choice, as machines differ)."""
STANDING_SHARE: Final = 0.05
"""Of the delay; jitter that reaches farther makes a mean delay that is clearly not the one written."""
SHORTEST_BUFFER_NS: Final = 1_200_000
"""Below, no queue lasts from one look of the audit to the next (measured: 1 ms does not, 1.2 ms does)."""


def lint(loaded: Loaded, plan: Plan, *, kernel: str | None, clock: Clock | None) -> tuple[Problem, ...]:
    """All warnings, in the order of the file."""
    view = View(loaded.scenario, plan, Path(loaded.source.file).parent, kernel, clock)
    findings = Findings(loaded.source)
    for path, found, instead in chain.from_iterable(
        rule(view) for rule in (*RULES, *LINK_RULES, *SYSTEM_RULES)
    ):
        findings.add(path, found, next_step=instead)
    return findings.problems()


def _window(view: View) -> Warned:
    """A window below the bandwidth-delay product leaves the link idle between two round trips."""
    window, connections = view.scenario.transport.window, view.plan.transport.connections
    if window is None:
        return
    products = bandwidth_delay(view.moments)
    bdp_bytes, rtt_ns, moment = max(products, key=lambda product: product[0])
    if connections * view.plan.window_bytes < bdp_bytes:
        most = format_rate_bps(connections * view.plan.window_bytes * 8 * NS_PER_S // rtt_ns)
        rate, rtt = format_rate_bps(moment.state.rate_bps), format_duration_ns(rtt_ns)
        found = (
            f"{connections} connections with such windows carry at most {most} of {rate}: a window is sent "
            f"once per round trip of {rtt}"
        )
        yield (
            ("transport", "window"),
            found,
            f"a window of {format_size_bytes(-(-bdp_bytes // connections))} or more, or leave it out",
        )


def _limit(view: View) -> Warned:
    """Netem's limit counts what is on its way, too."""

    def short(state: LinkState) -> bool:
        return state.limit_packets is not None and state.limit_packets < flight(state)

    def flight(state: LinkState) -> int:
        return (
            state.rate_bps * state.delay_ns // (8 * NS_PER_S * (view.plan.mtu_bytes + limits.ETHERNET_BYTES))
        )

    for direction in DIRECTIONS:
        moment = view.first(direction, short)
        if moment is not None:
            delay = format_duration_ns(moment.state.delay_ns)
            found = (
                f"limit {moment.state.limit_packets} is less than the {flight(moment.state)} packets "
                f"of the mtu on their way in {delay} at full rate: the rest is dropped, the run UNKNOWN"
            )
            yield moment.path, found, "leave limit out, and it is computed"


def _single_flow(view: View) -> Warned:
    """Windows end at 1 GiB, so a flow has a largest rate, and so does a capped one."""
    for index, entry in enumerate(view.scenario.timeline):
        path: KeyPath
        if isinstance(entry, TenantsEntry):
            tenants = entry.tenants
            path, sources, flows = ("timeline", index, "tenants"), 1, tenants.flows
            direction = view.direction(tenants.source, tenants.sink)
        elif isinstance(entry, BackgroundEntry):
            spec = entry.background
            path, sources, flows = ("timeline", index, "background"), len(spec.sources), spec.flows
            direction = view.direction(spec.sources[0], spec.sink)
        else:
            continue
        if direction is None:
            continue
        rate_bps, rtt_ns = view.fullest(direction)
        needed = -(-rate_bps * rtt_ns // (8 * NS_PER_S * MAX_WINDOW_BYTES))
        if flows * sources < needed:
            rate, rtt = format_rate_bps(rate_bps), format_duration_ns(rtt_ns)
            found = (
                f"{flows * sources} flows cannot fill {rate} at a round trip of {rtt}, as a TCP window "
                "is at most 1 GiB"
            )
            yield path, found, f"flows: {-(-needed // sources)}, if they are meant to"


def _capped(view: View) -> Warned:
    """A bulk transfer whose connections, each capped, do not add up to the link."""
    connections = view.plan.transport.connections
    for transfer in view.plan.bulk:
        direction = view.direction(transfer.source, transfer.sink)
        state = view.plan.link[direction] if direction else None
        if state is None or state.flow_cap_bps is None or connections * state.flow_cap_bps >= state.rate_bps:
            continue
        most, rate = format_rate_bps(connections * state.flow_cap_bps), format_rate_bps(state.rate_bps)
        found = (
            f"{connections} connections of a bulk transfer get at most {most} of {rate}, because of flow_cap"
        )
        yield (
            ("transport",),
            found,
            f"connections: {-(-state.rate_bps // state.flow_cap_bps)}, if the link is to be filled",
        )
        return


def _end_host(view: View) -> Warned:
    """A queue on the sender's own interface pushes back on its TCP, instead of losing and delaying."""
    topo = TOPOLOGIES[view.plan.topology](**view.plan.topology_params)
    for direction, stages in topo.wan.items():
        for node, device in stages:
            if "cls" not in topo.nodeInfo(node):
                found = f"{direction} is shaped on {device} of the end host {node}, whose own TCP feels it"
                yield ("topology", "name"), found, "put both stages on routers"


def _offload(view: View) -> Warned:
    """Netem and queue disciplines take a super-packet for one packet."""
    if view.plan.offload != "on":
        return
    for direction in DIRECTIONS:
        whole = [words for moment in view.moments[direction] for words in _per_packet(moment.state, view)]
        if whole:
            names = ", ".join(dict.fromkeys(whole))
            found = f"{direction} has {names}, which act on super-packets of up to 184 kB when offload is on"
            yield ("link", "offload"), found, "offload: auto cuts them where it matters"


def _per_packet(state: LinkState, view: View) -> Iterator[str]:
    for name in ("reorder", "duplicate", "corrupt", "slot"):
        if getattr(state, name):
            yield name
    if state.loss is not None and (state.loss.model == "periodic" or view.kernel in ("host", "vm")):
        yield "loss"
    if state.queue.kind != "tail_drop":
        yield state.queue.kind
    if state.black_hole_bytes is not None:
        yield "black_hole_above"


def _real_time(view: View) -> Warned:
    if view.clock != "real":
        return
    for direction in DIRECTIONS:
        moment = view.first(direction, lambda state: state.rate_bps > REAL_TIME_BPS)
        if moment is not None:
            rate, most = format_rate_bps(moment.state.rate_bps), format_rate_bps(REAL_TIME_BPS)
            found = (
                f"{rate} in real time: few machines carry more than {most} through a "
                "path of namespaces, so the machine may be what is measured"
            )
            yield moment.path, found, "a smaller --scale, or virtual time (--kernel uml --clock virtual)"


def _windows_of_expectations(view: View) -> Warned:
    for index, expectation in enumerate(view.plan.expectations):
        reason = _unreachable(view.plan, expectation)
        if reason:
            found = f"{expectation.metric} {reason}: the verdict would be UNKNOWN"
            yield ("expect", index), found, "a longer window"


def _unreachable(plan: Plan, expectation: Expectation) -> str:
    """Why nothing can be measured in the expectation's window, if nothing can."""
    table = METRICS[expectation.metric].table
    begin_ns, end_ns = expectation.from_ns, expectation.to_ns
    window = f"from {format_duration_ns(begin_ns)} to {format_duration_ns(end_ns)}"
    if table in ("links", "decisions"):
        between_ns = plan.sample_ns if table == "links" else plan.policy.interval_ns
        wanted = {"stability": 3, "oscillation": FEWEST_PER_CYCLE * (expectation.cycles or 0)}.get(
            expectation.kind, 1
        )
        if end_ns - begin_ns < wanted * between_ns:
            return f"is noted every {format_duration_ns(between_ns)}, too rarely for the window {window}"
        if begin_ns >= plan.duration_ns:
            return f"is noted after the run only as long as requests are open, so maybe never {window}"
        return ""
    if table == "transfers" and plan.bulk:
        starts = [transfer.t_ns for transfer in plan.bulk]
    else:
        starts = [request.t_ns for request in plan.requests]
    if METRICS[expectation.metric].statistic in ("sum", "count"):
        return ""  # nothing is a number, too
    if not any(begin_ns <= start_ns < end_ns for start_ns in starts):
        what = "transfer starts" if table == "transfers" else "request arrives"
        return f"has no value, as no {what} {window}"
    return ""


def _standing_jitter(view: View) -> Warned:
    """Packets never overtake, so under load the latest of them sets the pace."""
    highest = {
        name: float(np.frombuffer(table, "<i2").max()) / UNIT
        for name, table in view.plan.delay_tables.items()
    }

    def latest(state: LinkState) -> float:
        return state.jitter_ns * highest.get(state.distribution, 0.0)

    for direction in DIRECTIONS:
        moment = view.first(direction, lambda state: latest(state) > STANDING_SHARE * state.delay_ns)
        if moment is not None:
            delay_ns = moment.state.delay_ns
            mean, most = (
                format_duration_ns(delay_ns),
                format_duration_ns(round(delay_ns + latest(moment.state))),
            )
            found = (
                f"a late packet holds up those behind it, so under dense traffic the mean delay rises "
                f"from {mean} towards {most}"
            )
            yield moment.path, found, "less jitter, or a delay that allows for it"


def _short_buffer(view: View) -> Warned:
    for direction in DIRECTIONS:
        state = view.plan.link[direction]
        held_ns = state.buffer_bytes * 8 * NS_PER_S // state.rate_bps
        if held_ns < SHORTEST_BUFFER_NS:
            found = (
                f"the buffer holds {format_duration_ns(held_ns)} of the rate: no queue lasts long enough to "
                "measure the rate before the run, which is then UNKNOWN"
            )
            yield (
                ("link", direction, "buffer"),
                found,
                f"a buffer of {format_duration_ns(SHORTEST_BUFFER_NS)} or more",
            )


def _marks(view: View) -> Warned:
    """Linux's BBR, of version 1, does not look at marks (net/ipv4/tcp_bbr.c); DCTCP needs them."""
    marked = any(moment.state.queue.ecn for each in DIRECTIONS for moment in view.moments[each])
    users: list[tuple[KeyPath, str]] = [
        (("transport", "congestion_control"), view.plan.transport.congestion_control)
    ]
    for index, entry in enumerate(view.scenario.timeline):
        if isinstance(entry, TenantsEntry):
            users.append((("timeline", index, "tenants"), entry.tenants.congestion_control))
        elif isinstance(entry, BackgroundEntry):
            users.append((("timeline", index, "background"), entry.background.congestion_control))
    for path, name in users:
        if name == "bbr" and marked:
            yield path, "bbr takes no notice of ECN marks, and gets no drops in their place", "cubic or dctcp"
        if name == "dctcp" and not marked:
            yield path, "dctcp without a queue that marks is Reno", "ecn: true in the link's queue"


RULES: Final[tuple[Callable[[View], Warned], ...]] = (
    _window,
    _limit,
    _single_flow,
    _capped,
    _end_host,
    _offload,
    _real_time,
    _windows_of_expectations,
    _standing_jitter,
    _short_buffer,
    _marks,
)
