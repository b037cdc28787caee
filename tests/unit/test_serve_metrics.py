"""/metrics: the names that users of vLLM know, with the values of the record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed import carriers, tables
from testbed.serve import application
from testbed.serve.exposition import TTFT_BUCKETS_S, histogram
from tests.unit.serve_client import client_of
from tests.unit.serve_runs import write_small, write_verdict
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import note, write_run

ROOT = Path(__file__).parents[2]
Samples = dict[tuple[str, str], float]


def scraped(text: str) -> Samples:
    """By name and one label that tells samples of a run apart."""
    return {
        (sample.name, sample.labels.get("le") or sample.labels.get("finished_reason") or ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("run") in ("congestion-7", "live-1")
    }


def test_runs_are_told_under_the_names_of_vllm(tmp_path: Path) -> None:
    """A judged run by its record, one under way by its journal."""
    runs = tmp_path / "runs"
    plan = make_plan(requests=30)
    run = write_run(runs / "congestion-7", plan, tcp_lines=0)
    requests = tables.build(run, plan)["requests"]
    write_verdict(run, "PASS")
    live = write_small(runs, "live", 1, status=None)
    carriers.note(live)
    note(live, "bench", "start", 5)
    note(live, "router", "control", 10, threshold_tokens=1, previous_tokens=1, reason="", queue_prfaas=2,
         queue_pd=3, queue_decode=4)  # fmt: skip
    app, parts = application.make(runs, tmp_path)
    with client_of(app) as client:
        first = client.get("/metrics")
        assert client.get("/api/v1/runs/live-1/signals").status_code == 200
        found = scraped(client.get("/metrics").text)
        assert 'testbed_serve_requests_total{endpoint="/api/v1/runs/{run}/signals",status="200"} 1.0' in (
            client.get("/metrics").text
        )
    assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
    ttft = requests["ttft_s"]
    assert found["vllm:time_to_first_token_seconds_count", ""] == len(ttft)
    assert found["vllm:time_to_first_token_seconds_sum", ""] == pytest.approx(ttft.sum())
    assert found["vllm:time_to_first_token_seconds_bucket", "2.5"] == ttft.filter(ttft <= 2.5).len()
    assert found["vllm:request_success_total", "length"] == 30
    assert found["vllm:prompt_tokens_total", ""] == requests["input_tokens"].sum()
    assert found["vllm:generation_tokens_total", ""] == requests.select(pl.col("tokens").sum()).item()
    assert found["vllm:num_requests_running", ""] == 4
    assert found["vllm:num_requests_waiting", ""] == 5
    assert parts.live.watchers == 0


def test_a_histogram_counts_up_to_each_bound() -> None:
    """A value on a bound is within it, as Prometheus has it; all are below infinity."""
    counts, total = histogram([0.001, 0.002, 1000.0], TTFT_BUCKETS_S)
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (1, 2, 2, 3)
    assert total == pytest.approx(1000.003)


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    """Every name in a query of docs/grafana/testbed.json is one that /metrics has."""
    dashboard = json.loads((ROOT / "docs/grafana/testbed.json").read_bytes())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    wanted = {name for query in queries for name in re.findall(r"\b(?:vllm:|testbed_)[a-z0-9_]+", query)}
    app, _ = application.make(tmp_path / "runs", tmp_path)
    with client_of(app) as client:
        client.get("/api/v1/runs")
        text = client.get("/metrics").text
    families = list(text_string_to_metric_families(text))
    known = {f"{one.name}{suffix}" for one in families for suffix in ("", "_total", "_bucket")}
    assert len(wanted) > 12
    assert wanted <= known
