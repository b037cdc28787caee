"""An instance: one node's GPUs, in the role of prefill or of decode, and on demand in the other.

Both roles are there from the start, around one listener, one pool of KV connections and one journal; the
router decides who gets which work. An instance that is told to change its role (`become`) finishes what it
has, then spends the conversion time, then says that it has changed.

Whoever operates it may say on its stdin, a line each: `slow FACTOR`, `corrupt CHUNKS`, `fill on`, `fill off`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from agents import config, session, timeouts, wire
from agents.decode import Decode
from agents.journal import Journal
from agents.landing import Landing
from agents.prefill import Prefill
from agents.ticks import Ticks, end_at_errors
from agents.transport.receiver import Arrival, Receiver, ReceiverSettings
from agents.transport.sender import Sender, SenderSettings, Signals

if TYPE_CHECKING:
    from agents.compute.engine import Kernels

_ORDER_BYTES = 4096


class Instance:
    """The node; `prefill` and `decode` are its two halves."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self._last: Signals | None = None
        self._before: Signals | None = None
        """What the connections had counted when the present router came."""
        self._ticks = Ticks(settings.scheduling.interval_ns / 1e9, self._tick)
        self._converting: asyncio.Task[None] | None = None
        me, transport = settings.me, settings.transport
        self._server = session.Server(
            me.address,
            config.CONTROL_PORT,
            congestion_control=transport.control_congestion_control,
            handle=self.take,
            on_router=self._connected,
            beat=self._beat,
        )
        self._sender = Sender(SenderSettings.of(settings), on_connection=self._note_connection)
        for peer in settings.instances():
            if peer.name != me.name:
                wan = peer.cluster != me.cluster
                self._sender.add_peer(
                    peer.name,
                    (peer.address, config.KV_PORT),
                    congestion_control=transport.congestion_control
                    if wan
                    else transport.lan_congestion_control,
                    pacing_bps=transport.pacing_bps if wan else 0,
                )
        self._receiver = Receiver(
            ReceiverSettings.of(settings),
            self._arrived,
            self._dropped,
            self._note_held,
            self._ticks.wake,
        )
        kernels = _kernels(settings)
        send, wake = self._server.send, self._ticks.wake
        self.prefill = Prefill(settings, self._journal, self._sender, send, wake, kernels=kernels)
        self.decode = Decode(settings, self._journal, self._receiver, send, kernels)
        files = kernels.files if kernels is not None else None
        self._landing = Landing(settings, self._receiver, send, files)

    async def run(self) -> None:
        """Serve until killed."""
        me = self._settings.me
        await self._server.listen()
        self._receiver.listen((me.address, config.KV_PORT), self._settings.transport.congestion_control)
        asyncio.get_running_loop().add_reader(sys.stdin, self._ordered)
        config.say_ready()
        await self.prefill.compute()

    def _ordered(self) -> None:
        """Do what the operator says."""
        lines = os.read(sys.stdin.fileno(), _ORDER_BYTES).decode().splitlines()
        if not lines:
            asyncio.get_running_loop().remove_reader(sys.stdin)
        for line in lines:
            self.order(*line.split())

    def order(self, what: str, value: str) -> None:
        """One word and one value, as above."""
        match what:
            case "slow":
                self.prefill.slowness = float(value)
                self.decode.slow(float(value))
            case "corrupt":
                self._sender.corrupt(int(value))
            case "fill":
                self._receiver.fill(value == "on")
            case _:
                raise AssertionError(what)

    def _connected(self, new: bool) -> None:
        """The router is there, so every instance is: open the connections before they are needed."""
        if new:
            self.prefill.forget()
            self.decode.forget()
            self._landing.forget()
            self._receiver.forget()
            if self._converting is not None:
                self._converting.cancel()
            self._before = self._sender.signals()
        self._last = None  # what was said meanwhile may not have been heard
        # Half an interval from when the router begins to look, or what it sees would be a matter of luck.
        half_s = self._settings.scheduling.interval_ns / 2e9
        asyncio.get_running_loop().call_later(half_s, self._ticks.wake)
        if self._settings.me.role == "prefill":
            self.prefill.open_pools()

    def take(self, message: wire.Message) -> None:
        """Do what the router says."""
        match message["op"]:
            case "prefill":
                self.prefill.take(message)
            case "ship":
                self.prefill.ship(message)
            case "land":
                self._landing.expect(message)
            case "become":
                self._converting = asyncio.create_task(self._become(message["role"], message["conversion_s"]))
            case "expect":
                self.decode.expect(message)
            case "cancel":
                self.prefill.cancel(message["id"])
                self.decode.cancel(message["id"])
                self._landing.cancel(message["id"])
            case op:
                raise AssertionError(op)

    def _arrived(self, arrival: Arrival) -> None:
        if arrival.number >= config.FIRST_CACHE_TRANSFER:
            self._landing.arrived(arrival)
        else:
            self.decode.arrived(arrival)

    def _dropped(self, arrival: Arrival, cause: str) -> None:
        if arrival.number < config.FIRST_CACHE_TRANSFER:
            self.decode.dropped(arrival, cause)

    async def _become(self, role: str, conversion_s: float) -> None:
        """Finish the work of the present role, convert, and say so."""
        start_ns = time.monotonic_ns()
        await (self.prefill if role == "decode" else self.decode).idle()
        drained_ns = time.monotonic_ns()
        await asyncio.sleep(conversion_s)
        self._journal.note(
            "conversion", start_ns, role=role, t_drained_ns=drained_ns, t_end_ns=time.monotonic_ns()
        )
        self._server.send("became", role=role)

    def _beat(self) -> wire.Message:
        """Signs of life for the router."""
        return {**self.prefill.beat(), "decoding": self.decode.decoding}

    def _tick(self) -> bool:
        """Once per control interval: give up what stands still, and tell the router what the connections say,
        if something moved; whether something may still move.
        """
        now_ns = time.monotonic_ns()
        self._sender.tick(now_ns)
        self.decode.look(now_ns)
        if self._settings.me.cluster == "prfaas":
            signals = self._signals()
            if signals != self._last:
                self._server.say("signals", **msgspec.structs.asdict(signals))
            self._last = signals
        return self._sender.active or self._receiver.active

    def _signals(self) -> Signals:
        """What the connections say, counted from when the present router came."""
        now, before = self._sender.signals(), self._before
        if before is None:
            return now
        return msgspec.structs.replace(
            now,
            acked_bytes=now.acked_bytes - before.acked_bytes,
            retrans_bytes=now.retrans_bytes - before.retrans_bytes,
        )

    def _note_held(self, held_bytes: int, count: int) -> None:
        self._journal.note(
            "held", time.monotonic_ns(), pool="receive", size_bytes=held_bytes, transfers=count
        )
        self._ticks.wake()

    def _note_connection(self, peer: str, opened: bool, sockets: int, cause: str) -> None:
        self._journal.note(
            "connection", time.monotonic_ns(), peer=peer, opened=opened, sockets=sockets, cause=cause
        )


def _kernels(settings: config.Config) -> Kernels | None:
    """What computes here; None where everything is replayed."""
    if settings.compute is None:
        return None
    from agents.compute.engine import Kernels  # noqa: PLC0415 - torch, only where it computes

    kernels = Kernels(settings)
    if settings.compute.longest_tokens:
        kernels.warm_up(settings.compute.longest_tokens)
    return kernels


async def _main() -> None:
    settings = config.from_arguments()
    timeouts.check(settings.timeouts)
    end_at_errors()
    await Instance(settings).run()


def main() -> None:
    """The program."""
    asyncio.run(_main())
