"""One direction of the link in the scenario's terms, and what the kernel is to be set to for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.plan import LinkState, Loss, Queue, Slot, TokenBucket
from testbed.resolve.findings import Findings
from testbed.resolve.link_traces import read_delays
from testbed.scenario import link as spec
from testbed.scenario.quantities import NETEM_LOSS_STEP, Buffer
from testbed.scenario.source import KeyPath
from testbed.shaping import distributions

TAIL_DROP: Final = Queue()
FILE: Final = "file:"
"""Before the names of distributions that come from files: a file may be called `normal`, too."""


@dataclass(frozen=True)
class Jitter:
    """Scale (ns) and the name of a table in Plan.delay_tables."""

    scale_ns: int
    distribution: str = "uniform"


@dataclass(frozen=True)
class Factor:
    """What noise multiplies the rate by now, and the least that it may come to, whatever is drawn."""

    now: float = 1.0
    least: float = 1.0


@dataclass(frozen=True)
class Conditions:
    """One direction of the link as the scenario gives it, unscaled, but for `noise` and `storm`: the
    factors by which noise all run long, and for a while, moves the rate.

    A buffer given as a time follows the rate without its noise: a queue does not change its size because
    others take a part of the line.
    """

    rate: int
    buffer: Buffer
    delay: int
    jitter: Jitter
    loss: float | spec.LossModel
    reorder: float
    duplicate: float
    corrupt: float
    slot: spec.Slot | None
    queue: spec.QueueSpec
    token_bucket: spec.TokenBucket | None
    flow_cap: int | None
    path_mtu: int | None
    black_hole_above: int | None
    limit: int | None
    partitioned: bool = False
    noise: Factor = Factor()
    storm: Factor = Factor()

    def state(self, scale: float) -> LinkState:
        """What the kernel is to be set to."""
        nominal_bps = round(self.rate * scale)
        buffer_bytes = self.buffer.size_bytes(nominal_bps, scale)
        return LinkState(
            rate_bps=_whole_bytes(nominal_bps * self.noise.now * self.storm.now),
            buffer_bytes=buffer_bytes,
            delay_ns=self.delay,
            jitter_ns=self.jitter.scale_ns,
            distribution=self.jitter.distribution,
            loss=plan_loss(self.loss) if self.loss else None,
            reorder=self.reorder,
            duplicate=self.duplicate,
            corrupt=self.corrupt,
            slot=None if self.slot is None else _plan_slot(self.slot, scale),
            queue=_plan_queue(self.queue, buffer_bytes, scale),
            token_bucket=self._token_bucket(scale),
            flow_cap_bps=None if self.flow_cap is None else _whole_bytes(self.flow_cap * scale),
            path_mtu_bytes=self.path_mtu,
            black_hole_bytes=self.black_hole_above,
            limit_packets=self.limit,
            partitioned=self.partitioned,
        )

    def least_bps(self, scale: float) -> int:
        """The rate when noise is at its worst."""
        return _whole_bytes(round(self.rate * scale) * self.noise.least * self.storm.least)

    def _token_bucket(self, scale: float) -> TokenBucket | None:
        if self.token_bucket is None:
            return None
        return TokenBucket(
            sustained_bps=_whole_bytes(self.token_bucket.sustained * scale),
            budget_bytes=round(self.token_bucket.budget * scale),
        )


def _whole_bytes(rate_bps: float) -> int:
    """The rate that the kernel can have, which counts whole bytes a second."""
    return round(rate_bps / 8) * 8


class Shapes:
    """Jitters as the scenario gives them, in the terms of `Conditions`; collects the tables they need."""

    def __init__(self, directory: Path, findings: Findings) -> None:
        self._directory, self._findings = directory, findings
        self._files: dict[str, Jitter] = {}
        self.tables: dict[str, bytes] = {}

    def jitter(self, given: int | spec.JitterShape | spec.JitterFile, path: KeyPath) -> Jitter:
        """Named distributions by their name, those of files with FILE before it; problems are noted."""
        match given:
            case spec.JitterFile():
                if given.file not in self._files:
                    self._files[given.file] = self._measured(given.file, path)
                return self._files[given.file]
            case spec.JitterShape():
                jitter = Jitter(given.scale, given.distribution)
            case _:
                jitter = Jitter(given)
        if jitter.scale_ns or jitter.distribution != "uniform":
            self._name("uniform", jitter.distribution)
        return jitter

    def followed(self, width_ns: int, before: Jitter) -> Jitter:
        """A bare jitter where `before` says the distribution, as the rows of a trace have it.

        Half the width of `uniform`; the standard deviation of every other, that of a file included, whose own
        scale is only the unit of its table.
        """
        if not before.distribution.startswith(FILE):
            self._name("uniform", before.distribution)
            return Jitter(width_ns, before.distribution)
        deviation = distributions.deviation(self.tables[before.distribution])
        return Jitter(round(width_ns / deviation), before.distribution)

    def _name(self, *names: str) -> None:
        """Have the tables of named distributions among those of the plan."""
        for name in names:
            if name not in self.tables:
                self.tables[name] = distributions.table(name)

    def _measured(self, file: str, path: KeyPath) -> Jitter:
        samples_ns = read_delays(self._directory / file, path, self._findings)
        if not samples_ns:
            return Jitter(0)
        try:
            table, _, scale_ns = distributions.from_samples(samples_ns)
        except ValueError as error:
            found = f"{file} makes no distribution: {error}"
            allowed = "delays that differ, and of which none is both far from the others and rare"
            self._findings.add(
                (*path, "file"), found, allowed, "leave the rare ones out, or have fewer others"
            )
            return Jitter(0)
        self._name("uniform")
        self.tables[FILE + file] = table
        return Jitter(scale_ns, FILE + file)

    def fields(self, changes: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        """Changed fields of a direction with the jitter in the terms of `Conditions`."""
        if "jitter" not in changes:
            return changes
        return changes | {"jitter": self.jitter(changes["jitter"], (*path, "jitter"))}

    def conditions(self, direction: spec.LinkDirection, path: KeyPath) -> Conditions:
        """The conditions of a direction at the start."""
        beside = {"preset", "noise", "outage"}
        values = {
            name: getattr(direction, name) for name in type(direction).model_fields if name not in beside
        }
        return Conditions(**self.fields(values, path))


def plan_loss(loss: float | spec.LossModel) -> Loss | None:
    """A scenario's loss in the plan's terms.

    Correlated loss is the two-state chain with the same share of lost packets and the same correlation of
    two in a row: p / (p + r) = ratio, 1 - p - r = correlation.
    """
    match loss:
        case spec.GilbertElliott():
            return Loss(model="gilbert_elliott", p=loss.p, r=loss.r, loss_bad=loss.bad, loss_good=loss.good)
        case spec.CorrelatedLoss():
            leave = 1 - loss.correlation
            return Loss(model="gilbert_elliott", p=loss.ratio * leave, r=(1 - loss.ratio) * leave)
        case spec.FourStateLoss():
            # netem adds the two ways out of a state in 32 bits: a sum of exactly 1 may be its 0.
            return Loss(
                model="four_state",
                p13=loss.p13 - NETEM_LOSS_STEP if loss.p14 and loss.p13 + loss.p14 == 1 else loss.p13,
                p31=loss.p31 - NETEM_LOSS_STEP if loss.p32 and loss.p31 + loss.p32 == 1 else loss.p31,
                p32=loss.p32,
                p23=loss.p23,
                p14=loss.p14,
            )
        case spec.PeriodicLoss():
            return Loss(model="periodic", every_packets=loss.every)
        case _:
            return Loss(model="random", ratio=loss) if loss else None


def _plan_slot(slot: spec.Slot, scale: float) -> Slot:
    return Slot(
        min_ns=slot.low,
        max_ns=slot.high,
        packets=slot.packets or 0,
        size_bytes=max(1, round(slot.size * scale)) if slot.size else 0,
    )


def _plan_queue(queue: spec.QueueSpec, buffer_bytes: int, scale: float) -> Queue:
    match queue:
        case spec.Codel():
            return Queue(kind=queue.kind, ecn=queue.ecn, target_ns=queue.target, interval_ns=queue.interval)
        case spec.Red():
            return Queue(
                kind="red",
                ecn=queue.ecn,
                min_bytes=queue.low.size_bytes(buffer_bytes, scale),
                max_bytes=queue.high.size_bytes(buffer_bytes, scale),
                probability=queue.probability,
            )
        case spec.TailDrop():
            return TAIL_DROP
