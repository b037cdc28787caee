"""Inside the kernel: `python -m testbed.inside RUN_DIR` builds the network, runs the plan, keeps the journal.

Says what it is doing on stdout: `@stage NAME`, `@progress SECONDS` (virtual, since t0). How it went is in
outcome.json; the journal is complete up to the moment of any death.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from testbed import namespaces, sysctl, traffic
from testbed.calibrate import RTT_SLACK_S, calibrate
from testbed.containers import Container, Containers
from testbed.errors import AgentError, TestbedError
from testbed.journal import Journal
from testbed.plan import DIRECTIONS, Burst, Direction, Plan
from testbed.rundir import RunDir
from testbed.shaping.link import WanDirection, loss_ratio, super_packet_bytes
from testbed.system import agent_config
from testbed.telemetry.link import LinkCounters
from testbed.telemetry.samplers import TCP_INTERVAL_NS, every, link_sampler, tcp_sampler
from testbed.topology import Network
from topologies import TOPOLOGIES

WORK = Path("/run/testbed/work")
START_DELAY_NS = 100_000_000
SETTLE_S = 1.0


class Run:
    """One run of a plan in this kernel."""

    def __init__(self, run: RunDir, plan: Plan) -> None:
        self._plan = plan
        self._bench = Journal(run.journal / "bench.jsonl")
        self._link = Journal(run.journal / "link.jsonl")
        self._tcp = Journal(run.journal / "tcp.jsonl")
        self._others = Journal(run.journal / "others.jsonl")
        self._run = run
        self._distrusted: set[str] = set()
        self._netlink_thread = ThreadPoolExecutor(1)
        # pyroute2 opens a socket per thread, where that thread is: one thread does all netlink calls
        states = [*plan.link.values(), *(change.state for change in plan.changes)]
        self._super_packet_bytes = super_packet_bytes(states, plan.mtu_bytes)
        self._network = self._netlink_thread.submit(
            Network,
            plan.topology,
            plan.topology_params,
            mtu_bytes=plan.mtu_bytes,
            window_bytes=plan.window_bytes,
            super_packet_bytes=self._super_packet_bytes,
        ).result()
        self._directions = {
            name: self._netlink_thread.submit(self._direction, name).result() for name in DIRECTIONS
        }
        wan = TOPOLOGIES[plan.topology].wan
        self._counters = {name: LinkCounters(*wan[name]) for name in DIRECTIONS}

    def _direction(self, name: Direction) -> WanDirection:
        (rate_node, rate_device), (delay_node, delay_device) = TOPOLOGIES[self._plan.topology].wan[name]
        return WanDirection(
            name,
            (self._network.netlink(rate_node), rate_device, rate_node),
            (self._network.netlink(delay_node), delay_device),
            self._netlink_thread,
            largest_packet_bytes=self._super_packet_bytes,
        )

    def distrust(self, what: str) -> None:
        """Note a reason not to trust this run, once."""
        if what not in self._distrusted:
            self._distrusted.add(what)
            self._bench.note("trust", time.monotonic_ns(), what=what)

    async def execute(self) -> None:
        """Calibrate, start the agents, run the plan. Raises a TestbedError when it cannot go on."""
        plan = self._plan
        stage("calibrating")
        await self._calibrate()
        containers = None
        background: list[asyncio.Task[None]] = []
        try:
            client = None
            if plan.agents:
                stage("starting agents")
                containers = Containers(WORK, self._run.journal)
                client = await self._start_agents(containers)
            stage("running")
            t0_ns = time.monotonic_ns() + START_DELAY_NS
            self._bench.note("start", t0_ns)
            background = self._background(t0_ns)
            if client is not None:
                client.tell(f"start {t0_ns}")
            await self._until_over(t0_ns, client, containers, background)
            self._bench.note("end", time.monotonic_ns(), reason="complete")
        finally:
            stage("stopping")
            for task in background:
                task.cancel()
            if containers is not None:
                await containers.close()

    async def _calibrate(self) -> None:
        plan = self._plan
        a, b = ("tenant-a", self._at("tenant-a")), ("tenant-b", self._at("tenant-b"))
        slack_s = RTT_SLACK_S["virtual" if virtual_time() else "real"]
        await calibrate(
            self._directions,
            self._counters,
            hosts={"a_to_b": (a[0], b), "b_to_a": (b[0], a)},
            wanted=plan.link,
            journal=self._bench,
            distrust=self.distrust,
            rtt_slack_s=slack_s,
            grain_bytes=self._super_packet_bytes,
        )

    def _at(self, host: str) -> str:
        return self._network.address(host)

    async def _start_agents(self, containers: Containers) -> Container:
        """Workers first, then the router, which connects to them, and the client."""
        plan = self._plan

        async def start(*roles: str) -> list[Container]:
            started = [
                await containers.start(
                    agent.name,
                    agent.role,
                    agent.host,
                    agent.memory_bytes,
                    agent_config(plan, agent, self._at),
                )
                for agent in plan.agents
                if agent.role in roles
            ]
            await containers.all_ready(started)
            return started

        await start("prefill", "decode")
        return (await start("router", "client"))[-1]

    def _background(self, t0_ns: int) -> list[asyncio.Task[None]]:
        """Everything that goes on beside the agents."""
        plan = self._plan
        senders = sorted(
            {agent.host for agent in plan.agents if agent.role == "prefill"}
            | {burst.source for burst in plan.bursts}
            | {bulk.source for bulk in plan.bulk}
        )
        jobs: list[Coroutine[Any, Any, None]] = [
            every(
                plan.sample_ns,
                self._link_sampler(),
            ),
            every(min(TCP_INTERVAL_NS, 10 * plan.sample_ns), tcp_sampler(senders, self._tcp)),
            every(1_000_000_000, partial(progress, t0_ns)),
            self._timeline(t0_ns),
            *(self._burst("burst", burst, t0_ns) for burst in plan.bursts),
            *(
                self._burst(
                    "bulk",
                    Burst(
                        t_ns=bulk.t_ns,
                        source=bulk.source,
                        sink=bulk.sink,
                        flows=plan.transport.connections,
                        size_bytes=bulk.size_bytes,
                        congestion_control=plan.transport.congestion_control,
                    ),
                    t0_ns,
                )
                for bulk in plan.bulk
            ),
        ]
        return [asyncio.create_task(job) for job in jobs]

    def _link_sampler(self) -> Callable[[], None]:
        return link_sampler(
            self._directions,
            self._counters,
            self._link,
            self.distrust,
            largest_packet_bytes=self._super_packet_bytes,
        )

    async def _timeline(self, t0_ns: int) -> None:
        """Change the links and name the events, each at its moment."""
        steps: list[tuple[int, Any]] = [(change.t_ns, change) for change in self._plan.changes]
        steps += [(event.t_ns, event) for event in self._plan.events]
        for t_ns, step in sorted(steps, key=lambda pair: pair[0]):
            await until(t0_ns + t_ns)
            if hasattr(step, "name"):
                self._bench.note("event", time.monotonic_ns(), name=step.name, detail=step.detail)
                continue
            direction = self._directions[step.direction]
            await direction.set(step.state, step.seed)
            state = step.state
            self._bench.note(
                "link_set",
                time.monotonic_ns(),
                direction=step.direction,
                loss_ratio=loss_ratio(state),
                partitioned=state.partitioned,
                **direction.read_back,
            )

    async def _burst(self, kind: str, burst: Burst, t0_ns: int) -> None:
        """Traffic of others, or a bulk transfer; a connection that breaks is noted, not fatal."""
        await until(t0_ns + burst.t_ns)
        start_ns = time.monotonic_ns()
        end_ns, flows = None, None
        try:
            flows = await traffic.start(
                burst.source,
                (burst.sink, self._at(burst.sink)),
                flows=burst.flows,
                size_bytes=burst.size_bytes,
                congestion_control=burst.congestion_control,
            )
            end_ns = await flows.finished()
        except OSError:
            pass
        finally:
            if flows is not None:
                flows.stop()
            self._others.note(
                kind,
                start_ns,
                source=burst.source,
                sink=burst.sink,
                flows=burst.flows,
                size_bytes=burst.size_bytes,
                t_end_ns=end_ns,
            )

    async def _until_over(
        self,
        t0_ns: int,
        client: Container | None,
        containers: Containers | None,
        background: list[asyncio.Task[None]],
    ) -> None:
        """Wait for the duration and for the client's last request; an agent's or a task's death ends it."""
        plan = self._plan
        end_ns = t0_ns + plan.duration_ns
        waits: list[Awaitable[Any]] = [until(end_ns)]
        if client is not None:
            waits.append(client.done.wait())
        over = asyncio.ensure_future(asyncio.gather(*waits))
        watched: set[asyncio.Future[Any]] = {over}
        if containers is not None:
            watched.add(asyncio.create_task(containers.death()))
        while not over.done():
            done, _ = await asyncio.wait({*watched, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {over}:
                result = task.result()  # raises what the task died of
                if isinstance(result, AgentError):
                    raise result
                background = [one for one in background if one is not task]
                watched.discard(task)
        await asyncio.sleep(SETTLE_S)


async def until(moment_ns: int) -> None:
    """Sleep until CLOCK_MONOTONIC shows this."""
    await asyncio.sleep(max(0, moment_ns - time.monotonic_ns()) / 1e9)


def stage(name: str) -> None:
    """Say what happens next."""
    print(f"@stage {name}", flush=True)


def progress(t0_ns: int) -> None:
    """Say how far virtual time has come."""
    print(f"@progress {max(0, time.monotonic_ns() - t0_ns) / 1e9:.3f}", flush=True)


def virtual_time() -> bool:
    """Whether this kernel's clock is virtual."""
    return "time-travel=inf-cpu" in Path("/proc/cmdline").read_text(encoding="ascii")


def main() -> None:
    """Run; write outcome.json whatever happens."""
    run = RunDir(Path(sys.argv[1]))
    run.journal.mkdir(exist_ok=True)
    outcome: dict[str, Any] = {"finished": False, "problems": []}
    try:
        stage("building network")
        plan = Plan.read(run.plan)
        namespaces.private_mounts()
        with ExitStack() as stack:
            connections = len(plan.agents) * plan.transport.connections
            stack.enter_context(sysctl.for_kernel(plan.window_bytes, connections))
            asyncio.run(Run(run, plan).execute())
        outcome["finished"] = True
    except TestbedError as error:
        outcome["problems"] = [str(problem) for problem in error.problems]
    except KeyboardInterrupt:
        outcome["problems"] = ["interrupted"]
    except Exception as error:
        outcome["problems"] = [f"{type(error).__name__}: {error}"]
        raise
    finally:
        with suppress(OSError):
            run.outcome.write_bytes(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
