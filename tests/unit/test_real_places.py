"""The router's hands of the KV manager, where prefixes have bytes: who is told what they are called."""

from __future__ import annotations

from agents.cache.pool import BLOCK_TOKENS
from agents.config import FIRST_CACHE_TRANSFER, Compute
from tests.unit.test_prefixes import Bench, chain_of


def test_real_kernels_are_told_what_a_prefix_is_called() -> None:
    """Its source what to read, its target what to keep it as; a request where to keep states."""
    bench = Bench(compute=Compute(seed=1))
    first = bench.serve(1, chain_of(1, 8192), 8192 + 99, "pd")
    assert first.state_tokens == (8192,)
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    named = {
        "id": FIRST_CACHE_TRANSFER,
        "kv_tokens": 8192,
        "prompt_tokens": 8192,
        "chain": chain_of(1, 8192),
    }
    assert bench.told("prefill-a1", "land") == [{"op": "land", **named}]
    to = {"to": "prefill-a1", "since_ns": flight.sent_ns}
    assert bench.told("prefill-b1", "ship") == [{"op": "ship", **named, **to}]
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    assert flight.state_tokens == (12_000 // BLOCK_TOKENS * BLOCK_TOKENS,)


def test_what_real_kernels_lost_is_computed_whole() -> None:
    """Another attempt uses no cache, of either cluster, and leaves no state; what came of it is kept."""
    bench = Bench(compute=Compute(seed=1))
    bench.serve(1, chain_of(1, 8192), 8192, "prfaas")
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    assert (flight.computed_tokens, flight.kv_tokens) == (12_000 - 8192, 12_000 - 8192)
    bench.fail(2)
    flight.attempt = 1
    bench.prefixes.place(flight)
    assert (flight.computed_tokens, flight.kv_tokens, flight.state_tokens) == (12_000, 12_000, ())
    bench.prefixes.computed(flight)
    bench.prefixes.sent(flight)
    bench.check(at_rest=True)
