"""Whole commands: the main scenario, an idle hour, two runs at once, growth with time and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Reading, Target, figure, growth, shares
from benchmarks.machine import ROOT
from benchmarks.measuring import Effort
from benchmarks.scenario_runs import HERE, IDLE_HOUR, side_by_side, timed

CONGESTION = ROOT / "scenarios" / "congestion.yaml"
REQUESTS = HERE / "requests.yaml"
TOTALS = ("wall_s", "processor_s", "first_request_s")
DURATIONS_S = (1200, 2400, 3600)
RATES_PER_S = (3, 6, 9)


def congestion(effort: Effort) -> list[Figure]:
    """The main scenario from the command to the report, at the full 100 Gbps."""
    readings = effort.samples("congestion", partial(_values, CONGESTION))
    return [_whole("congestion.yaml, scale 1", readings, Target("at most", 60.0))]


def congestion_tenth(effort: Effort) -> list[Figure]:
    """The same with a tenth of the rate and of the bytes."""
    readings = effort.samples("congestion, a tenth", partial(_values, CONGESTION, "--scale", "0.1"))
    return [_whole("congestion.yaml, scale 0.1", readings, Target("at most", 25.0))]


def _values(scenario: Path, *arguments: str) -> Mapping[str, float]:
    return timed(scenario, *arguments).values()


def idle_hour(effort: Effort) -> list[Figure]:
    """An hour with two requests, and two thirds and a third of it."""
    sizes = tuple(size // 10 for size in DURATIONS_S) if effort.quick else DURATIONS_S
    keys = [f"{size} s" for size in sizes]

    def measure() -> Mapping[str, float]:
        runs = [timed(IDLE_HOUR, "--set", f"duration={size}s") for size in sizes]
        costs = {key: run.processor_s for key, run in zip(keys, runs, strict=True)}
        return {**runs[-1].values(), **costs}

    readings = effort.samples("idle hour", measure)
    name = "a tenth of an idle hour" if effort.quick else "idle hour"
    return [
        _whole(name, readings, Target("at most", 30.0), besides=keys),
        growth("linear in virtual time", "virtual s", sizes, readings, keys),
    ]


def two_at_once(effort: Effort) -> list[Figure]:
    """Runs per hour of two processors with a guest each, against one guest alone."""

    def measure() -> Mapping[str, float]:
        arguments = ("--set", f"duration={10 if effort.quick else 60}s")
        alone_s, both_s = timed(REQUESTS, *arguments).wall_s, side_by_side(REQUESTS, *arguments)
        return {"ratio": 2 * alone_s / both_s, "alone_s": alone_s, "both_s": both_s}

    readings = effort.samples("two at once", measure)
    limit = ", ".join(
        f"{name} {median(one.values[key] for one in readings):.3g} s"
        for name, key in (("alone", "alone_s"), ("both", "both_s"))
    )
    return [
        figure(
            "two runs at once, throughput",
            "times one",
            readings,
            "ratio",
            target=Target("at least", 1.8),
            made_of=limit,
        )
    ]


def requests(effort: Effort) -> list[Figure]:
    """A minute with three numbers of short requests."""
    counts: dict[int, int] = {}
    rates = RATES_PER_S
    duration = ("--set", "duration=10s") if effort.quick else ()

    def measure() -> Mapping[str, float]:
        runs = {rate: timed(REQUESTS, *duration, "--set", f"workload.rate={rate}/s") for rate in rates}
        counts.update({rate: run.requests for rate, run in runs.items()})
        return {f"{rate}/s": run.processor_s for rate, run in runs.items()}

    readings = effort.samples("by requests", measure)
    sizes = [counts[rate] for rate in rates]
    return [growth("linear in requests", "requests", sizes, readings, [f"{rate}/s" for rate in rates])]


def _whole(name: str, readings: list[Reading], target: Target, besides: Sequence[str] = ()) -> Figure:
    """The wall time of a command; `besides`: what else is in the readings."""
    names = [part for part in readings[0].values if part not in (*TOTALS, *besides)]
    spent = shares({part: [one.values[part] for one in readings] for part in names})
    return figure(name, "s", readings, "wall_s", target=target, made_of=f"processor: {spent}")
