"""The link's words: what one direction of the WAN is, and what of it may change.

Everything that netem, HTB and the queue disciplines can be told, in the scenario's units. Whether the
kernel would carry a combination out as meant is checked by `resolve`, which knows every state of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag, field_validator, model_validator

from testbed import units
from testbed.scenario.presets import presets
from testbed.scenario.quantities import (
    NETEM_LOSS_STEP,
    Buffer,
    BufferField,
    Count,
    Duration,
    PositiveDuration,
    Probability,
    Rate,
    Section,
    Size,
    StepDuration,
    did_you_mean,
    only_tag,
    otherwise,
    parsed,
    refusal,
    removable,
)

SMALLEST_PATH_MTU: Final = 576
"""What every IPv4 host must be able to take (RFC 791); Linux does not learn less (min_pmtu is 552)."""
THRESHOLD_ALLOWED: Final = "a share of the buffer, such as 20%, or a size, such as 2MB"
INT32_MAX: Final = 2**31 - 1
"""netem keeps packets, bytes of a slot and its limit in 32 bits."""

PacketBytes = Annotated[int, Strict(), Ge(SMALLEST_PATH_MTU), Le(9000)]
Packets = Annotated[Count, Le(INT32_MAX)]
Depth = Annotated[Probability, Gt(0), Le(0.95)]


class GilbertElliott(Section):
    """Burst loss of two states. Per packet: good to bad `p`, bad to good `r`, lost in bad and in good."""

    model: Literal["gilbert_elliott"]
    p: Probability
    r: Probability
    bad: Probability = 1.0
    good: Probability = 0.0

    @field_validator("r")
    @classmethod
    def _ends(cls, r: float) -> float:
        if r == 0:
            raise refusal("r is 0: the bad state would never end", "a ratio above 0")
        return r


class CorrelatedLoss(Section):
    """A share of packets, lost in runs: `correlation` is that of two packets in a row (0: independent)."""

    model: Literal["correlated"]
    ratio: Annotated[Probability, Gt(0), Lt(1)]
    correlation: Annotated[Probability, Lt(1)]

    @model_validator(mode="after")
    def _happens(self) -> CorrelatedLoss:
        if self.ratio * (1 - self.correlation) < NETEM_LOSS_STEP:
            found = f"ratio * (1 - correlation) is below netem's step of {NETEM_LOSS_STEP:.1e}"
            raise refusal(found, "a larger ratio, or less correlation")
        return self


class FourStateLoss(Section):
    """netem's Markov chain: 1 reception, 2 reception within a burst, 3 loss within a burst, 4 single loss.

    `pij` leads from i to j; state 4 leads back to 1 at once (net/sched/sch_netem.c, loss_4state).
    """

    model: Literal["four_state"]
    p13: Probability
    p31: Probability
    p32: Probability = 0.0
    p23: Probability = 1.0
    p14: Probability = 0.0

    @model_validator(mode="after")
    def _goes_on(self) -> FourStateLoss:
        for first, second in (("p13", "p14"), ("p31", "p32")):
            total = getattr(self, first) + getattr(self, second)
            if total > 1:
                raise refusal(
                    f"{first} and {second} leave the same state and sum to {total:g}", "a sum up to 1"
                )
        if self.p13 == 0 and self.p14 == 0:
            raise refusal("nothing would ever be lost: p13 and p14 are 0", "one of them above 0")
        if self.p13 and self.p31 == 0 and (self.p32 == 0 or self.p23 == 0):
            raise refusal("a burst would never end: nothing leads from state 3 back", "p31 above 0")
        if self.p13 and self.p32 and self.p23 == 0:
            raise refusal("p23 is 0: once in state 2, nothing would be lost again", "p23 above 0, or p32: 0")
        return self


class PeriodicLoss(Section):
    """Every n-th packet, exactly; the kernel counts in 16 bits (net/sched/act_gact.c)."""

    model: Literal["periodic"]
    every: Annotated[int, Strict(), Ge(2), Le(2**16 - 1)]


LossModel: TypeAlias = Annotated[
    GilbertElliott | CorrelatedLoss | FourStateLoss | PeriodicLoss, Field(discriminator="model")
]


def _loss_form(value: Any) -> str:
    return "<model>" if isinstance(value, dict | Section) else "<ratio>"


Loss: TypeAlias = Annotated[
    Annotated[Probability, Tag("<ratio>")] | Annotated[LossModel, Tag("<model>")], Discriminator(_loss_form)
]


class JitterShape(Section):
    """Jitter of a named distribution: half the width of `uniform`, else the standard deviation."""

    scale: Duration
    distribution: Literal["uniform", "normal", "pareto"] = "uniform"


class JitterFile(Section):
    """Jitter as in a file of measured delays (CSV: `delay`), around the direction's own `delay`."""

    file: Annotated[str, MinLen(1)]


