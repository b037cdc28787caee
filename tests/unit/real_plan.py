"""The plan of a run with real kernels, for tests of its answers only."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from testbed.plan import Plan, Request
from tests.unit.synthetic_plan import make_plan


def plan_of(numbers: Iterable[int], compute: str = "real") -> Plan:
    """A plan that asks these, expects nothing, and has no other traffic."""
    requests = tuple(Request(id=one, t_ns=0, input_tokens=9, output_tokens=4) for one in numbers)
    return msgspec.structs.replace(
        make_plan(requests=0), requests=requests, expectations=(), bursts=(), compute=compute
    )
