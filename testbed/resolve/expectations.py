"""Expectations with their events and windows as times, and a name for the verdict."""

from __future__ import annotations

from collections.abc import Collection

from testbed import plan
from testbed.metrics import METRICS, Unit
from testbed.resolve.compute import payload
from testbed.resolve.events import named_times
from testbed.resolve.findings import Findings
from testbed.scenario.expectations import Bound, Expectation, Reaction, Recovery, Stability
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.workload import BulkWorkload
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes


def resolve_expectations(
    scenario: Scenario, scale: float, seed: int, tenants: Collection[str], findings: Findings
) -> tuple[plan.Expectation, ...]:
    """All expectations; unknown events, empty or late windows and metrics without data are problems.

    Limits in bits per second or bytes are written for scale 1 and multiplied by `scale`, as the link is.
    """
    for index, expectation in enumerate(scenario.expect):
        if isinstance(expectation, Bound):
            _check_tenant(expectation, tenants, ("expect", index, "tenant"), findings)
    return tuple(
        _resolved(scenario, _scaled(expectation, scale), seed, ("expect", index), findings)
        for index, expectation in enumerate(scenario.expect)
    )


def _scaled(expectation: Expectation, scale: float) -> Expectation:
    if METRICS[expectation.metric].unit not in {"bps", "bytes"}:
        return expectation
    limits = {
        name: value * scale
        for name in ("low", "high", "level", "ignore_moves_below")
        if (value := getattr(expectation, name, None)) is not None
    }
    return expectation.model_copy(update=limits)


def _resolved(
    scenario: Scenario, expectation: Expectation, seed: int, path: KeyPath, findings: Findings
) -> plan.Expectation:
    _check_measured(scenario, expectation.metric, path, findings)
    line = findings.source.line(path)
    name = expectation.name or default_name(expectation)
    match expectation:
        case Bound():
            from_ns, to_ns = _window(scenario, expectation.start, expectation.end, path, findings)
            return plan.Expectation(
                name=name, kind="bound", metric=expectation.metric, from_ns=from_ns, to_ns=to_ns,
                low=expectation.low, high=expectation.high, tenant=expectation.tenant, line=line,
            )  # fmt: skip
        case Stability():
            from_ns, to_ns = _window(scenario, expectation.start, expectation.end, path, findings)
            return plan.Expectation(
                name=name, kind="stability", metric=expectation.metric, from_ns=from_ns, to_ns=to_ns,
                high=float(expectation.max_direction_changes), level=expectation.ignore_moves_below,
                line=line,
            )  # fmt: skip
        case Reaction():
            event_ns = _event(scenario, expectation.after, seed, path, findings)
            to_ns = event_ns + expectation.within
            _check_end(scenario, to_ns, (*path, "within"), findings)
            return plan.Expectation(
                name=name, kind="reaction", metric=expectation.metric, from_ns=event_ns, to_ns=to_ns,
                event=expectation.after, within_ns=expectation.within, level=expectation.level,
                crosses=expectation.crosses, line=line,
            )  # fmt: skip
        case Recovery():
            event_ns = _event(scenario, expectation.after, seed, path, findings)
            to_ns = scenario.duration if expectation.end is None else expectation.end
            _check_end(scenario, to_ns, (*path, "to"), findings)
            if event_ns + expectation.within >= to_ns:
                until, end = format_duration_ns(event_ns + expectation.within), format_duration_ns(to_ns)
                found = f"lasts until {until}, not before the window's end at {end}"
                findings.add((*path, "within"), found, "a shorter time, or a later `to`")
            return plan.Expectation(
                name=name, kind="recovery", metric=expectation.metric, from_ns=event_ns, to_ns=to_ns,
                event=expectation.after, within_ns=expectation.within, low=expectation.low,
                high=expectation.high, line=line,
            )  # fmt: skip
    raise AssertionError(expectation)


def _check_tenant(expectation: Bound, tenants: Collection[str], path: KeyPath, findings: Findings) -> None:
    if expectation.tenant is None:
        return
    if METRICS[expectation.metric].table != "requests":
        findings.add(path, f"{expectation.metric} is not told apart by tenant", "a metric of requests")
    findings.name_unknown(path, "tenant", expectation.tenant, tenants)