def _jitter_form(value: Any) -> str | None:
    if isinstance(value, dict):
        return only_tag(value, ("scale", "file"))
    return "<width>"


Jitter: TypeAlias = Annotated[
    Annotated[Duration, Tag("<width>")]
    | Annotated[JitterShape, Tag("<scale>")]
    | Annotated[JitterFile, Tag("<file>")],
    Discriminator(
        _jitter_form,
        custom_error_type="refused",
        custom_error_message="a jitter of no known kind",
        custom_error_context={"allowed": "a duration, or exactly one of the keys scale, file"},
    ),
]


class Slot(Section):
    """Packets leave in bunches: after a pause from `min` to `max`, up to `packets` or `size` at once."""

    low: Duration = Field(alias="min")
    high: PositiveDuration = Field(alias="max")
    packets: Packets | None = None
    size: Annotated[Size, Le(INT32_MAX)] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Slot:
        if self.low > self.high:
            raise refusal("min is above max", "min up to max")
        return self


class TailDrop(Section):
    """A queue that drops what does not fit any more."""

    kind: Literal["tail_drop"]


class Codel(Section):
    """CoDel, alone (RFC 8289) or per flow (RFC 8290): drops when packets wait longer than `target`."""

    kind: Literal["fq_codel", "codel"]
    target: PositiveDuration = units.parse_duration_ns("5ms")
    interval: PositiveDuration = units.parse_duration_ns("100ms")
    ecn: Annotated[bool, Strict()] = False

    @model_validator(mode="after")
    def _in_order(self) -> Codel:
        if self.target >= self.interval:
            raise refusal(
                "target is not below interval", "a target of a fraction of interval (RFC 8289: 5 %)"
            )
        return self


@dataclass(frozen=True)
class Threshold:
    """A size of RED: a share of the buffer, or bytes."""

    share: float | None = None
    fixed_bytes: int | None = None

    def size_bytes(self, buffer_bytes: int, scale: float) -> int:
        """Bytes in a buffer of that many; a fixed size is multiplied by `scale`."""
        if self.share is not None:
            return round(self.share * buffer_bytes)
        assert self.fixed_bytes is not None
        return round(self.fixed_bytes * scale)


def _parse_threshold(value: object) -> Threshold:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text[-1:].isalpha():
        try:
            threshold = Threshold(fixed_bytes=units.parse_size_bytes(text))
        except units.UnitError as error:
            raise units.UnitError(error.found, THRESHOLD_ALLOWED) from None
    else:
        try:
            threshold = Threshold(share=units.parse_ratio(text))
        except units.UnitError as error:
            raise units.UnitError(error.found, THRESHOLD_ALLOWED) from None
    if not (threshold.share or threshold.fixed_bytes):
        raise units.UnitError(f"{value} is zero", THRESHOLD_ALLOWED)
    return threshold


ThresholdField = Annotated[Threshold, parsed(_parse_threshold)]


class Red(Section):
    """Random early detection: up to `probability` as the average queue goes from `min` to `max`, then all."""

    kind: Literal["red"]
    low: ThresholdField = Field(Threshold(share=0.2), alias="min")
    high: ThresholdField = Field(Threshold(share=0.6), alias="max")
    probability: Annotated[Probability, Gt(0)] = 0.1
    ecn: Annotated[bool, Strict()] = False

    @model_validator(mode="after")
    def _in_order(self) -> Red:
        if (self.low.share is None) != (self.high.share is None):
            raise refusal("one of min and max is a share, the other a size", "two shares or two sizes")
        if (self.low.share or self.low.fixed_bytes or 0) >= (self.high.share or self.high.fixed_bytes or 0):
            raise refusal("min is not below max", "min below max")
        return self


