"""The instances as the router knows them: who gets work, who has which role, and what changes roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.fleet import Fleet, Flight, Instance
from agents.policies.view import Decision, Request, Route, TenantLoad
from tests.unit.agent_config import make_config

Said = list[tuple[str, dict[str, Any]]]


class Line:
    """The router's end of the conversation with an instance; keeps what is sent."""

    def __init__(self) -> None:
        self.said: Said = []
        self.up = True
        self.heard_ns = 0

    def send(self, op: str, **fields: Any) -> None:
        self.said.append((op, fields))


def make_fleet() -> Fleet:
    """All five instances of the small system, connected."""
    fleet = Fleet(make_config("router", Path()))
    for instance in fleet.instances.values():
        instance.session = Line()  # type: ignore[assignment]
    return fleet


def said(instance: Instance) -> Said:
    line: Any = instance.session
    return line.said  # type: ignore[no-any-return]


def give(
    fleet: Fleet, number: int, prefill: str, decode: str, *, work_s: float = 1.0, tenant: str = "default"
) -> Flight:
    """A request that was placed on two instances."""
    route: Route = "prfaas" if prefill.startswith("prefill-a") else "pd"
    request = Request(str(number), 1000, 8, tenant=tenant)
    decision = Decision(route, 0, "")
    flight = Flight(number, request, (), 0, decision, route, 0, work_s=work_s, prefill=prefill, decode=decode)
    fleet.instances[prefill].prefilling[number] = fleet.instances[decode].decoding[number] = flight
    return flight


def names(fleet: Fleet, cluster: str, role: Literal["prefill", "decode"]) -> list[str]:
    return [one.peer.name for one in fleet.serving(cluster, role)]


def test_work_goes_to_whoever_is_free_first() -> None:
    """Prefill by seconds of work not yet done, decode by requests; without anybody there is no answer."""
    fleet = make_fleet()
    give(fleet, 1, "prefill-a1", "decode-b2", work_s=1.0)
    give(fleet, 2, "prefill-a1", "decode-b2", work_s=1.0)
    long = give(fleet, 3, "prefill-a2", "decode-b3", work_s=3.0)
    assert [one.peer.name for one in (fleet.idlest_prefill("prfaas"), fleet.idlest_decode()) if one] == [
        "prefill-a1",
        "decode-b3",
    ]
    long.prefilled = True
    chosen = fleet.idlest_prefill("prfaas")
    assert chosen is not None
    assert chosen.peer.name == "prefill-a2"
    for name in ("prefill-b1", "decode-b2", "decode-b3"):
        fleet.instances[name].session = None
    assert (fleet.idlest_prefill("pd"), fleet.idlest_decode()) == (None, None)


def test_whoever_failed_a_request_is_avoided_where_there_is_another() -> None:
    """Also with less to do; it gets the request all the same if nobody else is there."""
    fleet = make_fleet()
    give(fleet, 1, "prefill-a2", "decode-b3")

    def chosen(*avoid: str) -> list[str]:
        both = (fleet.idlest_prefill("prfaas", avoid), fleet.idlest_decode(avoid))
        return [one.peer.name for one in both if one is not None]

    assert chosen() == ["prefill-a1", "decode-b2"]
    assert chosen("prefill-a1", "decode-b2") == ["prefill-a2", "decode-b3"]
    assert chosen("prefill-a1", "prefill-a2", "decode-b2", "decode-b3") == ["prefill-a1", "decode-b2"]
    line: Any = fleet.instances["prefill-a2"].session
    line.up = False
    fleet.instances["decode-b3"].given_up = True
    assert chosen("prefill-a1", "decode-b2") == ["prefill-a1", "decode-b2"]


def test_queues_count_what_waits_and_what_runs() -> None:
    """Of prefill, requests not yet computed; of decode, those computed, of which a batch takes so many."""
    fleet = make_fleet()
    flights = [give(fleet, number, "prefill-a1", "decode-b2") for number in range(25)]
    give(fleet, 99, "prefill-a2", "decode-b3")
    assert fleet.queues("prfaas") == (26, 2)
    assert fleet.queues("pd") == (0, 0)
    for flight in flights:
        flight.prefilled = True
    assert (fleet.queues("prfaas"), fleet.decoding()) == ((1, 1), (25, 20))
    fleet.forget(99)
    assert (fleet.queues("prfaas"), fleet.instances["decode-b3"].flights) == ((0, 0), {})


def test_silence_is_told_from_long_work() -> None:
    """An instance says something at the end of each prefill: without that for a second more it is cut off."""
    fleet = make_fleet()
    give(fleet, 1, "prefill-a1", "decode-b2", work_s=2.0)
    waiting = give(fleet, 2, "prefill-a2", "decode-b2", work_s=2.0)
    waiting.waits = True
    second = 10**9
    assert fleet.silent("prfaas", 3 * second) == []
    assert [one.peer.name for one in fleet.silent("prfaas", 3 * second + 1)] == ["prefill-a1"]
    fleet.instances["prefill-a1"].session.heard_ns = second  # type: ignore[union-attr]
    assert fleet.silent("prfaas", 4 * second) == []
    waiting.waits = False
    assert [one.peer.name for one in fleet.silent("prfaas", 4 * second + 1)] == ["prefill-a1", "prefill-a2"]
    assert fleet.silent("pd", 100 * second) == []


