"""The audit of the link: a link that is as asked gives no miss, and each kind of miss is found and named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from testbed import audit
from testbed import tables as record
from testbed.journal import Journal
from testbed.plan import DIRECTIONS, LinkState, Loss, Plan, Slot, TokenBucket
from testbed.rundir import RunDir
from tests.unit import synthetic_link
from tests.unit.synthetic_plan import S, make_plan
from tests.unit.synthetic_run import T0_NS, write_run

Tables = dict[str, pl.DataFrame]
CALM = LinkState(rate_bps=10**10, buffer_bytes=12_500_000, delay_ns=5_000_000)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(requests=20)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Tables:
    return record.build(write_run(tmp_path_factory.mktemp("runs") / "run", plan, tcp_lines=64), plan)


@pytest.fixture
def tables(good: Tables) -> Tables:
    return dict(good)


def missed(plan: Plan, tables: Tables) -> list[str]:
    return [finding.what for finding in audit.judge(plan, tables) if not finding.ok]


def edited(tables: Tables, name: str, where: pl.Expr, **values: Any) -> Tables:
    """The tables with other values in the rows of one of them for which `where` holds."""
    table = tables[name]
    changed = [
        pl.when(where).then(value).otherwise(pl.col(column)).cast(table.schema[column]).alias(column)
        for column, value in values.items()
    ]
    return {**tables, name: table.with_columns(changed)}


def test_a_link_as_asked_has_no_miss(plan: Plan, tables: Tables) -> None:
    """Everything is measured in both directions, and nothing is missed."""
    findings = audit.judge(plan, tables)
    assert [finding.sentence for finding in findings if not finding.ok] == []
    both = {finding.what for finding in findings if finding.direction == "b_to_a"}
    assert both >= {
        "rate", "round trip", "loss", "order", "delay, range", "delay, mean", "jitter", "duplicates",
        "corruption", "settings", "loss in the run", "counters",
    }  # fmt: skip
    assert audit.summary(findings).startswith("the link was as asked")


A = pl.col("direction") == "a_to_b"
FIRST = A & (pl.col("number") < 30)
END = A & (pl.col("moment") == "end")
AT_90_S = A & (pl.col("t_s").is_between(90, 90.05))
BUSY = {"busy_from_s": 90.0, "busy_s": 0.01}
DEVICE = pl.col("place") == "wan_device"
MISSES: dict[str, tuple[str, Callable[[Tables], Tables]]] = {
    "loss": ("loss", lambda t: edited(t, "probes", FIRST, arrived_s=None, delay_s=None)),
    "late": ("order", lambda t: edited(t, "probes", A & (pl.col("number") == 7), place=100)),
    "delay": ("delay, mean", lambda t: edited(t, "probes", A, delay_s=pl.col("delay_s") + 5e-5)),
    "extremes": ("delay, range", lambda t: edited(t, "probes", FIRST, delay_s=0.0059999)),
    "constant": ("jitter", lambda t: edited(t, "probes", A, delay_s=0.00575)),
    "corruption": ("corruption", lambda t: edited(t, "probes", A & (pl.col("number") == 3), intact=False)),
    "duplicates": ("duplicates", lambda t: edited(t, "probes", A & (pl.col("number") == 3), copy=1)),
    "limit": ("limit of the delay stage", lambda t: edited(t, "links", AT_90_S, limit_drops=1)),
    "lost": ("loss in the run", lambda t: edited(t, "links", AT_90_S, lost_packets=1)),
    "slow": ("rate while busy", lambda t: edited(t, "links", AT_90_S, **BUSY, busy_bps=9.0e10)),
    "fast": ("rate while busy", lambda t: edited(t, "links", AT_90_S, **BUSY, busy_bps=1.1e11)),
    "more": ("rate in the run", lambda t: edited(t, "links", AT_90_S, throughput_bps=1.1e11)),
    "filtered": (
        "loss ahead of the delay stage",
        lambda t: edited(t, "links", AT_90_S, lost_packets=1, filtered_packets=1),
    ),
    "wire": ("counters", lambda t: edited(t, "counters", END & (pl.col("place") == "far_device"), packets=9)),
    "queue": (
        "counters",
        lambda t: edited(t, "counters", END & (pl.col("place") == "rate"), bytes=pl.col("bytes") * 2),
    ),
    "vanished": (
        "counters",
        lambda t: edited(
            t, "counters", END & pl.col("place").is_in(["delay", "delay_device", "far_device"]),
            packets=pl.col("packets") - 300 * (pl.col("place") == "delay"),
        ),
    ),
    "dropped": ("counters", lambda t: edited(t, "counters", END & DEVICE, drops=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_each_miss_is_found_in_its_direction(plan: Plan, tables: Tables, name: str) -> None:
    """One thing that is not as asked is a miss of that kind, from A to B and nowhere else."""
    what, spoil = MISSES[name]
    findings = [finding for finding in audit.judge(plan, spoil(tables)) if not finding.ok]
    assert what in [finding.what for finding in findings]
    assert {finding.direction for finding in findings} == {"a_to_b"}
    assert audit.summary(audit.judge(plan, spoil(tables))).startswith("the link was not as asked")


@pytest.mark.parametrize(
    ("kind", "field", "value", "what"),
    [
        ("calibration", "rate_bps", 95e9, "rate"),
        ("calibration", "span_ns", 0, "rate"),
        ("calibration", "rtt_ns", 11_800_000, "round trip"),
        ("settings", "differences", ["rate: 5"], "settings"),
        ("train", "missed", 3, "probes"),
    ],
)
def test_an_event_that_is_not_as_asked_is_a_miss(  # noqa: PLR0917 - pytest names them
    plan: Plan, tables: Tables, kind: str, field: str, value: object, what: str
) -> None:
    """Rate, round trip, settings and the train itself are judged by what was noted of them."""
    events = tables["events"]
    (detail,) = events.filter((pl.col("kind") == kind) & (pl.col("name") == "a_to_b"))["detail"]
    spoilt = msgspec.json.encode({**msgspec.json.decode(detail), field: value}).decode()
    here = (pl.col("kind") == kind) & (pl.col("name") == "a_to_b")
    assert missed(plan, edited(tables, "events", here, detail=pl.lit(spoilt))) == [what]


@pytest.mark.parametrize(
    ("table", "what"), [("probes", "probes"), ("counters", "counters"), ("links", "samples")]
)
def test_what_was_not_measured_is_a_miss(plan: Plan, tables: Tables, table: str, what: str) -> None:
    """An empty table is no proof."""
    assert missed(plan, {**tables, table: tables[table].clear()}) == [what, what]


def probed(directory: Path, plan: Plan, change: Callable[[dict[str, Any]], None]) -> Tables:
    """The record of nothing but a train in each direction; `change` edits the one from A to B."""
    run = RunDir(directory)
    run.journal.mkdir(parents=True)
    with closing(Journal(run.journal / "audit.jsonl")) as proof:
        for direction in DIRECTIONS:
            train = synthetic_link.train(plan, direction, T0_NS - 90 * S, 2000)
            if direction == "a_to_b":
                change(train)
            proof.note("train", T0_NS, **train)
    return record.build(run, plan)


def of_the_train(plan: Plan, tables: Tables) -> dict[str, bool]:
    """Whether each thing that the probes from A to B show is as asked."""
    others = {"rate", "settings", "samples", "counters"}
    findings = audit.judge(plan, tables)
    return {one.what: one.ok for one in findings if one.direction == "a_to_b" and one.what not in others}


def starting_with(plan: Plan, **fields: Any) -> Plan:
    """The plan with another state from A to B."""
    state = msgspec.structs.replace(CALM, **fields)
    return msgspec.structs.replace(plan, link={**plan.link, "a_to_b": state})


def lose(train: dict[str, Any], numbers: set[int]) -> None:
    train["arrived"] = [one for one in train["arrived"] if one[0] not in numbers]


@pytest.mark.parametrize(
    ("loss", "lost", "ok"),
    [
        (Loss(model="random", ratio=0.01), range(0, 2000, 100), True),
        (Loss(model="random", ratio=0.01), range(0), False),
        (Loss(model="random", ratio=0.01), range(0, 2000, 30), False),
        (Loss(model="gilbert_elliott", p=0.01, r=0.1), range(180), True),
        (Loss(model="gilbert_elliott", p=0.01, r=0.1), range(600), False),
        (Loss(model="four_state", p13=0.01, p31=0.3, p32=0.2, p23=0.4), range(80), True),
        (Loss(model="four_state", p13=0.01, p31=0.3, p32=0.2, p23=0.4), range(400), False),
        (Loss(model="periodic", every_packets=100), range(40, 2000, 100), True),
        (Loss(model="periodic", every_packets=100), [*range(40, 1900, 100), 1950], False),
        (Loss(model="periodic", every_packets=100), range(40, 1800, 100), False),
    ],
)
def test_loss_is_what_its_process_makes(
    tmp_path: Path, plan: Plan, loss: Loss, lost: range | list[int], ok: bool
) -> None:
    """As many as the process takes but for a chance of a millionth; every n-th exactly."""
    plan = starting_with(plan, loss=loss)
    tables = probed(tmp_path / "run", plan, lambda train: lose(train, set(lost)))
    assert of_the_train(plan, tables)["loss"] is ok


@pytest.mark.parametrize(("count", "ok"), [(20, True), (0, False), (80, False)])
def test_who_overtakes_skips_the_delay(tmp_path: Path, plan: Plan, count: int, ok: bool) -> None:
    """1 % of reordering: about that many arrive at once, and the others keep their order and delay."""

    def overtake(train: dict[str, Any]) -> None:
        for number in range(50, 50 + count):
            train["arrived"][number] = (number, train["left_ns"][number], True)
        train["arrived"].sort(key=lambda one: one[1])

    plan = starting_with(plan, reorder=0.01)
    found = of_the_train(plan, probed(tmp_path / "run", plan, overtake))
    assert found["reordering"] is ok
    assert (found["order"], found["delay, range"], found["delay, mean"]) == (True, True, True)


@pytest.mark.parametrize(("count", "ok"), [(20, True), (0, False), (80, False)])
def test_copies_are_counted(tmp_path: Path, plan: Plan, count: int, ok: bool) -> None:
    """1 % of duplicates: about that many numbers arrive twice."""
    plan = starting_with(plan, duplicate=0.01)

    def double(train: dict[str, Any]) -> None:
        train["arrived"] = sorted(train["arrived"] + train["arrived"][:count], key=lambda one: one[1])

    found = of_the_train(plan, probed(tmp_path / "run", plan, double))
    assert (found["duplicates"], found["order"]) == (ok, True)


def test_a_partition_lets_nothing_through(tmp_path: Path, plan: Plan) -> None:
    """Nothing arrives, or the partition is a miss."""
    plan = starting_with(plan, partitioned=True)
    silent = probed(tmp_path / "silent", plan, lambda train: lose(train, set(range(2000))))
    assert of_the_train(plan, silent) == {"partition": True}
    leaky = probed(tmp_path / "leaky", plan, lambda train: lose(train, set(range(1999))))
    assert of_the_train(plan, leaky) == {"partition": False}


def test_slots_add_a_pause_to_the_delay(tmp_path: Path, plan: Plan) -> None:
    """With slots a probe that is on its own comes one pause later: no less, no more, and so on average."""
    plan = starting_with(plan, slot=Slot(min_ns=1_000_000, max_ns=2_000_000))

    def later(by_ns: int) -> Callable[[dict[str, Any]], None]:
        def change(train: dict[str, Any]) -> None:
            train["arrived"] = [(number, t_ns + by_ns, whole) for number, t_ns, whole in train["arrived"]]

        return change

    for name, by_ns, ranges, mean in (
        ("in", 1_500_000, True, True),
        ("early", 1_010_000, True, False),
        ("late", 2_100_000, False, False),
        ("no slots", 0, False, False),
    ):
        found = of_the_train(plan, probed(tmp_path / name, plan, later(by_ns)))
        assert (found["delay, range"], found["delay, mean"]) == (ranges, mean)


@pytest.mark.parametrize(("through", "ok"), [((8, 0), True), ((8, 1), False), ((7, 0), False)])
def test_only_what_fits_passes(tmp_path: Path, plan: Plan, through: tuple[int, int], ok: bool) -> None:
    """Packets as large as the limit arrive, those a byte larger do not."""
    plan = starting_with(plan, black_hole_bytes=1400)

    found = findings_of_large(tmp_path, plan, through)
    assert (found["packets of 1400 B"].ok and found["packets of 1401 B"].ok) is ok


def of_the_run(plan: Plan, tables: Tables) -> dict[str, audit.Finding]:
    """What the samples from A to B show."""
    return {one.what: one for one in audit.judge(plan, tables) if one.direction == "a_to_b"}


def findings_of_large(tmp_path: Path, plan: Plan, through: tuple[int, int]) -> dict[str, audit.Finding]:
    """Of a train with eight probes of either size, of which so many arrive."""

    def large(train: dict[str, Any]) -> None:
        for size, passes in zip((1400, 1401), through, strict=True):
            for index in range(8):
                number, left_ns = len(train["sizes"]), train["left_ns"][-1] + 20_000_000
                train["sizes"].append(size)
                train["left_ns"].append(left_ns)
                if index < passes:
                    train["arrived"].append((number, left_ns + 5_000_000, True))

    return of_the_run(plan, probed(tmp_path / "run", plan, large))


@pytest.mark.parametrize(("through", "ok"), [(8, True), (3, True), (0, True)])
def test_lossy_links_may_take_every_large_probe(tmp_path: Path, plan: Plan, through: int, ok: bool) -> None:
    """With 30 % in long bursts none of eight may arrive: that is no miss, and says so."""
    burst = Loss(model="gilbert_elliott", p=0.0043, r=0.01)
    found = findings_of_large(tmp_path, starting_with(plan, black_hole_bytes=1400, loss=burst), (through, 0))
    assert found["packets of 1400 B"].ok is ok
    assert ("says nothing" in found["packets of 1400 B"].more) is (through == 0)


def test_lossless_copies_hide_no_lost_probe(tmp_path: Path, plan: Plan) -> None:
    """Rare loss takes at most a few of eight: none arriving is a miss."""
    rare = Loss(model="random", ratio=0.001)
    found = findings_of_large(tmp_path, starting_with(plan, black_hole_bytes=1400, loss=rare), (0, 0))
    assert not found["packets of 1400 B"].ok


@pytest.mark.parametrize(("overtake", "ok"), [(True, True), (False, False)])
def test_overtakers_of_a_short_delay_are_among_the_delays(
    tmp_path: Path, plan: Plan, overtake: bool, ok: bool
) -> None:
    """Where skipping the delay gains little the delays are judged against the mixture."""

    def change(train: dict[str, Any]) -> None:
        if overtake:
            for number in range(0, 2000, 3):
                train["arrived"][number] = (number, train["left_ns"][number], True)

    plan = starting_with(plan, delay_ns=400_000, jitter_ns=399_000, reorder=1 / 3)
    found = of_the_train(plan, probed(tmp_path / "run", plan, change))
    assert found["jitter"] is ok
    assert found["delay, mean"] is ok
    assert found["order"]
    assert "reordering" not in found


def test_a_token_bucket_may_give_anything_down_to_what_it_sustains(plan: Plan, tables: Tables) -> None:
    """Between the sustained and the full rate a busy link is as asked, below it is not."""
    bucket = TokenBucket(sustained_bps=10**10, budget_bytes=10**12)
    changes = [
        msgspec.structs.replace(change, state=msgspec.structs.replace(change.state, token_bucket=bucket))
        for change in plan.changes
    ]
    plan = msgspec.structs.replace(plan, changes=tuple(changes))
    for busy_bps, what in ((2e10, []), (0.9e10, ["rate while busy"])):
        busy = edited(tables, "links", AT_90_S, busy_from_s=90.0, busy_s=0.05, busy_bps=busy_bps)
        assert missed(plan, busy) == what


def test_a_forced_limit_says_what_to_do(plan: Plan, tables: Tables) -> None:
    """Drops by a limit of the scenario's own tell its author to leave it out."""
    changes = [
        msgspec.structs.replace(change, state=msgspec.structs.replace(change.state, limit_packets=1000))
        for change in plan.changes
    ]
    forced = msgspec.structs.replace(plan, changes=tuple(changes))
    (finding,) = [
        one for one in audit.judge(forced, edited(tables, "links", AT_90_S, limit_drops=4)) if not one.ok
    ]
    assert "4 dropped" in finding.sentence
    assert "limit 1000 is below the packets in flight over 5.75 ms: leave `limit` out" in finding.sentence


def test_a_kernel_that_counts_drops_as_losses_is_said_to(plan: Plan, tables: Tables) -> None:
    """On a stock kernel the finding about losses says what may be among them."""
    here = pl.col("kind") == "train"
    (detail,) = tables["events"].filter(here & (pl.col("name") == "a_to_b"))["detail"]
    stock = msgspec.json.encode({**msgspec.json.decode(detail), "tells_limit_drops": False}).decode()
    findings = audit.judge(plan, edited(tables, "events", here, detail=pl.lit(stock)))
    said = {one.more for one in findings if one.what == "loss in the run"}
    assert said == {"with this kernel drops by the delay stage's limit count as lost"}
