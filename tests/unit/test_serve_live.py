"""Live events: from a growing journal to the same few numbers for everybody who watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from testbed import carriers
from testbed.journal_lines import LinkSample, Request, Start
from testbed.report.signals import percentile
from testbed.rundir import RunDir
from testbed.serve import follower, live
from testbed.serve.follower import Follower
from testbed.serve.frames import Frames
from tests.unit.serve_runs import write_small, write_verdict
from tests.unit.synthetic_run import note

S = 10**9
T0 = 120 * S


def link(run: RunDir, t_s: float, tx_bytes: int, *, backlog: int = 0) -> None:
    note(
        run, "link", "link", T0 + round(t_s * S), direction="a_to_b", rate_bps=8 * 10**9, delay_ns=1,
        jitter_ns=0, loss_ratio=0.0, tx_bytes=tx_bytes, drops=0, backlog_bytes=backlog, lost_packets=0,
        flight_packets=0,
    )  # fmt: skip


def tcp(run: RunDir, t_s: float, bytes_retrans: int) -> None:
    note(
        run, "tcp", "tcp", T0 + round(t_s * S), host="a1", local="10.0.0.1:5", remote="10.0.0.2:7", use="kv",
        cwnd_packets=1, rtt_ns=1, bytes_acked=1, bytes_retrans=bytes_retrans, delivery_bps=1.0,
        notsent_bytes=0, congestion_control="cubic",
    )  # fmt: skip


def decision(run: RunDir, t_s: float, number: int, route: str) -> None:
    note(
        run, "router", "decision", T0 + round(t_s * S), id=number, route=route, prefill="p", decode="d",
        uncached_tokens=1, threshold_tokens=1, reason="",
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of 120 s that this process carries out, at its start."""
    made = write_small(tmp_path, status=None)
    carriers.note(made)
    return made


def begin(run: RunDir) -> None:
    note(run, "bench", "start", T0)


def read(run: RunDir) -> Frames:
    follower = Follower(run.path)
    while follower.advance():
        pass
    return follower.frames


