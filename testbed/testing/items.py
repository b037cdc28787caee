"""A scenario file as a test of pytest's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from testbed.errors import ScenarioError, TestbedError
from testbed.run import place
from testbed.scenario.load import load
from testbed.scenario.model import Scenario
from testbed.testing import outcome
from testbed.testing.fixture import runs_of
from testbed.units import NS_PER_S

LONG_S: Final = 60
"""A scenario that sends requests for longer than this, in virtual seconds, is a long one."""


class MissedError(Exception):
    """A scenario that was not what its test wants; the message is all there is to say."""


class ScenarioFile(pytest.File):
    """A scenario file: one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """The test, marked with what the scenario needs, if that can be read from it."""
        try:
            scenario = load(self.path).scenario
        except ScenarioError:
            scenario = None  # the test runs it, and so says what is wrong
        item: ScenarioItem = ScenarioItem.from_parent(self, name=self.path.stem)
        item.control = scenario is not None and scenario.control
        for name in marks(scenario, self.config.getoption("testbed_kernel")):
            item.add_marker(name)
        yield item


class ScenarioItem(pytest.Item):
    """Passes when the scenario's verdict is the one that it is to have."""

    control = False

    def runtest(self) -> None:
        """Run the scenario; raises MissedError, or skips where this machine lacks something."""
        self.user_properties.append(("testbed.scenario", self.path.name))
        ended = runs_of(self.config).of(self.path)
        self.user_properties.extend(outcome.properties(ended))
        judged = outcome.of_scenario(ended, control=self.control)
        if judged.kind == "skipped":
            pytest.skip(judged.text)
        if judged.kind == "failed":
            raise MissedError(judged.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What is wrong with the scenario or its run, without the way through this file."""
        if isinstance(excinfo.value, MissedError | TestbedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it is and what its failure is headed with."""
        return self.path, 0, f"scenario {self.name}"


def marks(scenario: Scenario | None, kernel: str) -> list[str]:
    """Names of markers: of every scenario, whether it takes long, whether it computes, where it will run.

    Those that depend on a scenario which cannot be read, or on a machine which cannot run it, are left out.
    """
    real = scenario is not None and scenario.compute == "real"
    found = ["testbed"]
    if scenario is not None and scenario.duration > LONG_S * NS_PER_S:
        found.append("testbed_long")
    if real:
        found.append("testbed_real")
    try:
        where, _ = place(kernel, "real" if real else None)
    except TestbedError:
        return found  # it is skipped when it is run, with the reason
    return [*found, f"testbed_{where.name}"]
