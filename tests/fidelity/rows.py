"""What was measured beside what must come out: the rows of the table, and of the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Any

from testbed.shaping import distributions
from tests.fidelity import arithmetic
from tests.fidelity.boots import FILE_DELAYS_NS

Results = dict[str, Any]
GOODPUT_SHARE = 0.01
DELAY_NS = 10_000
BUFFER_SHARE = 0.01
TRACE_SHARE = 0.02
SMALLEST_P = 0.01
LATE_NS = 2_000
"""How late a datagram's arrival may be read: the hops beside the delay stage and the grain of the clock."""
RESPONSE_FACTOR = 1.5
BBR_SHARE = 0.95
OFFLOAD_SHARE = 0.01
MIN_PIECES, LARGEST_WITHOUT = 5, 1.01
"""Packets per piece on the WAN: at least with offloads, at most without."""
TIMESTAMPED_HEADERS_BYTES = 52


@dataclass(frozen=True)
class Row:
    """One line: what was asked, what was measured, how far off it is and may be."""

    what: str
    asked: str
    measured: str
    error: str
    allowed: str
    ok: bool


def gbps(bps: float) -> str:
    """A rate, to five figures."""
    return f"{bps / 1e9:.5g} Gbps"


def percent(share: float) -> str:
    """A difference with its sign."""
    return f"{share:+.3%}"


def interval(low: float, high: float) -> str:
    """Both ends belong to it."""
    return f"{low:,} to {high:,}" if isinstance(low, int) else f"{low:.3f} to {high:.3f}"


def goodput(found: Results) -> Iterator[Row]:
    """Payload in steady state; a queue that may have run dry, or a drop, spoils the cell."""
    for cell in found["cells"]:
        limit = cell["rate_bps"] * arithmetic.payload_share(cell["mtu_bytes"])
        measured = cell["payload_bytes"] * 8 / cell["span_s"]
        off = measured / limit - 1
        queue_s = cell["least_backlog_bytes"] * 8 / cell["rate_bps"]
        yield Row(
            f"{cell['rate_bps'] // 10**9} Gbps, RTT {cell['rtt_ms']} ms, {cell['flows']} flows",
            gbps(limit),
            gbps(measured),
            percent(off),
            f"± {GOODPUT_SHARE:.0%}",
            abs(off) <= GOODPUT_SHARE and not cell["drops"] and queue_s >= cell["longest_gap_s"],
        )


def one_way(found: Results) -> Iterator[Row]:
    """The datagram that is farthest off."""
    for cell in found["delays"]:
        what = f"{cell['rate_bps'] // 10**9} Gbps, RTT {cell['rtt_ms']} ms"
        yield _delay(what, cell, cell["delay_ns"], DELAY_NS)


def nested(found: Results) -> Iterator[Row]:
    """Ten stages in a row, each with the slack of one."""
    hops = found["hops"]
    asked_ns = hops * found["hop_delay_ns"]
    yield _delay(f"{hops} delays of 10 ms in a row", found, asked_ns, hops * DELAY_NS)


def _delay(what: str, found: Results, asked_ns: int, allowed_ns: int) -> Row:
    """The farthest off of all, of which none may be missing."""
    delays_ns: list[int] = found["delays_ns"]
    worst = max(delays_ns, key=lambda one: abs(one - asked_ns))
    return Row(
        f"{what}, {len(delays_ns)} datagrams",
        f"{asked_ns / 1e6:g} ms",
        f"{min(delays_ns) / 1e6:.4f} to {max(delays_ns) / 1e6:.4f} ms",
        f"{(worst - asked_ns) / 1e3:+.2f} us",
        f"± {allowed_ns / 1e3:g} us",
        abs(worst - asked_ns) <= allowed_ns and len(delays_ns) == found["sent"],
    )


def full_buffer(found: Results) -> Iterator[Row]:
    """What the last datagram that found room waited, beside an idle link's delay."""
    for cell in found["buffers"]:
        asked_ns = cell["buffer_bytes"] * 8e9 / cell["rate_bps"]
        waited_ns = cell["longest_ns"] - cell["idle_ns"]
        off = waited_ns / asked_ns - 1
        yield Row(
            f"{cell['rate_bps'] // 10**9} Gbps, {cell['buffer_bytes'] / 1e6:g} MB",
            f"{asked_ns / 1e6:g} ms",
            f"{waited_ns / 1e6:.4f} ms",
            percent(off),
            f"± {BUFFER_SHARE:.0%}",
            abs(off) <= BUFFER_SHARE and cell["drops"] > 0,
        )


def random_loss(found: Results) -> Iterator[Row]:
    """Counts of the delay stage."""
    for cell in found["loads"]:
        yield _count(f"random, {cell['ratio']:g}", cell["lost"], cell["packets"], cell["ratio"])


