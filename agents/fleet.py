"""The instances as the router knows them: their roles, what they hold, who has the least to do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from agents import config, wire
from agents.policies.view import Decision, Request, Route, TenantLoad
from agents.profiles import find
from agents.session import Session

Role = Literal["prefill", "decode"]
SILENCE_S = 1.0
"""Beyond the prefill that an instance may be at; many round trips."""


class Flight(msgspec.Struct):
    """One request between its arrival and its end.

    `route`, `prefill`, `decode`: of the present attempt. `computed_tokens` and `kv_tokens`: what prefill
    computes, and the tokens whose KV goes to decode.
    """

    id: int
    request: Request
    chain: tuple[int, ...]
    sent_ns: int
    decision: Decision
    route: Route
    moved_ns: int
    """When something last happened to it."""
    attempt: int = 0
    spent: int = 0
    """Attempts that count: those that were placed."""
    avoid: frozenset[str] = frozenset()
    """Instances that have failed it."""
    done: int = 0
    """Tokens that earlier attempts generated; `told`: these and those of the present one."""
    told: int = 0
    computed_tokens: int = 0
    kv_tokens: int = 0
    state_tokens: tuple[int, ...] = ()
    """Behind so many tokens the present attempt leaves a state in the prefix cache."""
    order_s: float = 0.0
    """Its place in the queue of prefill."""
    work_s: float = 0.0
    """Seconds of prefill, by the profile."""
    prefill: str = ""
    decode: str = ""
    waits: bool = False
    """For a prefix from the other cluster, or for room at decode, before prefill gets it."""
    prefilled: bool = False
    arrived: bool = False
    """Its KV, at decode."""
    cause: str | None = None
    prompt: Sequence[int] = ()
    """Its token ids, and those of the answer so far, where real kernels compute."""
    token_ids: list[int] = msgspec.field(default_factory=list)
    progress: asyncio.Queue[int] = msgspec.field(default_factory=asyncio.Queue)

    @property
    def job(self) -> int:
        """Under which the instances know the present attempt."""
        return config.job(self.id, self.attempt)

    @property
    def compress(self) -> bool:
        """Whether its KV is compressed, which pays where the policy sent it."""
        return self.decision.compress and self.route == self.decision.route

    @property
    def input_tokens(self) -> int:
        """What the present attempt has for a prompt."""
        return self.request.input_tokens + self.done

    async def next(self) -> int:
        """Wait for more tokens; returns how many there are so far. `cause` is set if there will be none."""
        return await self.progress.get()


class Instance(msgspec.Struct):
    """One instance; without a role while it changes from one to the other.

    `prefilling`: requests whose KV has not left it whole. `decoding`: those whose KV comes to it or is there.
    """

    peer: config.Peer
    role: Role | None
    session: Session | None = None
    given_up: bool = False
    """For ever (a flaw)."""
    prefilling: dict[int, Flight] = {}
    decoding: dict[int, Flight] = {}
    signals: wire.Message = {}

    @property
    def up(self) -> bool:
        """Whether it can be given work."""
        return self.session is not None and self.session.up and not self.given_up

    @property
    def heard_ns(self) -> int:
        """When it last said anything."""
        return self.session.heard_ns if self.session is not None else 0

    @property
    def flights(self) -> dict[int, Flight]:
        """All requests that are lost if this instance is."""
        return self.prefilling | self.decoding

    @property
    def queue(self) -> int:
        """Requests that wait for prefill here, or are in it."""
        return sum(not flight.prefilled for flight in self.prefilling.values())

    @property
    def computing(self) -> bool:
        """Whether a request is in prefill here."""
        return any(not (flight.prefilled or flight.waits) for flight in self.prefilling.values())

    @property
    def held(self) -> int:
        """Requests that decode here, or could."""
        return sum(flight.prefilled for flight in self.decoding.values())

    def send(self, op: str, **fields: object) -> None:
        """Tell it something; while it cannot be reached the message waits."""
        assert self.session is not None
        self.session.send(op, **fields)


class Fleet:
    """All instances by name."""

    def __init__(self, settings: config.Config) -> None:
        self._conversion_s = settings.scheduling.conversion_ns / 1e9
        peers = settings.instances()
        self.instances = {peer.name: Instance(peer, given_role(peer)) for peer in peers}
        self._slots = {peer.name: find(peer.profile, settings.profiles).bs_max for peer in peers}

    def serving(self, cluster: str, role: Role) -> list[Instance]:
        """Instances of a cluster that take work of this role now."""
        return [
            one
            for one in self.instances.values()
            if one.peer.cluster == cluster and one.role == role and one.up
        ]

    @property
    def converting(self) -> int:
        """Instances on their way from one role to the other."""
        return sum(one.role is None and one.up for one in self.instances.values())

    def idlest_prefill(self, cluster: str, avoid: Collection[str] = ()) -> Instance | None:
        """The prefill instance of a cluster that will be free first; None: none is there.

        One of `avoid` only if there is no other.
        """

        def work_s(instance: Instance) -> float:
            return sum(flight.work_s for flight in instance.prefilling.values() if not flight.prefilled)

        return min(_without(self.serving(cluster, "prefill"), avoid), key=work_s, default=None)

    def idlest_decode(self, avoid: Collection[str] = ()) -> Instance | None:
        """The decode instance with the fewest requests; None: none is there. `avoid` as above."""
        there = _without(self.serving("pd", "decode"), avoid)
        return min(there, key=lambda one: len(one.decoding), default=None)

    def queues(self, cluster: str) -> tuple[int, int]:
        """Requests that wait for prefill in a cluster or are in it, and how many of these are in it."""
        here = [one for one in self.instances.values() if one.peer.cluster == cluster]
        return sum(one.queue for one in here), sum(one.computing for one in here)

    def decoding(self) -> tuple[int, int]:
        """Requests that decode instances hold, and how many of these have a place in a batch."""
        held = [(one.held, self._slots[name]) for name, one in self.instances.items()]
        return sum(count for count, _ in held), sum(min(count, slots) for count, slots in held)

    def tenants(self) -> tuple[TenantLoad, ...]:
        """What each tenant still has to be prefilled in each cluster, by name."""
        works: dict[str, dict[str, list[float]]] = {}
        for instance in self.instances.values():
            for flight in instance.prefilling.values():
                if not flight.prefilled:
                    mine = works.setdefault(flight.request.tenant, {"prfaas": [], "pd": []})
                    mine[instance.peer.cluster].append(flight.work_s)
        return tuple(
            TenantLoad(name, len(mine["prfaas"]), sum(mine["prfaas"]), sum(mine["pd"]))
            for name, mine in sorted(works.items())
        )

    def silent(self, cluster: str, now_ns: int) -> list[Instance]:
        """Instances with work, some of which they should have said is done, a second ago or more."""

        def is_silent(instance: Instance) -> bool:
            given = [(one.sent_ns, one.work_s) for one in instance.prefilling.values() if not one.waits]
            if not given:
                return False
            since_ns = max(instance.heard_ns, min(sent_ns for sent_ns, _ in given))
            longest_s = max(work_s for _, work_s in given)
            return (now_ns - since_ns) / 1e9 > longest_s + SILENCE_S

        return [one for one in self.instances.values() if one.peer.cluster == cluster and is_silent(one)]

    def signals(self) -> list[wire.Message]:
        """What the PrfaaS instances last said of their connections."""
        return [
            one.signals for one in self.instances.values() if one.peer.cluster == "prfaas" and one.signals
        ]

    def convert(self, prefill_instances: int) -> tuple[Instance, Role] | None:
        """Bring the PD cluster one instance nearer to so many of prefill; returns who changes to what.

        One at a time, the one with the least to finish, and never the last decode instance. One that gets a
        prefix for a request of its own waits for that first.
        """
        prefills, decodes = self.serving("pd", "prefill"), self.serving("pd", "decode")
        if self.converting or prefill_instances == len(prefills):
            return None
        role: Role = "prefill" if prefill_instances > len(prefills) else "decode"
        if role == "prefill":
            chosen = self.idlest_decode() if len(decodes) > 1 else None
        else:
            chosen = self.idlest_prefill("pd")
        if chosen is None or any(flight.waits for flight in chosen.flights.values()):
            return None
        chosen.role = None
        chosen.send("become", role=role, conversion_s=self._conversion_s)
        return chosen, role

    def forget(self, request: int) -> None:
        """A request is over: nobody holds it any more."""
        for instance in self.instances.values():
            instance.prefilling.pop(request, None)
            instance.decoding.pop(request, None)


def given_role(peer: config.Peer) -> Role:
    """The role in which an instance starts."""
    return "prefill" if peer.role == "prefill" else "decode"


def _without(instances: list[Instance], avoid: Collection[str]) -> list[Instance]:
    return [one for one in instances if one.peer.name not in avoid] or instances
