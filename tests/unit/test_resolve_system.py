"""Resolving the system under test: caches, compression, roles and tenants reach whoever needs them."""

from __future__ import annotations

import msgspec
import pytest

from agents.config import Cache, Config
from agents.policies import static_threshold
from agents.policies.view import Decision
from agents.profiles import MODELS
from testbed.plan import Plan
from testbed.system import agent_config
from tests.unit.test_resolve import S, planned, refused

SHARED = (
    "workload={kind: sessions, rate: 0.5/s, turns: 3, tenant: chat,"
    " first: {mu: 8.5, sigma: 0.5, low: 1000, high: 20000},"
    " increment: {mu: 7, sigma: 0.5, low: 100, high: 5000}, think: 2s, output_tokens: 64}"
)


def router_of(plan: Plan) -> Config:
    """What the router of a plan is told."""
    router = next(agent for agent in plan.agents if agent.role == "router")
    return msgspec.json.decode(agent_config(plan, router, lambda host: host), type=Config)


def client_of(plan: Plan) -> Config:
    """What the client of a plan is told."""
    client = next(agent for agent in plan.agents if agent.role == "client")
    return msgspec.json.decode(agent_config(plan, client, lambda host: host), type=Config)


def test_a_cache_reaches_the_router() -> None:
    """Both sizes, at any scale; without one there is no memory, and prompts have no blocks."""
    caching = planned("cache={prfaas: 2GB, pd: 1GB}", SHARED, scale=0.1)
    assert router_of(caching).cache == Cache(prfaas_bytes=2 * 10**9, pd_bytes=10**9)
    assert all(request.hash_ids for request in client_of(caching).requests)
    without = planned(SHARED)
    assert router_of(without).cache == Cache()
    assert not any(request.hash_ids for request in client_of(without).requests)
    one_sided = planned("cache={prfaas: 0B, pd: 1GB}", SHARED)
    assert router_of(one_sided).cache == Cache(prfaas_bytes=0, pd_bytes=10**9)
    assert {request.tenant for request in client_of(without).requests} == {"chat"}


def test_with_a_cache_the_profiled_lengths_are_what_is_left_to_compute() -> None:
    """A scheduler is told the increments of the load then, and else the whole lengths."""
    increments = planned("cache={prfaas: 2GB, pd: 1GB}", SHARED).policy.length_quantiles
    lengths = planned(SHARED).policy.length_quantiles
    assert len(increments) == len(lengths)
    assert all(one <= whole for one, whole in zip(increments, lengths, strict=True))
    assert sum(increments) < 0.8 * sum(lengths)


