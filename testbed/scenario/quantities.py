"""Base class and field types of scenario sections: texts with units in, integers and floats out.

Every type refuses with a `found` and an `allowed` that `load` turns into a Problem.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from annotated_types import Ge, Gt, Le
from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Strict,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from testbed import units

NETEM_LOSS_STEP: Final = 2.0**-32
"""The smallest probability netem knows (net/sched/sch_netem.c keeps 32 bits)."""

FINEST_STEP_NS: Final = 1_000_000
"""Timers of the run have a grid of 1 ms, so nothing changes the link in shorter steps."""

BUFFER_ALLOWED: Final = "a time at the link's rate, such as 10ms, or a size, such as 125MB"


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _remember(cls, data: Any, info: ValidationInfo) -> Any:
        """Note which section each mapping was read as, for "did you mean" (the context is `load`'s)."""
        if info.context is not None:
            info.context[id(data)] = cls
        return cls.filled(data)

    @classmethod
    def filled(cls, data: Any) -> Any:
        """The data with what the section itself adds to it before anything is checked."""
        return data

    @classmethod
    def yaml_keys(cls) -> list[str]:
        """The keys this section may have, as written in YAML."""
        return [field.alias or name for name, field in cls.model_fields.items()]


def only_tag(value: Any, keys: tuple[str, ...]) -> str | None:
    """`<key>` for the one of `keys` that a mapping has; None when it has none or several.

    Tags of unions stand in pydantic's locations; the brackets tell them from keys of the file.
    """
    present = [key for key in keys if isinstance(value, dict) and key in value]
    return f"<{present[0]}>" if len(present) == 1 else None


def refusal(found: str, allowed: str, next_step: str = "") -> PydanticCustomError:
    """A validation error in our own words."""
    return PydanticCustomError(
        "refused", "{found}", {"found": found, "allowed": allowed, "next_step": next_step}
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean threshold?`, or an empty text when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""


@dataclass(frozen=True)
class Buffer:
    """Size of the queue in front of a link: as a time it follows the rate, as a size it stays."""

    time_ns: int | None = None
    fixed_bytes: int | None = None

    def size_bytes(self, rate_bps: int, scale: float) -> int:
        """Bytes for a link of the already scaled `rate_bps`; a fixed size is multiplied by `scale`."""
        if self.time_ns is not None:
            return rate_bps * self.time_ns // (8 * units.NS_PER_S)
        assert self.fixed_bytes is not None
        return round(self.fixed_bytes * scale)


def parsed(parse: Callable[[object], Any]) -> BeforeValidator:
    """A field read by `parse`, whose UnitError becomes a refusal."""

    def validate(value: object) -> Any:
        try:
            return parse(value)
        except units.UnitError as error:
            raise refusal(error.found, error.allowed) from None

    return BeforeValidator(validate)


def _positive(parse: Callable[[object], int]) -> Callable[[object], int]:
    def parse_positive(value: object) -> int:
        amount = parse(value)
        if amount == 0:
            try:
                parse("")
            except units.UnitError as error:
                raise units.UnitError(f"{value} is zero", error.allowed) from None
        return amount

    return parse_positive


def _parse_buffer(value: object) -> Buffer:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.endswith(tuple(units.DURATION_UNITS)):
        buffer = Buffer(time_ns=units.parse_duration_ns(text))
    else:
        try:
            buffer = Buffer(fixed_bytes=units.parse_size_bytes(text))
        except units.UnitError as error:
            raise units.UnitError(error.found, BUFFER_ALLOWED) from None
    if not (buffer.time_ns or buffer.fixed_bytes):
        raise units.UnitError(f"{value} is zero", BUFFER_ALLOWED)
    return buffer


def parse_probability(value: object) -> float:
    """A ratio that is 0 or at least netem's step; raises UnitError."""
    ratio = units.parse_ratio(value)
    if 0 < ratio < NETEM_LOSS_STEP:
        raise units.UnitError(f"{value} is below netem's step of {NETEM_LOSS_STEP:.1e}", units.RATIO_ALLOWED)
    return ratio


def _line_of_text(value: object) -> object:
    """A text that a terminal, a page and XML can show; other types are pydantic's to refuse."""
    if isinstance(value, str) and not value.isprintable():
        raise refusal(f"{units.shown(value)} has a character that cannot be printed", "one line of text")
    return value


def _removed(value: Any) -> Any:
    if value is None:
        raise refusal("nothing stands here", "a value, or none")
    return None if value == "none" else value


removable = BeforeValidator(_removed)
"""For a limit that can be taken away: the text `none` is None."""


def otherwise(default: Any) -> BeforeValidator:
    """For what has a value that takes it away: the text `none` is that value."""
    return BeforeValidator(lambda value: default if value == "none" else value)


def _parse_step(value: object) -> int:
    step_ns = _positive(units.parse_duration_ns)(value)
    if step_ns < FINEST_STEP_NS:
        raise refusal(f"{value} {TOO_FINE}", "1ms or more", INSTEAD_OF_FINE)
    return step_ns


TOO_FINE: Final = "is shorter than 1ms, the finest step in which the link changes"
INSTEAD_OF_FINE: Final = "for what is shorter: jitter, slot, loss in bursts, or microbursts"

LineOfText = Annotated[str, BeforeValidator(_line_of_text)]
Rate = Annotated[int, parsed(_positive(units.parse_rate_bps))]
Duration = Annotated[int, parsed(units.parse_duration_ns)]
PositiveDuration = Annotated[int, parsed(_positive(units.parse_duration_ns))]
StepDuration = Annotated[int, parsed(_parse_step)]
Size = Annotated[int, parsed(_positive(units.parse_size_bytes))]
RequestRate = Annotated[float, parsed(units.parse_request_rate_per_s)]
Probability = Annotated[float, parsed(parse_probability)]
BufferField = Annotated[Buffer, parsed(_parse_buffer)]
Count = Annotated[int, Strict(), Ge(1), Le(10**9)]
CountOrZero = Annotated[int, Strict(), Ge(0), Le(10**9)]
Number = Annotated[float, Strict(), AllowInfNan(False)]
PositiveNumber = Annotated[float, Strict(), AllowInfNan(False), Gt(0)]
NonNegativeNumber = Annotated[float, Strict(), AllowInfNan(False), Ge(0)]
