"""A scheduler with a fault that a regression test has to find: it believes a backlog only when it is old."""

from agents.policies.view import Config, Decision, Request, State, View, by_length

PATIENCE = 40  # intervals: 10 s
BUSY_TOKENS = 24_400


class Slow:
    """Raises its threshold long after the link has become narrow."""

    def start(self, config: Config) -> State:
        """No backlog yet."""
        return State(config.threshold_tokens, None, "as configured", 0)

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:  # noqa: ARG002 - a policy's signature
        """By length."""
        return by_length(state.threshold_tokens, request)

    def update(self, config: Config, state: State, view: View) -> State:
        """Count the intervals that end with a backlog."""
        assert isinstance(state.memory, int)
        busy = state.memory + 1 if view.egress.backlog_bytes > view.egress.acked_bytes else 0
        tokens = BUSY_TOKENS if busy > PATIENCE else config.threshold_tokens
        return State(tokens, None, f"{busy} intervals with a backlog", busy)
