"""The project as a plugin of pytest: `pytest scenarios/` runs every scenario as a test, a fixture runs more.

pytest loads this in every session of whoever has the project installed: nothing of the testbed is loaded
before a scenario is found or the fixture is asked for.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from testbed.testing.recognize import is_scenario, is_yaml
from testbed.testing.stash import ITEM, SESSION

MARKERS = (
    "testbed: a scenario of the testbed",
    "testbed_uml: a scenario that will run in the UML kernel",
    "testbed_host: a scenario that will run in this machine's kernel",
    "testbed_vm: a scenario that will run in a virtual machine",
    "testbed_long: a scenario that sends requests for more than 60 virtual seconds",
    "testbed_real: a scenario that computes with real kernels, in real time",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the runs, and where scenarios lie."""
    group = parser.getgroup("testbed", "scenarios of the testbed")
    group.addoption(
        "--testbed-kernel", choices=("auto", "uml", "host", "vm"), default="auto", help="as --kernel of a run"
    )
    group.addoption("--testbed-scale", type=float, metavar="S", help="as --scale of a run")
    group.addoption("--testbed-out", metavar="DIR", help="where run directories go; default runs/pytest")
    group.addoption("--testbed-summary", metavar="FILE", help="append a table in Markdown to this file")
    parser.addini(
        "testbed_paths", "the only directories below which YAML files are taken for scenarios", type="paths"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known; in the process where all reports arrive, keep a tally."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    worker: dict[str, str] = getattr(config, "workerinput", {})  # of pytest-xdist
    config.stash[SESSION] = worker.get("testrunuid") or uuid.uuid4().hex
    named = config.getoption("testbed_summary")
    asked = [] if named is None else [config.invocation_params.dir / named]
    if not worker and (asked or os.environ.get("GITHUB_STEP_SUMMARY")):
        from testbed import step_summary  # noqa: PLC0415 - see above
        from testbed.testing.tally import Tally  # noqa: PLC0415 - see above

        config.pluginmanager.register(Tally([*asked, *step_summary.asked_for()]), "testbed-tally")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """A scenario becomes a test; a YAML file that was itself named on the command line has to be one."""
    if not is_yaml(file_path) or not _is_wanted(file_path, parent.config):
        return None
    from testbed.testing.items import ScenarioFile  # noqa: PLC0415 - see above

    file: pytest.File = ScenarioFile.from_parent(parent, path=file_path)
    return file


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The fixture, which outlives a test, has what it says of a run put into the report of this one."""
    item.config.stash[ITEM] = item


@pytest.fixture(scope="session", name="testbed")
def testbed_fixture(request: pytest.FixtureRequest) -> object:
    """Runs a scenario: `run = testbed("scenarios/x.yaml", seed=3, set={"policy.params.k": 2})`."""
    from testbed.testing.fixture import Testbed  # noqa: PLC0415 - see above

    return Testbed(request.config)


def _is_wanted(path: Path, config: pytest.Config) -> bool:
    named = {
        (config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args
    }
    if path.resolve() in named:
        return True
    below = config.getini("testbed_paths")
    return (not below or any(path.is_relative_to(place) for place in below)) and is_scenario(path)
