"""Files of a run under way, which grow while they are handed out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from testbed.serve.handed import Handed


@pytest.mark.parametrize(
    ("asked", "status", "found"),
    [(b"", 200, b"as it was"), (b"bytes=3-4", 206, b"it"), (b"bytes=3-", 206, b"it was")],
)
@pytest.mark.parametrize("more", [b"", b", and more", b"." * 1_000_000])
def test_a_file_is_handed_out_as_it_was_when_asked_for(
    tmp_path: Path, asked: bytes, status: int, found: bytes, more: bytes
) -> None:
    """What was announced comes, whole or in part, and no more: a server breaks off what is longer."""
    path = tmp_path / "x.pcap"
    path.write_bytes(b"as it was")
    before = path.stat()
    path.write_bytes(b"as it was" + more)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"range", asked)] if asked else []
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    asyncio.run(Handed(path, stat_result=before)(scope, receive, send))
    assert sent[0]["status"] == status
    assert (b"content-length", str(len(found)).encode()) in sent[0]["headers"]
    assert b"".join(message.get("body", b"") for message in sent[1:]) == found
    assert [message.get("more_body", False) for message in sent[1:]][-1] is False
