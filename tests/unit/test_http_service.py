"""A scheduler over HTTP: what it is asked, what it answers, and everything that it may do wrong."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.config import Service
from agents.policies.failure import PolicyFailure
from agents.policies.http_openapi import document
from agents.policies.http_service import MOST_BYTES, HttpService
from agents.policies.view import Config, Decision, Egress, Request, State, View
from tests.unit.policy_sim import LENGTHS, SYSTEM

ROOT = Path(__file__).parents[2]
CONFIG = Config(19400, {"limit": 3.0}, LENGTHS, SYSTEM, 2.5)
VIEW = View(1.25, Egress(1e9, 5, 6, 7, 0.02, 0.01), 1, 2, 3, 0, 1, 2, n_p=3, n_d=5)
REQUEST = Request("7", 30000, 1024, cached_pd_tokens=512)
STATE = State(19400, None, "begin", {"x": 0.1})
GOOD = {"threshold_tokens": 19400, "capacity_bps": None, "reason": "begin"}
TIMEOUT_NS = 300_000_000


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Server:
    """Answers question n with the n-th text, the last one again and again; `None` closes the connection."""

    def __init__(self, *answers: bytes | None, pause_s: float = 0.0, piece: int = 1 << 30) -> None:
        self.answers, self.pause_s, self.piece = list(answers), pause_s, piece
        self.asked: list[tuple[str, Any]] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rb") as stream:
                try:
                    while self._answer(connection, stream):
                        pass
                except OSError:
                    continue

    def _answer(self, connection: socket.socket, stream: Any) -> bool:
        line = stream.readline()
        if not line:
            return False
        length = 0
        while header := stream.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.asked.append((line.split()[1].decode(), json.loads(stream.read(length))))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            return False
        for at in range(0, len(answer), self.piece):
            time.sleep(self.pause_s)
            connection.sendall(answer[at : at + self.piece])
        return True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def serving(*answers: bytes | None, ended: str = "", **how: Any) -> Iterator[tuple[Server, HttpService]]:
    server = Server(*answers, **how)
    policy = HttpService(Service(server.port, TIMEOUT_NS, ended))
    try:
        yield server, policy
    finally:
        policy._connection.close()
        server.close()


def good(**changes: Any) -> bytes:
    return http(json.dumps({**GOOD, **changes}).encode())


def placed(**changes: Any) -> bytes:
    answer = {"route": "pd", "threshold_tokens": 19400, "reason": "short", **changes}
    return http(json.dumps(answer).encode())


def test_what_is_asked_and_what_becomes_of_the_answers() -> None:
    """Each function is one POST on the same connection, and what is answered is what the dispatcher gets."""
    answers = (good(memory={"n": 0.1}), placed(route="prfaas", order_s=1.5), good(capacity_bps=8e9))
    with serving(*answers) as (server, policy):
        state = policy.start(CONFIG)
        assert state == State(19400, None, "begin", {"n": 0.1})
        decision = policy.route(CONFIG, state, VIEW, REQUEST)
        assert decision == Decision("prfaas", 19400, "short", order_s=1.5)
        assert policy.update(CONFIG, state, VIEW) == State(19400, 8e9, "begin")
    paths = [path for path, _ in server.asked]
    assert (paths, server.connections) == (["/start", "/route", "/update"], 1)
    start, route, update = (asked for _, asked in server.asked)
    assert (start["threshold_tokens"], start["params"]) == (19400, {"limit": 3.0})
    assert start["lengths_tokens"] == list(LENGTHS.tokens)
    assert (start["pd"]["prefill_instances"], start["pd"]["decode_instances"]) == (3, 5)
    assert (route["request"]["cached_pd_tokens"], route["state"]["memory"]) == (512, {"n": 0.1})
    assert update["view"]["egress"]["rtt_s"] == 0.02


NONSENSE: dict[str, tuple[Callable[[HttpService], object], bytes | None, str]] = {
    "status": (
        lambda p: p.start(CONFIG),
        http(b"boom", "500 Oops"),
        r"^/start: .* 500 Oops, not 200; .*'boom'",
    ),
    "no json": (lambda p: p.start(CONFIG), http(b"<html>"), "^/start: the answer is not JSON: .*'<html>'"),
    "not utf-8": (lambda p: p.start(CONFIG), http(b'{"reason": "\xff"}'), "^/start: the answer is not JSON"),
    "empty": (lambda p: p.start(CONFIG), http(b""), "^/start: the answer is not JSON: .*; it is empty"),
    "a list": (lambda p: p.start(CONFIG), http(b"[]"), "wrong shape: Expected `object`, got `array`"),
    "a typing error": (
        lambda p: p.start(CONFIG),
        good(treshold=1),
        "unknown field `treshold`; allowed are thr",
    ),
    "a field lacks": (lambda p: p.start(CONFIG), http(b"{}"), "missing required field `threshold_tokens`"),
    "wrong type": (
        lambda p: p.update(CONFIG, STATE, VIEW),
        good(threshold_tokens="9"),
        r"^/update: .*Expected `int`, got `str` - at `\$.threshold_tokens`",
    ),
    "negative": (
        lambda p: p.start(CONFIG),
        good(threshold_tokens=-1),
        "Expected `int` >= 0 - at `..threshold",
    ),
    "no number": (lambda p: p.start(CONFIG), http(b'{"threshold_tokens": NaN}'), "not JSON"),
    "no such route": (
        lambda p: p.route(CONFIG, STATE, VIEW, REQUEST),
        placed(route="moon"),
        r"^/route: .*Invalid enum value 'moon' - at `\$.route`",
    ),
    "too many": (
        lambda p: p.start(CONFIG),
        good(prefill_instances=8),
        "prefill_instances 8; allowed: 0 to 7",
    ),
    "too long": (lambda p: p.start(CONFIG), http(b" " * (MOST_BYTES + 1)), f"more than {MOST_BYTES} bytes"),
    "no http": (lambda p: p.start(CONFIG), b"hello\r\n\r\n", "^/start: this is no HTTP: BadStatusLine"),
    "closed": (lambda p: p.start(CONFIG), None, "^/start: it closed the connection without an answer"),
    "half": (lambda p: p.start(CONFIG), http(b"{}")[:-30], "^/start: no answer within 0.3 s"),
}


@pytest.mark.parametrize("wrong", NONSENSE)
def test_everything_wrong_is_named(wrong: str) -> None:
    """Whatever is answered instead of the protocol, the failure says which question and what was found."""
    ask, answer, words = NONSENSE[wrong]
    with serving(answer) as (_, policy), pytest.raises(PolicyFailure, match=words):
        ask(policy)


def test_nobody_is_sent_where_nobody_is() -> None:
    """A cluster without prefill instances is no place for a request."""
    config = replace(CONFIG, system=replace(SYSTEM, n_prfaas=0))
    with (
        serving(placed(route="prfaas")) as (_, policy),
        pytest.raises(PolicyFailure, match="no instance; allowed: pd"),
    ):
        policy.route(config, STATE, VIEW, REQUEST)


@pytest.mark.parametrize("how", [{"pause_s": 0.5}, {"pause_s": 0.02, "piece": 3}])
def test_an_answer_has_to_be_complete_in_time(how: dict[str, Any]) -> None:
    """Silence ends with the timeout, and so does an answer that trickles."""
    with serving(good(), **how) as (_, policy), pytest.raises(PolicyFailure, match=r"no answer within 0.3 s"):
        policy.start(CONFIG)


def test_nobody_listens() -> None:
    """A service that is not there is a failure of the policy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PolicyFailure, match=r"^/start: nothing listens on its port"):
        HttpService(Service(port, TIMEOUT_NS)).start(CONFIG)


