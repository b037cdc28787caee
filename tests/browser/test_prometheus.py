"""A real Prometheus reads /metrics and answers every query of the Grafana dashboard."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import control_plane
from testbed import tables
from tests.unit.serve_runs import write_verdict
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

PROMETHEUS = shutil.which("prometheus")
DASHBOARD = Path(__file__).parents[2] / "docs/grafana/testbed.json"
PATIENCE_S = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: apt-get install prometheus"),
]


@contextmanager
def prometheus(place: Path, scraped: int) -> Iterator[str]:
    """Prometheus, which reads from port `scraped` every second; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    job = {"job_name": "testbed", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (place / "prometheus.yml").write_text(json.dumps(config))
    command = [
        str(PROMETHEUS),
        f"--config.file={place}/prometheus.yml",
        f"--storage.tsdb.path={place}/data",
        f"--web.listen-address={address}",
    ]
    with (place / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}/api/v1"
        finally:
            process.terminate()


def asked(url: str, **parameters: str) -> list[Any]:
    """What Prometheus answers; nothing while it is not up."""
    try:
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=10) as response:
            data = json.load(response)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError((parameters, error.read())) from None
    except OSError:
        return []
    found: list[Any] = data["result"] if isinstance(data, dict) else data
    return found


def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    """Of a judged run, of one under way, and of the server itself."""
    runs = tmp_path / "runs"
    plan = make_plan(requests=30)
    run = write_run(runs / "congestion-7", plan, tcp_lines=0)
    tables.build(run, plan)
    write_verdict(run, "PASS")
    panels = json.loads(DASHBOARD.read_bytes())["panels"]
    left = {target["expr"].replace("$scenario", ".*") for panel in panels for target in panel["targets"]}
    assert len(left) > 15
    with (
        control_plane.served(runs) as port,
        control_plane.live_run(runs),
        control_plane.watched(port),
        prometheus(tmp_path, port) as url,
    ):
        deadline = time.monotonic() + PATIENCE_S
        while left := {query for query in left if not asked(f"{url}/query", query=query)}:
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
        scenarios = asked(f"{url}/label/scenario/values", **{"match[]": "testbed_run_passed"})
        assert scenarios == [plan.name]
