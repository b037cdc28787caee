"""From the name of a policy to the policy, ready to be asked."""

from collections.abc import Mapping
from typing import Final

from agents.config import Service
from agents.policies import POLICIES, own, recorded
from agents.policies.guard import Guarded
from agents.policies.http_service import HttpService

RECORDED: Final = "recorded"
HTTP: Final = "http"


def find(name: str, files: Mapping[str, str], service: Service | None = None) -> Guarded:
    """The policy of that name; `files` are the texts of the user's own modules, by path, `service` is who is
    asked when it is `http`.

    Raises:
        PolicyFailure: it is the user's own, and cannot be made of these files.
    """
    if own.is_own(name):
        return Guarded(own.load(name, files.get), own=True)
    if name == HTTP:
        assert service is not None
        return Guarded(HttpService(service))
    return Guarded(recorded if name == RECORDED else POLICIES[name])
