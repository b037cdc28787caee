"""One receiver as its sender sees it: what is to be sent to it, in what order, and the lanes there."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable

from agents.timeouts import patience_s
from agents.transport import frames
from agents.transport.frames import Ack
from agents.transport.lanes import Lane, Route
from agents.transport.settings import SenderSettings
from agents.transport.tcp_info import TcpInfo
from agents.transport.transfers import Chunk, Transfer

_STEP_BYTES = 256 << 10
"""At most so much is acknowledged at once: a super-packet, and some. What is less says nothing of a path's
goodput, unless more was there to be sent.
"""
_COPIES = 2
"""The kernel of a receiver that is frozen acknowledges every copy of a chunk; no more than so many count."""
_PATIENCES = 8
"""A receiver that answers nothing on one connection after the other gets up to so many times the patience."""
SIGNS_OF_LIFE = 4
"""So many in the time after which a receiver would give a transfer up."""
_WEIGHT = 0.25
"""Of the last look in the measured goodput, where that is less than before."""

_REFUSALS = {
    frames.DAMAGED: "a chunk was damaged again and again",
    frames.MISMATCH: "what came is not what was announced",
    frames.TOO_LARGE: "it is larger than the pool",
}


class Peer:
    """Transfers to one receiver, a queue of chunks, and lanes that take from it.

    `on_over` gets each transfer that ends, with the cause if it failed; `on_connection` whether a connection
    opened, and why it did not or closed; `damage` says whether the next chunk is to be damaged.
    """

    def __init__(
        self,
        settings: SenderSettings,
        route: Route,
        name: str,
        *,
        on_over: Callable[[Transfer, str | None], None],
        on_connection: Callable[[str, bool, str], None],
        damage: Callable[[], bool],
    ) -> None:
        self.name = name
        self.transfers: dict[int, Transfer] = {}
        self.lanes = [Lane(number, route, self) for number in range(settings.connections)]
        self._settings = settings
        self._on_over, self._on_connection, self._damage = on_over, on_connection, damage
        self._queue: list[tuple[int, float, int, Chunk]] = []
        self._questions: deque[Transfer] = deque()
        self._drops: dict[int, tuple[Transfer, int]] = {}
        """Transfers that the receiver is to forget, and since when, until it says that it has."""
        self._drops_to_send: deque[int] = deque()
        self._waiters = 0
        self._giving = False
        self._cause = ""
        self.goodput_bps = 0.0
        self.moved_ns = 0
        """When the last byte was acknowledged."""

    @property
    def sockets(self) -> int:
        """Connections that stand."""
        return sum(lane.state == "open" for lane in self.lanes)

    @property
    def unacked_bytes(self) -> int:
        """Produced, and not yet acknowledged by the receiver."""
        return sum(one.produced_bytes - one.acked_bytes for one in self.transfers.values())

    @property
    def active(self) -> bool:
        """Whether there is anything to look after."""
        return bool(self.transfers or self._drops) or any(lane.busy for lane in self.lanes)

    async def connect(self) -> None:
        """Try to open every lane, once."""
        self._waiters += 1
        try:
            self._open()
            for lane in self.lanes:
                await lane.settled.wait()
        finally:
            self._waiters -= 1

    def begin(self, transfer: Transfer) -> None:
        """Offer a transfer."""
        self.transfers[transfer.number] = transfer
        self._ask(transfer)
        self._open()
        self._give()

    def push(self, chunk: Chunk) -> None:
        """A chunk was produced; it goes out once its transfer is granted."""
        if not chunk.transfer.stuck:
            chunk.transfer.moved_ns = time.monotonic_ns()
        chunk.transfer.pending[chunk.number] = chunk
        if chunk.transfer.granted:
            self._enqueue(chunk)

    def flush(self) -> None:
        """Give the lanes what they take."""
        self._give()

    def end(self, transfer: Transfer, cause: str | None, *, tell: bool = False) -> None:
        """A transfer is over; its chunks are forgotten. `tell` the receiver to forget it, too."""
        del self.transfers[transfer.number]
        for chunk in transfer.pending.values():
            if chunk.lane is not None:
                chunk.lane.let_go(chunk)
        transfer.pending.clear()
        transfer.sums.clear()
        transfer.kept = None
        if tell:
            self._drops[transfer.number] = (transfer, time.monotonic_ns())
            self._drops_to_send.append(transfer.number)
        self._on_over(transfer, cause)
        self._give()

    def sample(self, now_ns: int) -> list[TcpInfo]:
        """Read what has moved on every lane that is not at rest; what their kernels say."""
        infos, rate_bps = [], 0.0
        for lane in self.lanes:
            before_bytes, before_s, info = lane.acked_bytes, lane.busy_s, lane.sample()
            if info is not None:
                infos.append(info)
            moved_bytes, took_s = lane.acked_bytes - before_bytes, lane.busy_s - before_s
            if moved_bytes or lane.heard or not lane.busy:
                lane.moved_ns, lane.heard = now_ns, False
            if moved_bytes:
                self.moved_ns = now_ns
                self._moved(lane, now_ns)
            if took_s > 0:
                lane.bytes_per_s = moved_bytes / took_s
                if moved_bytes >= _STEP_BYTES or self._queue:
                    rate_bps += 8 * lane.bytes_per_s
        if self.moved_ns == now_ns:
            self._queue_moved(now_ns)
        self._measured(rate_bps)
        return infos

    def _measured(self, rate_bps: float) -> None:
        if rate_bps > self.goodput_bps:
            self.goodput_bps = rate_bps
        elif rate_bps and self._queue:  # less than before, and not for want of something to send
            self.goodput_bps += _WEIGHT * (rate_bps - self.goodput_bps)

    def _queue_moved(self, now_ns: int) -> None:
        """Something was acknowledged: who waits behind it in the queue has moved."""
        for transfer in self.transfers.values():
            if transfer.waits:
                transfer.moved_ns = now_ns

    def _moved(self, lane: Lane, now_ns: int) -> None:
        """Bytes of a lane were acknowledged: what it carries has moved, and questions behind it."""
        for chunk in lane.carries:
            if chunk.copies <= _COPIES:
                chunk.transfer.moved_ns = now_ns
        for transfer in self.transfers.values():
            if transfer.asked_on is lane and lane.acked_bytes <= transfer.asked_at:
                transfer.moved_ns = now_ns

    def excuse(self, now_ns: int) -> None:
        """Nobody has looked for some time; whatever stood still meanwhile may have had nobody to move it."""
        for lane in self.lanes:
            lane.moved_ns = now_ns
        for transfer in self.transfers.values():
            transfer.moved_ns = now_ns

    def judge(self, now_ns: int, moved_ns: int) -> None:
        """Give up what has stood still for too long: connections, then transfers. `moved_ns`: when anything
        that this sender has, for whomever, last moved.
        """
        self._drops = {
            number: drop
            for number, drop in self._drops.items()
            if now_ns - drop[1] <= self._settings.lease_ns
        }
        if "no_timeouts" in self._settings.flaws:
            return
        if "wait_for_tcp" not in self._settings.flaws:
            self._judge_lanes(now_ns, moved_ns)
        if "no_lease" not in self._settings.flaws:
            lease_ns, outer_ns = self._settings.lease_ns, self._settings.decode_wait_ns
            lease_s = patience_s(lease_ns, outer_ns, self.unacked_bytes, self.goodput_bps)
            for transfer in list(self.transfers.values()):
                still_s = (now_ns - transfer.moved_ns) / 1e9
                if transfer.stuck and still_s > lease_s:
                    why = f" ({self._cause})" if self._cause and not self.sockets else ""
                    self.end(transfer, f"lease ran out: nothing moved for {still_s:.1f} s{why}", tell=True)

    def _judge_lanes(self, now_ns: int, moved_ns: int) -> None:
        """Break off lanes that stand still, and ask again what was not answered: it may be on such a lane.

        Where others move there is a path, and a lane that stands still has only lost packets: to send all of
        it again would be of no help to those who wait for the same link. It has half a lease then.
        """
        lane_bps = self.goodput_bps / max(1, self.sockets)
        transfer_ns, outer_ns = self._settings.transfer_ns, self._settings.lease_ns
        limit_s = patience_s(transfer_ns, outer_ns, _STEP_BYTES, lane_bps)
        others_move = (now_ns - moved_ns) / 1e9 <= limit_s
        least_s = max(limit_s, outer_ns / 2e9) if others_move else limit_s
        alive_s = self._settings.decode_wait_ns / 1e9 / SIGNS_OF_LIFE
        for lane in self.lanes:
            still_s = (now_ns - lane.moved_ns) / 1e9
            if lane.busy and still_s > least_s * min(2**lane.fruitless, _PATIENCES):
                lane.abort(f"stood still for {still_s:.1f} s")
        for transfer in self.transfers.values():
            unanswered = not transfer.granted or (transfer.asking and not transfer.pending)
            asked_s = (now_ns - transfer.asked_ns) / 1e9
            overdue = unanswered and transfer.asked_on and asked_s > limit_s
            moves = transfer.granted and (now_ns - transfer.moved_ns) / 1e9 < alive_s
            if overdue or (asked_s > alive_s and (moves or transfer.waits)):
                self._ask(transfer)  # overdue, or so that nobody thinks that it is gone
        self._give()

    # What lanes ask and say, see lanes.Owner.

    def wanted(self) -> bool:
        """Whether connections are needed."""
        return bool(self._waiters or self.transfers or self._drops)

    def drained(self) -> None:
        """A lane has room for more."""
        self._give()

    def opened(self) -> None:
        """A lane stands; it gets its work as soon as it has said hello."""
        self._cause = ""
        self._on_connection(self.name, True, "")

    def failed(self, cause: str) -> None:
        """A lane could not be opened; said once, however often it is tried."""
        if cause != self._cause:
            self._cause = cause
            self._on_connection(self.name, False, cause)

    def closed(self, lane: Lane, cause: str) -> None:
        """What the lane carried waits again, ahead of everything else."""
        self._cause = cause
        self._on_connection(self.name, False, cause)
        carried = list(lane.carries)
        for chunk in carried:
            self._take_back(chunk)
        if "no_resume" in self._settings.flaws:
            for transfer in dict.fromkeys(chunk.transfer for chunk in carried):
                if transfer.number in self.transfers:
                    self.end(transfer, f"connection to {self.name} broke", tell=True)
        for transfer in self.transfers.values():
            if transfer.asked_on is lane and transfer.asking:
                self._ask(transfer)
        self._drops_to_send.extend(one for one in self._drops if one not in self._drops_to_send)
        self._open()
        self._give()

    def acknowledged(self, ack: Ack) -> None:
        """The receiver has spoken of a transfer."""
        if ack.kind in (frames.GONE, frames.COMPLETE, frames.REFUSED):
            self._drops.pop(ack.transfer, None)
        transfer = self.transfers.get(ack.transfer)
        if transfer is None:
            return
        transfer.moved_ns = time.monotonic_ns()
        match ack.kind:
            case frames.GRANTED:
                self._granted(transfer)
            case frames.GOT:
                self._got(transfer, ack.chunk)
                self._give()
            case frames.BAD:
                chunk = transfer.pending.get(ack.chunk)
                if chunk is not None and chunk.lane is not None:
                    self._take_back(chunk)
                    self._give()
            case frames.COMPLETE:
                transfer.acked_bytes = transfer.produced_bytes
                self.end(transfer, None)
            case frames.REFUSED:
                self.end(transfer, f"{self.name} refused it: {_REFUSALS.get(ack.code, ack.code)}")
            case frames.GONE:
                gone = "has given it up" if ack.code == frames.GIVEN_UP else "does not know it any more"
                self.end(transfer, f"{self.name} {gone}")

    def _granted(self, transfer: Transfer) -> None:
        if transfer.granted:
            return
        transfer.granted = True
        for chunk in transfer.pending.values():
            self._enqueue(chunk)
        if transfer.to_send == 0:
            self._ask(transfer)
        self._give()

    def _got(self, transfer: Transfer, number: int) -> None:
        chunk = transfer.pending.pop(number, None)
        if chunk is None:
            return
        transfer.acked_bytes += chunk.size_bytes
        if chunk.lane is None:  # it was to be sent once more
            transfer.to_send -= 1
        else:
            chunk.lane.let_go(chunk)

    def _take_back(self, chunk: Chunk) -> None:
        chunk.lane.let_go(chunk)
        chunk.transfer.to_send += 1
        self._enqueue(chunk)

    def _enqueue(self, chunk: Chunk) -> None:
        priority = chunk.transfer.priority if self._settings.priority == "least_slack" else 0.0
        heapq.heappush(self._queue, (0 if chunk.copies else 1, priority, chunk.order, chunk))

    def _ask(self, transfer: Transfer) -> None:
        """Offer or seal, with the next lane that has room."""
        transfer.asked_ns, transfer.asked_on = time.monotonic_ns(), None
        self._questions.append(transfer)

    def _open(self) -> None:
        if self.wanted():
            for lane in self.lanes:
                lane.open()

    def _give(self) -> None:
        """Give lanes that take one the next chunk, that with the least under way first; words to any lane."""
        if self._giving:
            return
        self._giving = True
        try:
            while self._waiting():
                ready = [lane for lane in self.lanes if lane.ready] if self._queue else []
                words = self._questions or self._drops_to_send
                lanes = ready or ([lane for lane in self.lanes if lane.idle] if words else [])
                if not lanes:
                    self._open()
                    return
                self._load(min(lanes, key=lambda lane: lane.carried_bytes), chunk=bool(ready))
        finally:
            self._giving = False

    def _waiting(self) -> bool:
        """Whether anything could be sent now; chunks of transfers that are over fall out of the queue."""
        while self._queue and self._queue[0][3].number not in self._queue[0][3].transfer.pending:
            heapq.heappop(self._queue)
        return bool(self._queue or self._questions or self._drops_to_send)

    def _load(self, lane: Lane, *, chunk: bool) -> None:
        """Put on a lane what is to be asked and told, and a chunk behind it."""
        data = b""
        while self._drops_to_send:
            transfer, _ = self._drops.get(self._drops_to_send[0], (None, 0))
            self._drops_to_send.popleft()
            if transfer is not None:
                data += transfer.frame(frames.DROP)
        while self._questions:
            transfer = self._questions.popleft()
            if transfer.number in self.transfers:
                data += self._question(transfer, lane)
        if not chunk:
            if data:
                lane.put(data, (), None)
            return
        self._send(heapq.heappop(self._queue)[-1], lane, data)

    def _send(self, chunk: Chunk, lane: Lane, data: bytes) -> None:
        """Put a chunk on a lane, behind what is to go with it."""
        transfer = chunk.transfer
        damage = transfer.payload != "synthetic" and self._damage()
        head, ranges = transfer.chunk_frame(chunk, damage=damage)
        transfer.to_send -= 1
        if chunk.copies:
            transfer.resent_bytes += chunk.size_bytes
        chunk.copies += 1
        if transfer.to_send == 0:  # ahead of the last chunk, so that both go with one system call
            data += self._question(transfer, lane)
        lane.put(data + head, ranges, chunk)

    @staticmethod
    def _question(transfer: Transfer, lane: Lane) -> bytes:
        transfer.asked_ns, transfer.asked_on = time.monotonic_ns(), lane
        transfer.asked_at = lane.pushed_bytes
        return transfer.question()
