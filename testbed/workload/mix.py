"""Several loads at once: tenants side by side, or one phase after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count

import msgspec

from testbed.plan import Request
from testbed.workload import Load, drawn_load


def merge(loads: Sequence[Load], span_ns: int) -> Load:
    """The loads' requests by time (at the same time in the order of the loads), which lie within `span_ns`.

    Requests are numbered anew, and so are prefix blocks, in order of first use: what was an id of two loads
    becomes two ids, as they have no prefix in common.
    """
    numbers = count()
    blocks = [defaultdict[int, int](numbers.__next__) for _ in loads]
    arriving = sorted(
        ((part, request) for part, load in enumerate(loads) for request in load.requests),
        key=lambda arrival: arrival[1].t_ns,
    )
    requests: list[Request] = []
    for number, (part, request) in enumerate(arriving):
        hash_ids = tuple(blocks[part][block] for block in request.hash_ids)
        requests.append(msgspec.structs.replace(request, id=number, hash_ids=hash_ids))
    notes = tuple(note for load in loads for note in load.notes)
    return msgspec.structs.replace(drawn_load(tuple(requests), span_ns), notes=notes)
