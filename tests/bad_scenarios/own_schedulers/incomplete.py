"""Has one of three functions."""

from agents.policies.view import Config, State


class Mine:
    """Starts, and that is all."""

    def start(self, config: Config) -> State:
        """The configured threshold."""
        return State(config.threshold_tokens, None, "as configured")
