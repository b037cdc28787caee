"""The router's conversation with one instance, which outlives the connections that carry it.

Messages are numbered (`n`) in each direction and kept until the other end has said how far it has heard
(`heard`, on every message). A new connection begins with `hello` from the router and `hello` in answer; then
each end sends again what the other has not heard. So while both programs live every message is handled
exactly once, and in order.

    hello(epoch, connection, incarnation, heard)   router: which program, its how manieth connection, whom it
                                                   means and how far it has heard him
    hello(incarnation, heard)                      instance, in answer
    beat()                                         router, four times in `failures.silence_ns`
    beat(...)                                      instance, in answer, with whatever its `beat` says
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial

from agents.config import Failures
from agents.wire import (
    Books,
    Handle,
    Lines,
    MalformedError,
    Message,
    encode,
    number,
    tcp_socket,
)

BEATS_IN_SILENCE = 4
_BACKLOG = 16


class Session:
    """The router's side, one per instance.

    `epoch` rises with each start of the router's program. `handle` gets what the instance says, and the
    answers to beats (op "beat"). `on_down(cause)`: nothing was heard for `failures.silence_ns`, or nobody
    listens there; it is looked for from then on, and `on_up()` is called when it speaks.
    `on_restarted(cause)`: the program that was there has ended, and everything that it had is lost. It is
    called once, when nobody listens any more (after `on_down`) or when another program answers (before
    `on_up`, if it was down). What was sent to the old one is not sent to the new one. `probing`: whether to
    look for an instance whose connection stands still; else TCP is waited for.

    There are never more than two sockets: a connection, and the attempt at the next one.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        failures: Failures,
        epoch: int,
        congestion_control: str,
        handle: Handle,
        on_up: Callable[[], None],
        on_down: Callable[[str], None],
        on_restarted: Callable[[str], None],
        probing: bool = True,
    ) -> None:
        self._address, self._port = address, port
        self._failures, self._epoch = failures, epoch
        self._congestion_control, self._probing = congestion_control, probing
        self._handle = handle
        self._on_up, self._on_down, self._on_restarted = on_up, on_down, on_restarted
        self.up = False
        """Whether it gets work: from the first connection on, except from `on_down` to `on_up`."""
        self.heard_ns = 0
        """When it last said anything (monotonic)."""
        self._books = Books()
        self._incarnation = 0
        self._ended = False
        """Whether it has been told that this program has ended."""
        self._line: Lines | None = None
        self._next: Lines | None = None
        """A connection without an answer to its hello."""
        self._attempt: asyncio.Task[None] | None = None
        self._connections = 0
        self._tried_ns, self._backoff_ns = 0, failures.probe_ns
        self._beat_ns = failures.silence_ns // BEATS_IN_SILENCE
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._opened: asyncio.Future[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect for the first time, within `failures.silence_ns`, and let the beats begin.

        OSError (TimeoutError, too) when nobody answers: then the session is down, and goes on looking for it.
        """
        self._opened = asyncio.get_running_loop().create_future()
        now_ns = time.monotonic_ns()
        self._beat_at(now_ns)
        self._try(now_ns)
        await self._opened

    def send(self, op: str, **fields: object) -> None:
        """Tell it something; kept until it is acknowledged, also while it is down."""
        data = self._books.numbered(op, fields)
        if self._line is not None:
            self._line.write(data)

    def close(self) -> None:
        """End the conversation: no beat, no attempt and no call-back comes after this."""
        self._closed, self.up = True, False
        for timer in self._timers.values():
            timer.cancel()
        self._end_attempt("closed")
        if self._line is not None:
            self._line.close()
            self._line = None

    # A timer that comes late says that this program was frozen: silence counts from then.

    def _timer(self, name: str, due_ns: int, call: Callable[[int], None]) -> None:
        """Call `call(due_ns)` at this moment, once; replaces the timer of the same name."""
        if self._closed:
            return
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_at(due_ns / 1e9, call, due_ns)

    def _beat_at(self, now_ns: int) -> None:
        """All sessions beat at the same moments: one wake-up for all."""
        self._timer("beat", (now_ns // self._beat_ns + 1) * self._beat_ns, self._beat)

    def _beat(self, due_ns: int) -> None:
        now_ns = self._excused(due_ns)
        self._beat_at(now_ns)
        if self.up:
            if self._line is not None:
                self._line.write(self._books.passing("beat", {}))
            silent_ns = self.heard_ns + self._failures.silence_ns
            if silent_ns <= now_ns + self._beat_ns:
                self._timer("silence", max(now_ns, silent_ns), self._look)

    def _look(self, due_ns: int) -> None:
        self._excused(due_ns)
        if self.heard_ns + self._failures.silence_ns <= due_ns:
            self._down(f"nothing was heard for {self._failures.silence_ns / 1e9:g} s")

    def _excused(self, due_ns: int) -> int:
        """The present moment."""
        now_ns = time.monotonic_ns()
        if now_ns - due_ns > self._failures.silence_ns // 2:
            self.heard_ns = now_ns
        return now_ns

    def _down(self, cause: str) -> None:
        if not self.up:
            return
        self.up = False
        self._on_down(cause)
        if self._line is None or self._probing:
            self._retry()

    # Attempts at a connection, one at a time.

    def _retry(self) -> None:
        self._timer("retry", max(time.monotonic_ns(), self._tried_ns + self._backoff_ns), self._try)

    def _try(self, now_ns: int) -> None:
        if self._attempt is not None or (self.up and self._line is not None):
            return
        self._tried_ns = now_ns
        self._connections += 1
        self._attempt = asyncio.create_task(self._connect(self._connections))
        first = self._opened is not None and not self._opened.done()
        limit_ns = self._failures.silence_ns if first else self._failures.probe_max_ns
        self._timer("limit", now_ns + limit_ns, self._give_up)

    async def _connect(self, nth: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection = tcp_socket(self._congestion_control)
            try:
                await loop.sock_connect(connection, (self._address, self._port))
                await loop.create_connection(
                    lambda: Lines(self._take, partial(self._greet, nth), self._lost), sock=connection
                )
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            self._attempt = None
            self._failed(error)

    def _greet(self, nth: int, line: Lines) -> None:
        if self._attempt is None or nth != self._connections:
            line.abort("given up")
            return
        self._next = line
        hello = {
            "epoch": self._epoch,
            "connection": nth,
            "incarnation": self._incarnation,
            "heard": self._books.heard,
        }
        line.write(encode("hello", hello))

    def _give_up(self, _due_ns: int) -> None:
        self._failed(TimeoutError("no answer"))

    def _end_attempt(self, cause: str) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._next is not None:
            self._next.abort(cause)
            self._next = None

    def _failed(self, error: OSError) -> None:
        """The attempt has come to nothing; there will be another one, unless the old connection lives."""
        self._timers["limit"].cancel()
        self._end_attempt(str(error))
        if self._closed:
            return
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        if isinstance(error, ConnectionRefusedError):
            self._refused()
        if self._line is None or not self.up:
            self._retry()
            self._backoff_ns = min(2 * self._backoff_ns, self._failures.probe_max_ns)

    def _refused(self) -> None:
        """Nobody listens: the program is gone, whatever its connection looks like from here."""
        if self._line is not None:
            self._line.abort("nobody listens")
            self._line = None
        self._down("nobody listens")
        if self._incarnation and not self._ended:
            self._ended = True
            self._on_restarted("went away")

    def _adopt(self, line: Lines, message: Message) -> None:
        """The instance has answered the hello: go on from where both are."""
        if message["op"] != "hello":
            raise MalformedError(f"{message['op']} before hello")
        incarnation, heard = number(message, "incarnation"), number(message, "heard")
        restarted = self._incarnation not in (0, incarnation)
        if restarted:
            self._books = Books()
        self._books.acknowledged(heard)
        told, self._ended = self._ended, False
        self._incarnation = incarnation
        self._timers["limit"].cancel()
        self._attempt, self._next = None, None
        old, self._line = self._line, line
        if old is not None:
            old.abort("replaced")
        if kept := self._books.kept():
            line.write(kept)
        self._backoff_ns = self._failures.probe_ns
        if restarted and not told:
            self._on_restarted("was restarted")
        self._spoke()

    def _spoke(self) -> None:
        self.heard_ns = time.monotonic_ns()
        if self.up or self._closed:
            return
        self.up = True
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        else:
            self._on_up()

    def _take(self, line: Lines, message: Message) -> None:
        if line is self._next:
            self._adopt(line, message)
        elif line is self._line:
            if message["op"] == "hello":
                raise MalformedError("a second hello")
            self._spoke()
            if self._books.take(message):
                self._handle(message)

    def _lost(self, line: Lines, cause: str) -> None:
        if line is self._next:
            self._failed(ConnectionError(cause))
        elif line is self._line:
            self._line = None
            if self._attempt is None:
                self._retry()


class Server:
    """The instance's side; one router at a time, over the connection that it opened last.

    `handle` gets what the router says. `on_router(new)`: a router has connected, `new`: another program than
    before, or the first; then nothing is kept of what the one before was to be told, and its work is to be
    forgotten. `beat`: what to add to the answer to a beat.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        congestion_control: str,
        handle: Handle,
        on_router: Callable[[bool], None],
        beat: Callable[[], Message] = dict,
    ) -> None:
        self._address, self._port, self._congestion_control = address, port, congestion_control
        self._handle, self._on_router, self._beat = handle, on_router, beat
        self._incarnation = time.monotonic_ns()
        self._books = Books()
        self._router = (-1, 0)
        """Epoch, and how manieth connection, of the newest hello."""
        self._line: Lines | None = None
        self._lines: list[Lines] = []
        """All that are open, oldest first."""
        self._listener: asyncio.Server | None = None

    async def listen(self) -> None:
        """Be there for the router; OSError when the address is taken."""
        listener = tcp_socket(self._congestion_control)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._address, self._port))
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: Lines(self._take, self._lines.append, self._lost), sock=listener, backlog=_BACKLOG
            )
        except BaseException:
            listener.close()
            raise

    def send(self, op: str, **fields: object) -> None:
        """Tell the router something; kept until it is acknowledged, or another router comes."""
        data = self._books.numbered(op, fields)
        if self._line is not None:
            self._line.write(data)

    def say(self, op: str, **fields: object) -> None:
        """Tell the router something if it is there; what is lost with a connection is not said again."""
        if self._line is not None:
            self._line.write(self._books.passing(op, fields))

    def close(self) -> None:
        """Stop listening, let go of the router."""
        if self._listener is not None:
            self._listener.close()
        self._line = None
        for line in self._lines:
            line.close()

    def _take(self, line: Lines, message: Message) -> None:
        if message["op"] == "hello":
            self._adopt(line, message)
        elif line is not self._line:
            raise MalformedError(f"{message['op']} before hello, or over a connection that was replaced")
        elif self._books.take(message):
            if message["op"] == "beat":
                line.write(self._books.passing("beat", self._beat()))
            else:
                self._handle(message)

    def _adopt(self, line: Lines, message: Message) -> None:
        epoch, connection = number(message, "epoch"), number(message, "connection")
        incarnation, heard = number(message, "incarnation"), number(message, "heard")
        if (epoch, connection) <= self._router:
            raise MalformedError("a newer connection has come")
        new = epoch != self._router[0]
        if new:
            self._books = Books()
        elif incarnation == self._incarnation:
            self._books.acknowledged(heard)
        self._router, self._line = (epoch, connection), line
        for older in self._lines[: self._lines.index(line)]:
            older.abort("replaced")
        hello = encode("hello", {"incarnation": self._incarnation, "heard": self._books.heard})
        line.write(hello + self._books.kept())
        self._on_router(new)

    def _lost(self, line: Lines, _cause: str) -> None:
        self._lines.remove(line)
        if line is self._line:
            self._line = None
