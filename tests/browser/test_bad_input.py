"""Bad input to every endpoint, as the OpenAPI document says what is good: no answer is a fault of the server.

`make browser` runs this; it needs schemathesis. Starting runs is replaced, as thousands would be started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from testbed import tables
from testbed.rundir import RunDir
from testbed.serve import application
from tests.unit.serve_client import client_of
from tests.unit.serve_runs import write_verdict
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: make browser")

ROOT = Path(__file__).parents[2]
EXAMPLES = 25
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with a run and a scenario that inputs can hit upon."""
    place = tmp_path_factory.mktemp("served")
    (place / "scenarios").mkdir()
    (place / "scenarios/a.yaml").write_text((ROOT / "scenarios/full_rate.yaml").read_text(encoding="utf-8"))
    plan = make_plan(requests=20)
    tables.build(write_run(place / "runs/a", plan, tcp_lines=32), plan)
    write_verdict(RunDir(place / "runs/a"), "PASS")
    app, parts = application.make(place / "runs", place / "scenarios")
    parts.processes.start = lambda _file, _options: 1  # type: ignore[method-assign]
    with client_of(app) as client:
        yield schemathesis.openapi.from_url(f"{client.base_url}/api/v1/openapi.json")


CHECKS = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.content_type_conformance,
)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_no_input_is_a_fault_of_the_server(document: Any, mode: Any) -> None:
    """Whatever is sent, the answer is one that the document has, in the form that it has."""
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 12

    def try_all(operation: Any) -> None:
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        def try_one(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=20)

        try_one()

    for operation in operations:
        # Nothing can be wrong about an endpoint that takes nothing.
        with suppress(Unsatisfiable):
            try_all(operation)
