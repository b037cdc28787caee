"""What follows from a run's journal: record, audit, verdict, report.

Apart from `run`, because it takes half a second to load, which a run can do while its guest boots.
"""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any, NamedTuple

from testbed import audit, expect, manifest, sameness, verdict
from testbed import tables as record
from testbed.kernel import Clock
from testbed.plan import Plan
from testbed.report import page
from testbed.rundir import RunDir


class Judged(NamedTuple):
    """A verdict and what stands behind it."""

    verdict: verdict.Verdict
    link: str
    """Whether the link was as asked, in one line."""
    manifest: dict[str, Any]


def judge(
    directory: RunDir, plan: Plan, *, kernel: str, clock: Clock, started_s: float, report: bool
) -> Judged:
    """Make every file that follows from the journal; `started_s`: when the run began, as time.monotonic()."""
    tables = record.build(directory, plan)
    if plan.captures:
        from testbed.capture import pcap  # noqa: PLC0415 - scapy takes a second to load

        pcap.summarize(directory, tables["events"]).write(directory.pcap)
    findings = audit.judge(plan, tables)
    judged = expect.judge(plan, tables, expect.trust(directory, tables, findings))
    written = manifest.write(
        directory,
        plan,
        kernel=kernel,
        clock=clock,
        wall_s=time.monotonic() - started_s,
        tables=tables,
        command=shlex.join(["python", "-m", "testbed.run", *sys.argv[1:]]),
    )
    judged.write(directory.verdict)
    verdict.write_junit(judged, plan.name, directory.junit)
    if report:
        page.write(directory, plan, tables, judged, written, findings=findings)
    return Judged(judged, audit.summary(findings), written)


def differences(first: RunDir, second: RunDir) -> list[str]:
    """Where two runs part; empty when they are the same, byte for byte."""
    tables = record.load(first)
    difference = sameness.first_difference(tables, record.load(second))
    parted = [str(difference)] if difference else []
    return [*parted, *sameness.differing_captures(first, second, tables["events"])]
