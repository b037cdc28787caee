"""Workloads: the distribution is the paper's, a trace comes out as it went in."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path
from statistics import NormalDist, fmean, pstdev

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import ScenarioError
from testbed.plan import Request
from testbed.scenario.workload import LognormalWorkload, TraceWorkload
from testbed.units import NS_PER_S
from testbed.workload import Load, probabilities
from testbed.workload.draws import quantile_tokens
from testbed.workload.lognormal import STRATA, generate
from testbed.workload.replay import ANY_LENGTH, read_rows, replay
from testbed.workload.trace_file import TraceFile

DATA = Path(__file__).parents[1] / "data"
MINUTE_NS = 60 * NS_PER_S


def paper(rate: str = "2.56/s", **settings: object) -> LognormalWorkload:
    """The paper's workload (arXiv 2604.15039, section 4.1)."""
    return LognormalWorkload.model_validate(
        {"kind": "lognormal", "rate": rate, "mu": 9.9, "sigma": 1, "low": 128, "high": 131072}
        | {"output_tokens": 1024, **settings}
    )


def drawn(spec: LognormalWorkload, duration_ns: int, seed: int = 1) -> Load:
    """Requests from two generators of one seed."""
    return generate(
        spec,
        duration_ns,
        arrivals=np.random.Generator(np.random.PCG64(seed)),
        lengths=np.random.Generator(np.random.PCG64(seed + 1)),
    )


def trace(**settings: object) -> TraceWorkload:
    """A replay of a trace."""
    return TraceWorkload.model_validate({"kind": "mooncake", "trace": "trace.jsonl", **settings})


def replayed(spec: TraceWorkload, duration_ns: int = MINUTE_NS, max_tokens: int = ANY_LENGTH) -> Load:
    """A replay of the small trace of the tests."""
    return replay(
        spec,
        duration_ns,
        TraceFile(DATA / "trace.jsonl", quotes=True),
        max_tokens=max_tokens,
        where="x.yaml:1: window",
        draws=np.random.Generator(np.random.PCG64(1)),
    )


def test_lengths_have_the_papers_mean() -> None:
    """The truncated distribution has a mean of about 27K tokens, as the paper says."""
    assert fmean(drawn(paper(), MINUTE_NS).length_quantiles) == pytest.approx(27_400, rel=0.01)


def test_the_papers_threshold_splits_the_requests_in_half() -> None:
    """49.6 % of the requests are longer than 19.4K tokens (table 6)."""
    quantiles = drawn(paper(), MINUTE_NS).length_quantiles
    assert sum(tokens > 19_400 for tokens in quantiles) / len(quantiles) == pytest.approx(0.496, abs=0.005)


def test_lengths_follow_the_distribution() -> None:
    """Drawn lengths and quantiles are of the same distribution (Kolmogorov-Smirnov, 1 % level)."""
    load = drawn(paper("100/s"), 100 * NS_PER_S)
    lengths = sorted(request.input_tokens for request in load.requests)
    expected = np.searchsorted(load.length_quantiles, lengths) / len(load.length_quantiles)
    distance = np.max(np.abs(expected - np.arange(1, len(lengths) + 1) / len(lengths)))
    assert distance < 1.63 / math.sqrt(len(lengths)) + 1 / len(load.length_quantiles)


def test_arrivals_are_poisson() -> None:
    """Gaps have the mean and the standard deviation of an exponential distribution, within 3 %."""
    times = [request.t_ns / NS_PER_S for request in drawn(paper("10/s"), 2000 * NS_PER_S).requests]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert float(np.mean(gaps)) == pytest.approx(0.1, rel=0.03)
    assert float(np.std(gaps)) == pytest.approx(0.1, rel=0.03)


def test_the_rate_does_not_change_the_lengths() -> None:
    """Twice the rate sends the same requests, sooner."""
    slow = drawn(paper("2/s"), MINUTE_NS).requests
    fast = drawn(paper("4/s"), MINUTE_NS).requests
    assert [request.input_tokens for request in slow] == [r.input_tokens for r in fast[: len(slow)]]


