"""From the name of a policy to the policy, ready to be asked."""

from collections.abc import Mapping
from typing import Final

from agents.policies import POLICIES, own, recorded
from agents.policies.guard import Guarded

RECORDED: Final = "recorded"


def find(name: str, files: Mapping[str, str]) -> Guarded:
    """The policy of that name; `files` are the texts of the user's own modules, by path.

    Raises:
        PolicyFailure: it is the user's own, and cannot be made of these files.
    """
    if own.is_own(name):
        return Guarded(own.load(name, files.get), own=True)
    return Guarded(recorded if name == RECORDED else POLICIES[name])
