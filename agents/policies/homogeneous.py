"""Everything stays in the PD cluster: the paper's homogeneous baseline (table 6)."""

from agents.policies import params
from agents.policies.view import Config, Decision, Request, State, View


def start(config: Config) -> State:
    """A threshold at the longest profiled prompt, so that nothing is above it.

    Raises:
        ValueError: a parameter is given, for there are none.
    """
    params.check("homogeneous", {}, config.params)
    return State(config.system.pd.max_tokens, None, "everything stays in the PD cluster")


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """Always the PD cluster."""
    return Decision("pd", state.threshold_tokens, state.reason)


def update(config: Config, state: State, view: View) -> State:
    """Nothing to learn."""
    return state
