"""A scheduler to copy: it counts on what the link carried while there was more to send than it could.

An interval is busy when at its end KV for more than another one stood before the link. What was acknowledged
in a busy interval is what the link gives; in any other one the link gave all that was asked of it. A low
quantile of the last `window_s` seconds is taken for the link's capacity; the threshold is the best for that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from agents.model import best_threshold
from agents.policies.view import Config, Decision, Request, State, View, by_length

DEFAULTS: Mapping[str, float] = {"window_s": 8.0, "quantile": 0.2}


@dataclass(frozen=True)
class Seen:
    """What the link gave in the last intervals: their ends in seconds, and bits per second."""

    samples: tuple[tuple[float, float], ...] = ()


class MyScheduler:
    """Follows the link: by a quantile of goodput, over a moving window."""

    def start(self, config: Config) -> State:
        """The configured threshold, and nothing seen; a parameter that is not in DEFAULTS is refused."""
        for name, value in config.params.items():
            if name not in DEFAULTS or value <= 0:
                raise ValueError(f"{name} is {value}: there are {', '.join(DEFAULTS)}, above 0")
        return State(config.threshold_tokens, None, "as configured", Seen())

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:
        """Long prompts leave, short ones stay."""
        return by_length(state.threshold_tokens, request)

    def update(self, config: Config, state: State, view: View) -> State:
        """One more sample, and the threshold that is best for what they say."""
        assert isinstance(state.memory, Seen)
        params = {**DEFAULTS, **config.params}
        busy = view.egress.backlog_bytes > view.egress.acked_bytes
        sample = (view.t_s, view.egress.goodput_bps if busy else inf)
        samples = tuple(
            one for one in (*state.memory.samples, sample) if one[0] > view.t_s - params["window_s"]
        )
        gave = sorted(bps for _, bps in samples)
        low_bps = gave[int(params["quantile"] * len(gave))] if len(gave) > 1 else inf
        capacity_bps = None if low_bps == inf else low_bps
        threshold = best_threshold(config.system, config.lengths, capacity_bps)
        reason = (
            "the link gives all" if capacity_bps is None else f"the link gives {capacity_bps / 1e9:.1f} Gbps"
        )
        return State(threshold, capacity_bps, reason, Seen(samples))