def _count(what: str, count: int, trials: int, ratio: float) -> Row:
    low, high = arithmetic.binomial_interval(trials, ratio)
    return Row(
        f"{what}, {trials:,} packets",
        f"{trials * ratio:,.1f}",
        f"{count:,}",
        percent(count / (trials * ratio) - 1),
        interval(low, high),
        low <= count <= high,
    )


def rare_loss(found: Results) -> Iterator[Row]:
    """The nearest of the kernel's steps."""
    asked, read = found["ratio"], found["steps"] / (2**32 - 1)
    step = 1 / (2**32 - 1)
    yield Row(
        f"random, {asked:g}, as the kernel reads it back",
        f"{asked:g}",
        f"{read:.3g}",
        f"{read - asked:+.1g}",
        f"± {step / 2:.2g} (half a step)",
        found["steps"] > 0 and abs(read - asked) <= step / 2,
    )


def bursts(found: Results) -> Iterator[Row]:
    """How many are lost, and the mean length of the runs of losses."""
    for cell in found["models"]:
        names = {key: value for key, value in cell["model"].items() if key != "model"}
        if cell["model"]["model"] == "gilbert_elliott":
            chain, name = arithmetic.gilbert_elliott(**names, bad=1.0), "Gilbert-Elliott"
        else:
            chain, name = arithmetic.four_state(**names), "four-state"
        what = f"{name} ({', '.join(f'{key} {value:g}' for key, value in names.items())})"
        sent, lost = cell["sent"], cell["lost"]
        low, high = chain.interval(sent)
        yield Row(
            f"{what}: losses of {sent:,}",
            f"{sent * chain.ratio:,.1f}",
            f"{len(lost):,}",
            percent(len(lost) / (sent * chain.ratio) - 1),
            interval(low, high),
            low <= len(lost) <= high and len(lost) == cell["counted"],
        )
        runs = [len(list(run)) for _, run in groupby(enumerate(lost), key=lambda pair: pair[1] - pair[0])]
        shortest, longest = chain.burst_interval(len(runs))
        asked = (shortest + longest) / 2
        yield Row(
            f"{what}: mean length of {len(runs):,} bursts",
            f"{asked:.3f}",
            f"{fmean(runs):.3f}",
            percent(fmean(runs) / asked - 1),
            interval(shortest, longest),
            shortest <= fmean(runs) <= longest,
        )


def shares(found: Results) -> Iterator[Row]:
    """Each kind of trouble does what it says and nothing else.

    A changed bit is caught by the Ethernet address, IP's or UDP's checksum, unless it lies in the sender's
    Ethernet address, which nobody looks at.
    """
    seen_as = {"reorder": "early", "duplicate": "twice", "corrupt": "missing"}
    for cell in found["kinds"]:
        kind, ratio = cell["kind"], cell["ratio"]
        visible = ratio * (1 - 6 / cell["frame_bytes"]) if kind == "corrupt" else ratio
        row = _count(f"{kind}, {ratio:g}", cell[seen_as[kind]], cell["sent"], visible)
        others = sum(cell[name] for name in seen_as.values() if name != seen_as[kind])
        yield row if not others else Row(row.what, row.asked, f"{others} others", "", row.allowed, ok=False)


def jitter(found: Results) -> Iterator[Row]:
    """Kolmogorov-Smirnov against the values that the kernel's arithmetic makes of the table."""
    for cell in found["distributions"]:
        name, jitter_ns = cell["distribution"], cell["jitter_ns"]
        table = distributions.from_samples(FILE_DELAYS_NS)[0] if name == "file" else distributions.table(name)
        ordered = distributions.deviations(table, jitter_ns) + cell["delay_ns"]
        distance, p = arithmetic.kolmogorov_smirnov(cell["delays_ns"], ordered, late=LATE_NS)
        mean_ns = fmean(cell["delays_ns"])
        yield Row(
            f"{name}, {cell['delay_ns'] / 1e6:.4g} ms, scale {jitter_ns / 1e6:.4g} ms, "
            f"{len(cell['delays_ns']):,} datagrams",
            f"mean {fmean(ordered) / 1e6:.3f} ms",
            f"mean {mean_ns / 1e6:.3f} ms",
            f"D = {distance:.4f}, p = {p:.2f}",
            f"p > {SMALLEST_P}",
            p > SMALLEST_P,
        )


