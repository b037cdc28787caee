"""A fixed length threshold: the paper's routing rule without its short-term reaction."""

from agents.policies import params
from agents.policies.view import Config, Decision, Request, State, View, by_length


def start(config: Config) -> State:
    """The configured threshold, for good.

    Raises:
        ValueError: a parameter is given, for there are none.
    """
    params.check("static_threshold", {}, config.params)
    return State(config.threshold_tokens, None, "fixed threshold")


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length against the fixed threshold."""
    return by_length(state.threshold_tokens, request)


def update(config: Config, state: State, view: View) -> State:
    """Never moves."""
    return state
