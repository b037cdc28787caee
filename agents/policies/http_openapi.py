"""`python -m agents.policies.http_openapi`: the OpenAPI 3.1 document of a scheduler service."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from agents.policies.http_protocol import RouteAnswered, RouteAsked, StartAsked, StateAnswered, UpdateAsked

CALLS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct], str]] = {
    "/start": (StartAsked, StateAnswered, "Once, before the first request: the first state."),
    "/route": (RouteAsked, RouteAnswered, "For each request: where its prefill runs."),
    "/update": (UpdateAsked, StateAnswered, "After each control interval: the next state."),
}


def openapi() -> dict[str, Any]:
    """The document."""
    kinds = [kind for asked, answered, _ in CALLS.values() for kind in (asked, answered)]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")

    def content(number: int) -> dict[str, Any]:
        return {"application/json": {"schema": references[number]}}

    paths = {
        path: {
            "post": {
                "operationId": path[1:],
                "summary": summary,
                "requestBody": {"required": True, "content": content(2 * number)},
                "responses": {"200": {"description": "The answer.", "content": content(2 * number + 1)}},
            }
        }
        for number, (path, (_, _, summary)) in enumerate(CALLS.items())
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Scheduler service",
            "version": "1",
            "description": "What the router asks of a scheduler that runs beside it.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def document() -> bytes:
    """The same as a file."""
    return msgspec.json.format(msgspec.json.encode(openapi()), indent=1) + b"\n"


def main() -> None:
    """Print the document."""
    sys.stdout.buffer.write(document())


if __name__ == "__main__":
    main()
