"""The router: an OpenAI-style front over FastAPI; places each request by the policy under test.

POST /v1/completions   streaming or not; `prompt` is a string or a list of token ids; for replay
                       `prompt_tokens` gives the length instead of the tokens themselves. Where real
                       kernels compute, token ids are needed, and the answer has `token_ids` beside the text
GET  /metrics          Prometheus
GET  /health
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field, StrictInt

from agents import config, timeouts
from agents.dispatch import Dispatcher
from agents.fleet import Flight
from agents.policies.failure import PolicyFailure
from agents.profiles import find
from agents.shapes import SHAPES
from agents.ticks import end_at_errors

SIGNS_OF_LIFE = 3
"""So many in the time after which a client gives up."""


class Completion(BaseModel):
    """The part of OpenAI's completion request that this router reads."""

    model: str = ""
    prompt: str | list[StrictInt] = ""
    max_tokens: int = Field(default=16, ge=1, le=131_072)
    stream: bool = False
    prompt_tokens: int | None = Field(default=None, ge=1)
    request_id: int | None = Field(default=None, ge=0, lt=2**32)
    hash_ids: list[int] = Field(default=[], max_length=4096)
    """Testbed extensions: the prompt's length without its tokens, the id to record it under, and the ids of
    its prefix blocks (512 tokens each)."""
    user: str = Field(default="default", max_length=64)
    """The tenant."""

    def length_tokens(self) -> int:
        """Input tokens: as stated, or counted (a word of a string prompt counts as one)."""
        if self.prompt_tokens is not None:
            return self.prompt_tokens
        words = self.prompt.split() if isinstance(self.prompt, str) else self.prompt
        return max(1, len(words))


