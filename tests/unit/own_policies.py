"""Files of policies that tests write, for tests only."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

STARTS = 'return State(config.threshold_tokens, None, "mine")'
ROUTES = 'return Decision("pd", state.threshold_tokens, "mine")'
UPDATES = "return state"


def policy_text(start: str = STARTS, route: str = ROUTES, update: str = UPDATES, before: str = "") -> str:
    """A module with a class `Mine` whose functions have these bodies of one line: 6, 9 and 12."""
    return dedent(f"""\
        from agents.policies.view import Decision, State, by_length
        {before}

        class Mine:
            def start(self, config):
                {start}

            def route(self, config, state, view, request):
                {route}

            def update(self, config, state, view):
                {update}
        """)


def write(directory: Path, text: str, name: str = "mine.py") -> Path:
    """Write a module; returns its directory."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return directory
