"""Changed conditions of the link in few words, for messages and for the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from testbed.resolve.conditions import FILE, Jitter
from testbed.scenario import link as spec
from testbed.scenario.quantities import Buffer
from testbed.units import format_duration_ns, format_rate_bps, format_size_bytes


def describe(fields: dict[str, Any]) -> str:
    """Changed conditions for people: `rate 8gbit, loss 0.1%`."""
    return ", ".join(f"{name} {described(name, value)}" for name, value in fields.items())


def described(name: str, value: Any) -> str:
    """One condition for people; `name` says what a plain number is."""
    if value is None:
        return "none"
    if type(value) in _FORMS:
        return _FORMS[type(value)](value)
    if name in _NUMBERS:
        return _NUMBERS[name](value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _buffer(buffer: Buffer) -> str:
    if buffer.time_ns is not None:
        return format_duration_ns(buffer.time_ns)
    return format_size_bytes(buffer.fixed_bytes or 0)


def _bursts(loss: spec.GilbertElliott) -> str:
    return f"in bursts (p {loss.p:g}, r {loss.r:g}, bad {loss.bad:g}, good {loss.good:g})"


def _four_state(loss: spec.FourStateLoss) -> str:
    first = f"p13 {loss.p13:g}, p31 {loss.p31:g}, p32 {loss.p32:g}"
    return f"in four states ({first}, p23 {loss.p23:g}, p14 {loss.p14:g})"


def _slot(slot: spec.Slot) -> str:
    return f"of {format_duration_ns(slot.low)} to {format_duration_ns(slot.high)}"


def _bucket(bucket: spec.TokenBucket) -> str:
    return f"of {format_size_bytes(bucket.budget)}, then {format_rate_bps(bucket.sustained)}"


def _jitter(jitter: Jitter) -> str:
    if jitter.distribution.startswith(FILE):
        return f"as in {jitter.distribution.removeprefix(FILE)}"
    shape = "" if jitter.distribution == "uniform" else f" ({jitter.distribution})"
    return f"{format_duration_ns(jitter.scale_ns)}{shape}"


def _with_ecn(queue: spec.Codel | spec.Red) -> str:
    return f"{queue.kind} with ECN" if queue.ecn else queue.kind


_NUMBERS: Final[dict[str, Callable[[int], str]]] = {
    "rate": format_rate_bps,
    "flow_cap": format_rate_bps,
    "delay": format_duration_ns,
    "jitter": format_duration_ns,
}
_FORMS: Final[dict[type, Callable[[Any], str]]] = {
    Buffer: _buffer,
    spec.GilbertElliott: _bursts,
    spec.CorrelatedLoss: lambda loss: f"{loss.ratio:g}, correlation {loss.correlation:g}",
    spec.FourStateLoss: _four_state,
    spec.PeriodicLoss: lambda loss: f"of every {loss.every}th packet",
    Jitter: _jitter,
    spec.JitterShape: lambda jitter: _jitter(Jitter(jitter.scale, jitter.distribution)),
    spec.JitterFile: lambda jitter: f"as in {jitter.file}",
    spec.Slot: _slot,
    spec.TailDrop: lambda queue: queue.kind,
    spec.Codel: _with_ecn,
    spec.Red: _with_ecn,
    spec.TokenBucket: _bucket,
}
