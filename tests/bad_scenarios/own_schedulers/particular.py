"""Takes no parameters."""

from agents.policies.static_threshold import route, update
from agents.policies.view import Config, State


class Mine:
    """A fixed threshold."""

    route = staticmethod(route)
    update = staticmethod(update)

    def start(self, config: Config) -> State:
        """Refuses every parameter."""
        if config.params:
            raise ValueError(f"I take no parameters, least of all {', '.join(config.params)}")
        return State(config.threshold_tokens, None, "as configured")
