"""Everybody else on the link, as the plan has them: bursts, bulk transfers, tenants, microbursts."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from testbed.journal import Journal
from testbed.moments import until
from testbed.plan import Burst, LinkState, Microbursts, Plan, Tenant
from testbed.traffic import tcp, tenant

JITTERS = 8
"""So many times the jitter is more than any delay is late: netem's tables end at four."""


class Others:
    """The jobs of one plan, which run beside the agents."""

    def __init__(
        self, plan: Plan, journal: Journal, address: Callable[[str], str], distrust: Callable[[str], None]
    ) -> None:
        """`address`: of a host, by its name; `distrust`: takes a reason not to trust the run."""
        self._plan, self._journal, self._address, self._distrust = plan, journal, address, distrust
        self.bulk_ends: set[str] = set()
        """Address and port of every socket that sends a bulk transfer."""

    @property
    def senders(self) -> set[str]:
        """Hosts that send TCP."""
        plan = self._plan
        kinds = (plan.bursts, plan.bulk, plan.tenants)
        return {one.source for kind in kinds for one in kind}

    def prepare(self) -> None:
        """Have the senders of microbursts paced, before anything is sent."""
        if self._plan.microbursts:
            from testbed.traffic import microbursts  # noqa: PLC0415 - few runs need it and its numpy

            for source in sorted({one.source for one in self._plan.microbursts}):
                microbursts.pace(source, f"{source}-eth0")

    def jobs(self, t0_ns: int) -> Iterator[Coroutine[Any, Any, None]]:
        """One for each; `t0_ns` is CLOCK_MONOTONIC."""
        plan = self._plan
        yield from (self._burst("burst", burst, t0_ns) for burst in plan.bursts)
        for bulk in plan.bulk:
            burst = Burst(
                t_ns=bulk.t_ns,
                source=bulk.source,
                sink=bulk.sink,
                flows=plan.transport.connections,
                size_bytes=bulk.size_bytes,
                congestion_control=plan.transport.congestion_control,
            )
            yield self._burst("bulk", burst, t0_ns)
        for one in plan.tenants:
            yield from (self._tenant(one, flow, t0_ns) for flow in range(one.flows))
        yield from (self._microbursts(one, t0_ns) for one in plan.microbursts)

    async def _burst(self, kind: str, burst: Burst, t0_ns: int) -> None:
        """A connection that breaks is noted, not fatal."""
        await until(t0_ns + burst.t_ns)
        start_ns = time.monotonic_ns()
        end_ns, flows = None, None
        try:
            flows = await tcp.start(
                burst.source,
                (burst.sink, self._address(burst.sink)),
                flows=burst.flows,
                size_bytes=burst.size_bytes,
                congestion_control=burst.congestion_control,
            )
            if kind == "bulk":
                self.bulk_ends.update(flows.local_ends())
            end_ns = await flows.finished()
        except OSError:
            pass
        finally:
            if flows is not None:
                flows.stop()
            self._journal.note(
                kind,
                start_ns,
                source=burst.source,
                sink=burst.sink,
                flows=burst.flows,
                size_bytes=burst.size_bytes,
                t_end_ns=end_ns,
            )

    async def _tenant(self, plan: Tenant, flow: int, t0_ns: int) -> None:
        await until(t0_ns + plan.t_ns)
        await tenant.run(
            plan, flow, t0_ns + plan.until_ns, address=self._address(plan.sink), journal=self._journal
        )

    async def _microbursts(self, plan: Microbursts, t0_ns: int) -> None:
        from testbed.traffic import microbursts  # noqa: PLC0415 - as in `prepare`

        await microbursts.run(
            plan,
            t0_ns,
            address=self._address(plan.sink),
            patience_ns=patience_ns(self._plan),
            journal=self._journal,
            distrust=self._distrust,
        )


def patience_ns(plan: Plan) -> int:
    """The longest that a packet can be under way in any state of the link."""
    states = (*plan.link.values(), *(change.state for change in plan.changes))
    return max(_longest_ns(state) for state in states)


def _longest_ns(state: LinkState) -> int:
    bucket = state.token_bucket
    rate_bps = min(state.rate_bps, bucket.sustained_bps) if bucket else state.rate_bps
    queue_ns = state.buffer_bytes * 8 * 10**9 // rate_bps
    slot_ns = state.slot.max_ns if state.slot else 0
    return state.delay_ns + JITTERS * state.jitter_ns + queue_ns + slot_ns
