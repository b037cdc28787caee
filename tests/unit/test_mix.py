"""A mix: every part as it would be alone, side by side, with nothing in common."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.plan import Request
from testbed.resolve import workload
from testbed.resolve.findings import Findings
from testbed.resolve.profiles import Covered
from testbed.resolve.workload import resolve_load
from testbed.scenario.load import load
from testbed.units import NS_PER_S
from testbed.workload import Load, drawn_load
from testbed.workload.mix import merge

DATA = Path(__file__).parents[1] / "data"
LOGNORMAL = "kind: lognormal, rate: 5/s, mu: 9, sigma: 1, low: 128, high: 65536, output_tokens: 64"
SESSIONS = (
    "kind: sessions, rate: 1/s, turns: 3, output_tokens: 64, think: 2s, shared: {tokens: 1024}, "
    "first: {mu: 7, sigma: 1, low: 16, high: 8192}, increment: {mu: 5, sigma: 1, low: 16, high: 2048}"
)
TRACE = "kind: mooncake, trace: trace.jsonl, clamp: true"


def resolved(value: str, seed: int = 1) -> tuple[Load | None, str]:
    """The load of a workload section in the base scenario (20 s), and the problems found."""
    loaded = load(DATA / "base.yaml", [f"workload={value}"])
    findings = Findings(loaded.source)
    requests = resolve_load(loaded.scenario, seed, [DATA], Covered(1, 131_072), findings)
    return requests, "\n".join(str(problem) for problem in findings.problems())


def mixed(*parts: str, seed: int = 1) -> Load:
    """The load of a mix without problems."""
    requests, problems = resolved(
        f"{{kind: mix, parts: [{', '.join(f'{{{part}}}' for part in parts)}]}}", seed
    )
    assert requests is not None, problems
    return requests


def contents(requests: tuple[Request, ...], tenant: str) -> list[tuple[int, int]]:
    """When a tenant's requests come, and how long they are."""
    return [(request.t_ns, request.input_tokens) for request in requests if request.tenant == tenant]


def test_parts_keep_their_tenants_and_phases() -> None:
    """Requests of all parts by time, numbered anew, each within its phase."""
    requests = mixed(
        f"{LOGNORMAL}, tenant: a, until: 10s",
        f"{SESSIONS}, tenant: b, from: 5s",
        f"{TRACE}, tenant: c, from: 9s",
    ).requests
    assert [request.id for request in requests] == list(range(len(requests)))
    assert [request.t_ns for request in requests] == sorted(request.t_ns for request in requests)
    times_s = {
        tenant: [t_ns / NS_PER_S for t_ns, _ in contents(requests, tenant)] for tenant in ("a", "b", "c")
    }
    assert max(times_s["a"]) < 10
    assert min(times_s["b"]) >= 5
    assert times_s["c"] == [9, 12, 12, 15]


def test_parts_share_no_prefixes() -> None:
    """The same trace twice: ids are numbered by first use, and each belongs to one part."""
    requests = mixed(f"{TRACE}, tenant: a", f"{TRACE}, tenant: b").requests
    owners: dict[int, set[str]] = {}
    for request in requests:
        for block in request.hash_ids:
            owners.setdefault(block, set()).add(request.tenant)
    assert list(owners) == list(range(len(owners)))
    assert all(len(tenants) == 1 for tenants in owners.values())
    assert [request.hash_ids for request in requests[:2]] == [(0, 1), (2, 3)]


def test_every_part_has_its_own_chance() -> None:
    """Two parts that are alike draw differently, and a further part changes neither."""
    two = mixed(f"{LOGNORMAL}, tenant: a", f"{LOGNORMAL}, tenant: b").requests
    three = mixed(f"{LOGNORMAL}, tenant: a", f"{LOGNORMAL}, tenant: b", SESSIONS).requests
    assert contents(two, "a") != contents(two, "b")
    assert contents(two, "a") == contents(three, "a")
    assert contents(two, "b") == contents(three, "b")


def test_a_mix_depends_on_the_seed_alone() -> None:
    """The same seed, the same load; another seed, another."""
    assert mixed(LOGNORMAL, SESSIONS) == mixed(LOGNORMAL, SESSIONS)
    assert mixed(LOGNORMAL, SESSIONS) != mixed(LOGNORMAL, SESSIONS, seed=2)


def test_what_is_known_of_a_mix_is_that_of_its_requests() -> None:
    """Quantiles of all parts together; the rate from the first phase's begin to the last one's end."""
    whole = mixed(f"{LOGNORMAL}, from: 2s, until: 6s", f"{SESSIONS}, from: 4s, until: 12s")
    assert whole.length_quantiles == drawn_load(whole.requests, 1).length_quantiles
    assert sum(whole.increment_quantiles) < sum(whole.length_quantiles)
    assert whole.arrival_per_s == pytest.approx(len(whole.requests) / 10)


def test_a_mix_of_lognormal_parts_shares_nothing() -> None:
    """Without prefix blocks the increments are the inputs."""
    load = mixed(LOGNORMAL, LOGNORMAL)
    assert load.increment_quantiles == load.length_quantiles


def test_parts_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part may be small enough and the mix too large."""
    monkeypatch.setattr(workload, "MAX_REQUESTS", 150)
    requests, problems = resolved(f"{{kind: mix, parts: [{{{LOGNORMAL}}}, {{{LOGNORMAL}}}]}}")
    assert requests is None
    assert "requests within the run\n    allowed: at most 150" in problems


REQUESTS = st.lists(
    st.builds(
        Request,
        id=st.just(0),
        t_ns=st.integers(min_value=0, max_value=5),
        input_tokens=st.integers(min_value=1, max_value=2000),
        output_tokens=st.just(1),
        hash_ids=st.lists(st.integers(min_value=0, max_value=3), max_size=3).map(tuple),
    ),
    max_size=6,
).map(lambda requests: sorted(requests, key=lambda request: request.t_ns))


@given(st.lists(REQUESTS, max_size=4))
@settings(deadline=None)
def test_a_merge_loses_nothing(parts: list[list[Request]]) -> None:
    """Every request of every part is there once, at its time, and equal ids stay equal within a part only."""
    merged = merge([drawn_load(tuple(part), 1) for part in parts], 1).requests
    assert Counter((r.t_ns, r.input_tokens) for r in merged) == Counter(
        (r.t_ns, r.input_tokens) for part in parts for r in part
    )
    ids = {block for request in merged for block in request.hash_ids}
    assert len(ids) == sum(len({block for r in part for block in r.hash_ids}) for part in parts)
