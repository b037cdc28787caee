"""A file as an answer, of the length that it had when it was asked for: captures of a run under way grow."""

from __future__ import annotations

from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send


class Handed(FileResponse):
    """FileResponse sends all that there is, and a server breaks off what is longer than was announced."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = 0
        over = False

        async def cut(message: Message) -> None:
            nonlocal left, over
            if message["type"] == "http.response.start":
                left = int(Headers(raw=message["headers"]).get("content-length", "0"))
            elif message["type"] == "http.response.body":
                if over:
                    return
                body = message.get("body", b"")[:left]
                left -= len(body)
                over = left == 0 or not message.get("more_body", False)
                message = {**message, "body": body, "more_body": not over}
            await send(message)

        await super().__call__(scope, receive, cut)