def test_a_cache_for_a_model_without_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only full attention has something for each token that can be kept; one problem is enough."""
    linear = msgspec.structs.replace(MODELS["internal_1t"], layers=MODELS["internal_1t"].layers[:3])
    monkeypatch.setitem(MODELS, "internal_1t", linear)
    message = refused("cache={prfaas: 2GB, pd: 1GB}")
    assert message.count("no layer keeps KV for each token") == 1
    assert "a model with full attention, or no cache" in message


def test_the_least_cache_as_told_is_enough() -> None:
    """The size that the message names is accepted, a byte less is not."""
    assert "cache.pd" in refused("cache={prfaas: 1GB, pd: 194641919B}")
    assert planned("cache={prfaas: 1GB, pd: 190080KiB}").cache.pd_bytes == 190_080 * 1024


def test_compression_and_conversion_reach_the_agents() -> None:
    """By name and in nanoseconds; by default there is no compression, and 10 s for a change of role."""
    plain = router_of(planned())
    assert (plain.transport.compression, plain.scheduling.conversion_ns) == ("", 10 * S)
    overrides = ("transport.compression=cachegen", "clusters.pd.conversion=3s", "policy.name=compression")
    told = router_of(planned(*overrides))
    assert (told.transport.compression, told.scheduling.conversion_ns) == ("cachegen", 3 * S)
    assert router_of(planned("clusters.pd.conversion=0s")).scheduling.conversion_ns == 0


def test_what_the_transport_is_told_reaches_the_agents() -> None:
    """Pools are scaled, pacing is a share of the link for all connections from DC A together."""
    plain = planned()
    lanes = sum(one.cluster == "prfaas" for one in plain.agents) * sum(
        one.role == "decode" for one in plain.agents
    )
    assert (plain.transport.pacing_bps, plain.transport.handover) == (0, "source_first")
    told = planned(
        "transport.pacing=0.5", "transport.send_pool=10GB", "transport.handover=destination_first",
        "transport.congestion_control={wan: bbr, lan: dctcp}", "scale=0.1",
    )  # fmt: skip
    share_bps = told.link["a_to_b"].rate_bps / 2
    assert told.transport.pacing_bps * lanes * told.transport.connections == pytest.approx(
        share_bps, rel=1e-6
    )
    assert (told.transport.send_pool_bytes, told.transport.handover) == (10**9, "destination_first")
    assert (told.transport.congestion_control, told.transport.lan_congestion_control) == ("bbr", "dctcp")
    assert told.transport.control_congestion_control == "cubic"


def test_a_cluster_may_be_without_prefill() -> None:
    """Either of them, for baselines, if the policy sends nothing there; not both."""
    for policy in ("policy.threshold=131072", "policy.name=homogeneous"):
        home = planned("clusters.prfaas.instances=0", policy)
        assert [agent.name for agent in home.agents if agent.role == "prefill"] == ["prefill-1"]
    assert "131072-token" in refused("clusters.prfaas.instances=0", "policy.threshold=131071")
    assert planned("clusters.pd.prefill=0", "policy.threshold=0")
    assert "1-token" in refused("clusters.pd.prefill=0", "policy.threshold=1")
    naive = planned("clusters.pd.prefill=0", "policy.name=naive_heterogeneous")
    assert [agent.name for agent in naive.agents if agent.role == "prefill"] == ["prfaas-1", "prfaas-2"]
    assert "needs instances in the PrfaaS cluster" in refused(
        "clusters.prfaas.instances=0", "policy.name=naive_heterogeneous"
    )


def test_a_profile_without_decode_is_one_problem() -> None:
    """The policy, which could not do anything with it, is not blamed for its parameters."""
    said = refused("clusters.pd.profile=h200", "policy.name=prfaas")
    assert "clusters.pd.profile: h200 was not profiled for decode" in said
    assert "policy" not in said
    assert "policy.params: prfaas has no parameter" in refused("policy.name=prfaas", "policy.params={odd: 1}")


def test_a_bound_may_be_on_one_tenant() -> None:
    """Its name says so, and another one's is not changed."""
    bounds = "{bound: ttft_s.p90, tenant: chat, max: 20s}, {bound: ttft_s.p90, max: 30s}"
    of_chat, of_all = planned(SHARED, f"expect=[{bounds}]").expectations
    assert (of_chat.tenant, of_chat.name) == ("chat", "ttft_s.p90 of chat at most 20s")
    assert (of_all.tenant, of_all.name) == (None, "ttft_s.p90 at most 30s")


@pytest.mark.parametrize("function", ["start", "route"])
def test_a_policy_that_raises_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """An error in somebody's policy is no failed expectation: refused before the run, with the place."""

    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(static_threshold, function, broken)
    said = refused("policy.name=static_threshold")
    assert f"static_threshold: {function}() raised KeyError('oops') at test_resolve_system.py:" in said


def test_a_policy_that_answers_no_route_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip of the pen would fail every request."""
    monkeypatch.setattr(static_threshold, "route", lambda *_: Decision("pd ", 0, ""))  # type: ignore[arg-type]
    assert "static_threshold: route() answers route 'pd ' (str), not prfaas or pd" in refused(
        "policy.name=static_threshold"
    )
