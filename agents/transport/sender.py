"""The sending half: transfers to any number of receivers, over a few connections each that are opened anew.

A transfer is offered at once, so that the receiver can say when it has room; its chunks follow as they are
produced. What a broken connection did not bring over is sent again by another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from xxhash import xxh3_64_intdigest

from agents.timeouts import LATE
from agents.transport.lanes import Route
from agents.transport.payload import Kept
from agents.transport.peers import Peer
from agents.transport.settings import SenderSettings
from agents.transport.tcp_info import TcpInfo
from agents.transport.transfers import Chunk, Transfer, TransferError

__all__ = ["Sender", "SenderSettings", "Signals", "Transfer", "TransferError"]


class Signals(msgspec.Struct, frozen=True):
    """What the connections of one sender say of the path; the counters run since the start.

    `backlog_bytes`: produced for sending and not yet acknowledged by the receiver's TCP.
    `rtt_s`: mean smoothed RTT of the active connections, 0 without any; `min_rtt_s`: smallest ever seen.
    """

    acked_bytes: int
    retrans_bytes: int
    backlog_bytes: int
    rtt_s: float
    min_rtt_s: float
    active: int


class Sender:
    """Sends KV. `on_connection(peer, opened, sockets, cause)` is called when a connection opened, or broke,
    or could not be opened (once for the same cause in a row); `sockets`: how many stand now, to all peers.
    """

    def __init__(
        self,
        settings: SenderSettings,
        on_connection: Callable[[str, bool, int, str], None] = lambda *_what: None,
    ) -> None:
        self._settings, self._on_connection = settings, on_connection
        self._peers: dict[str, Peer] = {}
        self._transfers: dict[int, Transfer] = {}
        self._to_damage = 0
        self._order = 0
        self._min_rtt_s = 0.0
        self._infos: list[TcpInfo] | None = None
        self._ticked_ns = 0

    @property
    def active(self) -> bool:
        """Whether there is anything to `tick` for."""
        return any(peer.active for peer in self._peers.values())

    def goodput_bps(self, peer: str) -> float:
        """What all connections to a peer got through together, of late; 0: nothing was measured yet."""
        return self._peers[peer].goodput_bps

    def add_peer(
        self, name: str, address: tuple[str, int], *, congestion_control: str, pacing_bps: int = 0
    ) -> None:
        """Say where a receiver listens, and how its connections are to send: at most `pacing_bps` each (0: no
        limit). Nothing is opened yet.
        """
        route = Route(
            address=address,
            congestion_control=congestion_control,
            pacing_bps=pacing_bps,
            sender=xxh3_64_intdigest(self._settings.name.encode()),
            probe_ns=self._settings.probe_ns,
            probe_max_ns=self._settings.probe_max_ns,
        )
        self._peers[name] = Peer(
            self._settings,
            route,
            name,
            on_over=self._over,
            on_connection=self._connection,
            damage=self._damage,
        )

    async def connect(self, peer: str) -> None:
        """Open all connections to a peer before they are needed; those that fail are opened when they are."""
        await self._peers[peer].connect()

    def begin(self, number: int, peer: str, sizes: list[int], *, priority: float = 0.0) -> Transfer:
        """Offer a transfer whose groups of layers will have these sizes, in bytes. With `tensors` there is
        memory for all of them until the transfer is over; OSError when the kernel has none.
        """
        chunk_bytes, payload = self._settings.chunk_bytes, self._settings.payload
        chunks = sum(-(-size // chunk_bytes) for size in sizes)
        now_ns = time.monotonic_ns()
        transfer = Transfer(
            number,
            peer,
            sum(sizes),
            chunks,
            payload=payload,
            kept=Kept(sum(sizes)) if payload == "tensors" else None,
            priority=priority,
            started_ns=now_ns,
            moved_ns=now_ns,
            to_send=chunks,
        )
        self._transfers[number] = transfer
        self._peers[peer].begin(transfer)
        return transfer

    def push(
        self, transfer: Transfer, layer: int, size_bytes: int, data: bytes | memoryview | None = None
    ) -> None:
        """Hand over what is finished up to `layer`; with `tensors`, and only then, its very bytes, which are
        copied. When the transfer is over, nothing is taken any more.
        """
        if transfer.over.done():
            return
        assert (data is None) == (transfer.kept is None)
        view = memoryview(data or b"").cast("B")
        if transfer.kept is not None:
            assert len(view) == size_bytes
            transfer.kept.write(transfer.produced_bytes, view)
        if not transfer.produced_bytes:
            transfer.started_ns = time.monotonic_ns()
        peer = self._peers[transfer.peer]
        for start in range(0, size_bytes, self._settings.chunk_bytes):
            size = min(size_bytes - start, self._settings.chunk_bytes)
            checksum = xxh3_64_intdigest(view[start : start + size]) if view else 0
            self._order += 1
            offset = transfer.produced_bytes + start
            peer.push(Chunk(transfer, layer, transfer.made, size, self._order, offset, checksum))
            transfer.made += 1
        transfer.produced_bytes += size_bytes
        peer.flush()

    def drop(self, number: int, cause: str) -> None:
        """Give a transfer up: what waits is forgotten, the receiver is told, `over` fails with the cause."""
        transfer = self._transfers.get(number)
        if transfer is not None:
            self._peers[transfer.peer].end(transfer, cause, tell=True)

    def corrupt(self, chunks: int) -> None:
        """Turn one bit over in each of the next chunks, after they were summed up; none of `synthetic`."""
        self._to_damage = chunks

    def tick(self, now_ns: int) -> None:
        """Look what has moved, and give up what has not: connections, then transfers. `now_ns` is
        CLOCK_MONOTONIC. To be called every control interval while there is anything `active`.
        """
        self._sample(now_ns)
        late = now_ns - self._ticked_ns > LATE * self._settings.tick_ns
        self._ticked_ns = now_ns
        moved_ns = max((peer.moved_ns for peer in self._peers.values()), default=0)
        for peer in self._peers.values():
            if late:
                peer.excuse(now_ns)
            peer.judge(now_ns, moved_ns)

    def signals(self) -> Signals:
        """What the connections say: as `tick` has just read it, or read now if there was none."""
        if self._infos is None:
            self._sample(time.monotonic_ns())
        infos, self._infos = self._infos or [], None
        lanes = [lane for peer in self._peers.values() for lane in peer.lanes]
        for info in infos:
            if info.min_rtt_s and (not self._min_rtt_s or info.min_rtt_s < self._min_rtt_s):
                self._min_rtt_s = info.min_rtt_s
        produced = sum(peer.unacked_bytes for peer in self._peers.values())
        waiting = produced - sum(lane.carried_bytes for lane in lanes)
        return Signals(
            acked_bytes=sum(lane.closed_acked_bytes + lane.acked_bytes for lane in lanes),
            retrans_bytes=sum(lane.closed_retrans_bytes + lane.retrans_bytes for lane in lanes),
            backlog_bytes=waiting + sum(max(0, lane.pushed_bytes - lane.acked_bytes) for lane in lanes),
            rtt_s=sum(info.rtt_s for info in infos) / len(infos) if infos else 0.0,
            min_rtt_s=self._min_rtt_s,
            active=len(infos),
        )

    def _sample(self, now_ns: int) -> None:
        self._infos = [info for peer in self._peers.values() for info in peer.sample(now_ns)]

    def _over(self, transfer: Transfer, cause: str | None) -> None:
        self._transfers.pop(transfer.number, None)
        if transfer.over.done():
            return
        if cause is None:
            transfer.over.set_result(None)
        else:
            transfer.over.set_exception(TransferError(cause))

    def _connection(self, peer: str, opened: bool, cause: str) -> None:
        sockets = sum(one.sockets for one in self._peers.values())
        self._on_connection(peer, opened, sockets, cause)

    def _damage(self) -> bool:
        """Whether the chunk that goes out now is one to damage."""
        if not self._to_damage:
            return False
        self._to_damage -= 1
        return True
