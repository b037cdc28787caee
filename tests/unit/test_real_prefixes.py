"""Prefixes that are reused with real kernels: less is computed and less crosses, and no bit is another."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from agents.config import Cache
from agents.fleet import Flight
from agents.policies.view import Cache as Judged
from agents.policies.view import Route
from agents.profiles import MODELS
from tests.unit.real_clusters import BLOCK, FULL, HYBRID, Clusters, Play, Scenario, play_clusters, use_models
from tests.unit.real_parts import Right

BOTH = pytest.mark.parametrize("model", [HYBRID, FULL])
SEQUENTIAL = 0.6
"""How often somebody is waited for before the next is asked."""
ROUTES: tuple[Route, ...] = ("prfaas", "pd")


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a scenario against fresh clusters."""
    use_models(monkeypatch)

    def run(scenario: Scenario, **how: Any) -> None:
        play_clusters(tmp_path, scenario, **how)

    return run


@BOTH
@pytest.mark.parametrize("route", ROUTES)
def test_a_conversation_goes_on_where_it_was(play: Play, route: Route, model: str) -> None:
    """The next turn computes what is behind the last full block; over the link only that crosses."""

    async def scenario(clusters: Clusters) -> None:
        first, right = await clusters.serve((1, 2, 100), 2 * BLOCK + 76, route)
        assert right
        assert clusters.prefill_of(first)["tokens"] == 2 * BLOCK + 76
        tokens = 3 * BLOCK + 50
        second, right = await clusters.serve((1, 2, 3, 101), tokens, route)
        assert right
        noted = clusters.prefill_of(second)
        assert noted["tokens"] == BLOCK + 50
        crossed = BLOCK + 50 if route == "prfaas" else tokens
        assert noted["kv_bytes"] == clusters.kv_bytes(crossed, tokens)
        (kv,) = (line for line in clusters.journal(second.decode, "kv") if line["id"] == second.id)
        assert kv["size_bytes"] == noted["kv_bytes"]
        assert clusters.causes() == []
        clusters.check_files()

    play(scenario, model=model)


@BOTH
@pytest.mark.parametrize("route", ROUTES)
def test_a_prefix_is_fetched_from_the_other_cluster(play: Play, route: Route, model: str) -> None:
    """What the target lacks crosses: all blocks, or the state alone where the KV came with a request."""

    async def scenario(clusters: Clusters) -> None:
        there: Route = "pd" if route == "prfaas" else "prfaas"
        assert (await clusters.serve((1, 2, 100), 2 * BLOCK + 76, there))[1]
        tokens = 2 * BLOCK + 200
        second, right = await clusters.serve((1, 2, 101), tokens, route, "best")
        assert right
        assert clusters.prefill_of(second)["tokens"] == 200
        if model == FULL and route == "pd":
            assert clusters.fetches() == [], "its blocks are there"
        else:
            assert clusters.fetches() == [(route, 2 * BLOCK if route == "prfaas" else 0, True)]
        # It stays there, for all.
        third, right = await clusters.serve((1, 2, 102), tokens, route)
        assert right
        assert clusters.prefill_of(third)["tokens"] == 200
        assert clusters.causes() == []
        clusters.check_files()

    play(scenario, model=model)


def test_whoever_branches_off_leaves_a_state_for_the_next(play: Play) -> None:
    """Three prompts with two blocks in common: the second keeps a state there, the third starts from it."""

    async def scenario(clusters: Clusters) -> None:
        computed = []
        for number in (10, 20, 30):
            chain = (1, 2, number, number + 1, number + 2)
            flight, right = await clusters.serve(chain, 4 * BLOCK + 9, "prfaas")
            assert right
            computed.append(clusters.prefill_of(flight)["tokens"])
        assert computed == [4 * BLOCK + 9, 4 * BLOCK + 9, 2 * BLOCK + 9]
        clusters.check_files()

    play(scenario)


def test_full_layers_alone_are_reused_from_any_block(play: Play) -> None:
    """A prompt that branches off starts from what it shares, wherever that ends."""

    async def scenario(clusters: Clusters) -> None:
        assert (await clusters.serve((1, 2, 3, 4, 100), 4 * BLOCK + 9, "prfaas"))[1]
        for shared, chain in ((1, (1, 20, 21)), (3, (1, 2, 3, 22))):
            flight, right = await clusters.serve(chain, len(chain) * BLOCK + 3, "prfaas")
            assert right
            assert clusters.prefill_of(flight)["tokens"] == (len(chain) - shared) * BLOCK + 3

    play(scenario, model=FULL)


