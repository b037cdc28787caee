"""What every request has to pass before anything looks at it.

- Host: a name of this server, so that no other site's name can be pointed at it (DNS rebinding).
- Origin and Sec-Fetch-Site: nothing that a page of another site sends, reading included.
- Content-Type: only JSON may change something, which no form of another site can send.
- Size: a body of at most MOST_BYTES.
- Token, where one is set: `Authorization: Bearer`, or the cookie that /api/v1/session gives for it. Both are
  compared in constant time.

Every answer has the headers that keep a browser from doing more with it than was meant.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_VARIABLE: Final = "TESTBED_TOKEN"  # noqa: S105 - where it stands, not what it is
LEAST_TOKEN: Final = 16
"""Characters; fewer could be guessed."""
MOST_BYTES: Final = 512 * 1024
COOKIE: Final = "testbed_session"
HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?")
"""An address of IPv6 in brackets, or a name; and a port (RFC 9110, 7.2)."""
PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS: Final = ("/page/", "/api/v1/session")
"""Without a token: the page's own files, and where the token is given."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Refused(Exception):  # noqa: N818 - not an error of ours
    """A request that goes no further."""

    def __init__(self, status: int, where: str, found: str, allowed: str, next_step: str = "") -> None:
        super().__init__(found)
        self.status = status
        problem = {"where": where, "found": found, "allowed": allowed, "next_step": next_step, "line": None}
        self.body = {"problems": [problem]}


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, names: Collection[str], any_address: bool, token: str) -> None:
        self._app = app
        self._names = LOOPBACK | {name.lower().rstrip(".") for name in names}
        self._any_address = any_address
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("content-security-policy", POLICY)
                # The page's files may be kept, if they are asked about each time.
                kept = "no-cache" if scope["path"].startswith("/page/") else "no-store"
                headers.setdefault("cache-control", kept)
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check(scope, headers)
            safe = scope["method"] in SAFE_METHODS
            await self._app(scope, receive if safe else await _with_body(receive), guarded)
        except Refused as refused:
            await _answer(refused, guarded)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._known(host):
            raise Refused(
                421, "header Host", f"{host[:100]!r} is not a name of this server", _names(self._names)
            )
        _refuse_other_sites(headers, host)
        if scope["method"] not in SAFE_METHODS:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refused(415, "header Content-Type", f"{kind[:100]!r}", "application/json")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length[:12]) > MOST_BYTES:
            raise Refused(413, "body", "is too large", f"{MOST_BYTES // 1024} KiB")
        path = scope["path"]
        if self._token and path != "/" and not path.startswith(OPEN_PATHS) and not self.admits(headers):
            found = "is missing, or another one than this server's"
            raise Refused(401, "token", found, "Authorization: Bearer TOKEN", "the page asks for it")

    def _known(self, host: str) -> bool:
        parts = HOST.fullmatch(host)
        if parts is None:
            return False
        name = parts[1] or parts[2]
        if name.lower().rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        # Whoever types an address means it; no name can be pointed anywhere else by that.
        return self._any_address

    def admits(self, headers: Headers) -> bool:
        """Whether these headers bring the token, or the cookie that stands for it."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return same(given.strip(), self._token)
        # By hand: others' cookies may be anything, after which the standard library's reader stops.
        cookies = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
        return any(name == COOKIE and same(value, session(self._token)) for name, _, value in cookies)


def named(name: str) -> bool:
    """Whether a request can call a server so: its port stands beside the name, and is not compared."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return PLAIN.fullmatch(name) is not None


def same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def session(token: str) -> str:
    """The cookie's value: whoever reads it does not know the token."""
    return hmac.new(token.encode(), b"session of the control plane", hashlib.sha256).hexdigest()


def _refuse_other_sites(headers: Headers, host: str) -> None:
    site = headers.get("sec-fetch-site", "none")
    navigation = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site not in ("same-origin", "none") and not navigation:
        raise Refused(403, "header Sec-Fetch-Site", f"{site[:40]!r}", "the page of this server")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        raise Refused(403, "header Origin", f"{origin[:100]!r}", "the page of this server")


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


async def _with_body(receive: Receive) -> Receive:
    """Take the body in first: one that does not say how long it is ends as well."""
    messages: list[Message] = []
    taken = 0
    while not messages or messages[-1].get("more_body", False):
        messages.append(await receive())
        taken += len(messages[-1].get("body", b""))
        if taken > MOST_BYTES:
            raise Refused(413, "body", "is too large", f"{MOST_BYTES // 1024} KiB")

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again


async def _answer(refused: Refused, send: Send) -> None:
    body = json.dumps(refused.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:  # noqa: PLR2004 - RFC 9110, 15.5.2: with a challenge
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
