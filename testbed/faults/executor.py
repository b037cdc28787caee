"""Doing what the plan's faults say, each at its time, beside the agents."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

from testbed.containers import Containers
from testbed.faults.freezer import Freezer
from testbed.faults.orders import beat, orders
from testbed.faults.ports import exhausted
from testbed.journal import Journal
from testbed.moments import until
from testbed.plan import Fault


class Faults:
    """The jobs of one plan's faults; `journal` gets a line as each begins, and as it ends."""

    def __init__(self, faults: tuple[Fault, ...], containers: Containers, journal: Journal) -> None:
        self._faults, self._containers, self._journal = faults, containers, journal

    def jobs(self, t0_ns: int) -> Iterator[Coroutine[Any, Any, None]]:
        """One for each; `t0_ns` is CLOCK_MONOTONIC. Each ends when its fault is over, or as good as over."""
        return (self._do(fault, t0_ns) for fault in self._faults)

    async def _do(self, fault: Fault, t0_ns: int) -> None:
        await until(t0_ns + fault.t_ns)
        until_ns = t0_ns + (fault.t_ns if fault.until_ns is None else fault.until_ns)
        match fault.kind:
            case "kill":
                await self._kill(fault)
            case "restart":
                await self._kill(fault)
                await until(until_ns)
                begin_ns = time.monotonic_ns()
                await self._containers.restart(fault.target)
                self._note(fault, active=False, detail=f"ready after {_ms(time.monotonic_ns() - begin_ns)}")
            case "pause":
                async with self._frozen(fault) as freezer:
                    self._note(fault, active=True, detail="frozen")
                    await until(until_ns)
                    await freezer.thaw()
                self._note(fault, active=False, detail="thawed")
            case "slow":
                await self._slow(fault, until_ns)
            case "corrupt" | "fill":
                await self._told(fault, until_ns)
            case "exhaust_ports":
                with exhausted(fault.target):
                    self._note(fault, active=True, detail="no port left")
                    await until(until_ns)
                self._note(fault, active=False, detail="ports as before")

    async def _kill(self, fault: Fault) -> None:
        status = await self._containers.kill(fault.target)
        self._note(fault, active=True, detail=f"ended with status {status}")

    async def _slow(self, fault: Fault, until_ns: int) -> None:
        """Tell it how slow its hardware is, and let its program run only a part of each beat."""
        begins, ends = orders(fault)
        still_s, running_s = beat(fault.amount)
        if begins:
            self._tell(fault, begins)
        async with self._frozen(fault) as freezer:
            self._note(fault, active=True, detail=f"runs 1/{fault.amount:g} of the time")
            while True:
                await _pass(still_s, until_ns)
                await freezer.thaw()
                await _pass(running_s, until_ns)
                if time.monotonic_ns() >= until_ns:
                    break
                await freezer.freeze()
        if ends:
            self._tell(fault, ends)
        self._note(fault, active=False, detail="runs all the time")

    async def _told(self, fault: Fault, until_ns: int) -> None:
        begins, ends = orders(fault)
        self._tell(fault, begins)
        self._note(fault, active=True, detail=f"told: {begins}")
        await until(until_ns)
        if ends:
            self._tell(fault, ends)
        self._note(fault, active=False, detail=f"told: {ends or begins}")

    @asynccontextmanager
    async def _frozen(self, fault: Fault) -> AsyncIterator[Freezer]:
        """The target's freezer, frozen; however the block ends, nothing stays so."""
        freezer = Freezer(fault.target, self._containers.running(fault.target).pid)
        try:
            await freezer.freeze()
            yield freezer
        finally:
            freezer.let_go()

    def _tell(self, fault: Fault, line: str) -> None:
        self._containers.running(fault.target).tell(line)

    def _note(self, fault: Fault, *, active: bool, detail: str) -> None:
        self._journal.note(
            "fault", time.monotonic_ns(), fault=fault.kind, target=fault.target, active=active, detail=detail
        )


def _ms(length_ns: int) -> str:
    return f"{length_ns / 1e6:.0f} ms"


async def _pass(length_s: float, until_ns: int) -> None:
    """Sleep so long, but not beyond a moment."""
    await until(min(time.monotonic_ns() + round(length_s * 1e9), until_ns))
