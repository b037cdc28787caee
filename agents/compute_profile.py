"""What computing costs on one kind of hardware: prefill by length and layer, decode by batch and context.

Pure arithmetic on measured points. Between two of them prefill follows a power law, decode a straight line in
the batch and in the context. Outside them nothing is known, unless `extrapolate` says to go on with the
nearest two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log

import msgspec

FURTHEST_TOKENS = 10**9
"""Where a profile ends that is extrapolated: longer than any prompt."""
LEAST_STEP_S = 1e-6
"""A line that falls ends here when it is extrapolated, not below nothing."""


class PowerLaw(msgspec.Struct, frozen=True):
    """Prefill time of `factor_s` * tokens ** `exponent` seconds for above_tokens < tokens <= up_to_tokens."""

    above_tokens: float
    up_to_tokens: float
    factor_s: float
    exponent: float


class LayerShares(msgspec.Struct, frozen=True):
    """Of a prefill of `tokens`: the share of its time after which each layer is finished; the last is 1."""

    tokens: int
    ends: tuple[float, ...]


class DecodeSteps(msgspec.Struct, frozen=True):
    """Seconds of a decode step by batch, ascending, of requests that hold `context_tokens` before it."""

    context_tokens: int
    steps: tuple[tuple[int, float], ...]


class ComputeProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Time one instance needs: prefill by length, decode by step.

    `knots` are at least two (tokens, seconds), ascending in tokens; prompts from `from_tokens` on are
    covered. `layers` by tokens, empty where nobody looked at layers: each then takes as long as the others.
    `bs_max` is 0 where decode was not profiled (the hardware serves prefill only); else a step takes
    `decode_step_s` whatever it holds, or what `decode`, by context, says. `model` is the one that was
    measured, if known.
    """

    name: str
    source: str
    knots: tuple[tuple[int, float], ...]
    bs_max: int = 0
    decode_step_s: float | None = None
    model: str = ""
    from_tokens: int = 1
    layers: tuple[LayerShares, ...] = ()
    decode: tuple[DecodeSteps, ...] = ()
    extrapolate: bool = False

    @property
    def min_tokens(self) -> int:
        """Shortest prompt the profile covers, in tokens."""
        return 1 if self.extrapolate else self.from_tokens

    @property
    def max_tokens(self) -> int:
        """Longest prompt the profile covers, in tokens."""
        return FURTHEST_TOKENS if self.extrapolate else self.knots[-1][0]

    @property
    def contexts(self) -> tuple[int, int]:
        """Least and most tokens that a request may hold before a decode step."""
        if self.extrapolate or not self.decode:
            return 1, FURTHEST_TOKENS
        return self.decode[0].context_tokens, self.decode[-1].context_tokens

    @property
    def batches(self) -> tuple[int, int]:
        """Least and most requests of a decode step that are covered at every context."""
        if self.extrapolate or not self.decode:
            return 1, self.bs_max
        return max(one.steps[0][0] for one in self.decode), min(one.steps[-1][0] for one in self.decode)

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill `tokens` uncached tokens, interpolated log-log between the knots.

        Below the first knot the first segment is extended with its slope down to `min_tokens`: the fixed cost
        of a forward pass dominates there, and the slope (0.24 for h200) keeps it. Above the last knot
        nothing is known, but for `extrapolate`.

        Raises:
            ValueError: `tokens` is below `min_tokens` or above `max_tokens`.
        """
        if not self.min_tokens <= tokens <= self.max_tokens:
            covered = f"{self.min_tokens} to {self.max_tokens}"
            raise ValueError(f"{self.name}: prefill of {tokens} tokens is outside the profile, {covered}")
        right = bisect_right(self.knots, tokens, key=lambda knot: knot[0])
        right = min(max(right, 1), len(self.knots) - 1)
        (tokens_0, seconds_0), (tokens_1, seconds_1) = self.knots[right - 1], self.knots[right]
        slope = log(seconds_1 / seconds_0) / log(tokens_1 / tokens_0)
        return seconds_0 * exp(slope * log(tokens / tokens_0))

    def layer_ends_ns(self, tokens: int, layers: int, more_ns: int = 0) -> tuple[int, ...]:
        """When each of `layers` layers is finished, counted from the begin of a prefill of `tokens`, in ns.

        `more_ns` of other work are spread evenly over the layers. Shares are interpolated linearly between
        the lengths at which layers were measured; outside these they are those of the nearest length.

        Raises:
            ValueError: as `prefill_s`.
        """
        took_ns = round(self.prefill_s(tokens) * 1e9)
        if not self.layers:
            return tuple((took_ns + more_ns) * end // layers for end in range(1, layers + 1))
        shares = self._shares(tokens)
        assert len(shares) == layers
        return tuple(
            round(took_ns * share) + more_ns * end // layers for end, share in enumerate(shares, start=1)
        )

    def _shares(self, tokens: int) -> tuple[float, ...]:
        right = bisect_right(self.layers, tokens, key=lambda one: one.tokens)
        if right in {0, len(self.layers)}:
            return self.layers[max(right - 1, 0)].ends
        before, after = self.layers[right - 1], self.layers[right]
        return tuple(
            _on_line((before.tokens, first), (after.tokens, second), tokens)
            for first, second in zip(before.ends, after.ends, strict=True)
        )

    def power_laws(self) -> tuple[PowerLaw, ...]:
        """What `prefill_s` is made of: a power law per segment, the first from 0 on, the last to the end."""
        laws = []
        for number, ((tokens_0, seconds_0), (tokens_1, seconds_1)) in enumerate(pairwise(self.knots)):
            exponent = log(seconds_1 / seconds_0) / log(tokens_1 / tokens_0)
            factor_s = seconds_0 / tokens_0**exponent
            up_to_tokens = self.max_tokens if tokens_1 == self.knots[-1][0] else tokens_1
            laws.append(PowerLaw(tokens_0 if number else 0.0, up_to_tokens, factor_s, exponent))
        return tuple(laws)

    def step_s(self, batch: int, context_tokens: float = 0.0) -> float:
        """Seconds of one decode step for `batch` requests that hold `context_tokens` each, on average.

        Bilinear between measured points. The context does not matter where a step always takes the same: the
        paper gives one value for any batch that fits.

        Raises:
            ValueError: decode was not profiled, or `batch` is outside 1 to `bs_max`, or what was measured
                does not cover batch or context.
        """
        if not self.bs_max:
            raise ValueError(f"{self.name}: decode was not profiled")
        if not 1 <= batch <= self.bs_max:
            raise ValueError(f"{self.name}: a decode batch of {batch} is outside 1 to {self.bs_max}")
        if self.decode_step_s is not None:
            return self.decode_step_s
        for what, value, (least, most) in (
            ("batch", batch, self.batches),
            ("context", context_tokens, self.contexts),
        ):
            if not least <= value <= most:
                raise ValueError(f"{self.name}: a decode {what} of {value} is outside {least} to {most}")
        by_context = [(one.context_tokens, _interpolated(one.steps, batch)) for one in self.decode]
        return max(_interpolated(by_context, context_tokens), LEAST_STEP_S)


def _interpolated(points: Sequence[tuple[int, float]], at: float) -> float:
    """The value at `at` on straight lines through the points, the outer ones going on; or the only one."""
    if len(points) == 1:
        return points[0][1]
    right = bisect_right(points, at, key=lambda point: point[0])
    right = min(max(right, 1), len(points) - 1)
    return _on_line(points[right - 1], points[right], at)


def _on_line(first: tuple[int, float], second: tuple[int, float], at: float) -> float:
    """The value at `at` on the line through two points; exactly theirs at both."""
    share = (at - first[0]) / (second[0] - first[0])
    return first[1] * (1 - share) + second[1] * share
