"""The workload as requests or transfers, and where its trace lies."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from testbed.errors import ScenarioError
from testbed.plan import BulkTransfer
from testbed.resolve.findings import Findings
from testbed.resolve.seeds import generator
from testbed.resolve.traffic import check_hosts
from testbed.scenario.model import BulkWorkload, LognormalWorkload, MooncakeWorkload, Scenario
from testbed.scenario.source import KeyPath
from testbed.units import NS_PER_S
from testbed.workload import Load, lognormal, mooncake

TRACES_VARIABLE: Final = "TESTBED_TRACES"
MAX_REQUESTS: Final = 200_000


def resolve_load(
    scenario: Scenario, seed: int, directory: Path | None, max_tokens: int | None, findings: Findings
) -> Load | None:
    """The requests; None for a bulk workload, and when there are problems.

    `directory` holds the traces; `max_tokens` is the longest input that can be computed, if it is known.
    """
    spec = scenario.workload
    if isinstance(spec, LognormalWorkload):
        return _lognormal(spec, scenario.duration, seed, max_tokens, findings)
    if isinstance(spec, MooncakeWorkload):
        return _mooncake(spec, scenario.duration, directory, max_tokens, findings)
    return None


def resolve_bulk(
    scenario: Scenario, scale: float, hosts: Collection[str], findings: Findings
) -> tuple[BulkTransfer, ...]:
    """The bulk transfers by time; sizes are multiplied by `scale`."""
    spec = scenario.workload
    if not isinstance(spec, BulkWorkload):
        return ()
    for index, transfer in enumerate(spec.transfers):
        check_hosts(("workload", "transfers", index), transfer.source, transfer.sink, hosts, findings)
    transfers = (
        BulkTransfer(
            t_ns=transfer.at,
            source=transfer.source,
            sink=transfer.sink,
            size_bytes=max(1, round(transfer.size * scale)),
        )
        for transfer in spec.transfers
    )
    return tuple(sorted(transfers, key=lambda transfer: transfer.t_ns))


def _lognormal(
    spec: LognormalWorkload, duration_ns: int, seed: int, max_tokens: int | None, findings: Findings
) -> Load | None:
    if max_tokens is not None and spec.high > max_tokens:
        found = f"{spec.high} tokens are more than the compute profiles cover"
        findings.add(("workload", "high"), found, f"at most {max_tokens}")
        return None
    if spec.rate * duration_ns > MAX_REQUESTS * NS_PER_S:
        found = f"about {spec.rate * duration_ns / NS_PER_S:.3g} requests within the run"
        findings.add(("workload", "rate"), found, f"at most {MAX_REQUESTS}")
        return None
    load = lognormal.generate(
        spec,
        duration_ns,
        arrivals=generator(seed, "workload", "arrivals"),
        lengths=generator(seed, "workload", "lengths"),
    )
    if not load.requests:
        findings.add(
            ("workload", "rate"), "no request arrives within the run", "a higher rate or a longer run"
        )
        return None
    return load


def _mooncake(
    spec: MooncakeWorkload,
    duration_ns: int,
    directory: Path | None,
    max_tokens: int | None,
    findings: Findings,
) -> Load | None:
    path: KeyPath = ("workload", "trace")
    file = (directory or Path()) / spec.trace
    if not file.is_file():
        findings.add(
            path,
            f"there is no trace {file}",
            "the path of a trace, relative to the directory of traces",
            f"name that directory with --traces DIR or {TRACES_VARIABLE}=DIR (default: the scenario's own)",
        )
        return None
    try:
        return mooncake.replay(
            spec,
            duration_ns,
            file,
            max_tokens=max_tokens or mooncake.ANY_LENGTH,
            where=findings.source.where(("workload", "window")),
        )
    except ScenarioError as error:
        findings.add_error(path, error)
        return None