def test_a_death_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Where the program has ended, that is the cause, although it is noted a moment later."""
    ended = tmp_path / "scheduler.ended"

    def die() -> None:
        time.sleep(0.05)
        ended.write_text("ended with status 3; it said: out of luck")

    with serving(good(), None, ended=str(ended)) as (_, policy):
        state = policy.start(CONFIG)
        dying = threading.Thread(target=die)
        dying.start()
        with pytest.raises(PolicyFailure, match=r"^/update: ended with status 3; it said: out of luck"):
            policy.update(CONFIG, state, VIEW)
        dying.join()


def test_a_connection_that_idled_too_long_is_opened_again() -> None:
    """A service may close a connection between two questions, with or without saying so."""
    with serving(good(), None, placed(), good()) as (server, policy):
        state = policy.start(CONFIG)
        assert policy.route(CONFIG, state, VIEW, REQUEST).route == "pd"
        assert server.connections == 2
    polite = http(json.dumps(GOOD).encode(), headers="Connection: close\r\n")
    with serving(polite, polite) as (server, policy):
        policy._connection.close()
        policy.start(CONFIG)
        assert policy._connection.sock is None


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
memories = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(memories)
def test_memory_comes_back_as_it_was(memory: object) -> None:
    """Any JSON, to the last bit of a number."""
    with serving(good(memory=memory)) as (server, policy):
        state = policy.start(CONFIG)
        policy.update(CONFIG, state, VIEW)
    assert server.asked[1][1]["state"]["memory"] == memory == state.memory


def test_the_document_is_up_to_date() -> None:
    """docs/scheduler-openapi.json is what the types say; every reference in it leads somewhere."""
    text = (ROOT / "docs/scheduler-openapi.json").read_bytes()
    assert text == document(), "python -m agents.policies.http_openapi > docs/scheduler-openapi.json"
    named = set(re.findall(rb'"#/components/schemas/(\w+)"', text))
    assert {name.decode() for name in named} == set(json.loads(text)["components"]["schemas"])
