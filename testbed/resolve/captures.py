"""Which interfaces are captured, with filters that tcpdump understands."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection
from typing import Final

from testbed import plan
from testbed.resolve.findings import Findings
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from topologies import TOPOLOGIES

LONGEST_S: Final = 10
_NAMED_HOST: Final = re.compile(
    r"\b(?:(?:host|net|gateway)|(?:src|dst)(?!\s+(?:host|net|port|portrange|or|and)\b))"
    r"\s+([a-z][\w.-]*)(?![\w.:-])",
    re.IGNORECASE,
)
"""A name where an address is due; MAC addresses have colons."""


def resolve_captures(
    scenario: Scenario, hosts: Collection[str], findings: Findings
) -> tuple[plan.Capture, ...]:
    """One capture per interface: a direction's rate stage, or a host's own."""
    captures: dict[str, plan.Capture] = {}
    topology = TOPOLOGIES.get(scenario.topology.name)
    for index, spec in enumerate(scenario.capture):
        path: KeyPath = ("capture", index)
        if topology is None:
            continue
        if spec.host is not None:
            if findings.name_unknown((*path, "host"), "host", spec.host, hosts):
                continue
            node, device = spec.host, f"{spec.host}-eth0"
        else:
            node, device = topology.wan[spec.link][0]
        if device in captures:
            findings.add(path, f"{device} is captured already", "each interface once")
        _check_filter(spec.filter, (*path, "filter"), findings)
        captures[device] = plan.Capture(node=node, device=device, snap_bytes=spec.snap, filter=spec.filter)
    return tuple(captures.values())


def _check_filter(text: str, path: KeyPath, findings: Findings) -> None:
    """Let tcpdump compile the filter for Ethernet; without tcpdump it is taken as it is.

    Names of hosts are refused first: tcpdump would ask this machine's DNS for them; a run has none.
    """
    named = _NAMED_HOST.search(text)
    if named is not None:
        found = f'"{text}" names the host {named[1]}, and names are not looked up'
        findings.add(path, found, "addresses, such as host 10.0.0.1", "for a host by its name: {host: b2}")
        return
    tcpdump = shutil.which("tcpdump")
    if not text or tcpdump is None:
        return
    command = [tcpdump, "-n", "-d", "-y", "EN10MB", "--", text]
    try:
        compiled = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        findings.add(path, f"tcpdump has not compiled the filter in {LONGEST_S} s", "a simpler filter")
        return
    if compiled.returncode:
        lines = compiled.stderr.strip().splitlines() or ["no reason given"]
        reason = lines[-1].removeprefix("tcpdump: ")
        findings.add(path, f'"{text}" is no filter: {reason}', "a filter as in pcap-filter(7)")