def test_requests_arrive_within_their_phase() -> None:
    """A phase moves the requests and cuts them off; they are still the same."""
    whole = drawn(paper("10/s"), 120 * NS_PER_S).requests
    phase = drawn(paper("10/s", **{"from": "30s", "until": "1min"}), 120 * NS_PER_S).requests
    assert 0 < len(phase) < len(whole)
    for early, late in zip(whole, phase, strict=False):
        assert (late.t_ns, late.input_tokens) == (early.t_ns + 30 * NS_PER_S, early.input_tokens)
    assert phase[-1].t_ns < MINUTE_NS <= whole[len(phase)].t_ns + 30 * NS_PER_S


def test_requests_say_whose_they_are() -> None:
    """The tenant comes through, and in JSON the usual one is not written."""
    (request, *_) = drawn(paper(tenant="team-a"), MINUTE_NS).requests
    assert request.tenant == "team-a"
    plain = drawn(paper(), MINUTE_NS).requests[0]
    assert set(msgspec.json.decode(msgspec.json.encode(plain))) == {
        "id", "t_ns", "input_tokens", "output_tokens",
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request


@given(seed=st.integers(min_value=0, max_value=2**32), block=st.integers(min_value=0, max_value=3))
@settings(deadline=None, max_examples=25)
def test_stratified_lengths_cover_all_strata(seed: int, block: int) -> None:
    """Each 64 requests have one length from each 64th of the distribution, in an order of their own."""
    spec = paper("100/s", draw="stratified")
    requests = drawn(spec, 10 * NS_PER_S, seed).requests
    lengths = [request.input_tokens for request in requests[block * STRATA : (block + 1) * STRATA]]
    edges = [quantile_tokens(spec, n / STRATA) for n in range(STRATA + 1)]
    for n, length in enumerate(sorted(lengths)):
        assert edges[n] <= length <= edges[n + 1]
    assert lengths != sorted(lengths)


def test_stratified_lengths_are_fresh_in_each_block() -> None:
    """Neither the order of the strata nor the places within them come again in the next block."""
    spec = paper("100/s", draw="stratified")
    tokens = [request.input_tokens for request in drawn(spec, 10 * NS_PER_S).requests]
    first, second = tokens[:STRATA], tokens[STRATA : 2 * STRATA]
    assert sorted(first) != sorted(second)
    assert np.argsort(first).tolist() != np.argsort(second).tolist()


def test_stratified_load_is_steadier_and_no_different() -> None:
    """From seed to seed the offered tokens vary less than a third as much, around the same mean."""

    def means(draw: str) -> list[float]:
        spec = paper(draw=draw)
        loads = (drawn(spec, 2 * MINUTE_NS, seed).requests for seed in range(0, 80, 2))
        return [fmean(request.input_tokens for request in load) for load in loads]

    independent, stratified = means("independent"), means("stratified")
    assert pstdev(stratified) < pstdev(independent) / 3
    assert fmean(stratified) == pytest.approx(27_400, rel=0.01)


@given(
    mu=st.floats(min_value=-20, max_value=40),
    sigma=st.floats(min_value=1e-3, max_value=20),
    probability=st.floats(min_value=0, max_value=1, exclude_max=True),
)
@settings(deadline=None)
def test_every_length_lies_between_the_cuts(mu: float, sigma: float, probability: float) -> None:
    """However far out the distribution lies, its lengths stay within low and high."""
    spec = paper().model_copy(update={"mu": mu, "sigma": sigma})
    assert spec.low <= quantile_tokens(spec, probability) <= spec.high


@given(st.floats(min_value=0.001, max_value=0.999))
@settings(deadline=None)
def test_quantiles_invert_the_distribution(probability: float) -> None:
    """The share of requests below a quantile is its probability."""
    spec, normal = paper(), NormalDist(9.9, 1)
    low, high = normal.cdf(math.log(spec.low)), normal.cdf(math.log(spec.high))
    share = (normal.cdf(math.log(quantile_tokens(spec, probability))) - low) / (high - low)
    assert share == pytest.approx(probability, abs=1e-3)


def test_a_trace_is_replayed_as_it_is() -> None:
    """Times, lengths and prefix blocks come through; equal timestamps stay together in their order."""
    requests = replayed(trace()).requests
    assert [request.t_ns for request in requests] == [0, 3 * NS_PER_S, 3 * NS_PER_S, 6 * NS_PER_S]
    assert [request.input_tokens for request in requests] == [1000, 3000, 2000, 140_000]
    assert [request.output_tokens for request in requests] == [10, 20, 30, 40]
    assert requests[2].hash_ids == (0, 7, 8, 9)


def test_a_window_of_a_trace() -> None:
    """The window's start is the run's start; its end is left out."""
    requests = replayed(trace(window={"start": "3s", "length": "3s"})).requests
    assert [(request.id, request.t_ns) for request in requests] == [(0, 0), (1, 0)]


def test_stretched_time() -> None:
    """Half the time is twice the load."""
    load = replayed(trace(time_scale=0.5, window={"length": "8s"}))
    assert [request.t_ns for request in load.requests] == [0, 1_500_000_000, 1_500_000_000, 3 * NS_PER_S]
    assert load.arrival_per_s == pytest.approx(1.0)


def test_requests_after_the_run_are_left_out() -> None:
    """A window longer than the run is cut at the run's end."""
    assert len(replayed(trace(window={"length": "1h"}), 5 * NS_PER_S).requests) == 3


def test_a_trace_in_a_phase() -> None:
    """The trace begins with the phase and ends with it, and its rate is that of the phase."""
    load = replayed(trace(**{"from": "10s", "until": "14s", "tenant": "b"}))
    assert [request.t_ns // NS_PER_S for request in load.requests] == [10, 13, 13]
    assert {request.tenant for request in load.requests} == {"b"}
    assert load.arrival_per_s == pytest.approx(3 / 4)


def test_increments_of_a_trace_leave_out_known_blocks() -> None:
    """Blocks of 512 tokens that an earlier row had do not count; a prompt of one block leaves it behind."""
    quantiles = replayed(trace(), 5 * NS_PER_S).increment_quantiles
    assert sorted(set(quantiles)) == [1000, 2000 - 512, 3000 - 512]


def test_quantiles_of_a_trace_are_its_lengths() -> None:
    """The length distribution is that of the requests used, each equally likely."""
    quantiles = replayed(trace(), 5 * NS_PER_S).length_quantiles
    assert len(quantiles) == len(probabilities())
    assert sorted(set(quantiles)) == [1000, 2000, 3000]
    assert quantiles.count(2000) == pytest.approx(len(quantiles) / 3, abs=1)


def test_long_inputs_are_clamped_on_request_only() -> None:
    """An input that no profile covers is shortened with its blocks if the scenario says so."""
    request = replayed(trace(clamp=True), max_tokens=2048).requests[1]
    assert (request.input_tokens, request.hash_ids) == (2048, (0, 2, 3, 4))
    with pytest.raises(ScenarioError, match="2 of the window's inputs are too long, up to 140000"):
        replayed(trace(), max_tokens=2048)


def test_blank_lines_do_not_count(tmp_path: Path) -> None:
    """Blank lines are skipped, and lines are counted with them."""
    path = tmp_path / "t.jsonl"
    path.write_text('\n{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\n\nx\n')
    with pytest.raises(ScenarioError, match=rf"{path}:4: not a row"):
        read_rows("mooncake", TraceFile(path, quotes=True))


def test_a_trace_out_of_order_is_sorted(tmp_path: Path) -> None:
    """Requests arrive by time, whatever the order of the lines."""
    path = tmp_path / "t.jsonl"
    row = '{{"timestamp": {}, "input_length": {}, "output_length": 1, "hash_ids": []}}\n'
    path.write_text(row.format(9, 1) + row.format(3, 2) + row.format(3, 3))
    assert [(row.t_ns, row.input_tokens) for row in read_rows("mooncake", TraceFile(path, quotes=True))] == [
        (3_000_000, 2),
        (3_000_000, 3),
        (9_000_000, 1),
    ]


@given(st.binary())
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """No content of a trace makes the reader fail in another way than with a ScenarioError."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    for text in (content, b'{"timestamp": ' + content + b"}", b'{"a": "' + content + b'"}'):
        path.write_bytes(text)
        with contextlib.suppress(ScenarioError):
            read_rows("mooncake", TraceFile(path, quotes=True))