def default_name(expectation: Expectation) -> str:
    """What is expected, in a few words, when the scenario gives no name."""
    metric = expectation.metric
    unit = METRICS[metric].unit
    match expectation:
        case Bound():
            of = f" of {expectation.tenant}" if expectation.tenant else ""
            return f"{metric}{of} {_range(expectation.low, expectation.high, unit)}"
        case Reaction():
            level, within = format_in_unit(expectation.level, unit), format_duration_ns(expectation.within)
            return f"{metric} crosses {expectation.crosses} {level} within {within} of {expectation.after}"
        case Recovery():
            limits, within = (
                _range(expectation.low, expectation.high, unit),
                format_duration_ns(expectation.within),
            )
            return f"{metric} {limits} within {within} of {expectation.after}"
        case Stability():
            return f"{metric} turns at most {expectation.max_direction_changes} times"
    raise AssertionError(expectation)


def format_in_unit(value: float, unit: Unit) -> str:
    """A bound for people: `20s`, `96gbit`, `22000 tokens`, `1`."""
    match unit:
        case "s":
            return format_duration_ns(round(value * NS_PER_S))
        case "bps":
            return format_rate_bps(round(value))
        case "bytes":
            return format_size_bytes(round(value))
        case "ratio":
            return f"{value:g}"
        case _:
            return f"{value:.15g} {unit}"


def _range(low: float | None, high: float | None, unit: Unit) -> str:
    if low is not None and high is not None:
        return f"from {format_in_unit(low, unit)} to {format_in_unit(high, unit)}"
    if low is not None:
        return f"at least {format_in_unit(low, unit)}"
    assert high is not None
    return f"at most {format_in_unit(high, unit)}"


def _event(scenario: Scenario, name: str, seed: int, path: KeyPath, findings: Findings) -> int:
    """Time of an event; 0 stands in when it is unknown, which is a problem."""
    times = named_times(scenario, seed)
    if times:
        findings.name_unknown((*path, "after"), "event", name, times)
    else:
        findings.add((*path, "after"), f"unknown event {name}", "name a timeline entry with `event:`")
    return times.get(name, 0)


def _window(
    scenario: Scenario, start_ns: int, end_ns: int | None, path: KeyPath, findings: Findings
) -> tuple[int, int]:
    """From start to end; by default to the end of the run, at most to the end of its drain."""
    to_ns = scenario.duration if end_ns is None else end_ns
    if start_ns >= to_ns:
        window = f"{format_duration_ns(start_ns)} to {format_duration_ns(to_ns)}"
        findings.add(path, f"the window from {window} is empty", "a window with from before to")
    _check_end(scenario, to_ns, (*path, "to"), findings)
    return start_ns, to_ns


def _check_end(scenario: Scenario, t_ns: int, path: KeyPath, findings: Findings) -> None:
    last_ns = scenario.duration + scenario.drain
    if t_ns > last_ns:
        found = f"reaches to {format_duration_ns(t_ns)}, after the run and its drain"
        findings.add(path, found, f"up to {format_duration_ns(last_ns)}")


def _check_measured(scenario: Scenario, metric: str, path: KeyPath, findings: Findings) -> None:
    """A metric that this workload cannot give a value for would fail for no reason."""
    bulk = isinstance(scenario.workload, BulkWorkload)
    transfers = isinstance(scenario.workload, BulkWorkload) and bool(scenario.workload.transfers)
    about_bulk = metric.startswith("bulk.")
    about_requests = METRICS[metric].table not in ("transfers", "links")
    if (bulk and about_requests) or (not transfers and about_bulk):
        what = "has no bulk transfers" if about_bulk else "sends no requests"
        findings.add(path, f"{metric} has no value: the workload {what}", "another metric or workload")
    if metric == "transfers.checksum_errors" and bulk:
        found = f"{metric} has no value: the bytes of bulk transfers are not checked"
        findings.add(path, found, "a workload that sends requests, or another metric")
    elif metric == "transfers.checksum_errors" and payload(scenario) == "synthetic":
        found = f"{metric} cannot fail: synthetic bytes are dropped by the receiver, not checked"
        findings.add(path, found, "payload: verified, or another metric")