@BOTH
@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_that_is_cached_whole_is_computed_from_its_last_block(
    play: Play, route: Route, model: str
) -> None:
    """The last token is computed in any case, and crosses; a hybrid has no state before it."""

    async def scenario(clusters: Clusters) -> None:
        for _ in range(2):
            flight, right = await clusters.serve((1, 2), 2 * BLOCK, route)
            assert right
        noted = clusters.prefill_of(flight)
        assert noted["tokens"] == (BLOCK if model == FULL else 2 * BLOCK)
        crossed = 1 if route == "prfaas" else 2 * BLOCK
        assert noted["kv_bytes"] == clusters.kv_bytes(crossed, 2 * BLOCK)
        longer, right = await clusters.serve((1, 2, 100), 2 * BLOCK + 1, route)
        assert right
        assert clusters.prefill_of(longer)["tokens"] == 1

    play(scenario, model=model)


def test_the_instances_of_a_cluster_share_what_they_have(play: Play) -> None:
    """Another prefill instance starts from it, another decode instance goes on from it."""

    async def scenario(clusters: Clusters) -> None:
        first, right = await clusters.serve((1, 2, 100), 2 * BLOCK + 76, "prfaas")
        assert right
        for name in (first.prefill, first.decode):
            clusters.dispatcher._fleet.instances[name].given_up = True
        second, right = await clusters.serve((1, 2, 101), 2 * BLOCK + 5, "prfaas")
        assert right
        assert {first.prefill, first.decode}.isdisjoint({second.prefill, second.decode})
        noted = clusters.prefill_of(second)
        assert (noted["tokens"], noted["kv_bytes"]) == (5, clusters.kv_bytes(5, 2 * BLOCK + 5))

    play(scenario)


@pytest.mark.parametrize(("seed", "model"), [(1, HYBRID), (2, HYBRID), (1, FULL)])
def test_whatever_is_asked_for_at_once_is_right(play: Play, seed: int, model: str) -> None:
    """Conversations behind two system prompts, anywhere, in caches that are too small for all of it."""
    dice = random.Random(seed)

    async def scenario(clusters: Clusters) -> None:
        chains = [[1, 2, *range(10 * one, 10 * one + 2)] for one in range(1, 4)] + [[3, 51, 52]]
        flights, answers = list[Flight](), list[asyncio.Task[Right]]()
        for number in range(14):
            chain = dice.choice(chains)[: dice.randint(1, 4)]
            tokens = len(chain) * BLOCK + dice.choice((0, 1, 40, 300))
            judged: Judged = dice.choice(("own", "best"))
            flights.append(
                clusters.submit((*chain, 1000 + number), tokens, dice.choice(ROUTES), judged, output_tokens=2)
            )
            answers.append(asyncio.create_task(clusters.over(flights[-1])))
            if dice.random() < SEQUENTIAL:
                await dice.choice(answers)
        assert await asyncio.gather(*answers) == [clusters.right(one) for one in flights]
        assert clusters.causes() == []
        stats = clusters.dispatcher._prefixes.stats()
        assert sum(one.hit_tokens for one in stats.values()) > 0
        assert sum(one.evicted_blocks for one in stats.values()) > 0
        clusters.check_files()

    size_bytes = 9 * BLOCK * MODELS[model].bytes_per_token
    play(scenario, model=model, cache=Cache(size_bytes, size_bytes))