def trace(found: Results) -> Iterator[Row]:
    """Payload per bin against the rate that the link had one delay earlier."""
    share = arithmetic.payload_share(found["mtu_bytes"]) / 8e9
    changes, errors, rates = found["changes"], [], []
    for (begin_ns, before), (end_ns, after) in pairwise(found["bins"]):
        asked = share * _area(changes, begin_ns - found["delay_ns"], end_ns - found["delay_ns"])
        errors.append((after - before) / asked - 1)
        rates.append((after - before) / share / (end_ns - begin_ns))
    worst = max(errors, key=abs)
    gaps = [end[0] - begin[0] for begin, end in pairwise(changes)]
    dry = found["least_backlog_bytes"] * 8e9 / max(rate for _, rate in changes) < max(gaps[1:])
    yield Row(
        f"{len(errors)} bins of 100 ms, {len(changes) - 1:,} rates, 100 a second",
        f"{gbps(min(rates))} to {gbps(max(rates))}",
        f"mean {percent(fmean(errors))}",
        f"worst {percent(worst)}",
        f"± {TRACE_SHARE:.0%}",
        abs(worst) <= TRACE_SHARE and not found["drops"] and not dry,
    )


def _area(changes: list[tuple[int, int]], begin_ns: int, end_ns: int) -> float:
    """Bits per second times ns between two moments, of a rate that is constant between changes."""
    total = 0.0
    for number, (start_ns, rate_bps) in enumerate(changes):
        stop_ns = changes[number + 1][0] if number + 1 < len(changes) else math.inf
        total += rate_bps * max(0, min(stop_ns, end_ns) - max(start_ns, begin_ns))
    return total


def under_loss(found: Results) -> Iterator[Row]:
    """CUBIC's mean window against its response function; BBR's goodput against the link's."""
    for cell in found["flows"]:
        mtu, rtt_s = cell["mtu_bytes"], cell["rtt_ms"] / 1000
        bps = cell["payload_bytes"] * 8 / cell["span_s"]
        what = f"{cell['cc']}, loss {cell['ratio']:g}, RTT {cell['rtt_ms']} ms, MTU {mtu}"
        if cell["cc"] == "bbr":
            limit = cell["rate_bps"] * arithmetic.payload_share(mtu) * (1 - cell["ratio"])
            asked, measured, factor = gbps(limit), gbps(bps), bps / limit
            allowed, ok = f"at least {BBR_SHARE:.0%}", factor >= BBR_SHARE
        else:
            window = bps / 8 * rtt_s / (mtu - TIMESTAMPED_HEADERS_BYTES)
            expected = arithmetic.cubic_window(cell["ratio"], rtt_s)
            asked, measured, factor = f"{expected:.1f} packets", f"{window:.1f} packets", window / expected
            allowed = f"factor {RESPONSE_FACTOR}"
            ok = 1 / RESPONSE_FACTOR <= factor <= RESPONSE_FACTOR
        yield Row(what, asked, measured, f"x {factor:.2f}", allowed, ok)


def offloads(on: Results, off: Results) -> Iterator[Row]:
    """The same goodput and the same losses whether super-packets travel or packets."""
    yield _toggled("goodput, no loss", (_payload_bps(one["goodput"]["cells"][0]) for one in (on, off)))
    flows = [one["under_loss"]["flows"][0] for one in (on, off)]
    yield _toggled(
        f"goodput, {flows[0]['flows']} BBR flows, loss {flows[0]['ratio']:g}", map(_payload_bps, flows)
    )
    loads = [one["random_loss"]["loads"][0] for one in (on, off)]
    shares_lost = (load["lost"] / load["packets"] for load in loads)
    yield _toggled(f"share lost, asked {loads[0]['ratio']:g}", shares_lost, show="{:.5%}".format)
    with_pieces, with_packets = (load["packets"] / load["pieces"] for load in loads)
    ok = with_pieces >= MIN_PIECES and with_packets <= LARGEST_WITHOUT
    yield Row("packets per piece", f"{with_packets:.2f} (off)", f"{with_pieces:.2f} (on)", "", "", ok)


def _toggled(what: str, values: Iterable[float], show: Callable[[float], str] = gbps) -> Row:
    on, off = values
    change = on / off - 1
    allowed = f"± {OFFLOAD_SHARE:.0%}"
    ok = abs(change) <= OFFLOAD_SHARE
    return Row(what, f"{show(off)} (off)", f"{show(on)} (on)", percent(change), allowed, ok)


def _payload_bps(cell: Results) -> float:
    return float(cell["payload_bytes"] * 8 / cell["span_s"])


CHECKS: dict[str, Callable[[Results], Iterator[Row]]] = {
    "goodput": goodput,
    "one_way": one_way,
    "nested": nested,
    "full_buffer": full_buffer,
    "random_loss": random_loss,
    "rare_loss": rare_loss,
    "bursts": bursts,
    "shares": shares,
    "jitter": jitter,
    "trace": trace,
    "under_loss": under_loss,
}


def rows(found: dict[str, Results], check: str) -> list[Row]:
    """The rows of one check over all boots (by name), or of `offloads`."""
    if check == "offloads":
        return list(offloads(found["offload on"], found["offload off"]))
    boots = [results for name, results in found.items() if not name.startswith("offload")]
    return [row for results in boots if check in results for row in CHECKS[check](results[check])]
