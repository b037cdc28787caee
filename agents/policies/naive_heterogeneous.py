"""All prefill in the PrfaaS cluster: the paper's naive heterogeneous baseline (table 6)."""

from agents.policies import params
from agents.policies.view import Config, Decision, Request, State, View


def start(config: Config) -> State:
    """A threshold of 0, so that everything is above it.

    Raises:
        ValueError: a parameter is given, for there are none, or the PrfaaS cluster has no instances.
    """
    params.check("naive_heterogeneous", {}, config.params)
    if config.system.n_prfaas < 1:
        raise ValueError("naive_heterogeneous needs instances in the PrfaaS cluster, there are none")
    return State(0, None, "all prefill in the PrfaaS cluster")


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """Always the PrfaaS cluster."""
    return Decision("prfaas", state.threshold_tokens, state.reason)


def update(config: Config, state: State, view: View) -> State:
    """Nothing to learn."""
    return state
