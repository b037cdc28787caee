"""Inside the kernel: `python -m testbed.inside RUN_DIR` builds the network, runs the plan, keeps the journal.

Says what it is doing on stdout: `@stage NAME`, `@progress SECONDS` (virtual, since t0). How it went is in
outcome.json; the journal is complete up to the moment of any death.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agents.config import COMPUTE_ENVIRONMENT
from testbed import filling, holding, namespaces, probes, reference, sysctl
from testbed.capture.tcpdump import FLUSH_S, Captures
from testbed.containers import Container, Containers, Recipe
from testbed.errors import AgentError, TestbedError
from testbed.faults import Faults
from testbed.journal import Journal
from testbed.moments import cancelled, until
from testbed.plan import DIRECTIONS, Agent, Direction, Plan
from testbed.programs import Programs
from testbed.rundir import RunDir
from testbed.shaping.link import WanDirection, loss_ratio, super_packet_bytes
from testbed.shaping.segmentation import loses_super_packets_whole
from testbed.system import agent_config, congestion_controls, prefixes_bytes, shares_prefixes
from testbed.telemetry import path
from testbed.telemetry.lag import Lag, allowed_ns
from testbed.telemetry.link import LinkCounters
from testbed.telemetry.samplers import SettingsReader, every, link_sampler, tcp_sampler
from testbed.telemetry.watch import Watch
from testbed.topology import Network
from testbed.traffic.others import Others, patience_ns
from topologies import TOPOLOGIES

WORK = Path("/run/testbed/work")
START_DELAY_NS = 100_000_000
BEGUN_S = 0.001
"""After t0: whoever had to do something then has done it, as work takes no virtual time."""
LEAST_STEP_NS, STEPS = 1_000_000_000, 200
"""How often to say how far virtual time has come: every second, but not oftener than that in all."""
SETTLE_S = 1.0
SETTLE_NS = 1_000_000_000
QUIET_STEP_S = 0.01
READINGS = 100


class Run:
    """One run of a plan in this kernel."""

    def __init__(self, run: RunDir, plan: Plan) -> None:
        self._plan = plan
        self._bench = Journal(run.journal / "bench.jsonl")
        self._proof = Journal(run.journal / "audit.jsonl")
        self._link = Journal(run.journal / "link.jsonl")
        self._tcp = Journal(run.journal / "tcp.jsonl")
        self._others = Others(plan, Journal(run.journal / "others.jsonl"), self._at, self.distrust)
        self._captures = Captures(plan.captures, run.pcap, self._bench)
        self._run = run
        self._distrusted: set[str] = set()
        states = [*plan.link.values(), *(change.state for change in plan.changes)]
        self._super_packet_bytes = super_packet_bytes(states, plan.mtu_bytes)
        self._network = Network(
            plan.topology,
            plan.topology_params,
            mtu_bytes=plan.mtu_bytes,
            window_bytes=plan.window_bytes,
            super_packet_bytes=self._super_packet_bytes,
            ecn=any(state.marks_ecn() for state in states) or "dctcp" in congestion_controls(plan),
        )
        self._directions = {name: self._direction(name) for name in DIRECTIONS}
        wan = TOPOLOGIES[plan.topology].wan
        self._wan: path.Wan = {name: wan[name] for name in DIRECTIONS}
        shaped = {place for direction in self._directions.values() for place in direction.places}
        self._counters = LinkCounters(self._wan)
        self._settings = SettingsReader(self._directions, Watch(shaped), self._proof)

    def _direction(self, name: Direction) -> WanDirection:
        plan, topology = self._plan, TOPOLOGIES[self._plan.topology]
        rate_stage, delay_stage = topology.wan[name]
        return WanDirection(
            name,
            rate_stage,
            delay_stage,
            topology.feed[name],
            largest_packet_bytes=self._super_packet_bytes,
            mtu_bytes=plan.mtu_bytes,
            hosts=self._network.hosts,
            delay_tables=plan.delay_tables,
            offload=plan.offload,
            later=[change.state for change in plan.changes if change.direction == name],
        )

    def distrust(self, what: str) -> None:
        """Note a reason not to trust this run, once."""
        if what not in self._distrusted:
            self._distrusted.add(what)
            self._bench.note("trust", time.monotonic_ns(), what=what)

    async def execute(self) -> None:
        """Audit the link, start the agents, run the plan. Raises a TestbedError when it cannot go on."""
        plan = self._plan
        stage("auditing the link")
        await self._audit()
        containers = None
        addresses = {host: self._at(host) for host in self._network.hosts}
        programs = Programs(plan, WORK / "programs", self._run, self._bench, addresses)
        background: list[asyncio.Task[None]] = []
        try:
            client = None
            await programs.come_up()
            if plan.agents:
                stage("starting agents")
                containers = Containers(WORK, self._run.journal, prefixes_bytes(plan))
                client = await self._start_agents(containers)
            self._others.prepare()
            self._captures.start()
            stage("running")
            t0_ns = time.monotonic_ns() + START_DELAY_NS
            self._bench.note("start", t0_ns)
            self._note_counters("start")
            background = self._background(t0_ns)
            ending = self._faults(t0_ns, containers)
            ending += [asyncio.create_task(job) for job in programs.jobs(t0_ns)]
            background += ending
            if client is not None:
                client.tell(f"start {t0_ns}")
            asyncio.get_running_loop().call_later(START_DELAY_NS / 1e9 + BEGUN_S, progress, t0_ns)
            await self._until_over(t0_ns, client, containers, background, ending)
            end_ns = time.monotonic_ns()
            await cancelled(background)
            await self._quiet()
            self._note_counters("end")
            self._settings.read()
            self._settings.note()
            if self._captures:
                await asyncio.sleep(FLUSH_S)
                self._captures.stop(self.distrust)
            if containers is not None and plan.compute == "real":
                await self._reference(containers)
            self._bench.note("end", end_ns, reason="complete")
            await holding.held(self._run)
        finally:
            stage("stopping")
            await cancelled(background)
            self._captures.kill()
            await programs.close()
            if containers is not None:
                await containers.close()

    async def _audit(self) -> None:
        """Measure what the link gives, into the journal; leaves it without impairments, as agents start."""
        plan = self._plan
        a, b = (("tenant-a", self._at("tenant-a")), ("tenant-b", self._at("tenant-b")))
        hosts: dict[Direction, tuple[tuple[str, str], tuple[str, str]]] = {"a_to_b": (a, b), "b_to_a": (b, a)}
        await filling.measure(
            self._directions,
            self._counters,
            hosts=hosts,
            wanted=plan.link,
            journal=self._proof,
            grain_bytes=self._super_packet_bytes,
        )
        for name, direction in self._directions.items():
            await direction.set(plan.link[name], plan.seed)
        taps = {name: rate_stage for name, (rate_stage, _) in self._wan.items()}
        clock = "virtual" if virtual_time() else "real"
        for name, train in probes.measure(self._run, plan, hosts, taps, clock=clock).items():
            self._proof.note(
                "train",
                time.monotonic_ns(),
                direction=name,
                tells_limit_drops=not loses_super_packets_whole(),
                **train,
            )
        for name, direction in self._directions.items():
            await direction.set(filling.cleaned(plan.link[name]), seed=0)

    async def _quiet(self) -> None:
        """Wait until nothing is on its way through the WAN, at most a second longer than it can be."""
        deadline_ns = time.monotonic_ns() + patience_ns(self._plan) + SETTLE_NS
        while time.monotonic_ns() < deadline_ns:
            if all(one.empty for one in self._counters.read().values()):
                return
            await asyncio.sleep(QUIET_STEP_S)

    def _note_counters(self, moment: str) -> None:
        for name in DIRECTIONS:
            places = self._standing(name)
            self._proof.note("counters", time.monotonic_ns(), direction=name, moment=moment, places=places)

    def _standing(self, name: Direction) -> dict[str, path.Place]:
        """The counters of one moment: read again until nothing moved while they were read.

        A run that ends under overload ends with KV on its way.
        """
        places = path.read(self._wan, name)
        for _ in range(READINGS):
            again = path.read(self._wan, name)
            if again == places:
                break
            places = again
        return places

    def _at(self, host: str) -> str:
        return self._network.address(host)

    async def _start_agents(self, containers: Containers) -> Container:
        """Workers first, then the router, which connects to them, and the client."""
        plan = self._plan

        async def start(*roles: str) -> list[Container]:
            started = [
                await containers.start(self._recipe(agent)) for agent in plan.agents if agent.role in roles
            ]
            await containers.all_ready(started)
            return started

        await start("prefill", "decode")
        return (await start("router", "client"))[-1]

    def _recipe(self, agent: Agent, completed: Collection[int] | None = None) -> Recipe:
        return Recipe(
            name=agent.name,
            role=agent.role,
            host=agent.host,
            memory_bytes=agent.memory_bytes,
            config=agent_config(self._plan, agent, self._at, completed),
            shares=shares_prefixes(self._plan, agent),
            environment=COMPUTE_ENVIRONMENT if self._plan.compute == "real" else {},
        )

    async def _reference(self, containers: Containers) -> None:
        """Compute every answered request once more, alone; of those that it does not come to nobody knows."""
        plan = self._plan
        answered = reference.answered(self._run.journal)
        if not answered:
            return
        stage("computing in one process what the answers should be")
        recipe = self._recipe(reference.agent(plan), answered)
        try:
            await containers.done(await containers.start(recipe), reference.patience_s(plan))
        except AgentError as error:
            print(error, flush=True)

    def _background(self, t0_ns: int) -> list[asyncio.Task[None]]:
        """Everything that goes on beside the agents."""
        plan = self._plan
        senders = sorted(
            {agent.host for agent in plan.agents if agent.role == "prefill"} | self._others.senders
        )
        jobs: list[Coroutine[Any, Any, None]] = [
            every(plan.sample_ns, self._link_sampler()),
            every(plan.tcp_sample_ns, tcp_sampler(senders, self._tcp, self._others.bulk_ends)),
            every(max(LEAST_STEP_NS, plan.duration_ns // STEPS), partial(progress, t0_ns)),
            every(1_000_000_000, self._settings.read),
            self._timeline(t0_ns),
            *self._others.jobs(t0_ns),
        ]
        if plan.compute != "real" and not virtual_time():  # real kernels are to take what there is
            jobs.append(Lag(allowed_ns(plan), self.distrust).watch(t0_ns))
        return [asyncio.create_task(job) for job in jobs]

    def _faults(self, t0_ns: int, containers: Containers | None) -> list[asyncio.Task[None]]:
        """A job for each fault; they end with it."""
        if containers is None:
            return []
        faults = Faults(self._plan.faults, containers, self._bench)
        return [asyncio.create_task(job) for job in faults.jobs(t0_ns)]

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
                settings=direction.settings,
            )

    async def _until_over(
        self,
        t0_ns: int,
        client: Container | None,
        containers: Containers | None,
        background: list[asyncio.Task[None]],
        ending: list[asyncio.Task[None]],
    ) -> None:
        """Wait for the duration, for what ends by itself, and for the client's last request.

        An agent's or a task's death ends it.
        """
        plan = self._plan
        end_ns = t0_ns + plan.duration_ns
        waits: list[Awaitable[Any]] = [until(end_ns)]
        if client is not None:
            waits.append(client.done.wait())
        if ending:
            waits.append(asyncio.wait(ending))
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
    atexit.register(gc.freeze)  # else Python looks for cycles in all that was loaded before it ends
    run = RunDir(Path(sys.argv[1]))
    run.journal.mkdir(exist_ok=True)
    outcome: dict[str, Any] = {"finished": False, "problems": []}
    try:
        stage("building network")
        plan = Plan.read(run.plan)
        namespaces.private_mounts(WORK)
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
