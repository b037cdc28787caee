"""/metrics for Prometheus: of the server, and of the newest run of each scenario under the names of vLLM.

Whoever has dashboards for vLLM finds the same names here; the labels `scenario` and `run` keep anybody from
taking a run for a service. Buckets are those of vLLM's histograms, times are seconds of the run's clock.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import polars as pl
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testbed.rundir import RunDir
from testbed.serve.parts import Parts
from testbed.serve.summaries import read

MOST_RUNS: Final = 20
RUN: Final = ["scenario", "run", "model_name"]
TTFT_BUCKETS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
)  # fmt: skip
LATENCY_BUCKETS_S: Final = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
)  # fmt: skip
ITL_BUCKETS_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
HISTOGRAMS: Final = (
    ("vllm:time_to_first_token_seconds", "Sent to the first token", "ttft_s", TTFT_BUCKETS_S),
    ("vllm:e2e_request_latency_seconds", "Sent to the last token", "e2e_s", LATENCY_BUCKETS_S),
    ("vllm:request_queue_time_seconds", "Queued for prefill", "queue_s", LATENCY_BUCKETS_S),
    ("vllm:request_prefill_time_seconds", "Prefill", "prefill_s", LATENCY_BUCKETS_S),
    ("vllm:inter_token_latency_seconds", "Mean time between tokens of each request", "itl_s", ITL_BUCKETS_S),
)
"""Name, meaning, column of the table of requests, upper bounds."""
COUNTERS: Final = (
    ("vllm:prompt_tokens", "Prompt tokens of requests that completed", "input_tokens"),
    ("vllm:generation_tokens", "Tokens that clients received", "tokens"),
)
REASONS: Final = {"completed": "length"}
"""What vLLM calls it when a request ends: an answer here has the length that was asked for; else `abort`."""
log = logging.getLogger(__name__)


class Summed(msgspec.Struct, frozen=True):
    """What is told of a run that has ended."""

    model: str
    histograms: tuple[tuple[tuple[int, ...], float], ...]
    """For each of HISTOGRAMS: cumulative counts per bucket, and the sum."""
    counters: tuple[float, ...]
    ended: dict[str, int]


class Exposition:
    """The registry of one server; also ASGI middleware that counts what is asked of it."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._parts = app, parts
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "testbed_serve_requests", "Answered", ["endpoint", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "testbed_serve_request_seconds", "Until the answer began", ["endpoint"], registry=self._registry
        )
        self._watchers = Gauge("testbed_serve_watchers", "Who watches a run now", registry=self._registry)
        self._runs = Gauge("testbed_serve_runs", "Run directories", ["state"], registry=self._registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's pattern, not the path: names of runs are without number.
                endpoint = str(getattr(scope.get("route"), "path", "other"))
                self._requests.labels(endpoint, str(message["status"])).inc()
                self._seconds.labels(endpoint).observe(time.perf_counter() - began_s)
            await send(message)

        await self._app(scope, receive, counted)

    def text(self) -> bytes:
        """What Prometheus scrapes."""
        self._parts.indexer.touch()
        counts = self._parts.history.counts()
        for state in ("RUNNING", "PASS", "FAIL", "UNKNOWN"):
            self._runs.labels(state).set(counts.get(state, 0))
        self._watchers.set(self._parts.live.watchers)
        runs = CollectorRegistry()
        runs.register(_Runs(self._parts))
        return generate_latest(self._registry) + generate_latest(runs)


class _Runs:
    """The newest judged run of each scenario, and those under way."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Metric]:
        histograms = [HistogramMetricFamily(name, text, labels=RUN) for name, text, _, _ in HISTOGRAMS]
        counters = [CounterMetricFamily(name, text, labels=RUN) for name, text, _ in COUNTERS]
        success = CounterMetricFamily(
            "vllm:request_success", "Requests that ended", labels=[*RUN, "finished_reason"]
        )
        for row in self._judged():
            directory = self._parts.runs / row["directory"]
            summed = _summed(directory, _stamp(directory))
            if summed is None:
                continue
            labels = [row["name"], row["directory"], summed.model]
            for family, (_, _, _, bounds), (counts, total) in zip(
                histograms, HISTOGRAMS, summed.histograms, strict=True
            ):
                names = [*(str(float(bound)) for bound in bounds), "+Inf"]
                family.add_metric(labels, list(zip(names, counts, strict=True)), total)
            for counter, value in zip(counters, summed.counters, strict=True):
                counter.add_metric(labels, value)
            for reason, many in summed.ended.items():
                success.add_metric([*labels, reason], many)
        yield from (*histograms, *counters, success, *self._waiting(), self._verdicts())

    def _judged(self) -> list[dict[str, str]]:
        rows = sorted(self._parts.history.last_of_each().values(), key=lambda row: -row["started_s"])
        return rows[:MOST_RUNS]

    def _verdicts(self) -> Metric:
        family = GaugeMetricFamily("testbed_run_passed", "1: PASS, 0: not", labels=["scenario", "run"])
        for row in self._judged():
            family.add_metric([row["name"], row["directory"]], float(row["state"] == "PASS"))
        return family

    def _waiting(self) -> Iterable[Metric]:
        """Of runs under way: what the router counted last."""
        running = GaugeMetricFamily("vllm:num_requests_running", "In prefill or decode", labels=RUN)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "In front of prefill", labels=RUN)
        seconds = GaugeMetricFamily("testbed_run_virtual_seconds", "Since t0", labels=["scenario", "run"])
        for directory, frames in self._parts.live.followed():
            row = self._parts.history.get(directory)
            if row is None or row["state"] != "RUNNING" or not len(frames):
                continue
            last = frames.values(len(frames) - 1)
            labels = [row["name"], directory, _model(self._parts.runs / directory)]
            running.add_metric(labels, last["in_decode"] or 0)
            waiting.add_metric(labels, (last["queued_a"] or 0) + (last["queued_b"] or 0))
            seconds.add_metric(labels[:2], frames.newest_s)
        return running, waiting, seconds


class _Model(msgspec.Struct, frozen=True):
    model: str = ""


def _model(directory: Path) -> str:
    planned = read(RunDir(directory).plan, _Model)
    return "" if planned is None else planned.model


def _stamp(directory: Path) -> int:
    try:
        return RunDir(directory).verdict.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4 * MOST_RUNS)
def _summed(directory: Path, _stamp: int) -> Summed | None:
    """From the table of requests; None where there is none that can be read, or nothing was asked."""
    columns = [column for _, _, column, _ in HISTOGRAMS] + [column for _, _, column in COUNTERS]
    try:
        path = RunDir(directory).record / "requests.parquet"
        requests = pl.read_parquet(path, columns=[*columns, "state"], glob=False)
        return _sum(directory, requests)
    except (OSError, pl.exceptions.PolarsError):
        return None
    except (Exception, pl.exceptions.PanicException):  # damaged in ways that nobody has thought of
        log.exception("no metrics of %s", directory)
        return None


def _sum(directory: Path, requests: pl.DataFrame) -> Summed | None:
    if requests.is_empty():
        return None
    completed = requests.filter(pl.col("state") == "completed")
    ended: dict[str, int] = {}
    for state in requests["state"].to_list():
        reason = REASONS.get(state, "abort")
        ended[reason] = ended.get(reason, 0) + 1
    return Summed(
        model=_model(directory),
        histograms=tuple(
            histogram(requests[column].drop_nulls().to_list(), bounds) for _, _, column, bounds in HISTOGRAMS
        ),
        counters=tuple(float(completed[column].sum()) for _, _, column in COUNTERS),
        ended=ended,
    )


def histogram(values: Sequence[float], bounds: Sequence[float]) -> tuple[tuple[int, ...], float]:
    """How many values are at most each bound, and at most infinity; and their sum."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    total = 0
    for index, count in enumerate(counts):
        total += count
        counts[index] = total
    return tuple(counts), float(sum(values))
