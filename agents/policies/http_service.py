"""A scheduler that is a program of its own, asked over HTTP: POST /start, /route and /update, JSON both ways.

It runs beside the router, in any language; `http_protocol` has the messages, docs/scheduler-service.md the
rules. Whatever it does wrong raises PolicyFailure, and nothing else.
"""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agents.config import Service
from agents.policies.failure import PolicyFailure
from agents.policies.http_protocol import (
    RouteAnswered,
    RouteAsked,
    StartAsked,
    StateAnswered,
    UpdateAsked,
    asked_state,
    decision_of,
    start_asked,
    state_of,
)
from agents.policies.view import Config, Decision, Request, State, View

ADDRESS = "127.0.0.1"
MOST_BYTES = 1 << 20
"""Of an answer."""
SHOWN = 200
OBITUARY_S, LOOK_S = 0.2, 0.01
"""How long to wait for what a broken connection may be explained with: that the program has ended."""

Answer = TypeVar("Answer", StateAnswered, RouteAnswered)


class HttpService:
    """A policy whose functions are HTTP requests, over one connection that is kept."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connection = _Connection(ADDRESS, service.port, service.timeout_ns / 1e9)

    def start(self, config: Config) -> State:
        """The state before the first request. Raises PolicyFailure."""
        answer = self._ask("/start", start_asked(config), StateAnswered)
        _check_instances(config, answer)
        return state_of(answer)

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:
        """Place one request. Raises PolicyFailure."""
        asked = RouteAsked(state=asked_state(state), view=view, request=request)
        answer = self._ask("/route", asked, RouteAnswered)
        if answer.route == "prfaas" and not config.system.n_prfaas:
            raise PolicyFailure("/route: answered route prfaas, where there is no instance; allowed: pd")
        return decision_of(answer)

    def update(self, config: Config, state: State, view: View) -> State:
        """The state after one more control interval. Raises PolicyFailure."""
        answer = self._ask("/update", UpdateAsked(state=asked_state(state), view=view), StateAnswered)
        _check_instances(config, answer)
        return state_of(answer)

    def _ask(self, path: str, question: StartAsked | RouteAsked | UpdateAsked, kind: type[Answer]) -> Answer:
        status, reason, body = self._exchange(path, msgspec.json.encode(question))
        if status != http.client.OK:
            raise PolicyFailure(f"{path}: answered status {status} {reason}, not 200; {_beginning(body)}")
        if len(body) > MOST_BYTES:
            raise PolicyFailure(f"{path}: the answer has more than {MOST_BYTES} bytes")
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            fields = ", ".join(kind.__struct_fields__)
            raise PolicyFailure(
                f"{path}: the answer has the wrong shape: {error}; allowed are {fields}; {_beginning(body)}"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PolicyFailure(f"{path}: the answer is not JSON: {error}; {_beginning(body)}") from None

    def _exchange(self, path: str, question: bytes) -> tuple[int, str, bytes]:
        """Status, reason and body of the answer, up to one byte more than it may have."""
        connection = self._connection
        connection.deadline_s = time.monotonic() + self._service.timeout_ns / 1e9
        reused = connection.sock is not None
        try:
            return connection.exchange(path, question)
        except TimeoutError:
            connection.close()
            raise PolicyFailure(f"{path}: no answer within {self._service.timeout_ns / 1e9:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            gone = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
            if reused and gone:  # it may close a connection that idles
                return self._exchange(path, question)
            raise PolicyFailure(f"{path}: {self._obituary() or _broken(error)}") from None

    def _obituary(self) -> str:
        """What its program ended with, if it has ended."""
        if not self._service.ended:
            return ""
        file, deadline_s = Path(self._service.ended), time.monotonic() + OBITUARY_S
        while not file.exists():
            if time.monotonic() >= deadline_s:
                return ""
            time.sleep(LOOK_S)
        return file.read_text(encoding="utf-8")


class _Connection(http.client.HTTPConnection):
    """One whose answers have to be complete by a deadline, however slowly they come."""

    deadline_s = 0.0

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self._left_s())
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _Socket(fileno=plain.detach())
        self.sock.connection = self

    def exchange(self, path: str, question: bytes) -> tuple[int, str, bytes]:
        """Ask, and read the answer to its end."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self._left_s())
        self.request("POST", path, question, {"Content-Type": "application/json"})
        with self.getresponse() as answer:
            return answer.status, answer.reason, answer.read(MOST_BYTES + 1)

    def _left_s(self) -> float:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _Socket(socket.socket):
    """Each read waits until the connection's deadline at most."""

    connection: _Connection

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        self.settimeout(self.connection._left_s())  # noqa: SLF001 - two halves of one thing
        return super().recv_into(*arguments, **options)


def _check_instances(config: Config, answer: StateAnswered) -> None:
    wanted, there = answer.prefill_instances, config.system.n_p + config.system.n_d
    if wanted is not None and wanted >= there:
        raise PolicyFailure(
            f"answered prefill_instances {wanted}; allowed: 0 to {there - 1}, for one has to do decode"
        )


def _broken(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on its port"
    if isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
        return "it closed the connection without an answer"
    return f"this is no HTTP: {error!r}"


def _beginning(body: bytes) -> str:
    text = body[:SHOWN].decode(errors="replace")
    return f"it begins {text!r}" if text else "it is empty"