def test_each_signal_is_what_the_journal_says_in_its_stretch(run: RunDir) -> None:
    """120 s are 400 stretches of 0.3 s; rates are per second, the queue its largest."""
    begin(run)
    link(run, 0.0, 1_000)
    link(run, 0.1, 4_000, backlog=7)
    link(run, 0.2, 4_000, backlog=5)
    tcp(run, 0.2, 300)
    note(run, "router", "control", T0 + S // 10, threshold_tokens=19_400, previous_tokens=1, reason="",
         queue_prfaas=2, queue_pd=3, queue_decode=4)  # fmt: skip
    decision(run, 0.1, 1, "prfaas")
    decision(run, 0.2, 2, "pd")
    note(run, "client", "request", T0 + S // 10, id=1, t_first_ns=T0 + S // 5, t_last_ns=T0 + S // 4,
         t_end_ns=T0 + S // 4, tokens=5, state="completed", cause=None)  # fmt: skip
    frames = read(run)
    assert frames.stretch_s == pytest.approx(0.3)
    assert frames.values(0) == {
        "capacity_bps": 8e9, "goodput_bps": pytest.approx(3000 * 8 / 0.2), "queue_bytes": 7.0,
        "retrans_bps": pytest.approx(300 * 0.2 * 8 / 0.3), "threshold_tokens": 19_400.0,
        "offloaded_ratio": 0.5, "ttft_p50_s": pytest.approx(0.1), "ttft_p90_s": pytest.approx(0.1),
        "queued_a": 2.0, "queued_b": 3.0, "in_decode": 4.0, "completed": 1 / 0.3, "failed": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("duration_s", [5, 60, 95, 120, 150, 300])
@pytest.mark.parametrize("every_s", [0.1, 0.5, 1.0])
def test_throughput_is_the_same_however_samples_lie_in_stretches(duration_s: int, every_s: float) -> None:
    """A full link is shown as one that is full: never more, never less, and without gaps."""
    frames = Frames(duration_s)
    frames.add([Start(t_ns=T0)])
    for number in range(-1, int(duration_s / every_s)):
        t_s = number * every_s + 0.0012
        frames.add([sample(t_s, round((t_s + 9) * 10**9), backlog=5)])
    found = [frames.values(number) for number in range(len(frames))]
    assert [one["goodput_bps"] for one in found] == pytest.approx([8e9] * len(found), rel=1e-6)
    assert {one["queue_bytes"] for one in found} == {5.0}


def sample(t_s: float, tx_bytes: int, backlog: int) -> LinkSample:
    return LinkSample(
        t_ns=T0 + round(t_s * S), direction="a_to_b", rate_bps=8 * 10**9, delay_ns=1, jitter_ns=0,
        loss_ratio=0.0, tx_bytes=tx_bytes, drops=0, backlog_bytes=backlog, lost_packets=0, flight_packets=0,
    )  # fmt: skip


def test_what_sockets_sent_again_was_sent_since_they_were_sampled(run: RunDir) -> None:
    """Once a second: a rate is of that second, and not all of it within one stretch."""
    begin(run)
    for tenth in range(40):
        link(run, tenth / 10, tenth)
    tcp(run, 1.0, 500)
    tcp(run, 2.0, 1_500)
    frames = read(run)
    shown = [frames.values(number)["retrans_bps"] for number in range(7)]
    both = 4_000 / 3 + 8_000 * 2 / 3
    assert shown == pytest.approx([4_000, 4_000, 4_000, both, 8_000, 8_000, 8_000 * 2 / 3])


def test_the_speed_is_that_of_the_run_and_not_of_the_reading(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes late reads a long journal piece by piece, in no time."""
    wall_s = 0.0
    monkeypatch.setattr(follower, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(follower.time, "monotonic", lambda: wall_s)
    begin(run)
    for second in range(100):
        link(run, second, second)
    late = Follower(run.path)
    while late.advance():
        wall_s += 0.1
    for second in range(100, 103):
        link(run, second * 1.0, second)
        wall_s += 1
        late.advance()
    assert late.now()["speed"] == pytest.approx(1.0, rel=0.1)


def test_percentiles_are_those_of_the_report() -> None:
    """With linear interpolation: of ten values, P90 is not the largest."""
    frames = Frames(120)
    frames.add([Start(t_ns=T0)])
    for number in range(10):
        frames.add([Request(
            t_ns=T0, id=number, t_first_ns=T0 + (number + 1) * S // 10, t_last_ns=T0 + S, t_end_ns=T0 + S,
            tokens=1, state="completed", cause=None,
        )])  # fmt: skip
    values = frames.values(len(frames) - 1)
    expected = [percentile(share)([(number + 1) / 10 for number in range(10)]) for share in (0.5, 0.9)]
    assert [values["ttft_p50_s"], values["ttft_p90_s"]] == pytest.approx(expected)


def test_what_was_not_measured_is_not_zero(run: RunDir) -> None:
    """Before the second sample nobody knows what was sent; what was held before still holds."""
    begin(run)
    link(run, 0.0, 0)
    frames = read(run)
    assert frames.values(0)["goodput_bps"] is None
    note(run, "bench", "event", T0 + S, name="late")
    frames = read(run)
    for name in ("goodput_bps", "queue_bytes", "retrans_bps", "completed", "ttft_p90_s"):
        assert frames.values(1)[name] is None
    assert frames.values(1)["capacity_bps"] == 8e9


def test_lines_before_the_start_and_counters_that_fall_are_understood(run: RunDir) -> None:
    """What was sent before t0 does not count; a new socket's counter begins at 0."""
    tcp(run, -1.0, 500)
    link(run, -0.1, 1_000)
    begin(run)
    link(run, 0.1, 1_800)
    tcp(run, 0.3, 40)
    values = read(run).values(0)
    assert values["goodput_bps"] == pytest.approx(400 * 8 / 0.1)
    assert values["retrans_bps"] == pytest.approx(40 * 8)


def test_a_value_holds_until_the_next_whatever_other_files_say_first(run: RunDir) -> None:
    """The policy speaks more seldom than the link is sampled, and its file is read after the link's."""
    begin(run)
    for tenth in range(30):
        link(run, tenth / 10, tenth)
    for t_s, threshold in ((0.35, 100), (1.55, 200)):
        note(run, "router", "control", T0 + round(t_s * S), threshold_tokens=threshold, previous_tokens=1,
             reason="", queue_prfaas=3)  # fmt: skip
    frames = read(run)
    values = [frames.values(number) for number in range(len(frames))]
    shown = [one["threshold_tokens"] for one in values]
    first, second = int(0.35 / frames.stretch_s), int(1.55 / frames.stretch_s)
    assert shown == [None] * first + [100] * (second - first) + [200] * (len(shown) - second)
    assert [one["queued_a"] for one in values[first:]] == [3] * (len(values) - first)


def test_half_a_line_waits_for_its_other_half(run: RunDir) -> None:
    """The writer may be seen in the middle of a line; damaged lines are passed over."""
    begin(run)
    link(run, 0.0, 5)
    link(run, 0.1, 9)
    path = run.journal / "link.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    follower = Follower(run.path)
    follower.advance()
    assert follower.frames.values(0)["goodput_bps"] is None
    path.write_bytes(whole + b'{"kind": "link", "t_ns": "yesterday"}\n\xff\n')
    follower.advance()
    assert follower.frames.values(0)["goodput_bps"] == pytest.approx(4 * 8 / 0.1)


def test_a_moment_beyond_all_bounds_fills_no_memory(run: RunDir) -> None:
    """A journal may be damaged in any way."""
    begin(run)
    note(run, "bench", "event", T0 + 10**18, name="never")
    assert len(read(run)) == 0
    note(run, "bench", "event", T0 + 30 * 3600 * S, name="late")
    assert len(read(run)) == 20_000


def test_only_what_has_changed_is_sent(run: RunDir) -> None:
    """Stretches by number: those that a late line changes, too."""
    begin(run)
    link(run, 0.0, 5)
    follower = Follower(run.path)
    follower.advance()
    assert follower.changes()["numbers"] == [0]
    assert follower.changes()["numbers"] == []
    link(run, 0.7, 9)
    follower.advance()
    assert follower.changes()["numbers"] == [0, 1, 2]
    link(run, 0.1, 9)
    follower.advance()
    assert follower.changes()["numbers"] == [0]


def test_a_late_line_changes_all_that_look_back_to_it(run: RunDir) -> None:
    """A first token is known when its request has ended: the mean of the last 15 s was without it."""
    begin(run)
    link(run, 0.0, 5)
    link(run, 30.0, 9)
    follower = Follower(run.path)
    follower.advance()
    follower.changes()
    note(run, "client", "request", T0, id=1, t_first_ns=T0 + 3 * S, t_last_ns=T0 + 30 * S,
         t_end_ns=T0 + 30 * S, tokens=5, state="completed", cause=None)  # fmt: skip
    follower.advance()
    changed = follower.changes()
    assert changed["numbers"] == [*range(10, 60), 100]
    assert set(changed["signals"]["ttft_p90_s"][:50]) == {3.0}
    assert follower.whole()["signals"]["ttft_p90_s"] == [None] * 10 + [3.0] * 50 + [None] * 41
    decision(run, 0.1, 1, "prfaas")
    follower.advance()
    assert follower.changes()["numbers"] == list(range(33))


def parsed(event: bytes) -> tuple[str, dict[str, Any]]:
    kind, data = event.decode().strip().split("\n")
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return kind.removeprefix("event: "), found


def played(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_twenty_watchers_share_one_follower_and_its_events(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets the whole, then the same bytes as all others, then the verdict; the journal is read once."""
    begin(run)
    link(run, 0.0, 5)
    made: list[Path] = []

    class Counted(Follower):
        def __init__(self, directory: Path) -> None:
            made.append(directory)
            super().__init__(directory)

    monkeypatch.setattr(live, "Follower", Counted)
    monkeypatch.setattr(live, "TICK_S", 0.02)
    got: list[list[bytes]] = [[] for _ in range(20)]

    async def watch(number: int, followed: live.Live) -> None:
        got[number] = [event async for event in followed.events(run.path.name)]

    async def scenario() -> None:
        followed = live.Live(run.path.parent)
        tasks = [asyncio.create_task(watch(number, followed)) for number in range(20)]
        await asyncio.sleep(0.3)
        assert followed.watchers == 20
        link(run, 0.5, 9)
        await asyncio.sleep(0.2)
        write_verdict(run, "FAIL")
        run.carrier.unlink()
        await asyncio.gather(*tasks)
        assert followed.watchers == 0

    played(scenario)
    assert made == [run.path]
    assert all(events == got[0] for events in got)
    kinds = [parsed(event)[0] for event in got[0]]
    assert (kinds[0], kinds[-1]) == ("whole", "end")
    changed = [parsed(event)[1] for event in got[0] if parsed(event)[0] == "changes"]
    assert [0, 1] in [one["numbers"] for one in changed]
    assert parsed(got[0][-1])[1] == {"state": "FAIL"}


def test_a_journal_that_never_pauses_is_watched_all_the_same(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is something new at every look: what there was at the first is shown at once."""

    class Busy(Follower):
        looks = 0

        def look(self) -> tuple[bool, bool]:
            link(run, self.looks / 10, self.looks)
            self.looks += 1
            return super().look()

    monkeypatch.setattr(live, "Follower", Busy)
    begin(run)

    async def scenario() -> None:
        followed = live.Live(run.path.parent)
        events = followed.events(run.path.name)
        assert parsed(await anext(events))[0] == "whole"
        watched = followed._watched[run.path.name]
        assert watched.follower.looks == 1  # type: ignore[attr-defined]
        followed.closing = True
        assert [event async for event in events if parsed(event)[0] == "end"] == []

    played(scenario)


def test_nobody_waits_for_what_will_not_come(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that cannot be followed ends the events, of those too that came while it was read."""

    def broken(_: Follower) -> tuple[bool, bool]:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(live.Follower, "look", broken)

    async def scenario() -> None:
        found = [event async for event in live.Live(run.path.parent).events(run.path.name)]
        assert [parsed(event)[0] for event in found] == []

    played(scenario)


def test_a_watcher_that_reads_too_slowly_gets_the_whole_again(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it, and nothing piles up for it."""
    begin(run)
    monkeypatch.setattr(live, "TICK_S", 0.001)
    monkeypatch.setattr(live, "LEAST_OFTEN_S", 0.0)

    async def scenario() -> None:
        followed = live.Live(run.path.parent)
        events = followed.events(run.path.name)
        assert parsed(await anext(events))[0] == "whole"
        watching = asyncio.create_task(anext(events))
        await watching
        await asyncio.sleep(0.5)
        link(run, 0.0, 5)
        await asyncio.sleep(0.3)
        kind, data = parsed(await anext(events))
        assert kind == "whole"
        assert data["signals"]["capacity_bps"] == [8e9]
        followed.closing = True
        assert [event async for event in events if parsed(event)[0] == "end"] == []

    played(scenario)
