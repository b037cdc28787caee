"""The fixture `testbed`: runs scenarios for tests in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from testbed.testing import outcome
from testbed.testing.looked_at import Run
from testbed.testing.once import Options, Runs, overrides_of
from testbed.testing.stash import ITEM, SESSION

OUT: Final = "runs/pytest"
_RUNS: Final = pytest.StashKey[Runs]()


class Testbed:
    """Runs a scenario and hands back the run, the same one for the same arguments."""

    __test__ = False  # pytest takes any Test* class for a test

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._runs = runs_of(config)

    def __call__(
        self,
        scenario: str | Path,
        *,
        seed: int | None = None,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - called after the option
        trusted: bool = True,
    ) -> Run:
        """Run a scenario, named from pytest's root directory; `seed` and `set` are those options of a run.

        The test fails when the run could not take place or, if it is to be `trusted`, is UNKNOWN; it is
        skipped when this machine lacks something. PASS and FAIL are for the test to tell.
        """
        __tracebackhide__ = True
        path, overrides = self._config.rootpath / scenario, overrides_of(set or {})
        ended = self._runs.of(path, overrides, seed)
        if item := self._config.stash.get(ITEM, None):
            item.user_properties.append(("testbed.scenario", path.name))
            item.user_properties.extend(outcome.properties(ended))
        judged = outcome.of_trusted(ended)
        if judged.kind == "skipped":
            pytest.skip(judged.text)
        if judged.kind == "failed" and (trusted or ended.verdict is None):
            pytest.fail(judged.text, pytrace=False)
        assert ended.directory is not None, "a verdict lies in a directory"
        assert ended.verdict is not None, "else the test has failed"
        return Run(ended.directory.resolve(), ended.verdict, path, overrides)


def runs_of(config: pytest.Config) -> Runs:
    """The runs of this session, as its command line wants them."""
    if _RUNS not in config.stash:
        out = config.getoption("testbed_out")
        options = Options(
            out=config.rootpath / OUT if out is None else config.invocation_params.dir / out,
            session=config.stash[SESSION],
            kernel=config.getoption("testbed_kernel"),
            scale=config.getoption("testbed_scale"),
        )
        config.stash[_RUNS] = Runs(options)
    return config.stash[_RUNS]