def test_tenants_are_told_apart_by_what_is_left_to_do_for_them() -> None:
    """By name: requests and seconds in the PrfaaS cluster, seconds in the PD cluster; not what is done."""
    fleet = make_fleet()
    give(fleet, 1, "prefill-a1", "decode-b2", work_s=2.0, tenant="b")
    give(fleet, 2, "prefill-a2", "decode-b2", work_s=3.0, tenant="b")
    give(fleet, 3, "prefill-a1", "decode-b2", work_s=0.5, tenant="a")
    give(fleet, 4, "prefill-a1", "decode-b2", tenant="c").prefilled = True
    give(fleet, 5, "prefill-b1", "decode-b2", work_s=4.0, tenant="b")
    give(fleet, 6, "prefill-b1", "decode-b2", work_s=0.25, tenant="d")
    assert fleet.tenants() == (
        TenantLoad("a", 1, 0.5, 0.0),
        TenantLoad("b", 2, 5.0, 4.0),
        TenantLoad("d", 0, 0.0, 0.25),
    )


def test_an_instance_converts_when_another_split_is_wanted() -> None:
    """The one with the least to finish is told; it has no role and gets no work until it has the other."""
    fleet = make_fleet()
    give(fleet, 1, "prefill-a1", "decode-b2")
    change = fleet.convert(2)
    assert change is not None
    instance, role = change
    assert (instance.peer.name, role, said(instance)) == (
        "decode-b3",
        "prefill",
        [("become", {"role": "prefill", "conversion_s": 1.0})],
    )
    assert (names(fleet, "pd", "prefill"), names(fleet, "pd", "decode")) == (["prefill-b1"], ["decode-b2"])
    assert fleet.converting == 1
    idle = fleet.idlest_decode()
    assert idle is not None
    assert idle.peer.name == "decode-b2", "though it has more to do"
    instance.role = "prefill"
    assert (fleet.converting, names(fleet, "pd", "prefill")) == (0, ["decode-b3", "prefill-b1"])
    give(fleet, 2, "prefill-b1", "decode-b2")
    back = fleet.convert(1)
    assert back is not None
    assert (back[0].peer.name, back[1]) == ("decode-b3", "decode")


@pytest.mark.parametrize(("wanted", "names_it"), [(2, "decode-b3"), (0, "prefill-b1")])
def test_whoever_is_promised_a_request_does_not_convert(wanted: int, names_it: str) -> None:
    """A request that waits for a cached prefix is no work yet, but will be."""
    fleet = make_fleet()
    for number in (1, 3):
        give(fleet, number, "prefill-a1", "decode-b2")
    waiting = give(fleet, 2, "prefill-b1", "decode-b3")
    waiting.waits = True
    assert fleet.queues("pd") == (1, 0)
    assert fleet.convert(wanted) is None
    waiting.waits = False
    change = fleet.convert(wanted)
    assert change is not None
    assert change[0].peer.name == names_it


def test_one_instance_converts_at_a_time() -> None:
    """Whatever is wanted, nobody else is told before the first one is done."""
    fleet = make_fleet()
    assert fleet.convert(3) is not None
    for wanted in (0, 1, 2, 3):
        assert fleet.convert(wanted) is None


def test_the_last_decode_instance_stays() -> None:
    """More prefill than can be had is not given, and what is as wanted stays."""
    fleet = make_fleet()
    assert fleet.convert(1) is None
    fleet.instances["decode-b2"].session = None
    assert fleet.convert(3) is None
    assert names(fleet, "pd", "decode") == ["decode-b3"]


def test_an_instance_that_dies_while_it_converts_blocks_nobody() -> None:
    """Its change will never be done; others may change all the same."""
    fleet = make_fleet()
    change = fleet.convert(0)
    assert change is not None
    assert change[0].peer.name == "prefill-b1"
    change[0].session = None
    assert fleet.converting == 0
    other = fleet.convert(1)
    assert other is not None
    assert other[1] == "prefill"


STEPS = st.one_of(
    st.tuples(st.just("want"), st.integers(0, 4)),
    st.tuples(st.just("became"), st.just(0)),
    st.tuples(st.just("die"), st.integers(0, 2)),
)


@given(st.lists(STEPS, max_size=30))
def test_roles_stay_sound_whatever_is_wanted(steps: list[tuple[str, int]]) -> None:
    """At most one converts; only a death takes the last decode instance; a step brings the split nearer."""
    fleet = make_fleet()
    pd = [one for one in fleet.instances.values() if one.peer.cluster == "pd"]
    for step, number in steps:
        prefills, decodes = names(fleet, "pd", "prefill"), names(fleet, "pd", "decode")
        if step == "want":
            change = fleet.convert(number)
            if change is not None:
                assert (change[1] == "prefill") == (number > len(prefills))
                assert len(names(fleet, "pd", "decode")) >= min(1, len(decodes))
        elif step == "became":
            for one in pd:
                told = one.session and said(one)
                if one.role is None and told:
                    one.role = told[-1][1]["role"]
        else:
            pd[number].session = None
        assert fleet.converting <= 1


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_the_wanted_split_is_reached(wanted: int) -> None:
    """Step by step, each one finished, the PD cluster comes to have so many prefill instances, and stays."""
    fleet = make_fleet()
    for _ in range(4):
        change = fleet.convert(wanted)
        if change is not None:
            change[0].role = change[1]
    assert len(names(fleet, "pd", "prefill")) == wanted
