"""Knows a third datacenter."""

from agents.policies.static_threshold import start, update
from agents.policies.view import Config, Decision, Request, State, View


class Mine:
    """Sends everything to nowhere."""

    start = staticmethod(start)
    update = staticmethod(update)

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:  # noqa: ARG002 - a policy's signature
        """To the moon."""
        return Decision("moon", 0, "why not")  # type: ignore[arg-type]