def build(settings: config.Config) -> FastAPI:
    """The application; its agents must be listening when it starts."""
    dispatcher = Dispatcher(settings)
    vocab = SHAPES[settings.model].vocab if settings.compute is not None else 0
    outside = _limits(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await dispatcher.start()
        config.say_ready()
        yield
        dispatcher.close()

    app = FastAPI(title="Prefill-as-a-Service router", lifespan=lifespan)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return _error(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(dispatcher.exposition(), media_type="text/plain; version=0.0.4")

    @app.post("/v1/completions")
    async def completions(body: Completion, request: Request) -> Response:
        tokens = body.length_tokens()
        limit = outside(tokens, body.max_tokens)
        if limit is not None:
            return _error(400, limit)
        if body.request_id is not None and dispatcher.knows(body.request_id):
            return _error(409, f"request_id {body.request_id} has been used")
        refusal = dispatcher.refusal(tokens) or (_no_prompt(body, vocab) if vocab else None)
        if refusal is not None:
            return _error(400, refusal)
        chain = tuple(body.hash_ids)
        prompt = body.prompt if vocab and isinstance(body.prompt, list) else []
        try:
            flight = dispatcher.submit(
                body.request_id, tokens, body.max_tokens, body.user, chain, prompt=prompt
            )
        except PolicyFailure as failure:
            return _error(503, str(failure))
        gone = asyncio.create_task(_gone(request, flight, dispatcher))
        patience_s = settings.timeouts.client_ns / 1e9
        try:
            return await _answer(flight, settings.model, patience_s, dispatcher, stream=body.stream)
        finally:
            gone.cancel()

    return app


def _limits(settings: config.Config) -> Callable[[int, int], str | None]:
    """What says which limit of the profiles a prompt and an answer of so many tokens break; None: none."""
    prefill = [find(peer.profile, settings.profiles) for peer in settings.having("prefill")]
    shortest, longest = max(one.min_tokens for one in prefill), min(one.max_tokens for one in prefill)
    decode = [find(peer.profile, settings.profiles) for peer in settings.having("decode")]
    least, most = max(one.contexts[0] for one in decode), min(one.contexts[1] for one in decode)

    def outside(input_tokens: int, output_tokens: int) -> str | None:
        if input_tokens > longest:
            return f"{input_tokens} input tokens; this system serves at most {longest}"
        if input_tokens < shortest:
            return f"{input_tokens} input tokens; this system serves at least {shortest}"
        if settings.compute is None and not least <= input_tokens <= most - output_tokens + 1:
            return f"decode was profiled from {least} to {most} tokens of prompt and answer"
        return None

    return outside


def _no_prompt(body: Completion, vocab: int) -> str | None:
    """What keeps real kernels from computing this prompt; None: nothing."""
    if not isinstance(body.prompt, list) or not body.prompt or body.prompt_tokens is not None:
        return "real kernels compute here: prompt has to be a list of token ids"
    if not all(0 <= token < vocab for token in body.prompt):
        return f"a token id of the prompt is outside 0 to {vocab - 1}"
    return None


async def _gone(request: Request, flight: Flight, dispatcher: Dispatcher) -> None:
    """Wait until the client has gone away, and let go of its request then."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    dispatcher.abandon(flight)


async def _answer(
    flight: Flight, model: str, patience_s: float, dispatcher: Dispatcher, *, stream: bool
) -> Response:
    """Everything at once at the end, or a stream from the first token on; 503 when it ends before that.

    A stream begins without a token where the client, who waits for `patience_s`, would give up.
    """
    done = 0
    while done < flight.request.output_tokens:
        try:
            async with asyncio.timeout(patience_s / SIGNS_OF_LIFE if stream else None):
                done = await flight.next()
        except TimeoutError:
            return _stream(flight, 0, model, patience_s, dispatcher)
        if flight.cause is not None:
            return _error(503, flight.cause)
        if stream:
            return _stream(flight, done, model, patience_s, dispatcher)
    return Response(msgspec.json.encode(_chunk(flight, model, done, done)), media_type="application/json")


def _stream(
    flight: Flight, done: int, model: str, patience_s: float, dispatcher: Dispatcher
) -> StreamingResponse:
    async def events() -> AsyncIterator[bytes]:
        try:
            async for event in _events(flight, done, model, patience_s):
                yield event
        finally:  # also when the client goes away in the middle
            dispatcher.abandon(flight)

    return StreamingResponse(events(), media_type="text/event-stream")


def _error(status: int, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "service_unavailable"  # noqa: PLR2004
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def _chunk(flight: Flight, model: str, new: int, total: int) -> dict[str, object]:
    last = total == flight.request.output_tokens
    choice: dict[str, object] = {
        "index": 0,
        "text": " token" * new,
        "finish_reason": "length" if last else None,
    }
    if flight.token_ids:
        ids = flight.token_ids[total - new : total]
        choice |= {"text": "".join(f" {one}" for one in ids), "token_ids": ids}
    return {
        "id": f"cmpl-{flight.id}",
        "object": "text_completion",
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": flight.request.input_tokens,
            "completion_tokens": total,
            "total_tokens": flight.request.input_tokens + total,
        },
    }


async def _events(flight: Flight, first: int, model: str, patience_s: float) -> AsyncIterator[bytes]:
    """Server-sent events: whatever has been generated since the last one, then [DONE]; comments meanwhile."""
    told, total = 0, first
    if not total:
        yield b": waiting\n\n"
    while True:
        if total > told:
            yield b"data: " + msgspec.json.encode(_chunk(flight, model, total - told, total)) + b"\n\n"
            told = total
        if told == flight.request.output_tokens:
            break
        try:
            async with asyncio.timeout(patience_s / SIGNS_OF_LIFE):
                total = await flight.next()
        except TimeoutError:
            yield b": waiting\n\n"
            continue
        if flight.cause is not None:
            error = {"error": {"message": flight.cause, "type": "service_unavailable"}}
            yield b"data: " + msgspec.json.encode(error) + b"\n\n"
            break
    yield b"data: [DONE]\n\n"


class Server(uvicorn.Server):
    """Uvicorn without its look around ten times a second, which virtual time does not skip."""

    async def main_loop(self) -> None:
        """Serve until killed."""
        await self.on_tick(0)
        await asyncio.Event().wait()


async def _main() -> None:
    settings = config.from_arguments()
    timeouts.check(settings.timeouts)
    end_at_errors()
    server = Server(
        uvicorn.Config(
            build(settings),
            host=settings.me.address,
            port=config.HTTP_PORT,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_keep_alive=3600,
        )
    )
    await server.serve()


def main() -> None:
    """The program."""
    asyncio.run(_main())
