"""Faults of a plan, done to agents and hosts: each is read back, noted, and undone when its time is over."""

from __future__ import annotations

from testbed.faults.executor import Faults

__all__ = ["Faults"]
