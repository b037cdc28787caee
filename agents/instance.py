"""An instance: one node's GPUs, in the role of prefill or of decode, and on demand in the other.

Both roles are there from the start, around one listener, one pool of KV connections and one journal; the
router decides who gets which work. An instance that is told to change its role (`become`) finishes what it
has, then spends the conversion time, then says that it has changed.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from agents import config, wire
from agents.decode import Decode
from agents.journal import Journal
from agents.prefill import Prefill
from agents.ticks import Ticks
from agents.transport.receiver import Arrival, Receiver
from agents.transport.sender import Sender, Signals


class Instance:
    """The node; `prefill` and `decode` are its two halves."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self._router: wire.Channel | None = None
        self._last: Signals | None = None
        self._ticks = Ticks(settings.scheduling.interval_ns / 1e9, self._report)
        self._converting: asyncio.Task[None] | None = None
        transport = settings.transport
        self._sender = Sender(
            connections=transport.connections,
            chunk_bytes=transport.chunk_bytes,
            verified=transport.payload == "verified",
            congestion_control=transport.congestion_control,
        )
        self._receiver = Receiver(self._arrived, self._refused)
        self.prefill = Prefill(settings, self._journal, self._sender, self.tell, self._ticks.wake)
        self.decode = Decode(settings, self._journal, self._receiver, self.tell)

    async def run(self) -> None:
        """Serve until killed."""
        address = self._settings.me.address
        await wire.serve(address, config.CONTROL_PORT, self.connected, self.take)
        self._receiver.listen((address, config.KV_PORT), self._settings.transport.congestion_control)
        config.say_ready()
        await self.prefill.compute()

    def connected(self, channel: wire.Channel) -> None:
        """The router is there, so every instance is: open the connections before they are needed."""
        self._router = channel
        if self._settings.me.role == "prefill":
            self.prefill.open_pools()

    def tell(self, op: str, **fields: object) -> None:
        """Say something to the router."""
        assert self._router is not None
        self._router.send(op, **fields)

    def take(self, message: wire.Message) -> None:
        """Do what the router says."""
        match message["op"]:
            case "prefill":
                self.prefill.take(message)
            case "ship":
                self.prefill.ship(message)
            case "become":
                self._converting = asyncio.create_task(self._become(message["role"], message["conversion_s"]))
            case "expect" | "cancel":
                self.decode.take(message)
            case op:
                raise AssertionError(op)

    def _arrived(self, arrival: Arrival) -> None:
        if arrival.id >= config.FIRST_CACHE_TRANSFER:
            self.tell("fetched", id=arrival.id)
        else:
            self.decode.arrived(arrival)

    def _refused(self, arrival: Arrival) -> None:
        if arrival.id < config.FIRST_CACHE_TRANSFER:
            self.decode.refused(arrival)

    async def _become(self, role: str, conversion_s: float) -> None:
        """Finish the work of the present role, convert, and say so."""
        start_ns = time.monotonic_ns()
        await (self.prefill if role == "decode" else self.decode).idle()
        drained_ns = time.monotonic_ns()
        await asyncio.sleep(conversion_s)
        self._journal.note(
            "conversion", start_ns, role=role, t_drained_ns=drained_ns, t_end_ns=time.monotonic_ns()
        )
        self.tell("became", role=role)

    def _report(self) -> bool:
        """Tell the router what the connections say, if something moved; whether something may still move."""
        signals = self._sender.signals()
        if self._router is not None and signals != self._last:
            self.tell("signals", **msgspec.structs.asdict(signals))
        self._last = signals
        return signals.active > 0


def main() -> None:
    """The program."""
    asyncio.run(Instance(config.from_arguments()).run())
