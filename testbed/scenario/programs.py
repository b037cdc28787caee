"""Programs of the user's: the section `programs`, and the service that a policy may be."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le, MinLen
from pydantic import BeforeValidator, Field, Strict, model_validator

from testbed.scenario.quantities import Duration, PositiveDuration, Section, refusal
from testbed.units import format_duration_ns, parse_duration_ns


def _argument(value: Any) -> Any:
    """An argument is a text; a number means its digits."""
    if isinstance(value, str) and "\0" in value:
        raise refusal("an argument with a NUL character", "any other text")
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _some(words: Any) -> Any:
    if words == []:
        raise refusal("no command", "a list of the program and its arguments")
    return words


Argument = Annotated[str, BeforeValidator(_argument)]
Command = Annotated[tuple[Argument, ...], BeforeValidator(_some)]
Port = Annotated[int, Strict(), Ge(1), Le(65_535)]


class Service(Section):
    """A scheduler that is a program beside the router; it listens on `port` of 127.0.0.1.

    `files`: further files and directories beside the scenario that it needs. `timeout`: for one answer.
    """

    command: Command
    files: tuple[str, ...] = ()
    port: Port
    timeout: Annotated[PositiveDuration, Ge(1_000_000), Le(60_000_000_000)] = parse_duration_ns("1s")


class Program(Section):
    """A program on a topology host, from `at`; by `until` it has ended by itself, or is asked to (SIGTERM).

    `exit`: the status with which it has to end. It is ready once it said `ready`, or something `listens`.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
    host: str
    command: Command
    files: tuple[str, ...] = ()
    at: Duration = 0
    until: PositiveDuration | None = None
    exit: Annotated[int, Strict(), Ge(0), Le(255)] = 0
    ready: Annotated[str, MinLen(1)] | None = None
    listens: Port | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Program:
        if self.ready is not None and self.listens is not None:
            raise refusal("both ready and listens", "one of them")
        if self.until is not None and self.until <= self.at:
            found = (
                f"until ({format_duration_ns(self.until)}) is not after at ({format_duration_ns(self.at)})"
            )
            raise refusal(found, "a later until")
        return self