def _queue_by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


QueueSpec: TypeAlias = Annotated[TailDrop | Codel | Red, Field(discriminator="kind")]
Queue: TypeAlias = Annotated[QueueSpec, BeforeValidator(_queue_by_name)]


class TokenBucket(Section):
    """A provider's credits: full rate until `budget` is spent, then `sustained`, at which they return."""

    sustained: Rate
    budget: Size


class Excursions(Section):
    """Rare drops of the rate by `depth`; lengths and the gaps between are exponential with these means."""

    depth: Depth
    gap: StepDuration
    length: StepDuration


class Noise(Section):
    """A rate that is never quite the same: a new normal draw of deviation `cv` every `every`."""

    cv: Annotated[Probability, Le(0.5)] = 0.0
    every: StepDuration = units.parse_duration_ns("100ms")
    excursions: Excursions | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Noise:
        if self.cv == 0 and self.excursions is None:
            raise refusal("no noise at all", "cv above 0, or excursions", "to take noise away: noise: none")
        return self


class Outage(Section):
    """Nothing passes once, for a length drawn uniformly up to `up_to`."""

    up_to: StepDuration


class LinkOptions(Section):
    """What a direction has besides rate, buffer and delay; `none` takes any of it away again."""

    jitter: Annotated[Jitter, otherwise("0ns")] = 0
    loss: Annotated[Loss, otherwise(0.0)] = 0.0
    reorder: Annotated[Probability, otherwise(0.0)] = 0.0
    duplicate: Annotated[Probability, otherwise(0.0)] = 0.0
    corrupt: Annotated[Probability, otherwise(0.0)] = 0.0
    slot: Annotated[Slot | None, removable] = None
    queue: Annotated[Queue, otherwise("tail_drop")] = TailDrop(kind="tail_drop")
    token_bucket: Annotated[TokenBucket | None, removable] = None
    flow_cap: Annotated[Rate | None, removable] = None
    path_mtu: Annotated[PacketBytes | None, removable] = None
    black_hole_above: Annotated[PacketBytes | None, removable] = None
    limit: Annotated[Packets | None, removable] = None


class LinkDirection(LinkOptions):
    """One direction of the WAN at the start. `preset` fills in what is not written beside it."""

    preset: str | None = None
    rate: Rate
    buffer: BufferField
    delay: Duration
    noise: Annotated[Noise | None, removable] = None
    outage: Annotated[Outage | None, removable] = None

    @classmethod
    def filled(cls, data: Any) -> Any:
        """The keys of the preset under those of the file.

        For an unknown one some preset stands in, so that its name is the only problem.
        """
        if not isinstance(data, dict) or not isinstance(data.get("preset"), str):
            return data
        known = presets()
        return {**known.get(data["preset"], next(iter(known.values()))), **data}

    @field_validator("preset")
    @classmethod
    def _known(cls, preset: str | None) -> str | None:
        if preset is not None and preset not in presets():
            raise refusal(f"unknown preset {preset}", ", ".join(presets()), did_you_mean(preset, presets()))
        return preset


class LinkPatch(LinkOptions):
    """Changes to a direction; what is not named stays as it is, so no default is ever used."""

    rate: Rate = 0
    buffer: BufferField = Buffer()
    delay: Duration = 0

    @model_validator(mode="before")
    @classmethod
    def _says_something(cls, data: Any) -> Any:
        if data == {}:
            raise refusal("an empty mapping", f"at least one of {', '.join(cls.yaml_keys())}")
        return data

    @classmethod
    def yaml_keys(cls) -> list[str]:
        """Rate, buffer and delay first, as in a direction."""
        own = ["rate", "buffer", "delay"]
        return own + [key for key in super().yaml_keys() if key not in own]

    def changes(self) -> dict[str, Any]:
        """The fields that were named, by name; those of a direction in its order."""
        return {name: getattr(self, name) for name in self.yaml_keys() if name in self.model_fields_set}


class Link(Section):
    """Both directions and what they share. `mtu` is in bytes."""

    mtu: Annotated[int, Strict(), Ge(1280), Le(9000)] = 9000
    offload: Literal["auto", "on", "off"] = "auto"
    a_to_b: LinkDirection
    b_to_a: LinkDirection
