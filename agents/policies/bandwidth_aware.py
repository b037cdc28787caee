"""The paper's short-term scheduling: the threshold follows the egress capacity that TCP shows."""

from agents.policies import params, short_loop
from agents.policies.params import values
from agents.policies.view import Config, Decision, Request, State, View, by_length

PARAMS = short_loop.PARAMS


def start(config: Config) -> State:
    """The configured threshold and a link that does not bind.

    Raises:
        ValueError: a parameter is unknown or out of range.
    """
    params.check("bandwidth_aware", PARAMS, config.params)
    return State(config.threshold_tokens, None, "configured threshold", short_loop.begin(config))


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length against the threshold of the moment."""
    return by_length(state.threshold_tokens, request)


def update(config: Config, state: State, view: View) -> State:
    """Estimate the egress capacity from the interval that just ended, then move if it is worth it."""
    assert isinstance(state.memory, short_loop.Short)
    given = values(PARAMS, config.params)
    short = short_loop.observe(given, config, state.memory, view)
    state, short = short_loop.move(given, config.system, state, short, view)
    return State(state.threshold_tokens, state.capacity_bps, state.reason, short)
