"""What every entry of the timeline has, whatever it does."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from testbed.scenario.quantities import Duration, Section


class Entry(Section):
    """A moment, and a name that expectations can refer to."""

    at: Duration
    event: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")] | None = None
