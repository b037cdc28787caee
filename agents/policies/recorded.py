"""What a log of decisions says: each request goes where it went, the state changes as it did.

Whatever the link does now: two runs with the same decisions differ by the link alone.
"""

from agents.policies import params
from agents.policies.view import Config, Decision, Request, State, View


def start(config: Config) -> State:
    """The configured threshold, until the first interval.

    Raises:
        ValueError: a parameter is given, for there are none, or there is no log.
    """
    params.check("recorded", {}, config.params)
    if config.log is None:
        raise ValueError("recorded needs a log")
    return State(config.threshold_tokens, None, "as recorded", 0)


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """Where the log says; a request that it does not have is a KeyError."""
    assert config.log is not None
    one = config.log.routes[request.id]
    return Decision(one.route, one.threshold_tokens, one.reason, one.cache, one.compress, one.order_s)


def update(config: Config, state: State, view: View) -> State:
    """The state after as many intervals; when the log is over, the last one."""
    assert config.log is not None
    assert isinstance(state.memory, int)
    if state.memory >= len(config.log.states):
        return state
    one = config.log.states[state.memory]
    reason = one.reason or state.reason
    return State(
        one.threshold_tokens, one.capacity_bps, reason, state.memory + 1, one.regime, one.prefill_instances
    )