@pytest.mark.parametrize("suffix", [".rows", ".states"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_wrong_byte_in_what_is_reused_is_noticed(play: Play, route: Route, suffix: str) -> None:
    """The answer is another one: what is cached is what is computed with."""

    async def scenario(clusters: Clusters) -> None:
        assert (await clusters.serve((1, 2, 100), 2 * BLOCK + 76, route))[1]
        for path in clusters.files[route].glob(f"*{suffix}"):
            data = bytearray(path.read_bytes())
            data[1] ^= 0x40
            path.write_bytes(data)
        flight, right = await clusters.serve((1, 2, 101), 2 * BLOCK + 76, route)
        assert clusters.prefill_of(flight)["tokens"] == 76
        assert not right

    play(scenario)


def test_a_wrong_byte_in_what_decode_holds_is_noticed(play: Play) -> None:
    """Prefill started from what was right, decode joined what was wrong."""

    async def scenario(clusters: Clusters) -> None:
        assert (await clusters.serve((1, 2, 100), 2 * BLOCK + 76, "prfaas"))[1]
        for path in clusters.files["pd"].iterdir():
            data = bytearray(path.read_bytes())
            data[1] ^= 0x40
            path.write_bytes(data)
        assert not (await clusters.serve((1, 2, 101), 2 * BLOCK + 76, "prfaas"))[1]

    play(scenario)


@pytest.mark.parametrize("how", ["gone", "short"])
@pytest.mark.parametrize(("cluster", "who"), [("prfaas", "prefill-a1"), ("pd", "decode-b2")])
def test_what_cannot_be_read_is_computed_again(play: Play, cluster: str, who: str, how: str) -> None:
    """Prefill that cannot start from it, or decode that cannot go on from it, says why; the answer is right.

    A file that is shorter than it was is none.
    """

    async def scenario(clusters: Clusters) -> None:
        first, right = await clusters.serve((1, 2, 100), 2 * BLOCK + 76, "prfaas")
        assert right
        assert who in (first.prefill, first.decode)
        for path in clusters.files[cluster].glob("*.rows"):
            path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-1])
        flight, right = await clusters.serve((1, 2, 101), 2 * BLOCK + 76, "prfaas")
        assert right
        assert (flight.attempt, flight.route) == (1, "pd")
        (cause,) = clusters.causes()
        assert cause.startswith(f"a cached prefix {'cannot be read' if how == 'gone' else 'has '}")
        assert clusters.prefill_of(flight)["tokens"] == 2 * BLOCK + 76
        for name in clusters.instances.values():
            await name.prefill.idle()
            await name.decode.idle()
            assert (name.prefill._pool.held_bytes, name._receiver.pool.held_bytes) == (0, 0)

    play(scenario)


@pytest.mark.parametrize("cluster", ["prfaas", "pd"])
def test_a_prefix_that_cannot_be_fetched_is_computed(play: Play, cluster: str) -> None:
    """Its source cannot read it, or its target cannot keep it: whoever waited for it does without."""

    async def scenario(clusters: Clusters) -> None:
        assert (await clusters.serve((1, 2, 100), 2 * BLOCK + 76, "pd"))[1]
        directory = clusters.files[cluster]
        for path in directory.iterdir():
            path.unlink()
        if cluster == "prfaas":
            directory.rmdir()
        flight = clusters.submit((1, 2, 101), 2 * BLOCK + 200, "prfaas", "best")
        answer = await clusters.over(flight)
        assert answer == clusters.right(flight)
        assert clusters.fetches() == [("prfaas", 2 * BLOCK, False)]
        # What is computed cannot be kept there either, so that attempt is lost; or decode lacks what it had.
        assert flight.attempt == 1

    play(scenario)


@pytest.mark.parametrize("what", ["kept", "read"])
def test_what_decode_can_neither_keep_nor_read_is_let_go_and_computed_again(play: Play, what: str) -> None:
    """The cause is told, and nothing of it is held, though the router does not say that it is over."""

    async def scenario(clusters: Clusters) -> None:
        if what == "read":
            assert (await clusters.serve((1, 2, 100), 2 * BLOCK + 76, "prfaas"))[1]
        shutil.rmtree(clusters.files["pd"])
        clusters.instances["prefill-b1"].prefill._kernels.files = None  # type: ignore[union-attr]
        tokens = 2 * BLOCK + 76
        flight, right = await clusters.serve((1, 2, 101), tokens, "prfaas")
        assert right
        assert (flight.attempt, flight.route) == (1, "pd")
        (cause,) = clusters.causes()
        assert cause.startswith(
            f"a {'cached ' if what == 'read' else ''}prefix cannot be {what}: No such file"
        )
        for one in clusters.instances.values():
            await one.prefill.idle()
            await one.decode.idle()
            assert one._receiver.pool.held_bytes == 0

    play(scenario, flaws=("no_cancel",))
