"""Expectations with their events and windows as times, and a name for the verdict."""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import Any, Final

from testbed import plan
from testbed.metrics import METRICS, Kind
from testbed.resolve.compute import payload
from testbed.resolve.events import named_times
from testbed.resolve.expectation_names import default_name
from testbed.resolve.findings import Findings
from testbed.scenario.expectations import (
    Band,
    Bound,
    Expectation,
    Fairness,
    Overshoot,
    Reaction,
    Recovery,
    Settling,
    Stability,
)
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.workload import BulkWorkload
from testbed.units import format_duration_ns

SCALED: Final = ("low", "high", "level", "ignore_moves_below", "target", "max_amplitude")
"""Limits in the metric's own unit."""
LIMITS: Final[dict[Kind, dict[str, str]]] = {
    "bound": {"low": "low", "high": "high", "tenant": "tenant"},
    "reaction": {"within_ns": "within", "level": "level", "crosses": "crosses"},
    "recovery": {"within_ns": "within", "low": "low", "high": "high"},
    "stability": {"level": "ignore_moves_below"},
    "settling": {
        "within_ns": "within", "target": "target",
        "band": "within_band.width", "band_ratio": "within_band.ratio",
    },
    "overshoot": {"high": "most", "target": "target"},
    "oscillation": {"high": "max_amplitude", "cycles": "cycles"},
    "fairness": {"low": "index", "high": "max_ratio", "tenants": "tenants"},
    "oracle": {"low": "share"},
}  # fmt: skip
"""For each kind, the fields of `plan.Expectation` that say what is allowed, and where they come from."""
FEWEST_TENANTS: Final = 2


def resolve_expectations(
    scenario: Scenario, scale: float, seed: int, tenants: Collection[str], findings: Findings
) -> tuple[plan.Expectation, ...]:
    """All expectations; unknown events, empty or late windows and metrics without data are problems.

    Limits in bits per second or bytes are written for scale 1 and multiplied by `scale`, as the link is.
    """
    found = []
    for index, written in enumerate(scenario.expect):
        expectation, path = _scaled(written, scale), ("expect", index)
        if isinstance(expectation, Bound):
            _check_tenant(expectation, tenants, (*path, "tenant"), findings)
        if isinstance(expectation, Fairness) and not isinstance(scenario.workload, BulkWorkload):
            expectation = _among(expectation, tenants, (*path, "tenants"), findings)
        found.append(_resolved(scenario, expectation, seed, path, findings))
    return tuple(found)


def _scaled(expectation: Expectation, scale: float) -> Expectation:
    if METRICS[expectation.metric].unit not in {"bps", "bytes"}:
        return expectation
    limits: dict[str, Any] = {
        name: value * scale for name in SCALED if (value := getattr(expectation, name, None)) is not None
    }
    if isinstance(expectation, Settling) and expectation.within_band.width is not None:
        limits["within_band"] = Band(width=expectation.within_band.width * scale)
    return expectation.model_copy(update=limits)


def _resolved(
    scenario: Scenario, expectation: Expectation, seed: int, path: KeyPath, findings: Findings
) -> plan.Expectation:
    _check_measured(scenario, expectation.metric, path, findings)
    fields = _limits(expectation)
    if isinstance(expectation, Reaction | Recovery | Settling | Overshoot):
        from_ns, to_ns = _after(scenario, expectation, seed, path, findings)
        fields["event"] = expectation.after
    else:
        from_ns, to_ns = _window(scenario, expectation.start, expectation.end, path, findings)
    return plan.Expectation(
        name=expectation.name or default_name(expectation),
        kind=expectation.kind,
        metric=expectation.metric,
        from_ns=from_ns,
        to_ns=to_ns,
        line=findings.source.line(path),
        **fields,
    )


def _limits(expectation: Expectation) -> dict[str, Any]:
    """What is allowed, as fields of `plan.Expectation`."""
    fields = {field: attrgetter(name)(expectation) for field, name in LIMITS[expectation.kind].items()}
    if isinstance(expectation, Stability):
        fields["high"] = float(expectation.max_direction_changes)
    return fields


def _after(
    scenario: Scenario,
    expectation: Reaction | Recovery | Settling | Overshoot,
    seed: int,
    path: KeyPath,
    findings: Findings,
) -> tuple[int, int]:
    """From the event to the end of the time allowed (reaction), or of the window."""
    event_ns = _event(scenario, expectation.after, seed, path, findings)
    if isinstance(expectation, Reaction):
        to_ns = event_ns + expectation.within
        _check_end(scenario, to_ns, (*path, "within"), findings)
        return event_ns, to_ns
    if isinstance(expectation, Overshoot):
        return _window(scenario, event_ns, expectation.end, path, findings)
    to_ns = scenario.duration if expectation.end is None else expectation.end
    _check_end(scenario, to_ns, (*path, "to"), findings)
    if event_ns + expectation.within >= to_ns:
        until, end = format_duration_ns(event_ns + expectation.within), format_duration_ns(to_ns)
        found = f"lasts until {until}, not before the window's end at {end}"
        findings.add((*path, "within"), found, "a shorter time, or a later `to`")
    return event_ns, to_ns


def _check_tenant(expectation: Bound, tenants: Collection[str], path: KeyPath, findings: Findings) -> None:
    if expectation.tenant is None:
        return
    if METRICS[expectation.metric].table != "requests":
        findings.add(path, f"{expectation.metric} is not told apart by tenant", "a metric of requests")
    findings.name_unknown(path, "tenant", expectation.tenant, tenants)


def _among(expectation: Fairness, tenants: Collection[str], path: KeyPath, findings: Findings) -> Fairness:
    """The expectation with the tenants that it compares; too few, unknown and repeated ones are problems."""
    for index, name in enumerate(expectation.tenants):
        findings.name_unknown((*path, index), "tenant", name, tenants)
    among = expectation.tenants or tuple(tenants)
    if len(set(among)) < max(FEWEST_TENANTS, len(among)):
        found = f"fairness among {', '.join(among) or 'nobody'}"
        findings.add(path, found, "two tenants or more, each once", "a workload of kind mix can have them")
    return expectation.model_copy(update={"tenants": among})


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
