"""Every name inside a run directory, in one place.

runs/<scenario>-<seed>[-n]/
  scenario.yaml   the scenario as read, byte for byte
  plan.json       what `resolve` made of it: all that `inside` needs
  probes.json     a probe for each direction of the link, as scapy makes it (base64)
  manifest.json   what the record depends on: seed, versions, hashes, CPU; how long it took; record_digest
  guest.json      the kernel and the project as they were when the guest booted; with --kernel host, what this
                  machine was found to carry
  outcome.json    what `inside` says of itself: finished or not, and why
  journal/        one JSON-lines file per writer, appended from the first event on
  record/         Parquet tables made from the journal
  programs/       what each program of the scenario wrote: <name>.out, <name>.err
  pcap/           what the scenario captures: <device>.pcap, and their summary.json and summary.txt
  verdict.json  junit.xml  report.html
  carrier.json    the process that carries out the run, or did
  console.log     what the guest printed
  hold            there as long as somebody wants the network of a run on the host's kernel to stay up
  trouble.json    what went wrong with the kernel, if anything did
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    """A run directory and the paths within it."""

    path: Path

    @property
    def scenario(self) -> Path:
        return self.path / "scenario.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def probes(self) -> Path:
        return self.path / "probes.json"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def outcome(self) -> Path:
        return self.path / "outcome.json"

    @property
    def trouble(self) -> Path:
        return self.path / "trouble.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def record(self) -> Path:
        return self.path / "record"

    @property
    def programs(self) -> Path:
        return self.path / "programs"

    @property
    def pcap(self) -> Path:
        return self.path / "pcap"

    @property
    def guest(self) -> Path:
        return self.path / "guest.json"

    @property
    def hold(self) -> Path:
        return self.path / "hold"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def junit(self) -> Path:
        return self.path / "junit.xml"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def carrier(self) -> Path:
        return self.path / "carrier.json"

    @property
    def console(self) -> Path:
        return self.path / "console.log"


def contents(path: Path) -> bytes:
    """The bytes of a plain file; OSError of anything else: a pipe would be waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no plain file")
        return file.read()
